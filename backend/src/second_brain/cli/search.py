"""Commands that search: search, demo."""

import json
import os
import shutil
import sys
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Unpack
from uuid import UUID

import typer
from rich.table import Table
from rich.text import Text

from second_brain.cli import configuration
from second_brain.cli.configuration import SearchMode
from second_brain.cli.corpus import configured_embedder, groups, refuse_other_embedder
from second_brain.cli.ingestion import ingest_with_progress
from second_brain.cli.options import (
    DsnOption,
    EmbedderOption,
    JsonOption,
    SchemaOption,
    ViewerGroupsOption,
)
from second_brain.cli.output import print_json
from second_brain.cli.tables import (
    cell,
    estimate_text,
    facets_table,
    new_console,
    number,
    print_explanation,
    printable,
    results_table,
    show_command,
    why_not_text,
)
from second_brain.cli.target import STATE, opened
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres
from second_brain.errors import ModuleMissingError
from second_brain.filters import conditions, listed_conditions
from second_brain.ingest import (
    Labels,
    standard_library,
)
from second_brain.models import Embedder, embed_query, load_embedder
from second_brain.models.rerankers import RERANKER_NAMES, load_reranker, rerank_scores
from second_brain.retrieval.plan import HISTORY, MEMORY, left_out, without
from second_brain.retrieval.settings import MATCH_COUNT_BOUND, Fusion, Mode
from second_brain.services.arguments import (
    ROWS,
    VIEWER,
    Leg,
    SearchOptions,
    SupportsToList,
)
from second_brain.services.connections import connect
from second_brain.services.install import SCHEMA, Database
from second_brain.services.postgres import PostgresProvider
from second_brain.services.results import FacetCount, MemorySearchResult, pending_note

FUSION: Fusion = "stored_or_auto"

# Nothing is too dissimilar to be shown: the table says how similar it is.
_ANY_SIMILARITY = -1.0


_SEARCH_EXAMPLES = """\b
Examples:
  second-brain search "how do I rotate the keys?"
  second-brain search '"service role" -anon' --mode text --limit 3
  second-brain search "billing" --knowledge-type decision --json
  second-brain search "rate limits" --filters '{"team": "platform"}' --date-from 2026-01-01
  second-brain search "rate limits" --collection memory --collection artifacts --expand-neighbors 1
  second-brain search "what does Mia prefer?" --include-memory
  second-brain search "rate limits" --fusion rrf --text-weight 2 --explain
  second-brain search "rate limits" --date-from 2026-01-01 --estimate
  second-brain search "rate limits" --rerank --min-similarity 0.3
  second-brain search "rate limits" --why-not docs/limits.md
"""


_COLLECTIONS = """
    with recursive stored as (
      select min(chunk.collection) as name
      from public.knowledge_chunks as chunk
      where chunk.status = 'active' and chunk.collection > ''
      union all
      select (
        select min(chunk.collection)
        from public.knowledge_chunks as chunk
        where chunk.status = 'active' and chunk.collection > stored.name
      )
      from stored
      where stored.name is not null
    )
    select stored.name
    from stored
    where stored.name is not null
    order by stored.name
"""

_ANY_PUBLIC = """
    select true from public.knowledge_chunks where visibility = 'public' and status = 'active'
    limit 1
"""

# A paraphrase, an identifier, a phrase, a rare word, and words with a meaning around a name.
_QUESTIONS = (
    "keep a list sorted while inserting new values",
    "lru_cache",
    '"context manager" redirect stdout',
    "Obershelp",
    "subprocess.run with a timeout that kills the child",
)


app = typer.Typer(rich_markup_mode=None)


