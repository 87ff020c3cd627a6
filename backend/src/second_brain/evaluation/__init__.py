"""Evaluation of search on a test collection: load it into a scratch database, search, measure.

Every ranking comes from the RPC through the provider; this package does not rank or fuse.
"""
