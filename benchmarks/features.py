"""The cost of each feature of the search: the time of a call with it and without it.

The corpus is made from a seed: passages of about 100 words from the standard library's
documentation in documents of 5 to 20 chunks, with clustered embeddings, owners, collections, dates
and metadata. The questions are sentences of the documentation with an embedding of their topic.
Every measured call is made next to its base call, with the same question on the same connection,
in turns (A B, B A, ...). A query's time is the median of its rounds, from sending the statement to
having its rows, over loopback TCP; with --cpu, the processor time of its server process, which
other processes on the machine disturb less. ratio p50 is the median over the queries of a query's
time over that of its base call, ratio p95 the 95th percentile of the same. The base call is the
hybrid search with default arguments; where it is another, the note names it.

Every answer is checked: it has no row that a filter excludes, and all matching rows up to
match_count. A fault is printed under the table, and the exit code is 1.
"""

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any, LiteralString
from uuid import UUID

import numpy as np
import psycopg
from numpy.typing import NDArray
from pgvector.psycopg import register_vector
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from benchmarks import corpus, scratch
from benchmarks.corpus import EmbeddingSpace, Sentences
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres
from second_brain.services.arguments import BatchQuery
from second_brain.services.postgres import PostgresProvider

Connection = psycopg.Connection[Any]
Row = dict[str, Any]
Arguments = Mapping[str, Any]

MATCH_COUNT = 10
BATCH = 10

COLLECTIONS = {"knowledge": 50, "memory": 25, "history": 15, "artifact_chunks": 10}
WHOLE_DOCUMENTS = "artifacts"  # of those whose chunks are in artifact_chunks
TYPES = {"document": 50, "note": 25, "task": 12, "conversation": 8, "decision": 5}
ORIGINS = {"notion": 40, "web": 30, "obsidian": 20, "email": 10}
SENSITIVITIES = {None: 40, "internal": 40, "confidential": 15, "restricted": 5}
OWNERS = [UUID(int=number + 1) for number in range(50)]
VIEWER = OWNERS[7]  # 00000000-0000-0000-0000-000000000008
PUBLIC = 0.3
GROUPS = [f"group-{number:03}" for number in range(200)]
SHARED = 0.5  # of the documents: with 1 to 3 groups
TEAMS = [f"team-{number:02}" for number in range(20)]
TAGS = [f"tag-{number:02}" for number in range(40)]
LAST_DATE = date(2025, 12, 31)
DAYS = 5 * 365
UNDATED = 0.1
# A sentence of the documentation that makes a question after "how to".
ASKED_ABOUT = re.compile(
    r"(Add|Check|Close|Compare|Convert|Copy|Create|Decode|Encode|Find|Format|Get|Join|List|Load"
    r"|Open|Parse|Print|Read|Register|Remove|Replace|Return|Run|Search|Send|Set|Split|Start|Test"
    r"|Wait|Write)( [A-Za-z]+){5,15}\."
)


@dataclass(frozen=True)
class Document:
    """A row of knowledge_documents, and its chunks."""

    columns: dict[str, Any]
    topic: int
    chunks: list[str]


@dataclass(frozen=True)
class Question:
    """A text and the embedding of the same topic, in pgvector's text form."""

    text: str
    embedding: str


