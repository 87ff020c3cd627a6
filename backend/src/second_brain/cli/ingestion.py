"""Commands that store documents: ingest, delete. The work is done in `ingest/`."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, LiteralString

import psycopg
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from second_brain.cli.corpus import EmbedderOption, refuse_other_embedder
from second_brain.cli.database import DsnOption, resolve_dsn
from second_brain.cli.tables import number, printable
from second_brain.ingest import (
    DEFAULT_LANGUAGE,
    KEY_PREFIX,
    DocumentReport,
    Labels,
    Source,
    find_files,
    finish,
    folder_prefixes,
    ingest,
    stale_keys,
    standard_library,
)
from second_brain.models import Embedder, load_embedder
from second_brain.services.connections import connect
from second_brain.services.write import KnowledgeWriter

_INGEST_EXAMPLES = """\b
Examples:
  second-brain ingest docs/ README.md
  second-brain ingest ~/vault --knowledge-type note --source-origin obsidian --prune
  second-brain ingest notizen/ --language german
  second-brain ingest --python-stdlib
"""

_DELETE_EXAMPLES = """\b
Examples:
  second-brain delete docs/old.md
  second-brain delete python-stdlib:this python-stdlib:antigravity
"""

_KNOWLEDGE_TYPES = 'select name from public.knowledge_types order by name collate "C"'
_SOURCE_ORIGINS = 'select name from public.knowledge_source_origins order by name collate "C"'


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("ingest", epilog=_INGEST_EXAMPLES)(_ingest)
    app.command("delete", epilog=_DELETE_EXAMPLES)(_delete)


def _ingest(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH...",
            exists=True,
            help="Files and folders: Markdown, text, reStructuredText, HTML, PDF.",
            show_default=False,
        ),
    ] = None,
    python_stdlib: Annotated[
        bool,
        typer.Option(
            "--python-stdlib",
            help="The documentation strings of this Python's standard library.",
        ),
    ] = False,
    collection: Annotated[str, typer.Option(help="Collection to store in.")] = "knowledge",
    knowledge_type: Annotated[
        str, typer.Option(help="note, document, decision, playbook, transcript, ...")
    ] = "document",
    source_origin: Annotated[
        str, typer.Option(help="manual, obsidian, notion, email, web, ...")
    ] = "manual",
    language: Annotated[
        str,
        typer.Option(
            metavar="NAME|auto",
            help="Language whose word forms are recognised: english, german, de, ...; auto: "
            "detected for each document.",
        ),
    ] = DEFAULT_LANGUAGE,
    base: Annotated[
        Path,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder that documents' keys are relative to.",
        ),
    ] = Path(),
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Delete stored documents whose file is gone from the PATHs."),
    ] = False,
    embedder_name: EmbedderOption = "wordllama",
    switch_model: Annotated[
        bool,
        typer.Option(
            "--switch-model",
            help="Go on although what is stored was embedded with another model.",
        ),
    ] = False,
    dsn: DsnOption = None,
) -> None:
    """Read documents, cut them into chunks, embed what is new and store it.

    A document's key is its path relative to --base. Run again after a change or an interruption:
    only what is new is embedded, and what is unchanged stays as it is. A file that cannot be read
    is reported and skipped, and the exit code is then 1. Hidden files, node_modules and files of
    other kinds are left out of folders.
    """
    if not paths and not python_stdlib:
        raise typer.BadParameter("give at least one PATH, or --python-stdlib")
    sources = find_files(paths or [], base) + (standard_library() if python_stdlib else [])
    labels = Labels(collection, knowledge_type, source_origin, language)
    # Without autocommit the whole run would be one transaction.
    with connect(resolve_dsn(dsn), autocommit=True) as connection:
        embedder = load_embedder(embedder_name)
        refuse_other_embedder(connection, embedder, switch_model=switch_model)
        _require(connection, knowledge_type, _KNOWLEDGE_TYPES, "--knowledge-type")
        _require(connection, source_origin, _SOURCE_ORIGINS, "--source-origin")
        reports = ingest_with_progress(connection, sources, embedder, labels)
        if prune:
            prefixes = folder_prefixes(paths or [], base) + [KEY_PREFIX] * python_stdlib
            _prune(connection, prefixes, reports)
    if any(report.outcome == "failed" for report in reports):
        raise typer.Exit(1)


def _delete(
    external_keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="Keys of documents, as ingested.")
    ],
    dsn: DsnOption = None,
) -> None:
    """Delete documents with all their chunks, for good. Exit code 1 when one is not there."""
    missing = False
    with connect(resolve_dsn(dsn), autocommit=True) as connection:
        writer = KnowledgeWriter(connection)
        for key in external_keys:
            if _is_stored(connection, key):
                deleted = writer.delete_document(key)
                typer.echo(f"{key}: deleted, {number(deleted, 'chunk')}")
            else:
                missing = True
                typer.echo(f"{key}: no such document", err=True)
    if missing:
        raise typer.Exit(1)


def _require(
    connection: psycopg.Connection[Any], value: str, query: LiteralString, option: str
) -> None:
    allowed = [name for (name,) in connection.execute(query)]
    if value not in allowed:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}: {option}")


def ingest_with_progress(
    connection: psycopg.Connection[Any],
    sources: Sequence[Source],
    embedder: Embedder,
    labels: Labels,
) -> list[DocumentReport]:
    """Ingest the sources behind a progress bar, and return the reports."""
    writer = KnowledgeWriter(connection)
    reports = []
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("Ingesting", total=len(sources))
        try:
            for report in ingest(sources, writer, embedder, labels):
                reports.append(report)
                progress.advance(task)
                if report.error:
                    message = f"failed: {report.external_key}: {report.error}"
                    progress.console.print(
                        printable(message), markup=False, highlight=False, soft_wrap=True
                    )
        finally:
            # What is stored is stored, also when the run is interrupted.
            if not connection.broken:
                finish(connection, writer, sum(report.changed for report in reports))
    _print_summary(reports)
    return reports


def _print_summary(reports: Sequence[DocumentReport]) -> None:
    outcomes = Counter(report.outcome for report in reports)
    named = [f"{count} {outcome}" for outcome, count in sorted(outcomes.items())]
    counts = [report.counts for report in reports if report.counts]
    chunks = {
        "added": sum(count.chunks_added for count in counts),
        "changed": sum(count.chunks_changed for count in counts),
        "removed": sum(report.removed for report in reports)
        + sum(count.chunks_removed for count in counts),
        "unchanged": sum(count.chunks_unchanged for count in counts),
        "embedded": sum(report.embedded for report in reports),
        "without an embedding": sum(report.text_only for report in reports),
    }
    typer.echo(f"{number(len(reports), 'document')}: {', '.join(named) or 'nothing to do'}")
    typer.echo(f"chunks: {', '.join(f'{count} {what}' for what, count in chunks.items() if count)}")


def _prune(
    connection: psycopg.Connection[Any],
    prefixes: Sequence[str],
    reports: Sequence[DocumentReport],
) -> None:
    writer = KnowledgeWriter(connection)
    # A folder that could not be listed still has its documents.
    failed = tuple(f"{report.external_key}/" for report in reports if report.outcome == "failed")
    found = [report.external_key for report in reports]
    for key in stale_keys(connection, prefixes, found):
        if not key.startswith(failed):
            deleted = writer.delete_document(key)
            typer.echo(f"pruned: {printable(key)}, {number(deleted, 'chunk')}")


def _is_stored(connection: psycopg.Connection[Any], external_key: str) -> bool:
    query = "select from public.knowledge_documents where external_key = %s"
    return connection.execute(query, [external_key]).fetchone() is not None
