"""The commands eval and tune: arguments and output; the package `evaluation` does the work."""

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from second_brain.cli import live_evaluation
from second_brain.cli.corpus import EmbedderOption, configured_embedder
from second_brain.cli.evaluation_output import (
    difference_json,
    print_difference,
    print_heading,
    print_test,
    print_tuning,
    progress,
    python,
    tuning_json,
)
from second_brain.cli.output import JsonOption, print_json
from second_brain.cli.settings import describe
from second_brain.cli.tables import new_console
from second_brain.cli.target import MajorOption, SchemaOption, resolve_dsn
from second_brain.evaluation import metrics, report, runs, tuning
from second_brain.evaluation.collection import Collection, Vectors, embed, load, read_vectors
from second_brain.evaluation.embedding_models import MOST_CHUNKS
from second_brain.evaluation.live import Kind, Mode, parse_mode
from second_brain.evaluation.metrics import MEASURES
from second_brain.evaluation.runs import Evaluation, Settings
from second_brain.models.rerankers import RERANKER_NAMES, load_reranker
from second_brain.services.connections import connect
from second_brain.services.install import SCHEMA
from second_brain.services.write import KnowledgeWriter

_EVAL_EXAMPLES = """\b
Examples:
  second-brain eval
  second-brain eval --collection support --compare stored rrf
  second-brain eval --compare rrf '{"fusion": "auto", "vector_weight": 0.7}'
  second-brain eval --compare-embedder openai:text-embedding-3-small
  second-brain eval --reranker cross-encoder
  second-brain eval scifact
  second-brain eval scifact --doc-embeddings docs.npy --query-embeddings queries.npy
  second-brain eval support --weights 0.6 0.4 --html report.html
  second-brain eval support --reranker cross-encoder
  second-brain eval support --json > before.json
"""

_TUNE_EXAMPLES = """\b
Examples:
  second-brain tune
  second-brain tune --collection support --apply
  second-brain tune scifact
  second-brain tune scifact --qrels scifact/qrels/dev.tsv --max-queries 500
  second-brain tune scifact --apply --collection support
"""

_MAX_TUNED = 200
_TOO_FEW = "tuning needs at least two queries with a relevant document"
_FOLDER_OPTIONS = "is for a test collection: give its folder"

FolderArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FOLDER]",
        help="Test collection: corpus.jsonl, queries.jsonl and qrels.tsv or qrels/test.tsv (BEIR). "
        "Without it, the judgments in the database and its corpus.",
        show_default=False,
    ),
]
KindOption = Annotated[
    Kind | None,
    typer.Option(
        "--questions",
        help="Without a folder: questions that were judged (the default if there are any), that "
        "`judgments generate` made, or all.",
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
LanguageOption = Annotated[str, typer.Option(help="Language of the documents of the folder.")]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        help="Database of the corpus. With a folder: server for the scratch database, instead of "
        "an embedded one.",
        show_default=False,
    ),
]
SeedOption = Annotated[int, typer.Option(help="Seed of all random choices.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("eval", epilog=_EVAL_EXAMPLES)(_eval)
    app.command("tune", epilog=_TUNE_EXAMPLES)(_tune)


def _eval(
    directory: FolderArgument = None,
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
            help=f"Also rerank the first {runs.RERANKED} hits of hybrid; without a folder, those "
            f"of the settings in use, or of ONE: {', '.join(RERANKER_NAMES)}.",
            show_default=False,
        ),
    ] = None,
    max_queries: Annotated[
        int | None,
        typer.Option(min=1, help="Use a random sample of at most this many queries."),
    ] = None,
    seed: SeedOption = 0,
    collection: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Without a folder: the collection that the questions are asked in; without it, "
            "all of the corpus.",
            show_default=False,
        ),
    ] = None,
    kind: KindOption = None,
    compared: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="ONE OTHER",
            help="Without a folder: only these two, the other against the one. Each is vector, "
            "text, rrf, relative_score, auto, stored, or JSON with the settings of hybrid.",
            show_default=False,
        ),
    ] = None,
    other_embedder: Annotated[
        str | None,
        typer.Option(
            "--compare-embedder",
            metavar="NAME",
            help="Without a folder: compare the stored embeddings with those of this model.",
            show_default=False,
        ),
    ] = None,
    max_chunks: Annotated[
        int, typer.Option(min=1, help="Chunks to embed for --compare-embedder.")
    ] = MOST_CHUNKS,
    dsn: ServerOption = None,
    schema: SchemaOption = SCHEMA,
    postgres_major: MajorOption = None,
    as_json: JsonOption = False,
    html: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write an HTML report.", show_default=False),
    ] = None,
) -> None:
    """Measure search: relevance, latency, and the gain of hybrid search.

    Without a folder, the questions are those judged in the database, and every one is searched in
    the corpus itself: each leg alone, each fusion, and the stored settings; with --reranker, also
    reranked.

    With a folder, its documents are loaded into a scratch database that is dropped at the end.
    Every query runs three times: vector leg alone, text leg alone, hybrid; with --reranker, also
    reranked. Arguments that are not given have their defaults.
    """
    vector_weight, text_weight = weights or (None, None)
    settings = Settings(fusion, vector_weight, text_weight, rrf_k, pool_size, search_mode)
    reranker = None if reranker_name is None else (reranker_name, load_reranker(reranker_name))
    if directory is None:
        _refuse(
            _FOLDER_OPTIONS,
            {
                "--qrels": qrels,
                "--doc-embeddings": doc_embeddings,
                "--query-embeddings": query_embeddings,
                "--postgres-major": postgres_major,
                "--html": html,
            },
        )
        if other_embedder is not None:
            _refuse(
                "is not for --compare-embedder",
                {"--compare": compared, "--reranker": reranker_name},
            )
        modes = [parse_mode(text) for text in compared or ()]
        if settings != Settings():
            if modes:
                raise typer.BadParameter("--compare names the settings: give no others")
            modes = [Mode("stored"), Mode("given", settings=settings)]
        with live_evaluation.judged(
            dsn, schema, collection, kind, embedder_name, (max_queries, seed)
        ) as found:
            if other_embedder is not None:
                live_evaluation.evaluate_models(
                    *(*found, other_embedder),
                    collection=collection,
                    most=max_chunks,
                    seed=seed,
                    as_json=as_json,
                )
                return
            live_evaluation.evaluate(
                *found,
                collection=collection,
                compared=modes,
                reranker=reranker,
                seed=seed,
                as_json=as_json,
            )
        return
    _refuse(
        "is for the corpus of a database: give no folder",
        {
            "--collection": collection,
            "--questions": kind,
            "--compare": compared,
            "--compare-embedder": other_embedder,
        },
    )
    if html is not None and not html.parent.is_dir():
        raise typer.BadParameter(f"--html: the folder {html.parent} does not exist")
    loaded, vectors = _prepare(
        directory, qrels, doc_embeddings, query_embeddings, embedder_name, max_queries, seed
    )
    with (
        _loaded(loaded, vectors, language, dsn, postgres_major) as connection,
        progress("Searching", len(loaded.queries)) as advance,
    ):
        evaluation = runs.evaluate(
            connection,
            loaded,
            vectors,
            settings,
            reranker=reranker,
            seed=seed,
            advance=advance,
        )
    if html is not None:
        html.write_text(report.render(evaluation), "utf-8")
    if as_json:
        print_json(_evaluation_json(evaluation))
    else:
        _print_evaluation(evaluation)


