"""The database's life outside SQL: an embedded server, its prelude, and the migrations."""
