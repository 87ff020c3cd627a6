"""The commands list, show and delete: what is stored, with sizes and states."""

import json
import shlex
from collections.abc import Iterator
from typing import Annotated
from uuid import UUID

import typer
from rich.table import Table
from rich.text import Text

from second_brain.cli.corpus import schema_option
from second_brain.cli.options import CollectionOption, DsnOption, JsonOption, SchemaOption
from second_brain.cli.output import notes_to_stderr, print_json
from second_brain.cli.tables import new_console, number, printable, size_of, visible
from second_brain.cli.target import opened
from second_brain.database.stored_documents import (
    DocumentDetail,
    DocumentState,
    DocumentSummary,
    StoredChunk,
    StoredDocument,
    describe_document,
    list_documents,
)
from second_brain.errors import InvalidInputError
from second_brain.services.install import SCHEMA, Database
from second_brain.services.write import KnowledgeWriter

_LIST_EXAMPLES = """\b
Examples:
  second-brain corpus list
  second-brain corpus list --state pending --collection support
  second-brain corpus list --named invoice --limit 200 --json
"""

_SHOW_EXAMPLES = """\b
Examples:
  second-brain corpus show handbook:docs/keys.md
  second-brain corpus show handbook:docs/keys.md --limit 5 --offset 5
  second-brain corpus show 0b7c4a0e-6f0c-4d0e-9a51-3a8a4c1d2e3f --json
"""

_DELETE_EXAMPLES = """\b
Examples:
  second-brain corpus delete handbook:docs/old.md
  second-brain corpus delete python-stdlib:this python-stdlib:antigravity
"""

app = typer.Typer(rich_markup_mode=None)


@app.command("list", epilog=_LIST_EXAMPLES)
def _documents(
    collection: CollectionOption = None,
    knowledge_type: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this knowledge_type.")
    ] = None,
    state: Annotated[
        DocumentState | None,
        typer.Option(help="ready; pending: a chunk needs an embedding; empty: no active chunk."),
    ] = None,
    named: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only with this text in the key or the title."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Documents of a page.")] = 50,
    after: Annotated[
        str | None, typer.Option(metavar="KEY", help="The last key of the page before.")
    ] = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """List the stored documents, whoever owns them, in the order of their keys.

    With the number of their chunks, those that wait for an embedding, and the size of the text.
    `second-brain corpus show KEY` shows one.
    """

    def page(after: str | None, size: int) -> list[DocumentSummary]:
        return list_documents(
            database,
            collection=collection,
            knowledge_type=knowledge_type,
            state=state,
            named=named,
            after_key=after,
            page_size=size,
        )

    with opened(dsn, schema) as database:
        found = page(after, limit)
        last = found[-1].external_key if len(found) == limit else None
        has_more = last is not None and bool(page(last, 1))
    if as_json:
        print_json({"documents": found, "next": last if has_more else None})
    elif found:
        new_console().print(_table(found))
        if last is not None and has_more:
            typer.echo(f"Next page: the same command with --after {_quoted(last)}", err=True)
    else:
        typer.echo("No such documents.", err=True)


@app.command("show", epilog=_SHOW_EXAMPLES)
def _show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="KEY|ID", help="Key of a document, or the id of a document or chunk."
        ),
    ],
    limit: Annotated[int, typer.Option(min=1, max=500, help="Chunks to show.")] = 20,
    offset: Annotated[int, typer.Option(min=0, max=1_000_000, help="Chunks to skip.")] = 0,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Show a document with its chunks, or one chunk: texts, states, and why one is not ready.

    Control characters of stored texts are shown as codes.
    """
    with opened(dsn, schema) as database:
        found = _described(database, name, limit, offset)
    if found is None:
        raise InvalidInputError(
            f"nothing is stored under {visible(name)!r}",
            remedy="List the keys: second-brain corpus list --named TEXT",
        )
    if as_json:
        print_json(found)
        return
    if found.document is not None:
        _print_document(found.document)
    for chunk in found.chunks:
        _print_chunk(chunk)
    stored = found.document.chunks + found.document.inactive if found.document else 1
    shown = offset + len(found.chunks)
    if len(found.chunks) == limit and shown < stored:
        typer.echo(
            f"Chunks {offset + 1} to {shown} of {stored}. Next: second-brain corpus show "
            f"{_quoted(name)} --limit {limit} --offset {shown}{schema_option(schema)}",
            err=True,
        )


@app.command("delete", epilog=_DELETE_EXAMPLES)
def _delete(
    external_keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="Keys of documents, as ingested.")
    ],
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Delete documents with all their chunks, for good. Exit code 1 when one is not there."""
    deleted: dict[str, int] = {}
    missing = []
    with opened(dsn, schema) as database, notes_to_stderr(as_json):
        writer = KnowledgeWriter(database.connection, schema=schema)
        for key in external_keys:
            if _is_stored(database, key):
                deleted[key] = writer.delete_document(key)
                typer.echo(f"{key}: deleted, {number(deleted[key], 'chunk')}")
            else:
                missing.append(key)
                typer.echo(f"{key}: no such document; `search --json` has keys", err=True)
    if as_json:
        print_json({"deleted": deleted, "missing": missing})
    if missing:
        raise typer.Exit(1)


