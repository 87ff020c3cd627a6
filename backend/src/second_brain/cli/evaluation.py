"""The commands eval and tune: arguments and output; the package `evaluation` does the work."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from second_brain.cli.corpus import EmbedderOption
from second_brain.cli.database import MajorOption, SchemaOption, resolve_dsn
from second_brain.cli.settings import describe
from second_brain.evaluation import metrics, report, runs, tuning
from second_brain.evaluation.collection import Collection, Vectors, embed, load, read_vectors
from second_brain.evaluation.metrics import MEASURES, Difference
from second_brain.evaluation.runs import Evaluation, Settings
from second_brain.evaluation.tuning import Tuning
from second_brain.models import load_embedder
from second_brain.models.rerankers import RERANKER_NAMES, load_reranker
from second_brain.services.connections import connect
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.install import SCHEMA
from second_brain.services.write import KnowledgeWriter

_EVAL_EXAMPLES = """\b
Examples:
  second-brain eval scifact
  second-brain eval scifact --doc-embeddings docs.npy --query-embeddings queries.npy
  second-brain eval support --weights 0.6 0.4 --html report.html
  second-brain eval support --reranker cross-encoder
  second-brain eval support --json > before.json
"""

_TUNE_EXAMPLES = """\b
Examples:
  second-brain tune support
  second-brain tune support --qrels support/qrels/dev.tsv --max-queries 500
  second-brain tune support --apply --collection support
