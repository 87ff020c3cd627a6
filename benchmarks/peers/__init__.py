"""Systems that a user would pick instead of this project, each behind the same few methods.

One file a system, short enough to be checked by its users; `system.py` says what each is given.
All of them get the same passages, the same embeddings, a pool of 50 candidates a leg where the
system has such a setting, and the same effort in the HNSW index where it can be set.
"""
