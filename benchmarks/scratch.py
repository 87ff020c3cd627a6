"""A scratch database for a measurement: embedded, migrated, gone afterwards."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

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
def database(
    dimensions: int, major: int = 18, extension: str | None = None
) -> Iterator["psycopg.Connection[Any]"]:
    """Yield an autocommit connection of the owner to a new database with the migrations.

    `extension` names a peer's extension to create in it too.
    """
    with tempfile.TemporaryDirectory(prefix="second-brain-benchmark-") as place:
        # As root the server runs as another account, which has to pass through.
        Path(place).chmod(0o711)
        settings = {**SETTINGS, "shared_preload_libraries": extension} if extension else SETTINGS
        server = EmbeddedPostgres(Path(place) / "postgres", major, settings)
        with server:
            migrations.apply(server.dsn(), dimensions=dimensions)
            if extension:
                with psycopg.connect(server.admin_dsn(), autocommit=True) as admin:
                    admin.execute(sql.SQL("create extension {}").format(sql.Identifier(extension)))
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                yield connection
        server.remove()