@app.command("search", epilog=_SEARCH_EXAMPLES)
def _search(
    question: Annotated[str, typer.Argument(help="What to search for.", show_default=False)],
    mode: Annotated[
        Mode,
        typer.Option(
            "--mode",
            help="Both legs fused, one leg, or rerank: both legs fused and reranked.",
        ),
    ] = "hybrid",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of hits.")] = 10,
    fusion: Annotated[
        Fusion, typer.Option(help="How the legs are fused; stored_or_auto: as the corpus says.")
    ] = FUSION,
    vector_weight: Annotated[
        float, typer.Option(min=0, help="Weight of the vector leg; 0 leaves the leg out.")
    ] = 1.0,
    text_weight: Annotated[
        float, typer.Option(min=0, help="Weight of the text leg; 0 leaves the leg out.")
    ] = 1.0,
    rrf_k: Annotated[float, typer.Option(help="Constant of RRF, above 0.")] = 60.0,
    pool_size: Annotated[int, typer.Option(min=1, max=1000, help="Candidates of each leg.")] = 50,
    min_similarity: Annotated[
        float,
        typer.Option(
            "--min-similarity",
            "--threshold",
            min=-1,
            max=1,
            help="Lowest cosine similarity in the vector leg; -1: no limit.",
        ),
    ] = _ANY_SIMILARITY,
    search_mode: Annotated[SearchMode, typer.Option(help="Syntax of the question.")] = "websearch",
    rerank: Annotated[
        bool, typer.Option("--rerank/--no-rerank", help="Order the first hits with a reranker.")
    ] = False,
    reranker_name: Annotated[
        str,
        typer.Option("--reranker", metavar="NAME", help=f"{', '.join(RERANKER_NAMES)}."),
    ] = "cross-encoder",
    filter_type: Annotated[
        str | None,
        typer.Option("--knowledge-type", help="Only this knowledge_type.", show_default=False),
    ] = None,
    filters: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='Conditions, [{"field": ..., "op": ..., "value": ...}], or {"key": value} on '
            "columns and metadata.",
            show_default=False,
        ),
    ] = None,
    collections: Annotated[
        list[str] | None,
        typer.Option(
            "--collection", help="Only this collection; may be repeated.", show_default=False
        ),
    ] = None,
    include_memory: Annotated[
        bool,
        typer.Option(
            "--include-memory",
            help=f"Search the collection {MEMORY} too; it and {HISTORY} are left out unless "
            "--collection or --filters names them.",
        ),
    ] = False,
    viewer_id: Annotated[
        UUID | None,
        typer.Option(help="Only what this user owns, and what is public.", show_default=False),
    ] = None,
    viewer_groups: ViewerGroupsOption = None,
    public_only: Annotated[
        bool, typer.Option("--public-only", help="Only what is public.")
    ] = False,
    date_from: Annotated[
        datetime | None,
        typer.Option(
            metavar="YYYY-MM-DD",
            formats=["%Y-%m-%d"],
            help="First document_date.",
            show_default=False,
        ),
    ] = None,
    date_to: Annotated[
        datetime | None,
        typer.Option(
            metavar="YYYY-MM-DD",
            formats=["%Y-%m-%d"],
            help="Last document_date.",
            show_default=False,
        ),
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
    facets: Annotated[
        list[str] | None,
        typer.Option(
            "--facet",
            help="Count the values of this column or metadata.KEY over the chunks that have the "
            "words; may be repeated.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show how each leg found its rows, and what words weigh."),
    ] = False,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Show what the search would cost: milliseconds, and rows for each leg. It does "
            "not search.",
        ),
    ] = False,
    why_not: Annotated[
        str | None,
        typer.Option(
            "--why-not",
            metavar="KEY",
            help="Say why this document (its external_key) or chunk (its id) is not found, its "
            "ranks, and what to do.",
            show_default=False,
        ),
    ] = None,
    embedder_name: EmbedderOption = "wordllama",
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Search, and show for each hit why it stands where it stands.

    Plain words are optional and weighed; "a phrase" is required; -word excludes.
    """
    leg: Leg = "hybrid" if mode == "rerank" else mode
    is_reranked = rerank or mode == "rerank"
    options: SearchOptions = {
        "top_k": limit,
        "threshold": min_similarity,
        "vector_weight": vector_weight,
        "text_weight": text_weight,
        "rrf_k": rrf_k,
        "pool_size": pool_size,
        "search_mode": search_mode,
        "filter_type": filter_type,
        "filters": _given_or_usual(_parsed(filters, "--filters"), include_memory, collections),
        "fusion": fusion,
        "collections": collections or None,
        "viewer_id": viewer_id,
        "viewer_groups": groups(viewer_groups),
        "public_only": public_only,
        "date_from": date_from.date() if date_from else None,
        "date_to": date_to.date() if date_to else None,
        "one_per_document": one_per_document,
        "neighbor_window": expand_neighbors,
        # The table shows the part of it that has the words.
        "snippet": snippet or not as_json,
        "match_offset": offset,
    }
    with opened(dsn, schema) as database:
        embedder = None
        if leg != "text":
            embedder = configured_embedder(embedder_name)
            refuse_other_embedder(database, embedder)
        if why_not is not None:
            missing = _provider(database).explain_missing(
                *_legs(question, leg, embedder), **_wanted(why_not), **options
            )
            print_json(missing) if as_json else typer.echo(why_not_text(missing))
            return
        if estimate:
            estimated = _provider(database).estimate_hybrid_search(
                *_legs(question, leg, embedder), **options
            )
            if as_json:
                print_json({"question": question, "mode": mode, "estimate": estimated})
            else:
                typer.echo(estimate_text(estimated))
            return
        if explain:
            explained = _provider(database).explain_hybrid_search(
                *_legs(question, leg, embedder), **options
            )
        else:
            if is_reranked:
                results = _reranked(database, question, leg, embedder, reranker_name, options)
            else:
                results = _ask(database, question, leg, embedder, **options)
            counts = _count_facets(database, question, facets, options)
            pending = _count_pending(database, leg, options)
            if not results and not as_json:
                typer.echo(_why_nothing(database, options), err=True)
    first = offset + 1
    if explain and as_json:
        print_json({"question": question, "mode": mode, "explanation": explained})
    elif explain:
        print_explanation(explained, first)
    elif as_json:
        hits = [{"rank": rank, **asdict(hit)} for rank, hit in enumerate(results, start=first)]
        answer: dict[str, Any] = {"question": question, "mode": mode, "results": hits}
        if facets:
            answer["facets"] = counts
        if pending is not None:
            answer["pending_embeddings"] = pending
        print_json(answer)
    elif results:
        console = new_console()
        console.print(results_table(results, first, is_whole=snippet))
        total = results[0].metadata["total_count"]
        if total is not None and total > len(results) and not is_reranked:
            last = first + len(results) - 1
            console.print(f"\nHits {first} to {last} of {total}.", style="dim", highlight=False)
        if counts:
            console.print()
            console.print(facets_table(counts))
        typer.echo(f"Read the first hit: {show_command(results[0], schema)}", err=True)
    note = None if explain or as_json else pending_note(pending)
    if note is not None:
        typer.echo(note, err=True)


def _reranked(
    database: Database,
    question: str,
    leg: Leg,
    embedder: Embedder | None,
    reranker_name: str,
    options: SearchOptions,
) -> list[MemorySearchResult]:
    """Search for more hits than asked for, and return the page of them after reranking.

    The candidates are those of the retrieval service: the same for each page.
    """
    reranker = load_reranker(reranker_name)
    limit, offset = options["top_k"], options["match_offset"]
    multiplier = configuration.load().search_settings().reranking_candidate_multiplier
    window = min(limit * multiplier, MATCH_COUNT_BOUND)
    wider: SearchOptions = {**options, "top_k": window, "match_offset": 0}
    found = _ask(database, question, leg, embedder, **wider)
    scores = rerank_scores(reranker, question, [hit.content for hit in found])
    # Sorting is stable: equal scores keep the fused order.
    order = sorted(range(len(found)), key=scores.__getitem__, reverse=True)
    return [found[place] for place in order[offset : offset + limit]]


@app.command("demo")
def _demo() -> None:
    """Fill this folder's dev database with the standard library's documentation and question it."""
    embedder = load_embedder("wordllama")
    server = EmbeddedPostgres(STATE / "postgres")
    typer.echo("Starting the embedded database in .second-brain/ ...")
    server.start()
    (STATE / ".gitignore").write_text("*\n")
    applied = migrations.apply(
        server.dsn(), dimensions=embedder.dimensions, modules=migrations.modules()
    )
    typer.echo(f"{number(len(applied), 'migration')} applied.")
    console = new_console()
    with connect(server.dsn(), autocommit=True) as connection:
        database = Database(connection)
        refuse_other_embedder(database, embedder)
        typer.echo("Ingesting the documentation of Python's standard library ...")
        ingest_with_progress(database, standard_library(), embedder, Labels())
        for question in _QUESTIONS:
            console.print()
            console.print(Text(f"Question: {question}", style="bold"))
            console.print(_comparison_table(database, question, embedder))
    console.print()
    console.print("v and t: the hit's rank by meaning (vector) and by words (text).", style="dim")
    console.print("\nAsk your own, and add your own documents:", style="bold")
    command = _invoked_as()
    for arguments in ('search "how do I copy a folder?"', "ingest PATH", "server dev stop"):
        console.print(f"  {command} {arguments}", highlight=False)
    console.print("\nSee both legs side by side in the browser:", style="bold")
    console.print(f"  {command} workbench --open", highlight=False)


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


def _given_or_usual(filters: Any, include_memory: bool, collections: list[str] | None) -> Any:
    """Add the condition that leaves memory and history out, unless something asks for them."""
    given = conditions(filters)
    further = [] if collections else without(left_out(include_memory, given))
    if not further:
        return given
    listed = listed_conditions(given) if isinstance(given, dict) else given or ()
    return [*listed, *further]


def _ask(
    database: Database,
    question: str,
    mode: Leg,
    embedder: Embedder | None,
    **options: Unpack[SearchOptions],
) -> list[MemorySearchResult]:
    hits, _ = _provider(database).find(*_legs(question, mode, embedder), **options)
    return hits


def _provider(database: Database) -> PostgresProvider:
    return PostgresProvider(database.connection, schema=database.install.schema)


def _count_facets(
    database: Database, question: str, facets: list[str] | None, options: SearchOptions
) -> list[FacetCount]:
    # By words only: every chunk has some similarity.
    return _provider(database).count_facets(None, question, facets, **options) if facets else []


def _count_pending(database: Database, mode: Leg, options: SearchOptions) -> int | None:
    # The text leg finds every chunk.
    if mode == "text":
        return None
    rows = {name: options[name] for name in (*ROWS, *VIEWER)}  # type: ignore[literal-required]
    try:
        counted: int = _provider(database).count_pending_embeddings(**rows)
    except ModuleMissingError:
        return None
    return counted


def _why_nothing(database: Database, options: SearchOptions) -> str:
    """Say that nothing is found, and why, where there was nothing to find."""
    stored = [name for (name,) in database.execute(_COLLECTIONS)]
    if not stored:
        return "Nothing found: the database has no documents. Add some: second-brain ingest PATH"
    wanted = options.get("collections") or ()
    empty = [name for name in wanted if name not in stored]
    if wanted and len(empty) == len(wanted):
        is_are = "is" if len(empty) == 1 else "are"
        return printable(
            f"Nothing found: {' and '.join(empty)} {is_are} empty; the database has documents in "
            f"{', '.join(stored[:20])}. Add some: second-brain ingest PATH --collection {empty[0]}"
        )
    if options.get("public_only") and not database.execute(_ANY_PUBLIC).fetchone():
        return (
            "Nothing found: no document is public. Make them: second-brain ingest PATH "
            "--visibility public"
        )
    return "Nothing found."


def _wanted(key: str) -> dict[str, str]:
    try:
        return {"chunk_id": str(UUID(key))}
    except ValueError:
        return {"document_key": key}


def _legs(
    question: str, mode: Leg, embedder: Embedder | None
) -> tuple[SupportsToList | None, str | None]:
    """Return the embedding and the text that the mode searches with."""
    embedding = None
    if embedder is not None and mode != "text":
        vector = embed_query(embedder, question)
        embedding = vector if vector.any() else None
    return embedding, None if mode == "vector" else question


def _comparison_table(database: Database, question: str, embedder: Embedder) -> Table:
    table = Table(expand=True, header_style="bold")
    table.add_column("", width=1)
    columns = []
    modes: tuple[Leg, ...] = ("vector", "text", "hybrid")
    for mode in modes:
        table.add_column(mode, ratio=1, no_wrap=True, overflow="ellipsis")
        columns.append(
            _ask(
                *(database, question, mode, embedder),
                top_k=3,
                fusion=FUSION,
                threshold=_ANY_SIMILARITY,
                snippet=True,
            )
        )
    for rank in range(max(map(len, columns))):
        cells = [cell(column[rank]) if rank < len(column) else Text() for column in columns]
        table.add_row(str(rank + 1), *cells)
    return table
