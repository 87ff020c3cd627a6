"""One corpus or many tenants in several databases: shards, tenants, moves, and sizes."""