"""

_MAX_TUNED = 200
_PIPED_WIDTH = 100

CollectionArgument = Annotated[
    Path,
    typer.Argument(
        metavar="COLLECTION",
        help="Folder with corpus.jsonl, queries.jsonl and qrels.tsv or qrels/test.tsv (BEIR).",
        show_default=False,
    ),
]
QrelsOption = Annotated[
    Path | None,
    typer.Option("--qrels", help="Judgments to use instead of the folder's.", show_default=False),
]
DocEmbeddingsOption = Annotated[
    Path | None,
    typer.Option(
        "--doc-embeddings",
        help="Embeddings of the documents, .npy, one row for each line of the corpus.",
        show_default=False,
    ),
]
QueryEmbeddingsOption = Annotated[
    Path | None,
    typer.Option(
        "--query-embeddings",
        help="Embeddings of the queries, .npy, one row for each line of the queries.",
        show_default=False,
    ),
]
LanguageOption = Annotated[str, typer.Option(help="Language of the documents.")]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        help="Create the scratch database on this server, not on an embedded one.",
        show_default=False,
    ),
]
SeedOption = Annotated[int, typer.Option(help="Seed of all random choices.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("eval", epilog=_EVAL_EXAMPLES)(_eval)
    app.command("tune", epilog=_TUNE_EXAMPLES)(_tune)


def _eval(
    directory: CollectionArgument,
    qrels: QrelsOption = None,
    doc_embeddings: DocEmbeddingsOption = None,
    query_embeddings: QueryEmbeddingsOption = None,
    embedder_name: EmbedderOption = "wordllama",
    language: LanguageOption = "english",
    fusion: Annotated[
        str | None,
        typer.Option(help="How hybrid fuses: rrf, relative_score, auto.", show_default=False),
    ] = None,
    weights: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="VECTOR TEXT", help="Weights of the two legs in hybrid.", show_default=False
        ),
    ] = None,
    rrf_k: Annotated[
        float | None, typer.Option(help="Constant of RRF in hybrid.", show_default=False)
    ] = None,
    pool_size: Annotated[
        int | None,
        typer.Option(
            help="Candidates per leg; at least 100, the number of hits requested.",
            show_default=False,
        ),
    ] = None,
    search_mode: Annotated[
        str | None, typer.Option(help="websearch, simple, phrase.", show_default=False)
    ] = None,
    reranker_name: Annotated[
        str | None,
        typer.Option(
            "--reranker",
            metavar="NAME",
            help=f"Also rerank the first {runs.RERANKED} hits of hybrid: "
            f"{', '.join(RERANKER_NAMES)}.",
            show_default=False,
        ),
    ] = None,
    max_queries: Annotated[
        int | None,
        typer.Option(min=1, help="Use a random sample of at most this many queries."),
    ] = None,
    seed: SeedOption = 0,
    dsn: ServerOption = None,
    postgres_major: MajorOption = None,
    as_json: JsonOption = False,
    html: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write an HTML report.", show_default=False),
    ] = None,
) -> None:
    """Measure search on a test collection: relevance, latency, and the gain of hybrid search.

    The documents are loaded into a scratch database that is dropped at the end. Every query runs
    three times: vector leg alone, text leg alone, hybrid; with --reranker, also reranked. Arguments
    that are not given have their defaults.
    """
    if html is not None and not html.parent.is_dir():
        raise typer.BadParameter(f"--html: the folder {html.parent} does not exist")
    vector_weight, text_weight = weights or (None, None)
    settings = Settings(fusion, vector_weight, text_weight, rrf_k, pool_size, search_mode)
    reranker = None if reranker_name is None else (reranker_name, load_reranker(reranker_name))
    collection, vectors = _prepare(
        directory, qrels, doc_embeddings, query_embeddings, embedder_name, max_queries, seed
    )
    with (
        _loaded(collection, vectors, language, dsn, postgres_major) as connection,
        _progress("Searching", len(collection.queries)) as advance,
    ):
        evaluation = runs.evaluate(
            connection,
            collection,
            vectors,
            settings,
            reranker=reranker,
            seed=seed,
            advance=advance,
        )
    if html is not None:
        html.write_text(report.render(evaluation), "utf-8")
    if as_json:
        typer.echo(json.dumps(_evaluation_json(evaluation), indent=2))
    else:
        _print_evaluation(evaluation)


def _tune(
    directory: CollectionArgument,
    qrels: QrelsOption = None,
    doc_embeddings: DocEmbeddingsOption = None,
    query_embeddings: QueryEmbeddingsOption = None,
    embedder_name: EmbedderOption = "wordllama",
    language: LanguageOption = "english",
    max_queries: Annotated[
        int, typer.Option(min=2, help="Use a random sample of at most this many queries.")
    ] = _MAX_TUNED,
    seed: SeedOption = 0,
    dsn: ServerOption = None,
    postgres_major: MajorOption = None,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Store fusion and weights in your database, if their gain is significant.",
        ),
    ] = False,
    applied_to: Annotated[
        str,
        typer.Option(
            "--collection",
            metavar="NAME",
            help="Collection to store them for; without it, for all that have none.",
            show_default=False,
        ),
    ] = "",
    target: Annotated[
        str | None,
        typer.Option(
            help="Database for --apply; the default is that of `second-brain search`.",
            show_default=False,
        ),
    ] = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Find the best search arguments for a collection: fusion, weights, RRF constant, pool size.

    Every query runs with each setting, for ten hits, in a scratch database that is dropped at the
    end. The output compares the cross-validated nDCG@10 of the tuned settings with the defaults and
    with each leg alone, and says whether hybrid search beats both legs.

    With --apply only fusion and weights are tried, because only they are stored. Every search whose
    caller gives no fusion uses them. `second-brain settings` shows and removes them.
    """
    if applied_to and not apply:
        raise typer.BadParameter("--collection needs --apply")
    dsn_applied = resolve_dsn(target) if apply else None
    collection, vectors = _prepare(
        directory, qrels, doc_embeddings, query_embeddings, embedder_name, max_queries, seed
    )
    if len(collection.queries) < 2:
        raise typer.BadParameter("tuning needs at least two queries with a relevant document")
    settings = tuning.grid(storable=apply)
    with (
        _loaded(collection, vectors, language, dsn, postgres_major) as connection,
        _progress("Searching by setting", len(settings) + 2) as advance,
    ):
        found = tuning.tune(connection, collection, vectors, settings, seed=seed, advance=advance)
    stored = None
    if dsn_applied is not None and found.storable is not None:
        with connect(dsn_applied, autocommit=True) as connection:
            stored = _stored(connection, schema, applied_to, found.storable)
    if as_json:
        told = {"stored": stored and stored.arguments()} if apply else {}
        typer.echo(json.dumps(_tuning_json(found) | told, indent=2))
        return
    _print_tuning(found)
    if stored is not None:
        typer.echo(f"Stored for {describe(stored)}")
    elif apply:
        typer.echo("Not stored: no setting is significantly better than the defaults.")


