"""Commands of the knowledge itself: ingest, delete, search, demo. The work is done in `ingest/`."""

import html
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Unpack
from uuid import UUID

import psycopg
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from second_brain.cli.database import STATE, DsnOption, resolve_dsn
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres
from second_brain.errors import (
    ConfigurationError,
    DimensionMismatchError,
    MigrationMissingError,
)
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
from second_brain.models import EMBEDDER_NAMES, Embedder, embed_query, load_embedder
from second_brain.services.arguments import Leg, SearchOptions, SupportsToList
from second_brain.services.postgres import PostgresProvider
from second_brain.services.results import KNOWLEDGE_TYPES, SOURCE_ORIGINS, MemorySearchResult
from second_brain.services.write import KnowledgeWriter

# Enough for the table when the output goes into a file or a pipe.
_PIPED_WIDTH = 100

# Nothing is too dissimilar to be shown: the table says how similar it is.
_ANY_SIMILARITY = -1.0

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

_SEARCH_EXAMPLES = """\b
Examples:
  second-brain search "how do I rotate the keys?"
  second-brain search '"service role" -anon' --mode text --limit 3
  second-brain search "billing" --knowledge-type decision --json
  second-brain search "rate limits" --filters '{"team": "platform"}' --date-from 2026-01-01
  second-brain search "rate limits" --collection memory --collection artifacts --expand-neighbors 1
  second-brain search "rate limits" --explain
"""

_MODELS = """
    select distinct sample.embedding_model
    from (
      select chunk.embedding_model, chunk.embedding is not null as is_embedded
      from public.knowledge_chunks as chunk
      where chunk.status = 'active'
      limit 10000
    ) as sample
    where sample.is_embedded
    order by sample.embedding_model
"""

# A paraphrase, an identifier, a phrase, a rare word, and words with a meaning around a name.
_QUESTIONS = (
    "keep a list sorted while inserting new values",
    "lru_cache",
    '"context manager" redirect stdout',
    "Obershelp",
    "subprocess.run with a timeout that kills the child",
)

