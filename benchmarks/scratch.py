"""An embedded database with the migrations for a measurement, temporary or kept in a folder."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres

SETTINGS = {
    "shared_buffers": "4GB",
    "maintenance_work_mem": "4GB",
    "max_wal_size": "16GB",
    "max_parallel_maintenance_workers": "2",
    "fsync": "off",
}


@contextmanager
def database(
    dimensions: int, major: int = 18, extension: str | None = None, keep: Path | None = None
) -> Iterator["psycopg.Connection[Any]"]:
    """Yield an autocommit connection of the owner to a database with the migrations.

    `extension` names a peer's extension to create in it too. The database is a new one that is
    gone afterwards, or the one in the folder `keep`, which is stopped afterwards.
    """
    with ExitStack() as stack:
        if keep is None:
            temporary = tempfile.TemporaryDirectory(prefix="second-brain-benchmark-")
            place = Path(stack.enter_context(temporary))
            # For root, the server runs as another account, which must enter the folder.
            place.chmod(0o711)
        settings = {**SETTINGS, "shared_preload_libraries": extension} if extension else SETTINGS
        server = EmbeddedPostgres(keep or place / "postgres", major, settings)
        if server.status == "running":
            raise RuntimeError(f"the server in {server.directory} runs: somebody else uses it")
        with server:
            migrations.apply(server.dsn(), dimensions=dimensions, modules=migrations.modules())
            if extension:
                with psycopg.connect(server.admin_dsn(), autocommit=True) as admin:
                    create = sql.SQL("create extension if not exists {}")
                    admin.execute(create.format(sql.Identifier(extension)))
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                yield connection
        if keep is None:
            server.remove()
