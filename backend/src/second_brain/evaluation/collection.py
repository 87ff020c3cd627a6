"""Test collections in BEIR's layout: documents, queries, judgments, and embeddings from files.

A folder contains `corpus.jsonl` and `queries.jsonl` (each may be `.gz`) and `qrels.tsv` or
`qrels/test.tsv`. This module only reads files; it does not use a database.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from second_brain.database.migrations import MAX_DIMENSIONS
from second_brain.errors import ConfigurationError
from second_brain.models import Embedder, embed_queries

Embeddings = NDArray[np.floating[Any]]

_QRELS = ("qrels.tsv", "qrels/test.tsv")
_HEADER = ["query-id", "corpus-id", "score"]
_LAYOUT = (
    "A collection is a folder with corpus.jsonl and queries.jsonl (objects with _id, title, text; "
    ".gz is read too) and qrels.tsv or qrels/test.tsv (query-id, corpus-id, score, tab-separated)."
)


class CollectionError(ConfigurationError):
    """A test collection or its embeddings cannot be used."""

    kind = "collection"
    default_remedy = _LAYOUT


@dataclass(frozen=True, slots=True)
class Document:
    """A document of the corpus; the title may be empty."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Query:
    """A query; `row` is its position in the file and its row in the array of embeddings."""

    id: str
    text: str
    row: int


@dataclass(frozen=True)
class Questions:
    """Queries with judgments; `queries` has only queries with a relevant document.

    `qrels` maps a query to its judged documents and their grades; a grade of 0 or less means not
    relevant. `document_count` is the size of the corpus. `remarks` lists what was left out and what
    may be a mistake. `depth` is the number of hits of each search. The default is that of a pool,
    so the first ten are those of a user.
    """

    name: str
    queries: Sequence[Query]
    qrels: dict[str, dict[str, int]]
    document_count: int
    remarks: tuple[str, ...] = ()
    depth: int = 50

    @property
    def fingerprint(self) -> str:
        """What two runs must have in common to be compared: questions, judgments, documents."""
        asked = [(one.id, one.text, sorted(self.qrels[one.id].items())) for one in self.queries]
        return sha256(repr((asked, self._corpus(), self.depth)).encode()).hexdigest()[:16]

    def _corpus(self) -> object:
        return self.document_count

    def relevant(self, query_id: str) -> dict[str, int]:
        """Return the query's relevant documents with their grades, best first."""
        grades = self.qrels[query_id].items()
        relevant = [(document, grade) for document, grade in grades if grade > 0]
        return dict(sorted(relevant, key=lambda item: -item[1]))

    def sample(self, size: int | None, seed: int) -> Self:
        """Return the same with a random sample of at most `size` queries; None: with all."""
        if size is None or size >= len(self.queries):
            return self
        rows = sorted(Random(seed).sample(range(len(self.queries)), size))  # noqa: S311
        queries = [self.queries[row] for row in rows]
        remark = f"a random sample of {size} of {len(self.queries)} queries (seed {seed})"
        return replace(
            self,
            queries=queries,
            qrels={query.id: self.qrels[query.id] for query in queries},
            remarks=(*self.remarks, remark),
        )


@dataclass(frozen=True)
class Collection(Questions):
    """A test collection with its documents; `queries_in_file` counts all queries in the file."""

    depth: int = 100
    documents: Sequence[Document] = ()
    queries_in_file: int = 0

    def _corpus(self) -> object:
        return self.documents


@dataclass(frozen=True)
class Vectors:
    """Embeddings of a collection's documents and of all queries in its file, by row."""

    model: str
    documents: Embeddings
    queries: Embeddings

    @property
    def dimensions(self) -> int:
        """Length of each vector."""
        return int(self.documents.shape[1])


def load(directory: Path, qrels: Path | None = None) -> Collection:
    """Read a collection; `qrels` replaces the judgments of the folder.

    Raises CollectionError with file and line for anything that is not in BEIR's layout. Queries
    without a relevant document are left out. Judged documents that are not in the corpus stay in
    the judgments and count as not found, as in trec_eval.
    """
    if not directory.is_dir():
        raise CollectionError(f"{directory} is not a folder")
    documents = [
        Document(id_, _text(line, "title", where), _text(line, "text", where, required=True))
        for id_, line, where in _lines(_find(directory, "corpus.jsonl"))
    ]
    queries = []
    for row, (id_, line, where) in enumerate(_lines(_find(directory, "queries.jsonl"))):
        text = _text(line, "text", where, required=True)
        if not text.strip():
            raise CollectionError(f"{where}: the query's text is empty")
        queries.append(Query(id_, text, row))
    if qrels is None:
        found = [directory / name for name in _QRELS if (directory / name).is_file()]
        if not found:
            raise CollectionError(f"{directory} has neither {' nor '.join(_QRELS)}")
        qrels = found[0]
    judged = _judgments(qrels)
    used = [
        query for query in queries if any(grade > 0 for grade in judged.get(query.id, {}).values())
    ]
    if not used:
        raise CollectionError(f"{qrels} judges no document relevant to any query of the collection")
    return Collection(
        name=directory.resolve().name,
        documents=documents,
        document_count=len(documents),
        queries=used,
        qrels={query.id: judged[query.id] for query in used},
        queries_in_file=len(queries),
        remarks=tuple(_remarks(documents, queries, used, judged)),
    )