EmbedderOption = Annotated[
    str,
    typer.Option(
        "--embedder",
        metavar="NAME",
        help=f"Model of the embeddings: {', '.join(EMBEDDER_NAMES)}; @N after MODEL asks for N "
        "dimensions.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("ingest", epilog=_INGEST_EXAMPLES)(_ingest)
    app.command("delete", epilog=_DELETE_EXAMPLES)(_delete)
    app.command("search", epilog=_SEARCH_EXAMPLES)(_search)
    app.command("demo")(_demo)


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
        str, typer.Option(help="manual, obsidian, notion, email, web, youtube or other.")
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
    _require(knowledge_type, KNOWLEDGE_TYPES, "--knowledge-type")
    _require(source_origin, SOURCE_ORIGINS, "--source-origin")
    sources = find_files(paths or [], base) + (standard_library() if python_stdlib else [])
    labels = Labels(collection, knowledge_type, source_origin, language)
    # Without autocommit the whole run would be one transaction.
    with psycopg.connect(resolve_dsn(dsn), autocommit=True) as connection:
        embedder = load_embedder(embedder_name)
        _refuse_other_embedder(connection, embedder, switch_model=switch_model)
        reports = _ingest_with_progress(connection, sources, embedder, labels)
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
    with psycopg.connect(resolve_dsn(dsn), autocommit=True) as connection:
        writer = KnowledgeWriter(connection)
        for key in external_keys:
            if _is_stored(connection, key):
                deleted = writer.delete_document(key)
                typer.echo(f"{key}: deleted, {_number(deleted, 'chunk')}")
            else:
                missing = True
                typer.echo(f"{key}: no such document", err=True)
    if missing:
        raise typer.Exit(1)


def _search(
    question: Annotated[str, typer.Argument(help="What to search for.", show_default=False)],
    mode: Annotated[
        Leg, typer.Option("--mode", help="Both legs fused, the vector leg, or the text leg.")
    ] = "hybrid",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of hits.")] = 10,
    filter_type: Annotated[
        str | None,
        typer.Option("--knowledge-type", help="Only this knowledge_type.", show_default=False),
    ] = None,
    filters: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='Conditions, [{"field": ..., "op": ..., "value": ...}], or {"key": value} on '
            "metadata.",
            show_default=False,
        ),
    ] = None,
    collections: Annotated[
        list[str] | None,
        typer.Option(
            "--collection", help="Only this collection; may be repeated.", show_default=False
        ),
    ] = None,
    viewer_id: Annotated[
        UUID | None,
        typer.Option(help="Only what this user owns, and what is public.", show_default=False),
    ] = None,
    public_only: Annotated[
        bool, typer.Option("--public-only", help="Only what is public.")
    ] = False,
    date_from: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="First document_date.", show_default=False),
    ] = None,
    date_to: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="Last document_date.", show_default=False),
    ] = None,
    one_per_document: Annotated[
        bool, typer.Option("--one-per-document", help="The best chunk of each document.")
    ] = False,
    expand_neighbors: Annotated[
        int, typer.Option(min=0, max=5, help="Show this many chunks before and after a hit.")
    ] = 0,
    snippet: Annotated[
        bool, typer.Option("--snippet", help="Show an excerpt with the matched words marked.")
    ] = False,
    offset: Annotated[int, typer.Option(min=0, max=1000, help="Hits to skip.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show how each leg found its rows, and what words weigh."),
    ] = False,
    embedder_name: EmbedderOption = "wordllama",
    dsn: DsnOption = None,
) -> None:
    """Search, and show for each hit why it stands where it stands.

    Plain words are optional and weighed; "a phrase" is required; -word excludes.
    """
    options: SearchOptions = {
        "top_k": limit,
        "threshold": _ANY_SIMILARITY,
        "filter_type": filter_type,
        "filters": _parsed(filters, "--filters"),
        "collections": collections or None,
        "viewer_id": viewer_id,
        "public_only": public_only,
        "date_from": date_from.date() if date_from else None,
        "date_to": date_to.date() if date_to else None,
        "one_per_document": one_per_document,
        "neighbor_window": expand_neighbors,
        "snippet": snippet,
        "match_offset": offset,
    }
    with psycopg.connect(resolve_dsn(dsn), autocommit=True) as connection:
        embedder = None
        if mode != "text":
            embedder = load_embedder(embedder_name)
            _refuse_other_embedder(connection, embedder)
        if explain:
            explained = PostgresProvider(connection).explain_hybrid_search(
                *_legs(question, mode, embedder), **options
            )
        else:
            results = _ask(connection, question, mode, embedder, **options)
    first = offset + 1
    if explain and as_json:
        told = {"question": question, "mode": mode, "explanation": explained}
        typer.echo(json.dumps(told, indent=2))
    elif explain:
        _print_explanation(explained, first)
    elif as_json:
        hits = [{"rank": rank, **asdict(hit)} for rank, hit in enumerate(results, start=first)]
        typer.echo(json.dumps({"question": question, "mode": mode, "results": hits}, indent=2))
    elif results:
        console = _console()
        console.print(_results_table(results, first))
        total = results[0].metadata["total_count"]
        if total is not None and total > len(results):
            last = first + len(results) - 1
            console.print(f"\nHits {first} to {last} of {total}.", style="dim", highlight=False)
    else:
        typer.echo("Nothing found.", err=True)