@dataclass(frozen=True)
class Library:
    """The sentences of the documentation by module; a topic belongs to one module."""

    modules: list[tuple[str, Sentences]]

    @classmethod
    def read(cls) -> "Library":
        """Read the modules with enough documentation to write about."""
        split = (
            (name, found)
            for name, text in corpus.documentation().items()
            for found in corpus.sentences([text])
        )
        return cls([(name, found) for name, found in split if len(found) >= 10])

    def about(self, topic: int) -> tuple[str, Sentences]:
        """Return the topic's module and its sentences."""
        return self.modules[topic % len(self.modules)]

    def passage(self, random: Random, topic: int) -> str:
        """Return about 100 words, most of them about the topic."""
        anything = [sentences for _, sentences in self.modules]
        words = 0
        runs = []
        while words < 80:
            own = random.random() < 0.6
            text = corpus.run(random, [self.about(topic)[1]] if own else anything)
            runs.append(" ".join(text.split()[:120]))
            words += len(runs[-1].split())
        return " ".join(runs)

    def documents(self, chunks: int, seed: int) -> Iterator[Document]:
        """Yield documents until they have so many chunks."""
        random = Random(seed)
        sharing = Random(seed)

        def one_of(shares: Mapping[Any, int]) -> Any:
            return random.choices(list(shares), list(shares.values()))[0]

        while chunks > 0:
            topic = random.randrange(EmbeddingSpace.topics)
            texts = [self.passage(random, topic) for _ in range(min(random.randint(5, 20), chunks))]
            chunks -= len(texts)
            identity = UUID(int=random.getrandbits(128), version=4)
            dated = random.random() >= UNDATED
            columns = {
                "id": identity,
                "external_key": f"document:{identity}",
                "title": self.about(topic)[0],
                "source_url": f"https://example.org/{identity}",
                "knowledge_type": one_of(TYPES),
                "source_origin": one_of(ORIGINS),
                "document_date": (
                    LAST_DATE - timedelta(days=random.randrange(DAYS)) if dated else None
                ),
                "owner_id": random.choice(OWNERS),
                "visibility": "public" if random.random() < PUBLIC else "private",
                "allowed_groups": (
                    sharing.sample(GROUPS, sharing.randint(1, 3))
                    if sharing.random() < SHARED
                    else None
                ),
                "sensitivity": one_of(SENSITIVITIES),
                "collection": one_of(COLLECTIONS),
                "metadata": {
                    "team": random.choice(TEAMS),
                    "year": random.randint(2016, 2025),
                    "level": {"name": random.choice(["draft", "final"]), "grade": topic % 5},
                },
            }
            yield Document(columns, topic, texts)

    def questions(self, space: EmbeddingSpace, count: int, seed: int) -> list[Question]:
        """Return questions of 6 to 16 words with an embedding near their topic's centre."""
        random = Random(seed)
        asked: list[tuple[int, str]] = []
        while len(asked) < count:
            topic = random.randrange(EmbeddingSpace.topics)
            sentence = random.choice(self.about(topic)[1])
            question = f"how to {sentence[0].lower()}{sentence[1:-1]}?"
            known = any(text == question for _, text in asked)
            if ASKED_ABOUT.fullmatch(sentence) and not known:
                asked.append((topic, question))
        embeddings = space.draw([topic for topic, _ in asked], seed)
        return [
            Question(text, json.dumps(embedding.tolist()))
            for (_, text), embedding in zip(asked, embeddings, strict=True)
        ]


def load(connection: Connection, library: Library, space: EmbeddingSpace, chunks: int) -> None:
    """Store the corpus."""
    register_vector(connection)
    documents = list(library.documents(chunks, seed=1))
    with filled_at_once(connection):
        copy_in(connection, "knowledge_documents", (document.columns for document in documents))
        copy_in(connection, "knowledge_chunks", chunk_rows(documents, space))
    connection.execute("vacuum analyze public.knowledge_documents, public.knowledge_chunks")
    connection.execute("select public.refresh_knowledge_statistics()")


@contextmanager
def filled_at_once(connection: Connection) -> Iterator[None]:
    """Build the two indexes that a leg reads afterwards: filling them row by row is slow."""
    definitions = connection.execute(
        "select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index"
        " where indexrelid = any ('{knowledge_chunks_embedding,knowledge_chunks_content_tsv}'"
        "::regclass[])"
    ).fetchall()
    for name, _ in definitions:
        connection.execute(sql.SQL("drop index {}").format(sql.Identifier(name)))
    yield
    for _, definition in definitions:
        connection.execute(definition)


