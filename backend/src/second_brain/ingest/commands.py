"""The command ingest: arguments, prompts and output; the rest of this folder does the work."""

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, LiteralString
from uuid import UUID

import psycopg
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn

from second_brain.cli.corpus import configured_embedder, groups, refuse_other_embedder
from second_brain.cli.options import (
    DsnOption,
    EmbedderOption,
    JsonOption,
    SchemaOption,
    Visibility,
    YesOption,
)
from second_brain.cli.output import new_progress, notes_to_stderr, print_json
from second_brain.cli.tables import number, printable
from second_brain.cli.target import opened
from second_brain.errors import ConfigurationError, SecondBrainError
from second_brain.ingest import (
    DEFAULT_CHUNKING,
    DEFAULT_LANGUAGE,
    MAX_PAGES,
    SUPPORTED,
    Change,
    Chunking,
    DocumentReport,
    FoundFiles,
    KnowledgeSource,
    Labels,
    UnreadDocument,
    WebReader,
    check_source,
    find_files,
    finish,
    ingest,
    is_address,
    is_public,
    stale_keys,
)
from second_brain.ingest.html import main_content_only
from second_brain.models import Embedder
from second_brain.services.install import SCHEMA, Database
from second_brain.services.write import KnowledgeWriter

_INGEST_EXAMPLES = """\b
Examples:
  second-brain ingest docs/ README.md
  second-brain ingest ~/vault --knowledge-type note --source-origin obsidian --prune
  second-brain ingest notizen/ --language german --exclude 'drafts' --exclude '*.tmp.md'
  second-brain ingest reports/ --chunk-size 300 --overlap 40
  second-brain ingest https://docs.example.org/sitemap.xml --prune
  second-brain ingest handbook/ --source handbook --visibility public --metadata team=platform
  second-brain ingest docs/ --collection manuals --dry-run
"""

_KNOWLEDGE_TYPES = 'select name from public.knowledge_types order by name collate "C"'
_SOURCE_ORIGINS = 'select name from public.knowledge_source_origins order by name collate "C"'


app = typer.Typer(rich_markup_mode=None)


