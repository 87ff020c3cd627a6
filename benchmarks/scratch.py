"""A server of its own for a measurement, temporary or kept in a folder, and loads into it."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
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


SLOW_TO_FILL = """
select indexrelid::regclass::text, pg_get_indexdef(indexrelid)
  from pg_index
 where indexrelid in (
         to_regclass('public.knowledge_chunks_embedding'),
         to_regclass('public.knowledge_chunks_content_tsv'),
         to_regclass('public.knowledge_native_texts_bm25')
       )
"""


@contextmanager
def folder(keep: Path | None) -> Iterator[Path]:
    """Yield the folder, made if it is not there, or a temporary one."""
    with ExitStack() as stack:
        if keep is None:
            temporary = tempfile.TemporaryDirectory(prefix="second-brain-benchmark-")
            keep = Path(stack.enter_context(temporary))
        keep.mkdir(parents=True, exist_ok=True)
        # For root, the servers run as another account, which must enter the folder.
        keep.chmod(0o711)
        yield keep


@contextmanager
def running(
    directory: Path, major: int, settings: dict[str, str], keep: bool
) -> Iterator[EmbeddedPostgres]:
    """Run a server, and remove it afterwards unless it is kept.

    Raises SystemExit when it already runs.
    """
    server = EmbeddedPostgres(directory, major, settings)
    if server.status == "running":
        raise SystemExit(f"the server in {server.directory} runs: somebody else uses it")
    with server:
        yield server
    if not keep:
        server.remove()


@contextmanager
def filled_at_once(
    connection: "psycopg.Connection[Any]",
    step: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Iterator[None]:
    """Build the indexes of the legs after the block, each a step: filling them by row is slow."""
    definitions = connection.execute(SLOW_TO_FILL).fetchall()
    for name, _ in definitions:
        connection.execute(sql.SQL("drop index {}").format(sql.SQL(name)))
    yield
    for name, definition in definitions:
        with step("vector index" if name.endswith("_embedding") else "text index"):
            connection.execute(definition)


@contextmanager
def database(
    dimensions: int,
    major: int = 18,
    extension: str | None = None,
    keep: Path | None = None,
    modules: Sequence[str] | None = None,
) -> Iterator["psycopg.Connection[Any]"]:
    """Yield an autocommit connection of the owner to a database with the migrations.

    `extension` names a peer's extension to create in it too; without `modules` it has all. The
    database is a new one that is gone afterwards, or the one in the folder `keep`, which is stopped
    afterwards.
    """
    settings = {**SETTINGS, "shared_preload_libraries": extension} if extension else SETTINGS
    with (
        folder(keep) as place,
        running(keep or place / "postgres", major, settings, keep is not None) as server,
    ):
        if extension:
            # Before the migrations: a module may need it.
            with psycopg.connect(server.admin_dsn(), autocommit=True) as admin:
                create = sql.SQL("create extension if not exists {}")
                admin.execute(create.format(sql.Identifier(extension)))
        migrations.apply(
            server.dsn(), dimensions=dimensions, modules=modules or migrations.modules()
        )
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            yield connection
