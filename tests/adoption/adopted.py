"""A table in the layout of Supabase's guide, adopted, and what the corpus has of it."""

from collections.abc import Sequence
from typing import Any

from psycopg.rows import dict_row

from conftest import Connection
from second_brain.adoption import carrying, migration, proposal
from second_brain.database import doctor
from second_brain.services.install import Database

GUIDE = """
create table public.documents (
  id bigint primary key generated always as identity,
  title text,
  content text,
  metadata jsonb,
  embedding extensions.vector(3)
)
"""
WORDS = ("harbour", "lighthouse", "ferry", "anchor", "tide", "rope", "sail", "wind", "chart")
LARGE = (
    "create or replace function knowledge_internal.small_corpus_limit() returns integer"
    " language sql immutable as 'select 0'"
)
VECTOR_INDEX = (
    "create index on public.documents using hnsw (embedding extensions.vector_cosine_ops)"
)
Row = dict[str, Any]


def adopt(
    connection: Connection,
    table: str = "public.documents",
    *,
    options: dict[str, str | None] | None = None,
    uses_embeddings: bool = True,
    leave_out: Sequence[str] = (),
    parent: str | None = None,
    **choices: Any,
) -> str:
    """Adopt a table as the command does; return the name of the adoption."""
    database = Database(connection)
    proposed = proposal.propose(
        database,
        table,
        {"document": None if parent else "none", "position": None if parent else "none"}
        | ({"position": None} if (options or {}).get("document") else {})
        | (options or {}),
        uses_embeddings=uses_embeddings,
        leave_out=leave_out,
        parent_name=parent,
    )
    choices.setdefault("name", migration.default_name(proposed.table.name))
    choices.setdefault("model", "m")
    text = migration.render(proposed, database.install, **choices)
    connection.execute(text.encode())
    return str(choices["name"])


def backfill(connection: Connection, name: str = "documents", **options: Any) -> int:
    return carrying.backfill(Database(connection), name, **options)


def compare(connection: Connection, name: str = "documents", **options: Any) -> carrying.Comparison:
    return carrying.compare(Database(connection), name, **options)


def reasons(connection: Connection, name: str = "documents") -> dict[str, str]:
    found = carrying.problems(Database(connection), name)
    return {str(one.key): one.reason for one in found}


def findings(connection: Connection) -> list[tuple[str, str]]:
    """Return what doctor reports of adoptions and tables, by its status."""
    return [
        (one.status, one.message)
        for one in doctor.examine(connection)
        if one.check in ("adoptions", "tables") and one.status != "ok"
    ]


def let_search(connection: Connection, role: str) -> None:
    connection.execute("select knowledge_internal.let_search(%s)", [role])


def faults(connection: Connection) -> list[str]:
    return [message for status, message in findings(connection) if status == "error"]


def documents(connection: Connection) -> dict[str, Row]:
    """Return the documents of adopted rows by external_key, each with its active chunks."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(
            "select document.*, array("
            "  select jsonb_build_object('content', chunk.content, 'heading', chunk.heading,"
            "    'embedding', chunk.embedding::text, 'model', chunk.embedding_model)"
            "    from knowledge_internal.chunk_rows as chunk"
            "   where chunk.document_id = document.id and chunk.status = 'active'"
            "   order by chunk.chunk_index"
            ") as chunks from public.knowledge_documents as document"
            " where document.source_row is not null"
        ).fetchall()
    return {row["external_key"]: row for row in rows}


def contents(connection: Connection) -> dict[str, list[str]]:
    return {
        key: [chunk["content"] for chunk in row["chunks"]]
        for key, row in documents(connection).items()
    }
