"""Alternatives to this project, each behind the same few methods.

There is one short file for each system, so that its users can check it; `system.py` has the base.
All of them get the same passages, the same embeddings, a pool of 50 candidates a leg where the
system has such a setting, and the same effort in the HNSW index where it can be set.
"""