def _stored(
    connection: runs.Connection, schema: str, collection: str, tuned: CorpusSettings
) -> CorpusSettings:
    """Store what was tuned; the collection keeps the name of its embedding model."""
    writer = KnowledgeWriter(connection, schema=schema)
    models = {one.collection: one.embedding_model for one in writer.settings()}
    update = {"collection": collection, "embedding_model": models.get(collection)}
    return writer.set_settings(tuned.model_copy(update=update))


def _prepare(
    directory: Path,
    qrels: Path | None,
    doc_embeddings: Path | None,
    query_embeddings: Path | None,
    embedder_name: str,
    max_queries: int | None,
    seed: int,
) -> tuple[Collection, Vectors]:
    """Read the collection and its embeddings; all errors in the input are raised here."""
    metrics.require_library()
    collection = load(directory, qrels)
    if max_queries is not None:
        collection = collection.sample(max_queries, seed)
    if doc_embeddings is not None and query_embeddings is not None:
        return collection, read_vectors(collection, doc_embeddings, query_embeddings)
    if doc_embeddings is not None or query_embeddings is not None:
        raise typer.BadParameter("give both --doc-embeddings and --query-embeddings, or neither")
    embedder = load_embedder(embedder_name)
    typer.echo(f"Embedding {len(collection.documents):,} documents ...", err=True)
    return collection, embed(collection, embedder)


@contextmanager
def _loaded(
    collection: Collection,
    vectors: Vectors,
    language: str,
    dsn: str | None,
    postgres_major: int | None,
) -> Iterator[runs.Connection]:
    with (
        _ended_by_termination(),
        runs.scratch_database(vectors.dimensions, dsn, postgres_major) as connection,
    ):
        runs.load(
            connection,
            collection,
            vectors,
            language,
            lambda step: typer.echo(f"{step} ...", err=True),
        )
        yield connection


@contextmanager
def _ended_by_termination() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that `finally` drops the scratch database."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress(description: str, total: int) -> Iterator[Any]:
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
        task = progress.add_task(description, total=total)
        yield lambda: progress.advance(task)