def _tune(
    directory: FolderArgument = None,
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
    force: Annotated[
        bool,
        typer.Option("--force", help="With --apply: store them even if it is not significant."),
    ] = False,
    collection: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Collection that the questions are asked in, and to store the settings for; "
            "without it, all that have no settings of their own.",
            show_default=False,
        ),
    ] = None,
    kind: KindOption = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="With a folder: database for --apply; the default is that of `second-brain "
            "search`.",
            show_default=False,
        ),
    ] = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Find the best search arguments for a collection: fusion, weights, RRF constant, pool size.

    Without a folder, the questions are those judged in the database, and they are searched in the
    corpus itself; only fusion and weights are tried. With a folder, its documents are loaded into a
    scratch database that is dropped at the end.

    Every query runs with each setting, for ten hits. The output compares the cross-validated
    nDCG@10 of the tuned settings with those in use (with a folder: the defaults) and with each leg
    alone, and says whether hybrid search beats both legs.

    With --apply only fusion and weights are tried, because only they are stored. Every search whose
    caller gives no fusion uses them. `second-brain settings` shows and removes them.
    """
    if force and not apply:
        raise typer.BadParameter("--force needs --apply")
    if directory is None:
        _refuse(
            _FOLDER_OPTIONS,
            {
                "--qrels": qrels,
                "--doc-embeddings": doc_embeddings,
                "--query-embeddings": query_embeddings,
                "--postgres-major": postgres_major,
                "--target": target,
            },
        )
        with live_evaluation.judged(
            dsn, schema, collection, kind, embedder_name, (max_queries, seed)
        ) as judged:
            if len(judged[1].queries) < 2:
                raise typer.BadParameter(_TOO_FEW)
            live_evaluation.tune(
                *judged,
                collection=collection,
                seed=seed,
                is_applied=apply,
                is_forced=force,
                as_json=as_json,
            )
        return
    if collection is not None and not apply:
        raise typer.BadParameter("--collection needs --apply")
    _refuse("is for the corpus of a database: give no folder", {"--questions": kind})
    dsn_applied = resolve_dsn(target) if apply else None
    loaded, vectors = _prepare(
        directory, qrels, doc_embeddings, query_embeddings, embedder_name, max_queries, seed
    )
    if len(loaded.queries) < 2:
        raise typer.BadParameter(_TOO_FEW)
    settings = tuning.grid(storable=apply)
    with (
        _loaded(loaded, vectors, language, dsn, postgres_major) as connection,
        progress("Searching by setting", tuning.searches(loaded, settings)) as advance,
    ):
        searcher = runs.Searcher(connection, loaded, vectors)
        found = tuning.tune(searcher.answer, loaded, settings, seed=seed, advance=advance)
    stored = None
    chosen = found.forced if force else found.storable
    if dsn_applied is not None and chosen is not None:
        with connect(dsn_applied, autocommit=True) as connection:
            writer = KnowledgeWriter(connection, schema=schema)
            stored = tuning.store(writer, collection or "", chosen)
    if as_json:
        applied = {"stored": stored and stored.arguments()} if apply else {}
        print_json(tuning_json(found) | applied)
        return
    print_tuning(found)
    if stored is not None:
        typer.echo(f"Stored for {describe(stored)}")
    elif apply:
        typer.echo("Not stored: no setting is significantly better than the defaults.")


def _refuse(reason: str, options: Mapping[str, object]) -> None:
    """Raise an error for the first option that is given."""
    for name, value in options.items():
        if value is not None:
            raise typer.BadParameter(f"{name} {reason}")


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
    embedder = configured_embedder(embedder_name)
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


def _print_evaluation(evaluation: Evaluation) -> None:
    console = new_console()
    print_heading(console, evaluation.collection)
    given = evaluation.settings.arguments()
    console.print(
        f"{evaluation.embedding_model} ({evaluation.dimensions} dimensions), PostgreSQL "
        f"{evaluation.server}, {python(given) if given else 'default arguments'}",
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
        print_difference(console, f"hybrid against {other}", gain)
    if evaluation.rerank_gain is not None:
        print_difference(console, "rerank against hybrid", evaluation.rerank_gain)
    print_test(console)


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
        and {"measure": MEASURES[0], **difference_json(evaluation.rerank_gain)},
        "hybrid_gain": {
            leg: {"measure": MEASURES[0], **difference_json(gain)}
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
