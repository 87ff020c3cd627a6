"""Measuring search on a test collection: load it into a scratch database, run it, judge it.

Every ranking comes from the RPC through the provider; nothing here ranks or fuses.
"""
