"""The commands eval and tune: arguments and output; the package `evaluation` does the work."""

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from second_brain.cli.corpus import configured_embedder, refuse_other_embedder
from second_brain.cli.options import EmbedderOption, JsonOption, MajorOption, SchemaOption
from second_brain.cli.output import print_json
from second_brain.cli.settings import describe
from second_brain.cli.tables import number
from second_brain.cli.target import opened, resolve_dsn
from second_brain.evaluation import collection as collections
from second_brain.evaluation import metrics, report, scratch, tuning
from second_brain.evaluation.collection import Questions, Vectors, embed_questions
from second_brain.evaluation.commands.output import (
    print_comparison,
    print_fields,
    print_models,
    print_tuning,
    progress,
    tuning_json,
)
from second_brain.evaluation.comparison import IN_USE, LEGS, Mode, Source, measure
from second_brain.evaluation.embedding_models import MOST_CHUNKS, compare_models
from second_brain.evaluation.live import Kind, modes_of, parse_mode, read_questions
from second_brain.evaluation.runs import RERANKED, Searcher, Settings
from second_brain.models import Embedder
from second_brain.models.rerankers import RERANKER_NAMES, load_reranker
from second_brain.services.arguments import FUSIONS
from second_brain.services.connections import connect
from second_brain.services.install import SCHEMA, Database
from second_brain.services.write import KnowledgeWriter

_EVAL_EXAMPLES = """\b
Examples:
  second-brain corpus eval
  second-brain corpus eval --collection support --compare stored rrf
  second-brain corpus eval --compare rrf '{"fusion": "auto", "vector_weight": 0.7}'
  second-brain corpus eval --compare-embedder openai:text-embedding-3-small
  second-brain corpus eval --reranker cross-encoder --html report.html
  second-brain corpus eval scifact
  second-brain corpus eval scifact --doc-embeddings docs.npy --query-embeddings queries.npy
  second-brain corpus eval support --weights 0.6 0.4 --html report.html
  second-brain corpus eval support --reranker cross-encoder
  second-brain corpus eval support --json > before.json
"""

_TUNE_EXAMPLES = """\b
Examples:
  second-brain corpus tune
  second-brain corpus tune --collection support --apply
  second-brain corpus tune questions.tsv --collection support --apply
  second-brain corpus tune scifact
  second-brain corpus tune scifact --qrels scifact/qrels/dev.tsv --max-queries 500
  second-brain corpus tune scifact --apply --collection support
"""

_MAX_TUNED = 200

FolderArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FOLDER]",
        help="Test collection: corpus.jsonl, queries.jsonl and qrels.tsv or qrels/test.tsv (BEIR). "
        "Without it, the corpus of the database and its judgments; those of a file of "
        "`corpus judgments import` if this is one.",
    ),
]
KindOption = Annotated[
    Kind | None,
    typer.Option(
        "--questions",
        help="Without a folder: questions that were judged (the default if there are any), that "
        "`corpus judgments generate` made, or all.",
    ),
]
QrelsOption = Annotated[
    Path | None,
    typer.Option("--qrels", help="Judgments to use instead of the folder's."),
]
DocEmbeddingsOption = Annotated[
    Path | None,
    typer.Option(
        "--doc-embeddings",
        help="Embeddings of the documents, .npy, one row for each line of the corpus.",
    ),
]
QueryEmbeddingsOption = Annotated[
    Path | None,
    typer.Option(
        "--query-embeddings",
        help="Embeddings of the queries, .npy, one row for each line of the queries.",
    ),
]
LanguageOption = Annotated[str, typer.Option(help="Language of the documents of the folder.")]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        help="Database of the corpus. With a folder: server for the scratch database, instead of "
        "an embedded one.",
    ),
]
SeedOption = Annotated[int, typer.Option(help="Seed of all random choices.")]


app = typer.Typer(rich_markup_mode=None)