def _described(database: Database, name: str, limit: int, offset: int) -> StoredDocument | None:
    """Return what a name is of: a key, else the id of a chunk, else that of a document."""
    found = describe_document(database, document_key=name, chunk_count=limit, chunk_offset=offset)
    if found is not None:
        return found
    try:
        identifier = UUID(name)
    except ValueError:
        return None
    found = describe_document(database, chunk_id=identifier) or describe_document(
        database, document_id=identifier, chunk_count=limit, chunk_offset=offset
    )
    return found if found is not None and (found.document or found.chunks) else None


def _table(documents: list[DocumentSummary]) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, header_style="bold")
    table.add_column("key", ratio=3, overflow="fold")
    table.add_column("title", ratio=2, no_wrap=True, overflow="ellipsis")
    table.add_column("collection", max_width=16, no_wrap=True, overflow="ellipsis")
    table.add_column("type", max_width=12, no_wrap=True, overflow="ellipsis")
    table.add_column("state", no_wrap=True)
    for name in ("chunks", "waiting", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in documents:
        table.add_row(
            Text(visible(one.external_key)),
            Text(printable(one.title or "")),
            Text(printable(one.collection)),
            Text(printable(one.knowledge_type)),
            Text(one.state, "" if one.state == "ready" else "yellow"),
            f"{one.chunks:,}",
            f"{one.pending:,}" if one.pending else "",
            size_of(one.bytes),
        )
    return table


def _print_document(document: DocumentDetail) -> None:
    console = new_console()
    console.print(Text(visible(document.title or document.external_key), style="bold"))
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(document):
        facts.add_row(Text(name, style="dim"), Text(visible(value)))
    console.print(facts)


def _facts(document: DocumentDetail) -> Iterator[tuple[str, str]]:
    """Yield what is known of a document, without what is not set."""
    yield "key", document.external_key
    yield "id", str(document.id)
    counts = [number(document.chunks, "chunk"), size_of(document.bytes)]
    for count, what in (
        (document.pending, "without the embedding that it should have"),
        (document.inactive, "superseded, archived or deleted"),
    ):
        if count:
            counts.append(f"{count} {what}")
    yield "state", f"{document.state}: {', '.join(counts)}"
    for name in ("collection", "knowledge_type", "language", "source_origin", "source_url"):
        value = getattr(document, name)
        if value:
            yield name, value
    for name in ("author", "document_date", "visibility", "owner_id", "sensitivity"):
        value = getattr(document, name)
        if value is not None:
            yield name, str(value)
    if document.allowed_groups:
        yield "allowed_groups", ", ".join(document.allowed_groups)
    for name in ("metadata", "source_row"):
        value = getattr(document, name)
        if value:
            yield name, json.dumps(value, ensure_ascii=False)
    yield "created", f"{document.created_at:%Y-%m-%d %H:%M}"
    yield "updated", f"{document.updated_at:%Y-%m-%d %H:%M}"


def _print_chunk(chunk: StoredChunk) -> None:
    console = new_console()
    place = "whole document" if chunk.chunk_index is None else f"chunk {chunk.chunk_index}"
    size = f"{size_of(chunk.bytes)}, {number(chunk.words, 'word')}"
    line = f"{place} · {chunk.state} · {size} · {chunk.embedding_model or 'no model'} · {chunk.id}"
    console.print()
    console.print(Text(visible(line), style="bold"))
    if chunk.reason:
        console.print(Text(visible(chunk.reason), style="yellow"))
    # Not by rich, which would wrap the lines.
    for text in visible(chunk.content).splitlines():
        typer.echo(f"  {text}")


def _quoted(key: str) -> str:
    """Return a key for a command line; one with control characters is not for copying."""
    return shlex.quote(key) if key.isprintable() else repr(key)


def _is_stored(database: Database, external_key: str) -> bool:
    query = "select from public.knowledge_documents where external_key = %s"
    return database.execute(query, [external_key]).fetchone() is not None
