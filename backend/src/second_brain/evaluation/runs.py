"""Runs of a test collection's queries on a scratch database, and their results.

The database is on a new embedded server, or a new database on a given server, and is dropped at
the end. Each query goes through the provider three times: vector leg alone, text leg alone, hybrid;
with a reranker, a fourth time: hybrid, and its first hits reranked.
"""

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres
from second_brain.errors import ConfigurationError, PermissionDeniedError, SecondBrainError
from second_brain.evaluation.collection import (
    Collection,
    Embeddings,
    Query,
    Questions,
    Vectors,
)
from second_brain.evaluation.metrics import MEASURES, Difference, compare, judge, percentile
from second_brain.models.rerankers import CachedReranker, Reranker, rerank_scores
from second_brain.services.arguments import Leg
from second_brain.services.connections import connect
from second_brain.services.postgres import PostgresProvider
from second_brain.services.results import MemorySearchResult

Connection = psycopg.Connection[Any]
Notify = Callable[[str], None]

LEGS: tuple[Leg, ...] = ("vector", "text", "hybrid")
Search = Literal[Leg, "rerank"]
DEPTH = 100
RERANKED = 50
"""The first hits of a search that a reranker orders: those of a service for ten results."""
EXPLAINED = 8
SHOWN_HITS = 5

_WARM_UP = 10
_PREFIX = "second_brain_evaluation_"
_EMBEDDED_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "512MB",
    "maintenance_work_mem": "1GB",
    "max_wal_size": "8GB",
}
_EMBEDDED_INSTEAD = "or omit --dsn to use an embedded server."

_MISSING_ROLES = """
select api_roles.name
  from unnest(array['anon', 'authenticated', 'service_role']) as api_roles (name)
 where not exists (select from pg_catalog.pg_roles where rolname = api_roles.name)
"""
# Objects that every Supabase database has and a new database lacks.
_SETUP = (
    "create schema extensions",
    "grant usage on schema extensions to anon, authenticated, service_role",
    "create extension vector with schema extensions",
    "create schema auth",
    "create function auth.uid() returns uuid language sql stable return null::uuid",
)