@app.command("eval", epilog=_EVAL_EXAMPLES)
def _eval(
    directory: FolderArgument = None,
    qrels: QrelsOption = None,
    doc_embeddings: DocEmbeddingsOption = None,
    query_embeddings: QueryEmbeddingsOption = None,
    embedder_name: EmbedderOption = "wordllama",
    language: LanguageOption = "english",
    fusion: Annotated[
        str | None, typer.Option(help=f"How hybrid fuses: {', '.join(FUSIONS)}.")
    ] = None,
    weights: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="VECTOR TEXT", help="Weights of the two legs in hybrid."),
    ] = None,
    rrf_k: Annotated[float | None, typer.Option(help="Constant of RRF in hybrid.")] = None,
    pool_size: Annotated[
        int | None,
        typer.Option(help="Candidates per leg; at least 100, the number of hits requested."),
    ] = None,
    search_mode: Annotated[str | None, typer.Option(help="websearch, simple, phrase.")] = None,
    reranker_name: Annotated[
        str | None,
        typer.Option(
            "--reranker",
            metavar="NAME",
            help=f"Also rerank the first {RERANKED} hits of hybrid; without a folder, those "
            f"of the settings in use, or of ONE: {', '.join(RERANKER_NAMES)}.",
        ),
    ] = None,
    max_queries: Annotated[
        int | None, typer.Option(min=1, help="Use a random sample of at most this many queries.")
    ] = None,
    seed: SeedOption = 0,
    collection: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Without a folder: the collection that the questions are asked in; without it, "
            "all of the corpus.",
        ),
    ] = None,
    kind: KindOption = None,
    compared: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="ONE OTHER",
            help="Without a folder: only these two, the other against the one. Each is vector, "
            f"text, {', '.join(FUSIONS)}, stored, or JSON with the settings of hybrid.",
        ),
    ] = None,
    other_embedder: Annotated[
        str | None,
        typer.Option(
            "--compare-embedder",
            metavar="NAME",
            help="Without a folder: compare the stored embeddings with those of this model.",
        ),
    ] = None,
    max_chunks: Annotated[
        int, typer.Option(min=1, help="Chunks to embed for --compare-embedder.")
    ] = MOST_CHUNKS,
    dsn: ServerOption = None,
    schema: SchemaOption = SCHEMA,
    postgres_major: MajorOption = None,
    as_json: JsonOption = False,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write an HTML report.")] = None,
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
    reranker = None if reranker_name is None else load_reranker(reranker_name)
    modes = [parse_mode(text) for text in compared or ()]
    directory, file = _told_apart(directory)
    folder = _Folder(directory, qrels, doc_embeddings, query_embeddings, language, postgres_major)
    folder.refuse_other_options(
        {
            "--collection": collection,
            "--questions": kind,
            "--compare": compared,
            "--compare-embedder": other_embedder,
        }
    )
    if other_embedder is not None:
        _refuse(
            "is not for --compare-embedder",
            {"--compare": compared, "--reranker": reranker_name, "--html": html},
        )
    if html is not None and not html.parent.is_dir():
        raise typer.BadParameter(f"--html: the folder {html.parent} does not exist")
    if modes and settings != Settings():
        raise typer.BadParameter("--compare names the settings: give no others")
    corpus = _Corpus(collection, kind, schema, file)
    with _asked(folder, corpus, dsn, embedder_name, (max_queries, seed)) as asked:
        if other_embedder is not None:
            other = configured_embedder(other_embedder)
            chunks = number(max_chunks, "chunk")
            typer.echo(f"Embedding at most {chunks} with {other.model} ...", err=True)
            compared_models = compare_models(
                asked.searcher,
                asked.questions,
                asked.source.embedding_model,
                other,
                collection=collection,
                most=max_chunks,
                seed=seed,
            )
            print_models(compared_models, as_json=as_json)
            return
        if directory is not None:
            modes = [replace(mode, settings=settings) for mode in (*LEGS, Mode("hybrid"))]
        elif settings != Settings():
            modes = [IN_USE, Mode("given", settings=settings)]
        first = modes[0].name if modes else None
        modes = modes or modes_of(asked.writer.settings(), collection)
        searches = len(asked.questions.queries) * (len(modes) + (reranker is not None))
        with progress("Searching", searches) as advance:
            found = measure(
                asked.searcher.answer,
                asked.questions,
                modes,
                reference=first if directory is None else "hybrid",
                reranker=reranker,
                seed=seed,
                advance=advance,
            )
        source = asked.source._replace(reranker=reranker_name)
        if html is not None:
            html.write_text(report.render(found, source, asked.searcher), "utf-8")
    print_comparison(found, source, as_json=as_json)


