"""A scratch database with a test collection: on a new embedded server, or on a given one.

The database is dropped at the end.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any
from uuid import UUID

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from second_brain.database import migrations, obstacles
from second_brain.database.embedded import EmbeddedPostgres
from second_brain.errors import ConfigurationError, PermissionDeniedError
from second_brain.evaluation.collection import Collection, Vectors
from second_brain.services.connections import connect

Connection = psycopg.Connection[Any]

_PREFIX = "second_brain_evaluation_"
_EMBEDDED_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "512MB",
    "maintenance_work_mem": "1GB",
    "max_wal_size": "8GB",
}
_EMBEDDED_INSTEAD = "or omit --dsn to use an embedded server."

# Objects that every Supabase database has and a new database lacks.
_SETUP = (
    "create schema extensions",
    "grant usage on schema extensions to anon, authenticated, service_role",
    "create extension vector with schema extensions",
    "create schema auth",
    "create function auth.uid() returns uuid language sql stable return null::uuid",
)

# Filling these indexes row by row is slow. The migrations define them, so `load` drops them and
# creates them again from pg_get_indexdef.
_INDEXES = """
select format('drop index %s', index.indexrelid::regclass), pg_get_indexdef(index.indexrelid)
  from pg_catalog.pg_index as index
  join pg_catalog.pg_class as class on class.oid = index.indexrelid
  join pg_catalog.pg_am as method on method.oid = class.relam
 where index.indrelid = 'public.knowledge_chunks'::regclass
   and method.amname in ('gin', 'hnsw')
 order by index.indexrelid
"""
_COPY_DOCUMENTS = """
copy public.knowledge_documents (id, external_key, title, language) from stdin
"""
_COPY_CHUNKS = """
copy public.knowledge_chunks
  (id, document_id, chunk_index, heading, content, embedding, embedding_model)
from stdin
"""
_FINISH = (
    "vacuum (analyze) public.knowledge_documents",
    "vacuum (analyze) public.knowledge_chunks",
    "select public.refresh_knowledge_statistics()",
)


@contextmanager
def scratch_database(
    dimensions: int, dsn: str | None = None, major: int | None = None
) -> Iterator[Connection]:
    """Yield an autocommit connection to a new database with all modules; drop it at the end.

    Without a DSN, a new embedded server holds the database. With a DSN, the database is created on
    that server; its other databases are not read or changed. Raises PermissionDeniedError if the
    role may not create the database, and ConfigurationError if the server lacks the API roles.
    """
    making = _embedded_database(major) if dsn is None else _database_on_server(dsn)
    with making as made:
        migrations.apply(
            made, dimensions=dimensions, modules=migrations.modules(), fusion=migrations.FUSION
        )
        with connect(made, autocommit=True) as connection:
            yield connection


def load(
    connection: Connection,
    collection: Collection,
    vectors: Vectors,
    language: str,
    notify: Callable[[str], None],
) -> None:
    """Load a collection with one chunk per document, headed by its title; then build the indexes.

    `notify` is called with the name of each step.
    """
    # Ids in document order, so that ties are broken in the same way in every run.
    ids = [UUID(int=place + 1) for place in range(len(collection.documents))]
    notify(f"Loading {len(ids):,} documents")
    with connection.transaction(), connection.cursor() as cursor:
        indexes = cursor.execute(_INDEXES).fetchall()
        for drop, _ in indexes:
            cursor.execute(drop.encode())
        with cursor.copy(_COPY_DOCUMENTS) as copy:
            for id_, document in zip(ids, collection.documents, strict=True):
                copy.write_row((id_, document.id, document.title or None, language))
        with cursor.copy(_COPY_CHUNKS) as copy:
            for place, document in enumerate(collection.documents):
                vector = vectors.documents[place]
                # pgvector's text format. A zero vector has no direction and is not stored.
                embedding = str(vector.tolist()) if vector.any() else None
                heading = document.title or None
                copy.write_row(
                    (ids[place], ids[place], 0, heading, document.text, embedding, vectors.model)
                )
    notify("Building the indexes")
    for _, definition in indexes:
        connection.execute(definition.encode())
    notify("Analysing")
    for statement in _FINISH:
        connection.execute(statement)


@contextmanager
def _embedded_database(major: int | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="second-brain-evaluation-") as place:
        # If this process is root, the server runs as another account, which must enter the folder.
        Path(place).chmod(0o711)
        server = EmbeddedPostgres(Path(place) / "postgres", major, _EMBEDDED_SETTINGS)
        try:
            server.start()
            yield server.dsn()
        finally:
            server.remove()


@contextmanager
def _database_on_server(dsn: str) -> Iterator[str]:
    name = f"{_PREFIX}{token_hex(6)}"
    with connect(dsn, autocommit=True) as connection:
        if missing := obstacles.missing_roles(connection):
            raise ConfigurationError(
                f"the server lacks the roles {', '.join(missing)}",
                remedy="Create them as a superuser with `second-brain migrate --prelude` in an "
                f"empty database, {_EMBEDDED_INSTEAD}",
            )
        try:
            connection.execute(
                sql.SQL("create database {} template template0").format(sql.Identifier(name))
            )
        except errors.InsufficientPrivilege as exc:
            raise PermissionDeniedError(
                "the role may not create a scratch database on this server",
                code=exc.sqlstate,
                remedy="Use a role with createdb (alter role ... createdb), " + _EMBEDDED_INSTEAD,
            ) from exc
    made = make_conninfo(dsn, dbname=name)
    try:
        with connect(made, autocommit=True) as connection:
            try:
                for statement in _SETUP:
                    connection.execute(statement)
            except errors.InsufficientPrivilege as exc:
                raise PermissionDeniedError(
                    "the role may not create pgvector in a scratch database on this server",
                    code=exc.sqlstate,
                    remedy="Connect as a superuser, " + _EMBEDDED_INSTEAD,
                ) from exc
        yield made
    finally:
        _drop(dsn, name)


def _drop(dsn: str, name: str) -> None:
    drop = sql.SQL("drop database {}").format(sql.Identifier(name))
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            # First without force, because force fails when an autovacuum worker is connected.
            # Then with force, because a pooler may keep a session open.
            with suppress(errors.ObjectInUse):
                connection.execute(drop)
                return
            connection.execute(drop + sql.SQL(" with (force)"))
    except psycopg.Error as exc:
        raise ConfigurationError(
            f"the scratch database {name} could not be dropped",
            remedy=f"Drop it: drop database {name} with (force)",
        ) from exc