def chunk_rows(documents: Sequence[Document], space: EmbeddingSpace) -> Iterator[Row]:
    """Yield the rows of knowledge_chunks, that of a whole document after its chunks."""
    random = Random(2)
    number = 0
    embeddings = space.draw([one.topic for one in documents for _ in one.chunks], seed=3)
    for document in documents:
        vectors = embeddings[number : number + len(document.chunks)]
        for index, (text, vector) in enumerate(zip(document.chunks, vectors, strict=True)):
            metadata: Row = {
                "seq": number,
                "price": round(random.uniform(0, 1000), 2),
                "tags": random.sample(TAGS, 3),
            }
            if random.random() < 0.01:
                metadata["pilot"] = True
            if random.random() < 0.001:
                metadata["incident"] = True
            number += 1
            yield chunk_row(document, document.columns["collection"], index, text, vector, metadata)
        if document.columns["collection"] == "artifact_chunks":
            text = "\n\n".join(document.chunks)
            yield chunk_row(document, WHOLE_DOCUMENTS, None, text, vectors.mean(axis=0), {})


# What a writer gives for a chunk.
CHUNK_COLUMNS = (
    "document_id",
    "collection",
    "chunk_index",
    "heading",
    "content",
    "embedding",
    "embedding_model",
    "metadata",
)


def chunk_row(
    document: Document,
    collection: str,
    index: int | None,
    text: str,
    vector: NDArray[np.float32],
    metadata: Row,
) -> Row:
    """Return a row of knowledge_chunks without what the database copies from the document."""
    return {
        "document_id": document.columns["id"],
        "collection": collection,
        "chunk_index": index,
        "heading": document.columns["title"],
        "content": text,
        "embedding": vector,
        "embedding_model": "clustered",
        "metadata": metadata,
    }


COLUMN_TYPES = {
    "id": "uuid",
    "document_id": "uuid",
    "owner_id": "uuid",
    "allowed_groups": "text[]",
    "document_date": "date",
    "chunk_index": "int4",
    "embedding": "vector",
    "metadata": "jsonb",
}


def copy_in(connection: Connection, table: str, rows: Iterator[Row]) -> None:
    """Copy rows of the same columns into a table."""
    first = next(rows)
    statement = sql.SQL("copy public.{} ({}) from stdin (format binary)").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, first))
    )
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types([COLUMN_TYPES.get(name, "text") for name in first])
        for row in (first, *rows):
            copy.write_row(
                [Jsonb(value) if name == "metadata" else value for name, value in row.items()]
            )


@dataclass(frozen=True)
class Feature:
    """Arguments of the call in addition to the question, and the rows that pass them."""

    name: str
    arguments: Row
    keeps: LiteralString = "true"
    note: str = ""


def condition(path: str, op: str, value: Any) -> Row:
    """Return one condition of the argument `filters`."""
    return {"field": path, "op": op, "value": value}


def filtered(kind: str, keeps: LiteralString, *conditions: Row, note: str = "") -> Feature:
    """Return the feature of a filter."""
    return Feature(f"filter: {kind}", {"filters": list(conditions)}, keeps, note)


