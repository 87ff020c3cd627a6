"""Commands that search: search, demo."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar
from uuid import UUID

import typer
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from second_brain.cli import configuration
from second_brain.cli.configuration import SearchMode
from second_brain.cli.corpus import (
    explained_refusal,
    groups,
    question_embedder,
    refuse_other_embedder,
)
from second_brain.cli.options import (
    DsnOption,
    JsonOption,
    QuestionEmbedderOption,
    SchemaOption,
    ViewerGroupsOption,
    parsed,
    with_fields,
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
from second_brain.errors import InvalidInputError
from second_brain.models import Embedder, load_embedder
from second_brain.models.rerankers import RERANKER_NAMES, Reranker, load_reranker
from second_brain.retrieval.answer import FROM_TEXT, Explanation, SearchResponse, SearchResult
from second_brain.retrieval.embedding import NO_EMBEDDER
from second_brain.retrieval.plan import HISTORY, MEMORY, invalid_query
from second_brain.retrieval.query import AccessOptions, OperatorQuery, SearchQuery
from second_brain.retrieval.service import RetrievalService
from second_brain.retrieval.settings import Mode
from second_brain.services.arguments import Fusion, Leg, renamed
from second_brain.services.connections import connect
from second_brain.services.install import SCHEMA, Database
from second_brain.services.postgres import PostgresProvider
from second_brain.services.results import off_subject_note, pending_note

# Nothing is too dissimilar to be shown: the table says how similar it is.
_ANY_SIMILARITY = -1.0

# Of what a hit lacks, JSON leaves these out.
_OPTIONAL = ("title", "source_url", "rerank_score", "original_rank")


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
  second-brain search --like 3f0c1f4e-7a55-4d0c-9a51-6f3f6a1f3f10
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


# Fields of a query under another name here, and those that other options or calls are for.
NO_OPTIONS = {"query", "category", "tags", "formulations", "exact_total"}


_OPTIONS = {
    "category": "--knowledge-type",
    "collections": "--collection",
    "like_ids": "--like",
    **{name: f"--{name.replace('_', '-')}" for name in OperatorQuery.model_fields if "_" in name},
}


@app.command("search", epilog=_SEARCH_EXAMPLES)
@with_fields(SearchQuery, before="offset", but=NO_OPTIONS)
def _search(
    question: Annotated[
        str, typer.Argument(help="What to search for; not needed with --like.", show_default=False)
    ] = "",
    mode: Annotated[
        Mode,
        typer.Option(
            "--mode",
            help="Both legs fused, one leg, or rerank: both legs fused and reranked.",
        ),
    ] = "hybrid",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of hits.")] = 10,
    fusion: Annotated[
        Fusion | None,
        typer.Option(help="How the legs are fused; without it, as stored for the corpus, or rrf."),
    ] = None,
    vector_weight: Annotated[
        float, typer.Option(min=0, help="Weight of the vector leg; 0 leaves the leg out.")
    ] = 1.0,
    text_weight: Annotated[
        float, typer.Option(min=0, help="Weight of the text leg; 0 leaves the leg out.")
    ] = 1.0,
    rrf_k: Annotated[float, typer.Option(help="Constant of RRF, above 0.")] = 60.0,
    pool_size: Annotated[
        int,
        typer.Option(min=1, max=1000, help="Candidates of each leg, and at least 3 for each hit."),
    ] = 50,
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
    like_ids: Annotated[
        list[UUID] | None,
        typer.Option(
            "--like", help="Hits like this chunk or document; may be repeated.", show_default=False
        ),
    ] = None,
    boosts: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Factors of the score, as a list of objects.", show_default=False
        ),
    ] = None,
    viewer_id: Annotated[
        UUID | None,
        typer.Option(help="Only what this user owns, and what is public.", show_default=False),
    ] = None,
    viewer_groups: ViewerGroupsOption = None,
    public_only: Annotated[
        bool, typer.Option("--public-only", help="Only what is public.")
    ] = False,
    as_of: Annotated[
        str, typer.Option(help="Only what holds at this time, such as 2026-01-31; or all.")
    ] = "now",
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
            help="Say why this document (its external_key, id or source_url) or chunk (its id) is "
            "not found, its ranks, and what to do.",
            show_default=False,
        ),
    ] = None,
    embedder_name: QuestionEmbedderOption = "wordllama",
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    **others: Any,
) -> None:
    """Search, and show for each hit why it stands where it stands.

    Plain words are optional and weighed; "a phrase" is required; -word excludes.
    """
    if not (question or like_ids):
        raise typer.BadParameter("give a question, or --like ID")
    is_reranked = rerank or mode == "rerank"
    query = _query(
        query=question,
        mode="rerank" if is_reranked else mode,
        reranked_leg="hybrid" if mode == "rerank" else mode,
        limit=limit,
        offset=offset,
        fusion=fusion,
        vector_weight=vector_weight,
        text_weight=text_weight,
        min_similarity=min_similarity,
        search_mode=search_mode,
        category=filter_type,
        filters=parsed(filters, "--filters"),
        collections=collections or None,
        like_ids=like_ids or None,
        boosts=parsed(boosts, "--boosts"),
        include_memory=include_memory,
        expand_neighbors=expand_neighbors,
        # The table shows the part of it that has the words.
        snippet=snippet or not as_json,
        as_of=None if as_of == "all" else as_of,
        **others,
    )
    access: AccessOptions = {
        "viewer_id": viewer_id,
        "viewer_groups": groups(viewer_groups),
        "public_only": public_only,
    }
    with opened(dsn, schema) as database:
        embedder = NO_EMBEDDER if mode == "text" else question_embedder(embedder_name)
        reranker = load_reranker(reranker_name) if is_reranked else None
        service = _service(
            *(database, embedder, reranker), hybrid_candidate_count=pool_size, rrf_constant=rrf_k
        )
        asked: dict[str, Any] = {"question": question, "mode": mode}
        with _named_options(), explained_refusal(database, embedder):
            if why_not is not None:
                missing = _told(service.why_not(query, why_not, **access)).answer
                print_json(missing) if as_json else typer.echo(why_not_text(missing))
                return
            if estimate:
                cost = _told(service.estimate(query, **access)).answer
                print_json({**asked, "estimate": cost}) if as_json else typer.echo(
                    estimate_text(cost)
                )
                return
            if explain:
                found = _told(service.explain(query, **access)).answer
                if as_json:
                    print_json({**asked, "explanation": found})
                else:
                    print_explanation(found, offset + 1)
                return
            response = _told(service.search(query, **access))
            counts = service.facets(query, facets, **access) if facets else []
        results = response.results
        if not results and not as_json:
            why = f" {renamed(response.empty.message, _OPTIONS)}" if response.empty else ""
            typer.echo(printable(f"Nothing found.{why}"), err=True)
    if as_json:
        answer = {**asked, "results": [_hit(one, response) for one in results]}
        if facets:
            answer["facets"] = counts
        if response.pending_embeddings is not None:
            answer["pending_embeddings"] = response.pending_embeddings
        if response.left_out:
            answer["left_out"] = response.left_out
        if response.empty is not None:
            answer["empty"] = response.empty.model_dump()
        if response.degraded is not None:
            answer["degraded"] = response.degraded.model_dump()
        print_json(answer)
        return
    if results:
        console = new_console()
        console.print(results_table(results, is_whole=snippet))
        total = response.total_count or 0
        if total > len(results) and not is_reranked:
            place = f"Hits {results[0].rank} to {results[-1].rank} of {total}."
            console.print(f"\n{place}", style="dim", highlight=False)
        if unsure := off_subject_note(response.answer_confidence):
            console.print(f"\n{unsure}", style="yellow", highlight=False)
        if counts:
            console.print()
            console.print(facets_table(counts))
        shown_by = show_command(results[0], schema)
        typer.echo(f"Read the first hit (module insight): {shown_by}", err=True)
    if note := pending_note(response.pending_embeddings):
        typer.echo(note, err=True)


def _query(**given: Any) -> OperatorQuery:
    try:
        return OperatorQuery(**given)
    except ValidationError as error:
        raise InvalidInputError(renamed(str(invalid_query(error)), _OPTIONS)) from None


@contextmanager
def _named_options() -> Iterator[None]:
    """Name the option, where a search refuses an argument."""
    try:
        yield
    except InvalidInputError as error:
        error.args = (renamed(str(error), _OPTIONS),)
        raise


def _service(
    database: Database,
    embedder: Embedder,
    reranker: Reranker | None = None,
    **changed: Any,
) -> RetrievalService:
    """Return the service of the configuration, for one search on one connection."""
    settings = configuration.load().search_settings()
    # The options of the command say what these two settings would.
    changed |= {"use_reranking": False, "search_default_mode": "hybrid"}
    changed |= {"query_log": "off", "search_cache_enabled": False}
    if "search_timeout_seconds" not in settings.model_fields_set:
        changed["search_timeout_seconds"] = None
    provider = PostgresProvider(database.connection, schema=database.install.schema)
    return RetrievalService(provider, embedder, reranker, settings.model_copy(update=changed))


Answer = TypeVar("Answer", SearchResponse, Explanation)


def _told(answer: Answer) -> Answer:
    """Say on stderr what the search did without."""
    part = answer.degraded
    while part is not None:
        without = "an embedding" if part.part == "embed" else part.part
        told = f"warning: searched without {without}: {part.message}. {part.remedy}"
        if part.part == "embed" and answer.is_inferred:
            told = f"note: the embedding of the question is {FROM_TEXT}: {part.message}"
        typer.echo(told, err=True)
        part = part.also
    return answer


def _hit(hit: SearchResult, response: SearchResponse) -> dict[str, Any]:
    """Return a hit as JSON shows it: what the database says of it is in `metadata`."""
    said = hit.model_dump(exclude_computed_fields=True)
    first = {name: said.pop(name) for name in ("rank", "id", "content", "confidence")}
    lacking = {name for name in _OPTIONAL if said[name] is None}
    return {
        **first,
        "source": "postgres",
        "metadata": {
            **said.pop("metadata"),
            **{name: value for name, value in said.items() if name not in lacking},
            "is_chunk": hit.is_chunk,
            "total_count": response.total_count,
            "answer_confidence": response.answer_confidence,
            "pool_ended": response.pool_ended,
            "real_provider": True,
        },
    }


@app.command("demo")
def _demo() -> None:
    """Fill this folder's dev database with the standard library's documentation and question it."""
    from second_brain.demo import standard_library
    from second_brain.ingest import Labels
    from second_brain.ingest.commands import ingest_with_progress

    embedder = load_embedder("wordllama")
    server = EmbeddedPostgres(STATE / "postgres")
    console = new_console()
    with console.status("Starting an embedded database ..."):
        server.start()
    (STATE / ".gitignore").write_text("*\n")
    typer.echo("An embedded database runs in .second-brain/.")
    with console.status("Applying the migrations ..."):
        applied = migrations.apply(
            server.dsn(),
            dimensions=embedder.dimensions,
            modules=migrations.modules(),
            fusion=migrations.FUSION,
        )
    typer.echo(f"{number(len(applied), 'migration')} applied.")
    with connect(server.dsn(), autocommit=True) as connection:
        database = Database(connection)
        refuse_other_embedder(database, embedder)
        typer.echo("Ingesting the documentation of Python's standard library ...")
        ingest_with_progress(database, standard_library(), embedder, Labels())
        service = _service(database, embedder)
        for question in _QUESTIONS:
            console.print()
            console.print(Text(f"Question: {question}", style="bold"))
            console.print(_comparison_table(service, question))
    console.print()
    console.print("v and t: the hit's rank by meaning (vector) and by words (text).", style="dim")
    console.print("\nAsk your own, and add your own documents:", style="bold")
    command = _invoked_as()
    for arguments in ('search "how do I copy a folder?"', "ingest PATH", "server dev stop"):
        console.print(f"  {command} {arguments}", highlight=False)
    console.print("\nSee both legs side by side in the browser (extra workbench):", style="bold")
    console.print(f"  {command} workbench --open", highlight=False)
    console.print("  make workbench, in a checkout, installs the extra first", highlight=False)


def _invoked_as() -> str:
    """Return what to type for this command: its name where it is on the PATH, else its file."""
    if shutil.which("second-brain"):
        return "second-brain"
    return os.path.relpath(sys.argv[0])


def _comparison_table(service: RetrievalService, question: str) -> Table:
    table = Table(expand=True, header_style="bold")
    table.add_column("", width=1)
    columns = []
    modes: tuple[Leg, ...] = ("vector", "text", "hybrid")
    for mode in modes:
        table.add_column(mode, ratio=1, no_wrap=True, overflow="ellipsis")
        response = service.search(
            question, mode=mode, limit=3, min_similarity=_ANY_SIMILARITY, snippet=True
        )
        columns.append(response.results)
    for rank in range(max(map(len, columns))):
        cells = [cell(column[rank]) if rank < len(column) else Text() for column in columns]
        table.add_row(str(rank + 1), *cells)
    return table