def _demo() -> None:
    """Fill this folder's dev database with the standard library's documentation and question it."""
    embedder = load_embedder("wordllama")
    server = EmbeddedPostgres(STATE / "postgres")
    typer.echo("Starting the embedded database in .second-brain/ ...")
    server.start()
    (STATE / ".gitignore").write_text("*\n")
    applied = migrations.apply(server.dsn(), dimensions=embedder.dimensions)
    typer.echo(f"{_number(len(applied), 'migration')} applied.")
    console = _console()
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        _refuse_other_embedder(connection, embedder)
        typer.echo("Ingesting the documentation of Python's standard library ...")
        _ingest_with_progress(connection, standard_library(), embedder, Labels())
        for question in _QUESTIONS:
            console.print()
            console.print(Text(f"Question: {question}", style="bold"))
            console.print(_comparison_table(connection, question, embedder))
    console.print()
    console.print("v and t: the hit's rank by meaning (vector) and by words (text).", style="dim")
    console.print("\nAsk your own, and add your own documents:", style="bold")
    command = _invoked_as()
    for arguments in ('search "how do I copy a folder?"', "ingest PATH", "dev stop"):
        console.print(f"  {command} {arguments}", highlight=False)


def _invoked_as() -> str:
    """Return what to type for this command: its name where it is on the PATH, else its file."""
    if shutil.which("second-brain"):
        return "second-brain"
    return os.path.relpath(sys.argv[0])


def _parsed(text: str | None, option: str) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{option} is not JSON: {error}") from error


def _require(value: str, allowed: frozenset[str], option: str) -> None:
    if value not in allowed:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(sorted(allowed))}: {option}")


def _refuse_other_embedder(
    connection: psycopg.Connection[Any], embedder: Embedder, *, switch_model: bool = False
) -> None:
    """Raise when the embedder's vectors cannot be compared with the stored ones."""
    dimensions = migrations.stored_dimensions(connection)
    if dimensions is None:
        raise MigrationMissingError(
            "the database has no knowledge tables",
            remedy=f"Make them: second-brain migrate --dimensions {embedder.dimensions}",
        )
    if dimensions != embedder.dimensions:
        raise DimensionMismatchError(
            f"the database holds embeddings of {dimensions} dimensions and {embedder.model} makes "
            f"{embedder.dimensions}",
            remedy="Use the embedder of the corpus, or change the corpus's, which takes no time "
            "while it is empty: second-brain reembed start --embedder NAME. A search needs none "
            "with --mode text.",
        )
    others = [name for (name,) in connection.execute(_MODELS) if name != embedder.model]
    if others and not switch_model:
        named = ", ".join(name or "an unnamed model" for name in others)
        raise ConfigurationError(
            f"there are embeddings of {named} in the database, not comparable with "
            f"{embedder.model}'s",
            remedy="Use the embedder of the corpus, search with --mode text, or ingest everything "
            "again with --switch-model.",
        )


def _ingest_with_progress(
    connection: psycopg.Connection[Any],
    sources: Sequence[Source],
    embedder: Embedder,
    labels: Labels,
) -> list[DocumentReport]:
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
                        _printable(message), markup=False, highlight=False, soft_wrap=True
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
    typer.echo(f"{_number(len(reports), 'document')}: {', '.join(named) or 'nothing to do'}")
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
            typer.echo(f"pruned: {_printable(key)}, {_number(deleted, 'chunk')}")


def _is_stored(connection: psycopg.Connection[Any], external_key: str) -> bool:
    query = "select from public.knowledge_documents where external_key = %s"
    return connection.execute(query, [external_key]).fetchone() is not None


def _ask(
    connection: psycopg.Connection[Any],
    question: str,
    mode: Leg,
    embedder: Embedder | None,
    **options: Unpack[SearchOptions],
) -> list[MemorySearchResult]:
    hits, _ = PostgresProvider(connection).find(*_legs(question, mode, embedder), **options)
    return hits


def _legs(
    question: str, mode: Leg, embedder: Embedder | None
) -> tuple[SupportsToList | None, str | None]:
    """Return the embedding and the text that the mode searches with."""
    embedding = None
    if embedder is not None and mode != "text":
        vector = embed_query(embedder, question)
        embedding = vector if vector.any() else None
    return embedding, None if mode == "vector" else question


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PIPED_WIDTH)