VISIBLE: LiteralString = (
    "(chunk.visibility = 'public' or chunk.owner_id = '00000000-0000-0000-0000-000000000008')"
)
SHARED_WITH_VIEWER: LiteralString = (
    "(chunk.visibility = 'public' or chunk.owner_id = '00000000-0000-0000-0000-000000000008'"
    " or chunk.allowed_groups && array("
    "select 'group-' || lpad(number::text, 3, '0') from generate_series(0, {last}) as number))"
)
FEATURES = [
    Feature("none", {}, note="the base call against itself: the noise of the run"),
    filtered(
        "metadata eq, 5 %",
        "chunk.metadata ->> 'team' = 'team-03'",
        condition("metadata.team", "eq", "team-03"),
    ),
    filtered(
        "metadata eq, 1 %",
        "chunk.metadata @> '{\"pilot\": true}'",
        condition("metadata.pilot", "eq", True),
    ),
    filtered(
        "metadata eq, 0.1 %",
        "chunk.metadata @> '{\"incident\": true}'",
        condition("metadata.incident", "eq", True),
    ),
    filtered(
        "metadata eq, one row",
        "chunk.metadata @> '{\"seq\": 471}'",
        condition("metadata.seq", "eq", 471),
    ),
    filtered(
        "metadata eq, nested",
        'chunk.metadata @> \'{"level": {"grade": 3}}\'',
        condition("metadata.level.grade", "eq", 3),
        note="20 %, by topic: mostly not the question's",
    ),
    filtered(
        "tags contains",
        "chunk.metadata -> 'tags' ? 'tag-11'",
        condition("metadata.tags", "contains", ["tag-11"]),
    ),
    filtered(
        "tags contains two",
        "chunk.metadata -> 'tags' ?& '{tag-11,tag-23}'",
        condition("metadata.tags", "contains", ["tag-11", "tag-23"]),
    ),
    filtered(
        "metadata in",
        "chunk.metadata ->> 'year' in ('2019', '2023')",
        condition("metadata.year", "in", [2019, 2023]),
    ),
    filtered(
        "metadata range, 50 %",
        "(chunk.metadata -> 'price')::float8 < 500",
        condition("metadata.price", "lt", 500),
        note="no index",
    ),
    filtered(
        "metadata range, 1 %",
        "(chunk.metadata -> 'price')::float8 between 100 and 110",
        condition("metadata.price", "between", [100, 110]),
        note="no index",
    ),
    filtered(
        "metadata exists, 1 %",
        "chunk.metadata ? 'pilot'",
        condition("metadata.pilot", "exists", True),
    ),
    filtered(
        "knowledge_type eq, 5 %",
        "chunk.knowledge_type = 'decision'",
        condition("knowledge_type", "eq", "decision"),
    ),
    filtered(
        "document_date range, 50 %",
        "chunk.document_date >= '2023-03-24'",
        condition("document_date", "gte", "2023-03-24"),
    ),
    filtered(
        "document_date range, 5 %",
        "chunk.document_date >= '2025-09-22'",
        condition("document_date", "gte", "2025-09-22"),
    ),
    filtered(
        "sensitivity ne",
        "chunk.sensitivity is distinct from 'restricted'",
        condition("sensitivity", "ne", "restricted"),
    ),
    filtered(
        "sensitivity not_in",
        "coalesce(chunk.sensitivity, '') not in ('confidential', 'restricted')",
        condition("sensitivity", "not_in", ["confidential", "restricted"]),
    ),
    filtered(
        "sensitivity exists",
        "chunk.sensitivity is not null",
        condition("sensitivity", "exists", True),
    ),
    filtered(
        "source_origin eq, 10 %",
        "chunk.source_origin = 'email'",
        condition("source_origin", "eq", "email"),
    ),
    filtered(
        "three conditions",
        "chunk.metadata -> 'tags' ? 'tag-11' and chunk.source_origin = 'notion'"
        " and chunk.document_date >= '2023-03-24'",
        condition("metadata.tags", "contains", ["tag-11"]),
        condition("source_origin", "eq", "notion"),
        condition("document_date", "gte", "2023-03-24"),
    ),
    Feature("filter_type, 5 %", {"filter_type": "decision"}, "chunk.knowledge_type = 'decision'"),
    Feature(
        "date_from and date_to",
        {"date_from": "2023-01-01", "date_to": "2023-12-31"},
        "chunk.document_date between '2023-01-01' and '2023-12-31'",
    ),
    Feature("viewer_id", {"viewer_id": VIEWER}, VISIBLE),
    Feature("public_only", {"public_only": True}, "chunk.visibility = 'public'"),
    Feature(
        "collections, one of 15 %", {"collections": ["history"]}, "chunk.collection = 'history'"
    ),
    Feature(
        "collections, three",
        {"collections": ["knowledge", "history", "artifact_chunks"]},
        "chunk.collection in ('knowledge', 'history', 'artifact_chunks')",
    ),
    Feature("collections, all five", {"collections": [*COLLECTIONS, WHOLE_DOCUMENTS]}),
    Feature("one_per_document", {"one_per_document": True}),
    Feature("neighbor_window 2", {"neighbor_window": 2}),
    Feature("recency_half_life", {"recency_half_life": 365}),
    Feature("match_offset 20", {"match_offset": 20}),
    Feature("snippet", {"snippet": True}),
    Feature(
        "everything at once",
        {
            "filters": [
                condition("metadata.year", "gte", 2018),
                condition("sensitivity", "ne", "restricted"),
            ],
            "date_from": "2021-06-01",
            "viewer_id": VIEWER,
            "collections": ["knowledge", "memory", "history"],
            "one_per_document": True,
            "neighbor_window": 2,
            "recency_half_life": 365,
            "match_offset": 5,
            "snippet": True,
        },
        f"(chunk.metadata -> 'year')::integer >= 2018 and {VISIBLE}"
        " and chunk.sensitivity is distinct from 'restricted'"
        " and chunk.document_date >= '2021-06-01'"
        " and chunk.collection in ('knowledge', 'memory', 'history')",
    ),
]