# Filling these indexes row by row is slow. The migrations define them, so `load` drops them and
# creates them again from pg_get_indexdef.
_INDEXES = """
select format('drop index %s', index.indexrelid::regclass), pg_get_indexdef(index.indexrelid)
  from pg_catalog.pg_index as index
  join pg_catalog.pg_class as class on class.oid = index.indexrelid
  join pg_catalog.pg_am as method on method.oid = class.relam
 where index.indrelid = 'public.knowledge_chunks'::regclass
   and method.amname in ('gin', 'hnsw')
 order by index.indexrelid
"""
_COPY_DOCUMENTS = """
copy public.knowledge_documents (id, external_key, title, language) from stdin
"""
_COPY_CHUNKS = """
copy public.knowledge_chunks
  (id, document_id, chunk_index, heading, content, embedding, embedding_model)
from stdin
"""
_FINISH = (
    "vacuum (analyze) public.knowledge_documents",
    "vacuum (analyze) public.knowledge_chunks",
    "select public.refresh_knowledge_statistics()",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of a search; None means the default of the command line and the service."""

    fusion: str | None = None
    vector_weight: float | None = None
    text_weight: float | None = None
    rrf_k: float | None = None
    pool_size: int | None = None
    search_mode: str | None = None

    def arguments(self, leg: Leg = "hybrid") -> dict[str, Any]:
        """Return the arguments for the provider; a leg alone takes no fusion arguments."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if leg == "hybrid":
            return given
        return {name: given[name] for name in ("pool_size", "search_mode") if name in given}


@dataclass(frozen=True, slots=True)
class Hit:
    """A document as a search returned it, with the ranks and scores of both legs."""

    document: str
    score: float
    vector_rank: int | None
    text_rank: int | None
    similarity: float | None
    text_score: float | None
    matched_terms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The documents of one search, best first; `milliseconds` is None if no search ran.

    The vector leg does not run for a query whose embedding is a zero vector.
    """

    documents: tuple[str, ...]
    milliseconds: float | None


Run = dict[str, Answer]


@dataclass(frozen=True, slots=True)
class Judged:
    """A relevant document: its grade, its rank in each search, and the scores of both legs."""

    document: str
    title: str
    grade: int
    ranks: dict[Leg, int | None]
    similarity: float | None
    text_score: float | None
    matched_terms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Details of one query: the best hits of hybrid, and the ranks of the relevant documents."""

    query: Query
    values: dict[Leg, float]
    hits: tuple[tuple[Hit, str, int], ...]
    relevant: tuple[Judged, ...]


Name = TypeVar("Name", bound=str)


@dataclass(frozen=True)
class Measured(Generic[Name]):
    """Answers by search and query, and `values` by search, measure and query."""

    collection: Questions
    runs: dict[Name, Run]
    values: dict[Name, dict[str, dict[str, float]]]

    @property
    def searches(self) -> tuple[Name, ...]:
        """The searches that ran."""
        return tuple(self.runs)

    def mean(self, search: Name, measure: str) -> float:
        """Return the mean of a measure over the queries, for one search."""
        values = self.values[search][measure].values()
        return sum(values) / len(values)

    def latency(self, search: Name, share: float) -> float:
        """Return the percentile `share` (0 to 100) of a search's latency, in milliseconds."""
        return percentile(self.milliseconds(search), share)

    def milliseconds(self, search: Name) -> list[float]:
        """Return the latency of every search that ran."""
        answers = self.runs[search].values()
        return [answer.milliseconds for answer in answers if answer.milliseconds is not None]

    def empty(self, search: Name) -> int:
        """Count the queries without any document in the result."""
        return sum(not answer.documents for answer in self.runs[search].values())


@dataclass(frozen=True)
class Evaluation(Measured[Search]):
    """The results of a test collection: the legs, hybrid, and `rerank` with a reranker."""

    collection: Collection
    settings: Settings
    embedding_model: str
    dimensions: int
    server: str
    gains: dict[Leg, Difference]
    losses: tuple[Explanation, ...]
    failures: tuple[Explanation, ...]
    reranker: str | None = None
    rerank_gain: Difference | None = None
    """Reranked hits against those of hybrid."""

    def found_by(self, depth: int) -> dict[str, int]:
        """Count the relevant documents by the legs that have them in their first `depth`."""
        counts = dict.fromkeys(("both", "vector", "text", "neither"), 0)
        for query in self.collection.queries:
            vector = self.runs["vector"][query.id].documents[:depth]
            text = self.runs["text"][query.id].documents[:depth]
            for document in self.collection.relevant(query.id):
                in_vector, in_text = document in vector, document in text
                if in_vector and in_text:
                    counts["both"] += 1
                else:
                    counts["vector" if in_vector else "text" if in_text else "neither"] += 1
        return counts


class QuerySearcher(ABC):
    """Runs queries through a provider; `embeddings` has a row for each query.

    Without embeddings, it can only search by words. `options` are arguments of every search.
    """

    def __init__(
        self, provider: PostgresProvider, embeddings: Embeddings | None, **options: Any
    ) -> None:
        self._provider = provider
        self._embeddings = embeddings
        self._options = options

    @abstractmethod
    def _document(self, result: MemorySearchResult) -> str:
        """Return the id by which the judgments name the document of a hit."""

    def hits(self, query: Query, leg: Leg, settings: Settings, depth: int = DEPTH) -> list[Hit]:
        """Search for one query and return the hits."""
        embedding = self._embedding(query, leg)
        if embedding is None and leg == "vector":
            return []
        return [
            self._hit(result) for result in self._search(query, embedding, leg, settings, depth)
        ]

    def answer(
        self,
        query: Query,
        leg: Leg,
        settings: Settings,
        depth: int = DEPTH,
        reranker: Reranker | None = None,
    ) -> Answer:
        """Search for one query, and rerank the first hits; the others keep their order.

        The time is that of the provider's call and of the reranker, without the embedding.
        """
        embedding = self._embedding(query, leg)
        if embedding is None and leg == "vector":
            return Answer((), None)
        begin = time.perf_counter()
        results = self._search(query, embedding, leg, settings, depth)
        if reranker is not None:
            results = _reranked(query, results, reranker)
        milliseconds = 1000 * (time.perf_counter() - begin)
        return Answer(tuple(self._document(result) for result in results), milliseconds)

    def _embedding(self, query: Query, leg: Leg) -> list[float] | None:
        if leg == "text" or self._embeddings is None:
            return None
        vector = self._embeddings[query.row]
        return vector.tolist() if vector.any() else None

    def _search(
        self,
        query: Query,
        embedding: list[float] | None,
        leg: Leg,
        settings: Settings,
        depth: int,
    ) -> list[MemorySearchResult]:
        text = None if leg == "vector" else query.text
        arguments = {"fusion": "stored_or_auto", **self._options, **settings.arguments(leg)}
        try:
            hits, _ = self._provider.find(embedding, text, top_k=depth, **arguments)
        except SecondBrainError as error:
            error.args = (f"query {query.id!r}: {error}",)
            raise
        return hits

    def _hit(self, result: MemorySearchResult) -> Hit:
        found = result.metadata
        return Hit(
            self._document(result),
            found["rrf_score"] or 0.0,
            found["vector_rank"],
            found["text_rank"],
            found["similarity"],
            found["text_score"],
            tuple(found["matched_terms"]),
        )


class Searcher(QuerySearcher):
    """Runs a collection's queries on the scratch database that contains the collection."""

    def __init__(self, connection: Connection, collection: Collection, vectors: Vectors) -> None:
        super().__init__(PostgresProvider(connection), vectors.queries)
        self._collection = collection

    def _document(self, result: MemorySearchResult) -> str:
        return self._collection.documents[_place(str(result.metadata["document_id"]))].id


@contextmanager
def scratch_database(
    dimensions: int, dsn: str | None = None, major: int | None = None
) -> Iterator[Connection]:
    """Yield an autocommit connection to a new database with all modules; drop it at the end.

    Without a DSN, a new embedded server holds the database. With a DSN, the database is created on
    that server; its other databases are not read or changed. Raises PermissionDeniedError if the
    role may not create the database, and ConfigurationError if the server lacks the API roles.
    """
    making = _embedded_database(major) if dsn is None else _database_on_server(dsn)
    with making as made:
        migrations.apply(made, dimensions=dimensions, modules=migrations.modules())
        with connect(made, autocommit=True) as connection:
            yield connection


def load(
    connection: Connection,
    collection: Collection,
    vectors: Vectors,
    language: str,
    notify: Notify,
) -> None:
    """Load a collection with one chunk per document, headed by its title; then build the indexes.

    `notify` is called with the name of each step.
    """
    # Ids in document order, so that ties are broken in the same way in every run.
    ids = [_id(place) for place in range(len(collection.documents))]
    notify(f"Loading {len(ids):,} documents")
    with connection.transaction(), connection.cursor() as cursor:
        indexes = cursor.execute(_INDEXES).fetchall()
        for drop, _ in indexes:
            cursor.execute(drop.encode())
        with cursor.copy(_COPY_DOCUMENTS) as copy:
            for id_, document in zip(ids, collection.documents, strict=True):
                copy.write_row((id_, document.id, document.title or None, language))
        with cursor.copy(_COPY_CHUNKS) as copy:
            for place, document in enumerate(collection.documents):
                vector = vectors.documents[place]
                # pgvector's text format. A zero vector has no direction and is not stored.
                embedding = str(vector.tolist()) if vector.any() else None
                heading = document.title or None
                copy.write_row(
                    (ids[place], ids[place], 0, heading, document.text, embedding, vectors.model)
                )
    notify("Building the indexes")
    for _, definition in indexes:
        connection.execute(definition.encode())
    notify("Analysing")
    for statement in _FINISH:
        connection.execute(statement)


def evaluate(
    connection: Connection,
    collection: Collection,
    vectors: Vectors,
    settings: Settings,
    *,
    reranker: tuple[str, Reranker] | None = None,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Run every query with vector, text and hybrid search, measure the answers, compare the legs.

    `reranker` has a name for the report and the function: then each query is reranked too, and each
    question and text is scored once. The searches of a query run one after the other, so that other
    load on the machine affects all of them alike. `advance` is called after each query.
    """
    searcher = Searcher(connection, collection, vectors)
    for place, query in enumerate(collection.queries[:_WARM_UP]):
        for leg in LEGS:
            searcher.answer(query, leg, settings)
        if reranker is not None and place == 0:
            # Loads the model. Its scores are not kept: the times below are those of the model.
            searcher.answer(query, "hybrid", settings, reranker=reranker[1])
    runs: dict[Search, Run] = {leg: {} for leg in LEGS}
    cached = None
    if reranker is not None:
        cached = CachedReranker(reranker[1])
        runs["rerank"] = {}
    for query in collection.queries:
        for leg in LEGS:
            runs[leg][query.id] = searcher.answer(query, leg, settings)
        if cached is not None:
            runs["rerank"][query.id] = searcher.answer(query, "hybrid", settings, reranker=cached)
        advance()
    values = {search: judge(collection.qrels, rankings(run)) for search, run in runs.items()}
    ndcg = {leg: values[leg][MEASURES[0]] for leg in LEGS}
    rerank_gain = None
    if reranker is not None:
        rerank_gain = compare(values["rerank"][MEASURES[0]], ndcg["hybrid"], seed=seed)
    against: tuple[Leg, ...] = ("vector", "text")
    gains = {leg: compare(ndcg["hybrid"], ndcg[leg], seed=seed) for leg in against}
    losing, failing = _worst(collection, ndcg)
    titles = {document.id: document.title or document.text for document in collection.documents}

    def explain(queries: Sequence[Query]) -> tuple[Explanation, ...]:
        return tuple(
            _explain(searcher, collection, titles, query, settings, runs, ndcg) for query in queries
        )

    (server,) = connection.execute("show server_version").fetchone() or ("",)
    return Evaluation(
        collection=collection,
        runs=runs,
        values=values,
        settings=settings,
        embedding_model=vectors.model,
        dimensions=vectors.dimensions,
        server=server,
        gains=gains,
        losses=explain(losing),
        failures=explain(failing),
        reranker=None if reranker is None else reranker[0],
        rerank_gain=rerank_gain,
    )


def _reranked(
    query: Query, results: Sequence[MemorySearchResult], reranker: Reranker
) -> list[MemorySearchResult]:
    first, others = results[:RERANKED], results[RERANKED:]
    scores = rerank_scores(reranker, query.text, [result.content for result in first])
    # Sorting is stable: equal scores keep the order of the search.
    places = sorted(range(len(first)), key=scores.__getitem__, reverse=True)
    return [*(first[place] for place in places), *others]


def rankings(run: Run) -> dict[str, Sequence[str]]:
    """Return the run's documents by query, in the form that `judge` takes."""
    return {query: answer.documents for query, answer in run.items()}


def _worst(
    collection: Collection, ndcg: Mapping[Leg, Mapping[str, float]]
) -> tuple[list[Query], list[Query]]:
    """Return the queries with the largest loss to the better leg, and with the lowest nDCG@10."""

    def gain(query: Query) -> float:
        better = max(ndcg["vector"][query.id], ndcg["text"][query.id])
        return ndcg["hybrid"][query.id] - better

    losing = sorted((query for query in collection.queries if gain(query) < 0), key=gain)
    losing = losing[:EXPLAINED]
    failing = sorted(
        (query for query in collection.queries if query not in losing),
        key=lambda query: ndcg["hybrid"][query.id],
    )
    return losing, [query for query in failing[:EXPLAINED] if ndcg["hybrid"][query.id] < 1]


def _explain(
    searcher: Searcher,
    collection: Collection,
    titles: Mapping[str, str],
    query: Query,
    settings: Settings,
    runs: Mapping[Search, Run],
    ndcg: Mapping[Leg, Mapping[str, float]],
) -> Explanation:
    found = {
        leg: {hit.document: hit for hit in searcher.hits(query, leg, settings)} for leg in LEGS
    }
    grades = collection.relevant(query.id)
    relevant = []
    for document, grade in grades.items():
        ranked = {leg: runs[leg][query.id].documents for leg in LEGS}
        vector, text = found["vector"].get(document), found["text"].get(document)
        relevant.append(
            Judged(
                document,
                titles.get(document, "(not in the corpus)"),
                grade,
                {
                    leg: ranked[leg].index(document) + 1 if document in ranked[leg] else None
                    for leg in LEGS
                },
                vector.similarity if vector else None,
                text.text_score if text else None,
                text.matched_terms if text else (),
            )
        )
    return Explanation(
        query,
        {leg: ndcg[leg][query.id] for leg in LEGS},
        tuple(
            (hit, titles[hit.document], grades.get(hit.document, 0))
            for hit in list(found["hybrid"].values())[:SHOWN_HITS]
        ),
        tuple(relevant),
    )


def _id(place: int) -> UUID:
    return UUID(int=place + 1)


def _place(id_: str) -> int:
    return UUID(id_).int - 1


@contextmanager
def _embedded_database(major: int | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="second-brain-evaluation-") as place:
        # If this process is root, the server runs as another account, which must enter the folder.
        Path(place).chmod(0o711)
        server = EmbeddedPostgres(Path(place) / "postgres", major, _EMBEDDED_SETTINGS)
        try:
            server.start()
            yield server.dsn()
        finally:
            server.remove()


@contextmanager
def _database_on_server(dsn: str) -> Iterator[str]:
    name = f"{_PREFIX}{token_hex(6)}"
    with connect(dsn, autocommit=True) as connection:
        missing = [role for (role,) in connection.execute(_MISSING_ROLES)]
        if missing:
            raise ConfigurationError(
                f"the server lacks the roles {', '.join(missing)}",
                remedy="Create them as a superuser with `second-brain migrate --prelude` in an "
                f"empty database, {_EMBEDDED_INSTEAD}",
            )
        try:
            connection.execute(
                sql.SQL("create database {} template template0").format(sql.Identifier(name))
            )
        except errors.InsufficientPrivilege as exc:
            raise PermissionDeniedError(
                "the role may not create a scratch database on this server",
                code=exc.sqlstate,
                remedy="Use a role with createdb (alter role ... createdb), " + _EMBEDDED_INSTEAD,
            ) from exc
    made = make_conninfo(dsn, dbname=name)
    try:
        with connect(made, autocommit=True) as connection:
            try:
                for statement in _SETUP:
                    connection.execute(statement)
            except errors.InsufficientPrivilege as exc:
                raise PermissionDeniedError(
                    "the role may not create pgvector in a scratch database on this server",
                    code=exc.sqlstate,
                    remedy="Connect as a superuser, " + _EMBEDDED_INSTEAD,
                ) from exc
        yield made
    finally:
        _drop(dsn, name)


def _drop(dsn: str, name: str) -> None:
    drop = sql.SQL("drop database {}").format(sql.Identifier(name))
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            # First without force, because force fails when an autovacuum worker is connected.
            # Then with force, because a pooler may keep a session open.
            with suppress(errors.ObjectInUse):
                connection.execute(drop)
                return
            connection.execute(drop + sql.SQL(" with (force)"))
    except psycopg.Error as exc:
        raise ConfigurationError(
            f"the scratch database {name} could not be dropped",
            remedy=f"Drop it: drop database {name} with (force)",
        ) from exc