def _print_explanation(explained: dict[str, Any], first: int) -> None:
    """Print what explain_hybrid_search told: the legs, the lexemes, the fusion, the hits."""
    console = _console()
    text, fusion, lists = explained["text"], explained["fusion"], explained["lists"]
    legs = Table.grid(padding=(0, 2))
    for leg in ("vector", "text"):
        legs.add_row(Text(f"{leg} leg", style="bold"), _leg_summary(explained, leg))
    # Not there without a word to search for.
    if text["mean_length"] is not None:
        legs.add_row(
            "",
            f"{_number(text['candidates'], 'candidate')} of {_number(text['chunks'], 'chunk')}, "
            f"{text['mean_length']:.0f} words on average",
        )
    weights = f", {_weights(fusion['weights'])}" if fusion["weights"] else ""
    legs.add_row(Text("fusion", style="bold"), f"{fusion['policy']}{weights}")
    legs.add_row(Text("whole call", style="bold"), f"{explained['milliseconds']['hybrid']:.1f} ms")
    console.print(legs, highlight=False)
    tables = (
        _lists_table(lists) if len(lists) > 1 else None,
        _lexeme_table(text["lexemes"]) if text["lexemes"] else None,
        _explained_hits_table(explained["hits"], first) if explained["hits"] else "Nothing found.",
    )
    for table in tables:
        if table is not None:
            console.print()
            console.print(table)


def _leg_summary(explained: dict[str, Any], name: str) -> str:
    leg, milliseconds = explained[name], explained["milliseconds"][name]
    # A query of nothing but stop words is timed too.
    if milliseconds is None or leg["strategy"] == "not run":
        return "not run"
    each = " in each list" if len(explained["lists"]) > 1 else ""
    rows = f"{_number(leg['rows'], 'row')} for a pool of {explained['pool']}{each}"
    dry = f"\nran dry: {leg['ran_dry']}" if leg["ran_dry"] else ""
    return f"{leg['strategy']}; {rows}, {milliseconds:.1f} ms{dry}"


def _weights(weights: dict[str, float]) -> str:
    return f"weights: vector {weights['vector'] or 0:.3f}, text {weights['text'] or 0:.3f}"