# The type that each argument is sent as.
ARGUMENT_TYPES: dict[str, LiteralString] = {
    "query_embedding": "extensions.vector",
    "query_text": "text",
    "match_count": "integer",
    "filter_type": "text",
    "filters": "jsonb",
    "date_from": "date",
    "date_to": "date",
    "collections": "text[]",
    "viewer_id": "uuid",
    "viewer_groups": "text[]",
    "public_only": "boolean",
    "one_per_document": "boolean",
    "neighbor_window": "integer",
    "recency_half_life": "float8",
    "match_offset": "integer",
    "snippet": "boolean",
    "formulations": "jsonb",
}
BATCH_CALL = "select * from public.hybrid_search_knowledge_chunks_batch(queries => %(queries)s)"


class Searches:
    """The calls that are measured, by the number of their question."""

    def __init__(self, dsn: str, questions: Sequence[Question]) -> None:
        self.questions = questions
        self.connection = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)
        self._user = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)
        self._user.execute("set role authenticated")
        self._user.execute(
            "select set_config('request.jwt.claims', %s, false)", [json.dumps({"sub": str(VIEWER)})]
        )

        provided = psycopg.connect(dsn, autocommit=True)
        self._provider = PostgresProvider(provided)
        self._processes = [one.info.backend_pid for one in (self.connection, self._user, provided)]

    def processor_milliseconds(self) -> float:
        """Return the processor time that the server processes of these calls have used (Linux)."""
        texts = [Path(f"/proc/{pid}/schedstat").read_text() for pid in self._processes]
        return sum(int(text.split()[0]) for text in texts) / 1e6

    def question(self, number: int) -> Question:
        """Return the question; after the last one comes the first."""
        return self.questions[number % len(self.questions)]

    def hybrid(self, number: int, arguments: Arguments | None = None) -> list[Row]:
        """Call the RPC with these arguments and the defaults of all others."""
        return self._call(
            self.connection, "hybrid_search_knowledge_chunks", number, arguments or {}
        )

    def mine(self, number: int) -> list[Row]:
        """Search as a signed-in user, identified by the JWT claim."""
        return self._call(self._user, "search_my_knowledge_chunks", number, {})

    def formulated(self, number: int, ways: int) -> list[Row]:
        """Ask several questions as formulations of one."""
        others = [self.question(number + more) for more in range(1, ways)]
        return self.hybrid(
            number,
            {
                "formulations": [
                    {"query_text": other.text, "query_embedding": json.loads(other.embedding)}
                    for other in others
                ]
            },
        )

    def separate(self, number: int, count: int) -> list[Row]:
        """Ask as many questions, a call each."""
        return [row for more in range(count) for row in self.hybrid(number + more)]

    def batch(self, number: int) -> list[Row]:
        """Ask ten questions in one call."""
        asked = [self.question(number + more) for more in range(BATCH)]
        queries = [
            {"query_text": one.text, "query_embedding": json.loads(one.embedding)} for one in asked
        ]
        return self.connection.execute(
            BATCH_CALL, {"queries": Jsonb(queries)}, prepare=False
        ).fetchall()

    def provided(self, number: int, count: int) -> list[Any]:
        """Ask as many questions through the provider, a call each."""
        return [
            hit
            for more in range(count)
            for hit in self._provider.hybrid_search(**self._query(number + more))[0]
        ]

    def provided_batch(self, number: int) -> list[Any]:
        """Ask ten questions through the provider in one call."""
        queries = [self._query(number + more) for more in range(BATCH)]
        return [hit for hits in self._provider.hybrid_search_batch(queries)[0] for hit in hits]

    def _query(self, number: int) -> BatchQuery:
        asked = self.question(number)
        return {
            "query_embedding": json.loads(asked.embedding),
            "query_text": asked.text,
            "top_k": MATCH_COUNT,
        }

    def _call(
        self, connection: Connection, function: str, number: int, arguments: Arguments
    ) -> list[Row]:
        asked = self.question(number)
        given = {"query_embedding": asked.embedding, "query_text": asked.text, **arguments}
        statement = sql.SQL("select * from public.{}({})").format(
            sql.Identifier(function),
            sql.SQL(", ").join(
                sql.SQL("{} => {}::" + ARGUMENT_TYPES[name]).format(
                    sql.Identifier(name), sql.Placeholder(name)
                )
                for name in given
            ),
        )
        sent = {
            name: Jsonb(value) if ARGUMENT_TYPES[name] == "jsonb" else value
            for name, value in given.items()
        }
        return connection.execute(statement, sent, prepare=False).fetchall()