def _print_evaluation(evaluation: Evaluation) -> None:
    console = _console()
    _print_heading(console, evaluation.collection)
    given = evaluation.settings.arguments()
    console.print(
        f"{evaluation.embedding_model} ({evaluation.dimensions} dimensions), PostgreSQL "
        f"{evaluation.server}, {_arguments(given) if given else 'default arguments'}",
        style="dim",
        highlight=False,
        markup=False,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in (*MEASURES, "p50 ms", "p95 ms", "empty"):
        table.add_column(name, justify="right")
    for search in evaluation.searches:
        table.add_row(
            search,
            *(f"{evaluation.mean(search, name):.3f}" for name in MEASURES),
            *(f"{evaluation.latency(search, share):.1f}" for share in (50, 95)),
            str(evaluation.empty(search)),
        )
    console.print()
    console.print(table)
    console.print()
    for other, gain in evaluation.gains.items():
        _print_difference(console, f"hybrid against {other}", gain)
    if evaluation.rerank_gain is not None:
        _print_difference(console, "rerank against hybrid", evaluation.rerank_gain)
    _print_test(console)


def _print_tuning(found: Tuning) -> None:
    console = _console()
    _print_heading(console, found.collection)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column(tuning.MEASURE, justify="right")
    for leg, mean in found.legs.items():
        table.add_row(f"{leg} alone", f"{mean:.3f}")
    table.add_row("hybrid, defaults", f"{found.default:.3f}")
    table.add_row("hybrid, tuned (cross-validated)", f"{found.validated:.3f}")
    console.print()
    console.print(table)
    console.print()
    for other, gain in found.gains.items():
        name = "the defaults" if other == "default" else f"{other} alone"
        _print_difference(console, f"tuned against {name}", gain)
    _print_test(console)
    console.print()
    for line in _advice(found):
        # Not by rich, which would wrap the lines: users copy the arguments.
        typer.echo(line)


def _advice(found: Tuning) -> Iterator[str]:
    for leg in found.not_beaten:
        gain = found.gains[leg]
        worse = gain.mean < 0 and gain.significant
        other = "text_weight" if leg == "vector" else "vector_weight"
        yield (
            f"Hybrid is {'worse than' if worse else 'not significantly better than'} the {leg} leg "
            f"alone ({gain.mean:+.3f}, p = {gain.p_value:.4f}). To use only the {leg} leg: "
            f"{other}=0"
        )
    if found.recommended == tuning.DEFAULT:
        yield "Recommended: the default arguments; no setting was better under cross-validation."
        return
    arguments = found.recommended.arguments()
    yield (
        f"Recommended ({tuning.MEASURE} {found.grid[found.recommended]:.3f} on the queries that "
        "chose it):"
    )
    yield f"  Python:  {_arguments(arguments)}"
    yield "  SQL:     " + ", ".join(f"{name} => {_sql(arg)}" for name, arg in arguments.items())
    if not found.gains["default"].significant:
        yield "The gain over the defaults is not significant; more judged queries would help."


def _print_heading(console: Console, collection: Collection) -> None:
    console.print(
        f"{collection.name}: {len(collection.documents):,} documents, "
        f"{len(collection.queries):,} queries",
        style="bold",
        highlight=False,
        markup=False,
    )
    for remark in collection.remarks:
        console.print(f"{remark}.", style="dim", highlight=False, markup=False)


def _print_difference(console: Console, name: str, difference: Difference) -> None:
    kind = "gain" if difference.mean > 0 else "loss"
    verdict = f"significant {kind}" if difference.significant else "not significant"
    console.print(
        f"{name}: {difference.mean:+.3f} {MEASURES[0]}, p = {difference.p_value:.4f}, {verdict}",
        highlight=False,
    )


def _print_test(console: Console) -> None:
    console.print(
        f"{metrics.TEST}; {metrics.PERMUTATIONS:,} random permutations, or all if there are "
        f"fewer; significant: p < {metrics.SIGNIFICANT}",
        style="dim",
        highlight=False,
    )


def _evaluation_json(evaluation: Evaluation) -> dict[str, Any]:
    collection = evaluation.collection
    return {
        "collection": collection.name,
        "documents": len(collection.documents),
        "queries": len(collection.queries),
        "remarks": list(collection.remarks),
        "embedding_model": evaluation.embedding_model,
        "dimensions": evaluation.dimensions,
        "postgres": evaluation.server,
        "match_count": runs.DEPTH,
        "arguments": evaluation.settings.arguments(),
        "legs": {
            search: {
                **{name: evaluation.mean(search, name) for name in MEASURES},
                "p50_ms": evaluation.latency(search, 50),
                "p95_ms": evaluation.latency(search, 95),
                "empty_answers": evaluation.empty(search),
            }
            for search in evaluation.searches
        },
        "reranker": evaluation.reranker,
        "rerank_gain": evaluation.rerank_gain
        and {"measure": MEASURES[0], **_difference_json(evaluation.rerank_gain)},
        "hybrid_gain": {
            leg: {"measure": MEASURES[0], **_difference_json(gain)}
            for leg, gain in evaluation.gains.items()
        },
        "test": metrics.TEST,
        "relevant_found_by": {
            f"first_{depth}": evaluation.found_by(depth) for depth in (10, runs.DEPTH)
        },
        "per_query": [
            {
                "query": query.id,
                **{
                    search: evaluation.values[search][MEASURES[0]][query.id]
                    for search in evaluation.searches
                },
            }
            for query in collection.queries
        ],
    }


def _tuning_json(found: Tuning) -> dict[str, Any]:
    return {
        "collection": found.collection.name,
        "documents": len(found.collection.documents),
        "queries": len(found.collection.queries),
        "remarks": list(found.collection.remarks),
        "measure": tuning.MEASURE,
        "legs": found.legs,
        "default": found.default,
        "tuned_cross_validated": found.validated,
        "folds": [settings.arguments() for settings in found.chosen],
        "tuned_gain": {other: _difference_json(gain) for other, gain in found.gains.items()},
        "test": metrics.TEST,
        "legs_not_beaten": list(found.not_beaten),
        "recommended": found.recommended.arguments(),
        "grid": [
            {"arguments": settings.arguments(), tuning.MEASURE: mean}
            for settings, mean in found.grid.items()
        ],
    }


def _difference_json(difference: Difference) -> dict[str, Any]:
    return {**asdict(difference), "significant": difference.significant}


def _arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _sql(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PIPED_WIDTH)
