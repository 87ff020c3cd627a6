"""Chunks that wait for an embedding: the queue, its worker, and the change of the model."""