@dataclass(frozen=True)
class Comparison:
    """Two calls by the number of their question, and a check of the first call's answers."""

    name: str
    call: Callable[[int], list[Any]]
    base: Callable[[int], object]
    faults: Callable[[int, list[Any]], Iterator[str]]
    note: str = ""


def comparisons(searches: Searches) -> list[Comparison]:
    """Return every comparison, in the order of the table."""

    def plain(feature: Feature) -> Comparison:
        def call(number: int) -> list[Row]:
            return searches.hybrid(number, feature.arguments)

        def faults(number: int, rows: list[Row]) -> Iterator[str]:
            return faults_of(searches, feature, number, rows)

        return Comparison(feature.name, call, searches.hybrid, faults, feature.note)

    def as_many(count: int) -> Callable[[int, list[Any]], Iterator[str]]:
        def faults(number: int, rows: list[Any]) -> Iterator[str]:
            if len(rows) != count:
                yield f"{len(rows)} rows of {count}"

        return faults

    def formulated(ways: int) -> Comparison:
        return Comparison(
            f"formulations, {ways} ways",
            lambda number: searches.formulated(number, ways),
            lambda number: searches.separate(number, ways),
            as_many(MATCH_COUNT),
            f"base: {ways} calls",
        )

    viewer = Feature("search_my_knowledge_chunks", {"viewer_id": VIEWER}, VISIBLE)

    def member(count: int, keeps: LiteralString) -> Comparison:
        arguments = {"viewer_id": VIEWER, "viewer_groups": GROUPS[:count]}
        feature = Feature(f"viewer_groups, {count}", arguments, keeps)
        return Comparison(
            feature.name,
            lambda number: searches.hybrid(number, arguments),
            lambda number: searches.hybrid(number, {"viewer_id": VIEWER}),
            lambda number, rows: faults_of(searches, feature, number, rows),
            "base: the same viewer without groups",
        )

    return [
        *(plain(feature) for feature in FEATURES),
        member(1, SHARED_WITH_VIEWER.format(last="0")),
        member(10, SHARED_WITH_VIEWER.format(last="9")),
        member(100, SHARED_WITH_VIEWER.format(last="99")),
        formulated(2),
        formulated(3),
        Comparison(
            viewer.name,
            searches.mine,
            lambda number: searches.hybrid(number, viewer.arguments),
            lambda number, rows: faults_of(searches, viewer, number, rows),
            "base: the RPC with viewer_id",
        ),
        Comparison(
            f"batch of {BATCH}",
            searches.batch,
            lambda number: searches.separate(number, BATCH),
            as_many(BATCH * MATCH_COUNT),
            f"base: {BATCH} calls",
        ),
        Comparison(
            f"batch of {BATCH}, provider",
            searches.provided_batch,
            lambda number: searches.provided(number, BATCH),
            as_many(BATCH * MATCH_COUNT),
            f"base: {BATCH} calls of PostgresProvider",
        ),
    ]


