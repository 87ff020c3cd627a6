"""A scratch database for a measurement: embedded, migrated, gone afterwards."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres

SETTINGS = {
    "shared_buffers": "4GB",
    "maintenance_work_mem": "2GB",
    "max_wal_size": "16GB",
    "max_parallel_maintenance_workers": "2",
    "fsync": "off",
}


@contextmanager
def database(dimensions: int, major: int = 18) -> Iterator["psycopg.Connection[Any]"]:
    """Yield an autocommit connection of the owner to a new database with the migrations."""
    with tempfile.TemporaryDirectory(prefix="second-brain-benchmark-") as place:
        # As root the server runs as another account, which has to pass through.
        Path(place).chmod(0o711)
        server = EmbeddedPostgres(Path(place) / "postgres", major, SETTINGS)
        with server:
            migrations.apply(server.dsn(), dimensions=dimensions)
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                yield connection
        server.remove()