def _lists_table(lists: Sequence[dict[str, Any]]) -> Table:
    """Show the lists that were fused, one for each collection."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("collection", "vector leg", "text leg"):
        table.add_column(name, max_width=36)
    table.add_column("vector weight", justify="right")
    table.add_column("text weight", justify="right")
    for one in lists:
        vector, text = (f"{one[leg]['rows']}, {one[leg]['strategy']}" for leg in ("vector", "text"))
        table.add_row(
            Text(_printable(one["collection"])),
            vector,
            text,
            *(f"{one['weights'][leg] or 0:.3f}" for leg in ("vector", "text")),
        )
    return table


def _lexeme_table(lexemes: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("lexeme", max_width=40, no_wrap=True, overflow="ellipsis")
    table.add_column("documents", justify="right")
    table.add_column("weight", justify="right")
    table.add_column("candidates")
    for one in lexemes:
        table.add_row(
            Text(_printable(one["lexeme"])),
            f"{one['document_frequency']:,.0f}",
            f"{one['weight']:.3f}",
            "left out, still scored" if one["left_out"] else "drawn",
        )
    return table


def _explained_hits_table(hits: Sequence[dict[str, Any]], first: int) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right", min_width=len(str(first + len(hits))))
    table.add_column("title and chunk", ratio=1, no_wrap=True, overflow="ellipsis")
    for name in ("vector", "cosine", "text", "BM25", "score"):
        table.add_column(name, justify="right", min_width=6)
    table.add_column("matched", width=14, no_wrap=True, overflow="ellipsis")
    for rank, hit in enumerate(hits, start=first):
        chunk = "" if hit["chunk_index"] is None else f", chunk {hit['chunk_index']}"
        table.add_row(
            str(rank),
            Text(_printable(f"{hit['title'] or hit['id']}{chunk}")),
            str(hit["vector_rank"] or "-"),
            "-" if hit["similarity"] is None else f"{hit['similarity']:.3f}",
            str(hit["text_rank"] or "-"),
            "-" if hit["text_score"] is None else f"{hit['text_score']:.3f}",
            f"{hit['rrf_score']:.4f}",
            Text(_printable(" ".join(hit["matched_terms"] or ())), style="green"),
        )
    return table


def _results_table(results: Sequence[MemorySearchResult], first: int) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right", min_width=len(str(first + len(results))))
    table.add_column("title and best line", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("vector", justify="right", min_width=6)
    table.add_column("text", justify="right", min_width=4)
    table.add_column("score", justify="right", min_width=6)
    table.add_column("matched", width=14, no_wrap=True, overflow="ellipsis")
    for rank, hit in enumerate(results, start=first):
        terms = hit.metadata["matched_terms"]
        table.add_row(
            str(rank),
            Text("\n").join([Text(_title(hit), style="bold"), *_lines(hit)]),
            str(hit.metadata["vector_rank"] or "-"),
            str(hit.metadata["text_rank"] or "-"),
            f"{hit.metadata['rrf_score']:.4f}",
            Text("\n".join(_printable(term) for term in terms[:2]), style="green"),
        )
    return table


def _comparison_table(
    connection: psycopg.Connection[Any], question: str, embedder: Embedder
) -> Table:
    table = Table(expand=True, header_style="bold")
    table.add_column("", width=1)
    columns = []
    modes: tuple[Leg, ...] = ("vector", "text", "hybrid")
    for mode in modes:
        table.add_column(mode, ratio=1, no_wrap=True, overflow="ellipsis")
        columns.append(
            _ask(connection, question, mode, embedder, top_k=3, threshold=_ANY_SIMILARITY)
        )
    for rank in range(max(map(len, columns))):
        cells = [_cell(column[rank]) if rank < len(column) else Text() for column in columns]
        table.add_row(str(rank + 1), *cells)
    return table


def _cell(hit: MemorySearchResult) -> Text:
    ranks = [
        f"{leg}{rank}"
        for leg, rank in (
            ("v", hit.metadata["vector_rank"]),
            ("t", hit.metadata["text_rank"]),
        )
        if rank
    ]
    text = Text(_title(hit), style="bold")
    return text + Text(f"\n{' '.join(ranks)}  {_best_line(hit)}", style="dim")


def _title(hit: MemorySearchResult) -> str:
    parts = (hit.metadata.get("title"), hit.metadata.get("section"))
    return _printable(" > ".join(str(part) for part in parts if part) or "untitled")


def _lines(hit: MemorySearchResult) -> list[Text]:
    """Return what stands under the hit's title: the excerpt or best line, and its neighbours."""
    snippet, context = hit.metadata["snippet"], hit.metadata["context"]
    lines = [_highlighted(snippet) if snippet else Text(_best_line(hit), style="dim")]
    if context is not None:
        chunks = context.split("\n[CHUNK BOUNDARY]\n")
        lines += [Text(f"| {_printable(chunk)}", style="dim") for chunk in chunks]
    return lines


def _highlighted(snippet: str) -> Text:
    """Return the excerpt with its `<mark>` words emphasised and its HTML unescaped."""
    text = Text(style="dim")
    for place, part in enumerate(re.split("</?mark>", snippet)):
        text.append(_printable(html.unescape(part)), "bold green" if place % 2 else None)
    return text


def _best_line(hit: MemorySearchResult) -> str:
    """Return the line of the hit that has the most of the query's words, the first of these."""
    terms = [term.casefold() for term in hit.metadata["matched_terms"]]
    lines = [line.strip(" #`>*-|") for line in hit.content.splitlines()]
    best = max(
        (line for line in lines if line),
        key=lambda line: sum(term in line.casefold() for term in terms),
        default="",
    )
    return _printable(best)


def _printable(text: str) -> str:
    """Return the text without what would steer the terminal."""
    return "".join(
        character if character.isprintable() else " " for character in text.replace("\n", " ")
    )


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