def faults_of(searches: Searches, feature: Feature, number: int, rows: list[Row]) -> Iterator[str]:
    """Yield the faults in the rows of a filtered call."""
    excluded = searches.connection.execute(
        sql.SQL(
            "select count(*) from public.knowledge_chunks as chunk"
            " where chunk.id = any (%(ids)s) and ({}) is not true"
        ).format(sql.SQL(feature.keeps)),
        {"ids": [row["id"] for row in rows]},
    ).fetchone()
    assert excluded is not None
    if excluded["count"]:
        yield f"{excluded['count']} rows that the filter excludes"
    offset = feature.arguments.get("match_offset", 0)
    if feature.arguments.get("one_per_document"):
        if len({row["document_id"] for row in rows}) < len(rows):
            yield "a document stands there twice"
        wanted = min(MATCH_COUNT, rows[0]["total_count"] - offset) if rows else MATCH_COUNT
    else:
        # The vector leg has rows of at least the default threshold, 0: a distance of 1.
        found = searches.connection.execute(
            sql.SQL(
                "select count(*) from ("
                " select from public.knowledge_chunks as chunk"
                " where chunk.status = 'active' and ({})"
                " and chunk.embedding operator(extensions.<=>) %(query)s::extensions.vector < 1"
                " limit %(limit)s) as matching"
            ).format(sql.SQL(feature.keeps)),
            {"query": searches.question(number).embedding, "limit": offset + MATCH_COUNT},
        ).fetchone()
        assert found is not None
        wanted = max(found["count"] - offset, 0)
    if not wanted <= len(rows) <= MATCH_COUNT:
        yield f"{len(rows)} rows, at least {wanted} match"


@dataclass
class Timings:
    """The milliseconds of a comparison by question, and the rows of its answers."""

    calls: dict[int, list[float]] = field(default_factory=dict)
    bases: dict[int, list[float]] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)

    def cells(self) -> list[str]:
        """Return p50, p95, both ratios and the rows as cells of the table."""
        calls = np.array([statistics.median(times) for times in self.calls.values()])
        bases = np.array([statistics.median(times) for times in self.bases.values()])
        ratios = calls / bases
        fewest, most = min(self.rows), max(self.rows)
        return [
            *(f"{np.percentile(calls, percent):.1f}" for percent in (50, 95)),
            *(f"{np.percentile(ratios, percent):.2f}" for percent in (50, 95)),
            str(most) if fewest == most else f"{fewest} to {most}",
        ]


Clock = Callable[[], float]


def elapsed_milliseconds() -> float:
    """Return the time that passes for everybody."""
    return 1000 * time.perf_counter()


def milliseconds(call: Callable[[int], object], number: int, clock: Clock) -> float:
    """Return how long the call took."""
    begin = clock()
    call(number)
    return clock() - begin


