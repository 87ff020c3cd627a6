"""Providers that search on hot standbys of one primary."""
