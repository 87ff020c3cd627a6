"""Hybrid search for Supabase: the Python client of the SQL functions in `migrations/`."""
