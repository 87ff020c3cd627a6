"""Clients of the SQL functions: over PostgREST (`supabase`) and over psycopg (`postgres`)."""