@app.command("tune", epilog=_TUNE_EXAMPLES)
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
            help="Store the best fusion and weights in your database, if their gain is above its "
            f"standard error, over at least {tuning.FEWEST} questions.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="With --apply: store them all the same."),
    ] = False,
    fields: Annotated[
        bool,
        typer.Option("--fields", help="Try weights of heading and title instead; stores nothing."),
    ] = False,
    collection: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Collection that the questions are asked in, and to store the settings for; "
            "without it, all that have no settings of their own.",
        ),
    ] = None,
    kind: KindOption = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="With a folder: database for --apply; the default is that of `second-brain "
            "search`."
        ),
    ] = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Find the best fusion and weights for a collection, and store them.

    Without a folder, the questions are those judged in the database or in a file, and they are
    searched in the corpus itself. With a folder, its documents are loaded into a scratch database
    that is dropped at the end.

    Every query runs, for ten hits, with the settings in use (with a folder: the defaults), with
    each leg first, and with each share of the legs in steps of 0.1. The output has the gain of the
    best over the settings in use in nDCG@10, its standard error, and the queries that move.

    With --apply, every search whose caller gives no fusion uses them. `second-brain corpus
    settings` shows and removes them.
    """
    if (force and not apply) or (fields and apply):
        raise typer.BadParameter("--force needs --apply, and --fields excludes it")
    directory, file = _told_apart(directory)
    folder = _Folder(directory, qrels, doc_embeddings, query_embeddings, language, postgres_major)
    of_corpus = {"--questions": kind, "--fields": fields or None}
    folder.refuse_other_options(of_corpus, {"--target": target})
    if directory is not None and collection is not None and not apply:
        raise typer.BadParameter("--collection needs --apply")
    applied_to = resolve_dsn(target) if apply and directory is not None else None
    corpus = _Corpus(collection, kind, schema, file)
    with _asked(folder, corpus, dsn, embedder_name, (max_queries, seed), least=2) as asked:
        if fields:
            gains = tuning.try_fields(asked.searcher, asked.questions, collection or "")
            print_fields(gains, collection or "", as_json=as_json)
            return
        with progress("Searching", tuning.searches(asked.questions)) as advance:
            found = tuning.tune(asked.searcher.answer, asked.questions, advance=advance)
        chosen = (found.forced if force else found.storable) if apply else None
        stored = None
        if chosen is not None and applied_to is None:
            stored = tuning.store(asked.writer, collection or "", chosen, asked.questions)
    if chosen is not None and applied_to is not None:
        with connect(applied_to, autocommit=True) as connection:
            writer = KnowledgeWriter(connection, schema=schema)
            stored = tuning.store(writer, collection or "", chosen, asked.questions)
    if as_json:
        applied = {"stored": stored and stored.arguments()} if apply else {}
        print_json(tuning_json(found) | applied)
        return
    baseline = "the settings in use" if directory is None else "the defaults"
    print_tuning(found, baseline)
    if stored is not None:
        typer.echo(f"Stored for {describe(stored)}")
    elif apply and found.forced is None:
        typer.echo(f"Not stored: {baseline} are the best.")
    elif apply and not found.is_better:
        typer.echo(
            f"Not stored: no setting is better than {baseline} by more than the standard error. "
            "--force stores the best one all the same."
        )
    elif apply:
        typer.echo("Not stored: too few questions. --force stores the best one all the same.")


def _told_apart(given: Path | None) -> tuple[Path | None, Path | None]:
    """Return the folder of a test collection, and the file of judgments: at most one is given."""
    return (None, given) if given is not None and given.is_file() else (given, None)


@dataclass(frozen=True)
class _Folder:
    """A test collection, and the options that are for it alone."""

    directory: Path | None
    qrels: Path | None
    doc_embeddings: Path | None
    query_embeddings: Path | None
    language: str
    postgres_major: int | None

    def refuse_other_options(
        self, of_corpus: Mapping[str, object], of_folder: Mapping[str, object] | None = None
    ) -> None:
        """Raise an error for an option that is for a corpus, or without a folder for a folder."""
        if self.directory is not None:
            _refuse("is for the corpus of a database: give no folder", of_corpus)
            return
        own = {
            "--qrels": self.qrels,
            "--doc-embeddings": self.doc_embeddings,
            "--query-embeddings": self.query_embeddings,
            "--postgres-major": self.postgres_major,
        }
        _refuse("is for a test collection: give its folder", {**own, **(of_folder or {})})


@dataclass(frozen=True)
class _Corpus:
    """The questions judged in a database, or in a file."""

    collection: str | None
    kind: Kind | None
    schema: str
    file: Path | None


@dataclass(frozen=True)
class _Asked:
    """Questions, the searcher that answers them, and what it searches."""

    questions: Questions
    searcher: Searcher
    source: Source

    @property
    def writer(self) -> KnowledgeWriter:
        """A writer on the searched database."""
        database = self.searcher.database
        return KnowledgeWriter(database.connection, schema=database.install.schema)


@contextmanager
def _asked(
    folder: _Folder,
    corpus: _Corpus,
    dsn: str | None,
    embedder_name: str,
    sample: tuple[int | None, int],
    least: int = 1,
) -> Iterator[_Asked]:
    """Open the corpus, or load the folder into a scratch database.

    `sample` is the largest number of questions, and a seed; at least `least` must be judged. All
    errors in the input are raised before anything is loaded or searched.
    """
    metrics.require_library()
    if folder.directory is None:
        with opened(dsn, corpus.schema) as database:
            judged = read_questions(database, corpus.collection, corpus.kind, corpus.file)
            questions = judged.sample(*sample)
            _refuse_fewer(questions, least)
            embedder = configured_embedder(embedder_name)
            refuse_other_embedder(database, embedder)
            embeddings = embed_questions(questions, embedder)
            searcher = Searcher(database, embeddings, corpus.collection)
            yield _Asked(questions, searcher, _source(database, embedder))
        return
    files = folder.doc_embeddings, folder.query_embeddings
    loaded = collections.load(folder.directory, folder.qrels).sample(*sample)
    _refuse_fewer(loaded, least)
    if files[0] is not None and files[1] is not None:
        vectors = collections.read_vectors(loaded, files[0], files[1])
    elif files != (None, None):
        raise typer.BadParameter("give both --doc-embeddings and --query-embeddings, or neither")
    else:
        embedder = configured_embedder(embedder_name)
        typer.echo(f"Embedding {len(loaded.documents):,} documents ...", err=True)
        vectors = collections.embed(loaded, embedder)
    making = scratch.scratch_database(vectors.dimensions, dsn, folder.postgres_major)
    with _ended_by_termination(), making as connection:
        scratch.load(
            connection,
            loaded,
            vectors,
            folder.language,
            lambda step: typer.echo(f"{step} ...", err=True),
        )
        database = Database(connection)
        searcher = Searcher(database, vectors.queries, one_per_document=False)
        yield _Asked(loaded, searcher, _source(database, vectors))


def _source(database: Database, embedded_by: Embedder | Vectors) -> Source:
    server = database.connection.info.parameter_status("server_version") or ""
    return Source(embedded_by.model, embedded_by.dimensions, server)


def _refuse_fewer(questions: Questions, least: int) -> None:
    if len(questions.queries) < least:
        raise typer.BadParameter("tuning needs at least two queries with a relevant document")


def _refuse(reason: str, options: Mapping[str, object]) -> None:
    """Raise an error for the first option that is given."""
    for name, value in options.items():
        if value is not None:
            raise typer.BadParameter(f"{name} {reason}")


@contextmanager
def _ended_by_termination() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that `finally` drops the scratch database."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