@app.command("ingest", epilog=_INGEST_EXAMPLES)
def _ingest(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH|URL...",
            help="Files and folders: Markdown, text, reStructuredText, HTML, notebooks, PDF, "
            "CSV, JSON Lines, EPUB; docx, pptx and xlsx with the extra documents, odt and others "
            "with the program pandoc. Web pages; the "
            "pages of a sitemap, if the address ends in .xml or .xml.gz.",
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Source of the documents; else the name of the git repository's remote, of the "
            "folder, or of the web server.",
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder that documents' paths are relative to; else the git repository of a "
            "PATH, or the folder.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Leave out files and folders of this name or path, such as '*.draft.md' or "
            "docs/old; may be repeated.",
        ),
    ] = None,
    follow_symlinks: Annotated[
        bool, typer.Option("--follow-symlinks", help="Read links that lead out of their folder.")
    ] = False,
    encoding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Encoding of all files of text, such as windows-1251; else the one that a file "
            "names, UTF-8, or a guess that is reported.",
        ),
    ] = None,
    main_content: Annotated[
        bool,
        typer.Option(
            "--main-content",
            help="Read only the article of a page, as news need it; with the extra news.",
        ),
    ] = False,
    max_pages: Annotated[
        int, typer.Option(min=1, max=100_000, help="Most pages that are read from a sitemap.")
    ] = MAX_PAGES,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Read web pages from private addresses, too.")
    ] = False,
    chunk_size: Annotated[
        int, typer.Option(help="Most tokens in a chunk, 50 to 8000.")
    ] = DEFAULT_CHUNKING.size,
    overlap: Annotated[
        int,
        typer.Option(
            help="Tokens of a chunk that repeat the end of the chunk before; at most half of "
            "--chunk-size."
        ),
    ] = DEFAULT_CHUNKING.overlap,
    collection: Annotated[str | None, typer.Option(help="Collection to store in.")] = None,
    knowledge_type: Annotated[
        str | None, typer.Option(help="note, document, decision, task, ...")
    ] = None,
    source_origin: Annotated[
        str | None, typer.Option(help="manual, obsidian, notion, email, web, ...")
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|auto",
            help="Language whose word forms are recognised: english, german, de, ...; auto: "
            f"detected for each document. A new document is {DEFAULT_LANGUAGE} without it.",
        ),
    ] = None,
    visibility: Annotated[
        Visibility | None,
        typer.Option(
            help="Who may find the documents over the API: their owner, or everybody. A new "
            "document is private without it."
        ),
    ] = None,
    owner: Annotated[
        UUID | None, typer.Option(metavar="UUID", help="User that they belong to.")
    ] = None,
    allowed_groups: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP",
            help="Group whose members may find them, too; may be repeated. An empty text: none.",
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Metadata to add; VALUE is JSON, else a text; may be repeated.",
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Delete documents of the source whose file is gone from the folders, or page "
            "from the sitemap, after listing them and asking.",
        ),
    ] = False,
    yes: YesOption = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would change; embed nothing, write nothing."),
    ] = False,
    embedder_name: EmbedderOption = "wordllama",
    switch_model: Annotated[
        bool,
        typer.Option(
            "--switch-model", help="Go on although what is stored was embedded with another model."
        ),
    ] = False,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Read documents, cut them into chunks, embed what is new and store it.

    A document's key is SOURCE:PATH, the same from every working directory. Run again after a
    change or an interruption: only what is new is embedded, unchanged documents are skipped, and
    a stored document keeps what no option sets. A file that cannot be read is reported and
    skipped, and the exit code is then 1. Hidden files, node_modules and files of other types are
    left out of folders.
    """
    if source is not None and (":" in source or not 1 <= len(source) <= 200):
        raise typer.BadParameter("--source must have 1 to 200 characters and no colon")
    if prune and not (yes or dry_run or sys.stdin.isatty()):
        raise typer.BadParameter("--prune asks before it deletes: without a terminal add --yes")
    main_content_only.set(main_content)
    chunking = Chunking(chunk_size, overlap)
    labels = Labels(
        collection,
        knowledge_type,
        source_origin,
        language,
        visibility,
        owner,
        _pairs(metadata),
        groups(allowed_groups),
    )
    addresses = [path for path in paths if is_address(path)]
    found = find_files(
        [_existing(path) for path in paths if not is_address(path)],
        source=source,
        base=base,
        exclude=exclude or (),
        follow_symlinks=follow_symlinks,
        encoding=encoding,
    )
    # Without autocommit the whole run would be one transaction.
    with (
        opened(dsn, schema) as database,
        notes_to_stderr(as_json),
        WebReader((lambda _: True) if allow_private else is_public, encoding) as web,
    ):
        found.add(web.find(addresses, source=source, exclude=exclude or (), max_pages=max_pages))
        _require_one_place(found, source)
        embedder = configured_embedder(embedder_name)
        refuse_other_embedder(database, embedder, switch_model=switch_model)
        _require(database, knowledge_type, _KNOWLEDGE_TYPES, "--knowledge-type")
        _require(database, source_origin, _SOURCE_ORIGINS, "--source-origin")
        for one in found.sources:
            check_source(database.connection, one, schema=schema, is_named=source is not None)
            _tell_source(one, found)
        reports = ingest_with_progress(
            database, found.documents, embedder, labels, chunking, dry_run=dry_run
        )
        _print_skipped(found)
        pruned: list[str] = []
        if prune:
            pruned = _prune(database, found, reports, yes=yes, dry_run=dry_run)
    if as_json:
        print_json(
            {
                "documents": reports,
                "chunks": _chunk_counts(reports),
                "pruned": pruned,
                "skipped": found.skipped,
                "is_dry_run": dry_run,
            }
        )
    if any(report.outcome == "failed" for report in reports):
        raise typer.Exit(1)


def _existing(path: str) -> Path:
    if not Path(path).exists():
        raise typer.BadParameter(f"{path!r} does not exist: PATH")
    return Path(path)


def _require_one_place(found: FoundFiles, name: str | None) -> None:
    """Raise ConfigurationError if one source name stands for several hosts and folders."""
    places = [str(source.location) for source in found.sources if source.name == name]
    if len(places) > 1:
        raise ConfigurationError(
            f"the paths belong to several places ({', '.join(sorted(places))}), and --source names "
            "one",
            remedy="Ingest one after the other.",
        )


def _require(database: Database, value: str | None, query: LiteralString, option: str) -> None:
    if value is None:
        return
    allowed = [name for (name,) in database.execute(query)]
    if value not in allowed:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}: {option}")


def _pairs(options: Sequence[str] | None) -> dict[str, Any]:
    """Return the metadata of options such as `team=platform` and `tags=["a"]`."""
    pairs = {}
    for option in options or ():
        key, equals, value = option.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{option!r} is not KEY=VALUE: --metadata")
        if key == "path":
            raise typer.BadParameter("path is the document's own path: --metadata")
        try:
            pairs[key] = json.loads(value, parse_constant=_no_json)
        except (ValueError, RecursionError):
            pairs[key] = value
    return pairs


def _no_json(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _tell_source(source: KnowledgeSource, found: FoundFiles) -> None:
    count = sum(document.source == source for document in found.documents)
    place = f" ({source.location})" if source.location else ""
    typer.echo(f"source {printable(source.name + place)}: {number(count, 'document')}")


def ingest_with_progress(
    database: Database,
    documents: Sequence[UnreadDocument],
    embedder: Embedder,
    labels: Labels,
    chunking: Chunking = DEFAULT_CHUNKING,
    *,
    dry_run: bool = False,
) -> list[DocumentReport]:
    """Ingest documents behind a progress bar, print what changes, and return the reports."""
    reports: list[DocumentReport] = []
    with new_progress(MofNCompleteColumn()) as progress:
        task = progress.add_task("Ingesting", total=len(documents))
        try:
            for report in ingest(
                documents,
                database.connection,
                embedder,
                labels,
                chunking=chunking,
                schema=database.install.schema,
                dry_run=dry_run,
            ):
                reports.append(report)
                progress.advance(task)
                _print_report(report, progress.console, dry_run=dry_run)
        except BaseException as error:
            progress.stop()
            _print_interruption(documents, reports)
            # The report names the first cause, not that ANALYZE failed after it.
            with contextlib.suppress(psycopg.Error, SecondBrainError):
                _finish(database, reports, dry_run=dry_run)
            if isinstance(error, KeyboardInterrupt):
                raise typer.Exit(130) from error
            raise
    _finish(database, reports, dry_run=dry_run)
    _print_summary(reports, dry_run=dry_run)
    return reports


def _finish(database: Database, reports: Sequence[DocumentReport], *, dry_run: bool) -> None:
    if not dry_run:
        changed = sum(report.changed for report in reports)
        finish(database.connection, changed, schema=database.install.schema)


def _print_report(report: DocumentReport, console: Console, *, dry_run: bool) -> None:
    """Print a failure to stderr, and what changes in a stored document to stdout."""
    key = printable(report.external_key)
    if report.error:
        message = printable(f"failed: {report.external_key}: {report.error}")
        console.print(message, markup=False, highlight=False, soft_wrap=True)
    for text in report.notes:
        typer.echo(printable(f"note: {report.external_key}: {text}"))
    if report.changes:
        typer.echo(f"changed: {key}: {'; '.join(map(_change, report.changes))}")
    if report.removed:
        typer.echo(f"emptied: {key}: has no text, {number(report.removed, 'chunk')} deleted")
    if dry_run and report.outcome == "stored" and report.counts and report.changed:
        typer.echo(f"to store: {key}: {_counted(_chunk_counts([report]))} chunks")


def _change(change: Change) -> str:
    old, new = (
        value if isinstance(value, str) else json.dumps(value) for value in (change.old, change.new)
    )
    return printable(f"{change.field} {old} -> {new}")


def _print_interruption(
    documents: Sequence[UnreadDocument], reports: Sequence[DocumentReport]
) -> None:
    if len(reports) < len(documents):
        at = printable(documents[len(reports)].external_key)
        typer.echo(
            f"Stopped at {at}, after {len(reports)} of {number(len(documents), 'document')}; "
            "these are stored. Run the same command again to go on: unchanged documents are "
            "skipped.",
            err=True,
        )
    if reports:
        _print_summary(reports)


def _print_summary(reports: Sequence[DocumentReport], *, dry_run: bool = False) -> None:
    outcomes = Counter(report.outcome for report in reports)
    named = [f"{count} {outcome}" for outcome, count in sorted(outcomes.items())]
    prefix = "dry run, nothing is written: " if dry_run else ""
    documents = number(len(reports), "document")
    typer.echo(f"{prefix}{documents}: {', '.join(named) or 'nothing to do'}")
    if counts := _counted(_chunk_counts(reports)):
        typer.echo(f"chunks: {counts}")
    if repeated := sum(report.repeated_lines for report in reports):
        pages = sum(report.repeated_lines > 0 for report in reports)
        typer.echo(f"left out {number(repeated, 'repeated line')} of {number(pages, 'page')}")


def _chunk_counts(reports: Sequence[DocumentReport]) -> dict[str, int]:
    counts = [report.counts for report in reports if report.counts]
    return {
        "added": sum(count.chunks_added for count in counts),
        "changed": sum(count.chunks_changed for count in counts),
        "removed": sum(report.removed for report in reports)
        + sum(count.chunks_removed for count in counts),
        "unchanged": sum(count.chunks_unchanged for count in counts),
        "embedded": sum(report.embedded for report in reports),
        "without an embedding": sum(report.text_only for report in reports),
    }


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _print_skipped(found: FoundFiles) -> None:
    if found.skipped:
        types = ", ".join(
            f"{count} {printable(name)}" for name, count in found.skipped.most_common()
        )
        typer.echo(
            f"skipped {number(found.skipped.total(), 'file')} of other types: {types}; "
            f"supported: {', '.join(SUPPORTED)}"
        )
    for note in found.notes:
        typer.echo(printable(note))
    if found.excluded:
        typer.echo(f"excluded {number(len(found.excluded), 'file or folder', 'files or folders')}")


def _prune(
    database: Database,
    found: FoundFiles,
    reports: Sequence[DocumentReport],
    *,
    yes: bool,
    dry_run: bool,
) -> list[str]:
    """List the documents whose file is gone, delete them when confirmed, and return their keys."""
    left_out = {report.external_key for report in reports if report.outcome == "left out"}
    kept = [one.external_key for one in found.documents if one.external_key not in left_out]
    failed = [report.external_key for report in reports if report.outcome == "failed"]
    unread = [*failed, *found.excluded]
    schema = database.install.schema
    keys = stale_keys(database.connection, found.folders, kept, unread, schema=schema)
    if not keys:
        typer.echo("nothing to prune")
    for key in keys:
        typer.echo(f"to prune: {printable(key)}")
    if dry_run or not keys:
        return keys
    if not yes:
        typer.confirm(f"Delete {number(len(keys), 'document')}?", abort=True, err=True)
    writer = KnowledgeWriter(database.connection, schema=schema)
    for key in keys:
        deleted = writer.delete_document(key)
        typer.echo(f"pruned: {printable(key)}, {number(deleted, 'chunk')}")
    return keys
