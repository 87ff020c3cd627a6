"""The questions of eval and tune, and what they are asked in: options, and how they are read."""

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from second_brain.cli.corpus import configured_embedder, refuse_other_embedder
from second_brain.cli.target import opened
from second_brain.evaluation import collection as collections
from second_brain.evaluation import metrics, scratch
from second_brain.evaluation.collection import Questions, Vectors, embed_questions
from second_brain.evaluation.comparison import Source
from second_brain.evaluation.live import Kind, read_questions
from second_brain.evaluation.runs import Searcher
from second_brain.models import Embedder
from second_brain.services.install import Database
from second_brain.services.write import KnowledgeWriter

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
LanguageOption = Annotated[
    str | None,
    typer.Option(help="Language of the documents of the folder; english by default."),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        help="Database of the corpus. With a folder: server for the scratch database, instead of "
        "an embedded one.",
    ),
]
SeedOption = Annotated[int, typer.Option(help="Seed of all random choices.")]


def told_apart(given: Path | None) -> tuple[Path | None, Path | None]:
    """Return the folder of a test collection, and the file of judgments: at most one is given."""
    return (None, given) if given is not None and given.is_file() else (given, None)


@dataclass(frozen=True)
class Folder:
    """A test collection, and the options that are for it alone."""

    directory: Path | None
    qrels: Path | None
    doc_embeddings: Path | None
    query_embeddings: Path | None
    language: str | None
    postgres_major: int | None

    def refuse_other_options(
        self, of_corpus: Mapping[str, object], of_folder: Mapping[str, object] | None = None
    ) -> None:
        """Raise an error for an option that is for a corpus, or without a folder for a folder."""
        if self.directory is not None:
            refuse("is for the corpus of a database: give no folder", of_corpus)
            return
        own = {
            "--qrels": self.qrels,
            "--doc-embeddings": self.doc_embeddings,
            "--query-embeddings": self.query_embeddings,
            "--language": self.language,
            "--postgres-major": self.postgres_major,
        }
        refuse("is for a test collection: give its folder", {**own, **(of_folder or {})})


@dataclass(frozen=True)
class Corpus:
    """The questions judged in a database, or in a file."""

    collection: str | None
    kind: Kind | None
    schema: str
    file: Path | None


@dataclass(frozen=True)
class Asked:
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
def asked_questions(
    folder: Folder,
    corpus: Corpus,
    dsn: str | None,
    embedder_name: str,
    sample: tuple[int | None, int],
    least: int = 1,
) -> Iterator[Asked]:
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
            yield Asked(questions, searcher, _source(database, embedder))
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
            folder.language or "english",
            lambda step: typer.echo(f"{step} ...", err=True),
        )
        database = Database(connection)
        searcher = Searcher(database, vectors.queries, one_per_document=False)
        yield Asked(loaded, searcher, _source(database, vectors))


def _source(database: Database, embedded_by: Embedder | Vectors) -> Source:
    server = database.connection.info.parameter_status("server_version") or ""
    return Source(embedded_by.model, embedded_by.dimensions, server)


def _refuse_fewer(questions: Questions, least: int) -> None:
    if len(questions.queries) < least:
        raise typer.BadParameter("tuning needs at least two queries with a relevant document")


def refuse(reason: str, options: Mapping[str, object]) -> None:
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