def read_vectors(collection: Collection, documents: Path, queries: Path) -> Vectors:
    """Read the embeddings of a collection from two .npy files, one row for each line.

    The values may be float16, float32 or float64. Raises CollectionError when the number of rows or
    dimensions is wrong, or a value is not finite.
    """
    vectors = Vectors(
        model=documents.name.removesuffix(".npy"),
        documents=_array(documents, len(collection.documents), "documents"),
        queries=_array(queries, collection.queries_in_file, "queries"),
    )
    if vectors.queries.shape[1] != vectors.dimensions:
        raise CollectionError(
            f"{documents} has {vectors.dimensions} dimensions, and {queries} has "
            f"{vectors.queries.shape[1]}",
            remedy="Embed documents and queries with one model.",
        )
    if not 1 <= vectors.dimensions <= MAX_DIMENSIONS:
        raise CollectionError(
            f"{documents} has {vectors.dimensions} dimensions",
            remedy=f"pgvector's HNSW index supports 1 to {MAX_DIMENSIONS} dimensions.",
        )
    return vectors


def embed(collection: Collection, embedder: Embedder) -> Vectors:
    """Embed the documents (title, then text, as in `ingest`) and the queries with judgments."""
    texts = [f"{document.title}\n{document.text}" for document in collection.documents]
    queries = embed_questions(collection, embedder)
    return Vectors(embedder.model, embedder.embed(texts), queries)


def embed_questions(questions: Questions, embedder: Embedder) -> Embeddings:
    """Embed the questions into an array with a row for each, at the rows that they name."""
    rows = [query.row for query in questions.queries]
    vectors = np.zeros((max(rows) + 1, embedder.dimensions), np.float32)
    vectors[rows] = embed_queries(embedder, [query.text for query in questions.queries])
    return vectors


def _find(directory: Path, name: str) -> Path:
    for file in (directory / name, directory / f"{name}.gz"):
        if file.is_file():
            return file
    raise CollectionError(f"{directory} has no {name} and no {name}.gz")


def _lines(file: Path) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield for each line its `_id`, its object, and its place for error messages."""
    seen: set[str] = set()
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{file}, line {number}"
                if not line.strip():
                    continue
                id_, item = _item(line, where)
                if id_ in seen:
                    raise CollectionError(f"{where}: the _id {id_!r} occurs a second time")
                seen.add(id_)
                yield id_, item, where
    except (OSError, EOFError, UnicodeDecodeError) as exc:
        raise CollectionError(f"{file} cannot be read: {exc}") from exc
    if not seen:
        raise CollectionError(f"{file} is empty")


def _item(line: str, where: str) -> tuple[str, dict[str, Any]]:
    try:
        item = json.loads(line)
    except ValueError as exc:
        raise CollectionError(f"{where}: not JSON: {exc}") from exc
    if not isinstance(item, dict):
        raise CollectionError(f"{where}: an object is expected, not {type(item).__name__}")
    id_ = item.get("_id")
    if not isinstance(id_, str | int) or isinstance(id_, bool) or str(id_) == "":
        raise CollectionError(f"{where}: there is no _id")
    return str(id_), item


def _text(item: dict[str, Any], key: str, where: str, *, required: bool = False) -> str:
    value = item.get(key)
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        found = "missing" if value is None else type(value).__name__
        raise CollectionError(f"{where}: {key} must be a text, it is {found}")
    if "\0" in value or not _is_unicode(value):
        raise CollectionError(
            f"{where}: {key} has a NUL or half a surrogate pair, which Postgres cannot store",
            remedy="Remove the character.",
        )
    return value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _judgments(file: Path) -> dict[str, dict[str, int]]:
    judged: dict[str, dict[str, int]] = {}
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise CollectionError(f"{file} cannot be read: {exc}") from exc
    for number, line in enumerate(lines, start=1):
        where = f"{file}, line {number}"
        fields = line.split("\t")
        if number == 1:
            if fields != _HEADER:
                raise CollectionError(
                    f"{where}: the header must be {', '.join(_HEADER)}, separated by tabs"
                )
            continue
        if not line.strip():
            continue
        if len(fields) != len(_HEADER):
            raise CollectionError(f"{where}: three fields are expected, not {len(fields)}")
        query, document, score = fields
        try:
            grade = int(score)
        except ValueError:
            raise CollectionError(f"{where}: the score {score!r} is not a whole number") from None
        if judged.setdefault(query, {}).setdefault(document, grade) != grade:
            raise CollectionError(f"{where}: {document!r} has two scores for query {query!r}")
    return judged


def _remarks(
    documents: Sequence[Document],
    queries: Sequence[Query],
    used: Sequence[Query],
    judged: dict[str, dict[str, int]],
) -> Iterator[str]:
    if len(used) < len(queries):
        left_out = len(queries) - len(used)
        yield f"{left_out} of {len(queries)} queries left out: they have no relevant document"
    unknown = judged.keys() - {query.id for query in queries}
    if unknown:
        yield f"judgments of {len(unknown)} unknown queries left out, such as {min(unknown)!r}"
    present = {document.id for document in documents}
    absent = {
        document
        for query in used
        for document, grade in judged[query.id].items()
        if grade > 0 and document not in present
    }
    if absent:
        yield (
            f"{len(absent)} relevant documents are not in the corpus, such as {min(absent)!r}: "
            "they count as not found"
        )


def _array(file: Path, rows: int, kind: str) -> Embeddings:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as exc:
        raise CollectionError(
            f"{file} cannot be read as an array: {exc}", remedy="Write it with numpy.save."
        ) from exc
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind != "f":
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else "an archive"
        raise CollectionError(
            f"{file} must be a two-dimensional array of floats, it is {found}",
            remedy="Write it with numpy.save, one row for each line.",
        )
    if len(array) != rows:
        raise CollectionError(
            f"{file} has {len(array)} rows, but the collection has {rows} {kind}",
            remedy="Embed every line of the file, in the same order.",
        )
    if not np.isfinite(array).all():
        raise CollectionError(
            f"{file} contains values that are not finite", remedy="Embed the texts again."
        )
    return array
