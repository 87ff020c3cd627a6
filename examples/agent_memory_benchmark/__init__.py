"""Hybrid search as a memory of the Agent Memory Benchmark."""
