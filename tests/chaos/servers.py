"""Servers of their own for tests that break them."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from conftest import Connection
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres, EmbeddedServerError

RECOVERY = 60  # seconds


@contextmanager
def temporary_folder() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="second-brain-chaos-"))
    # As root the server runs as another account, which has to pass through.
    place.chmod(0o711)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def temporary_server(
    config: pytest.Config, place: Path | None = None, **settings: str
) -> Iterator[EmbeddedPostgres]:
    """Run a server with the migrations, in a folder of its own or in `place`."""
    with temporary_folder() as folder:
        server = EmbeddedPostgres(
            (place or folder) / "postgres",
            config.getoption("--postgres-major"),
            {"autovacuum_naptime": "1s", **settings},
        )
        try:
            server.start()
            migrations.apply(server.dsn(), dimensions=3, modules=migrations.modules())
            yield server
        finally:
            server.remove()


def recovered(server: EmbeddedPostgres) -> Connection:
    """Start the server where it has stopped, and connect once it answers."""
    give_up = time.monotonic() + RECOVERY
    while True:
        try:
            server.start()
            return psycopg.connect(server.dsn(), autocommit=True)
        # Sessions of a killed postmaster may still be ending.
        except (psycopg.OperationalError, EmbeddedServerError):
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)