def check(chosen: Sequence[Comparison], numbers: range) -> tuple[dict[str, Timings], list[str]]:
    """Make every call once, which also warms it up; return the rows of each, and all faults."""
    timings = {comparison.name: Timings() for comparison in chosen}
    faults = []
    for comparison in chosen:
        for number in numbers:
            rows = comparison.call(number)
            timings[comparison.name].rows.append(len(rows))
            faults += [
                f"{comparison.name}, question {number}: {fault}"
                for fault in comparison.faults(number, rows)
            ]
    return timings, faults


def measure(
    chosen: Sequence[Comparison],
    timings: Mapping[str, Timings],
    numbers: range,
    rounds: int,
    clock: Clock,
) -> None:
    """Time every call next to its base call."""
    for one in range(rounds):
        for number in numbers:
            for comparison in chosen:
                timed = timings[comparison.name]
                turns = [(timed.calls, comparison.call), (timed.bases, comparison.base)]
                for times, call in turns if one % 2 else reversed(turns):
                    times.setdefault(number, []).append(milliseconds(call, number, clock))


def profile(comparison: Comparison, numbers: range, rounds: int, clock: Clock) -> None:
    """Repeat one call, and print the times of each round."""
    for one in range(rounds):
        times = [milliseconds(comparison.call, number, clock) for number in numbers]
        print(
            f"{comparison.name}, round {one}: p50 {statistics.median(times):.2f},"
            f" p95 {np.percentile(times, 95):.2f} ms",
            flush=True,
        )


@contextmanager
def database(
    dsn: str | None, keep: Path | None, library: Library, space: EmbeddingSpace, chunks: int
) -> Iterator[str]:
    """Yield the DSN of a loaded database: the one given, a new one that stays, or a scratch one."""
    if dsn:
        yield dsn
    elif keep:
        server = EmbeddedPostgres(keep, settings=scratch.SETTINGS)
        server.start()
        print(f"The server in {keep} stays: {server.dsn()}", file=sys.stderr, flush=True)
        migrations.apply(server.dsn(), dimensions=space.dimensions, modules=migrations.modules())
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            if not connection.execute("select from public.knowledge_chunks limit 1").rowcount:
                load(connection, library, space, chunks)
        yield server.dsn()
    else:
        with scratch.database(space.dimensions) as connection:
            load(connection, library, space, chunks)
            yield make_conninfo(connection.info.dsn, password=connection.info.password)


def main() -> None:
    """Print the table, or with --profile the times of one call."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", metavar="TEXT", help="the features with this in their name")
    parser.add_argument("--profile", metavar="NAME", help="repeat this feature's call alone")
    parser.add_argument("--cpu", action="store_true", help="measure processor time")
    parser.add_argument("--dsn", help="a database that an earlier run with --keep loaded")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIRECTORY",
        help="start the server there, load it when it is new, and leave it running",
    )
    options = parser.parse_args()

    library = Library.read()
    space = EmbeddingSpace(options.dimensions, seed=5)
    questions = library.questions(space, options.queries, seed=6)
    numbers = range(options.queries)
    with database(options.dsn, options.keep, library, space, options.chunks) as dsn:
        searches = Searches(dsn, questions)
        offered = comparisons(searches)
        clock = searches.processor_milliseconds if options.cpu else elapsed_milliseconds
        if options.profile:
            chosen = [one for one in offered if one.name == options.profile]
            if not chosen:
                parser.error(f"--profile is one of: {', '.join(one.name for one in offered)}")
            profile(chosen[0], numbers, options.rounds, clock)
            return
        chosen = [one for one in offered if not options.only or options.only in one.name]
        timings, faults = check(chosen, numbers)
        measure(chosen, timings, numbers, options.rounds, clock)
    header = ("feature", "p50", "p95", "ratio p50", "ratio p95", "rows", "note")
    rows = [[one.name, *timings[one.name].cells(), one.note] for one in chosen]
    for cells in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(cells)} |")
    for fault in faults:
        print(fault)
    if faults:
        sys.exit(1)


if __name__ == "__main__":
    main()
