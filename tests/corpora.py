"""Corpora: three chunks, and random ones with an oracle of what a viewer may see of them."""

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, LiteralString
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from conftest import Connection
from second_brain.services.functions import packed
from second_brain.services.write import KnowledgeWriter

SAVANNA: list[dict[str, object]] = [
    {"content": content, "embedding_model": "m", "embedding": embedding}
    for content, embedding in (
        ("The zebra crossing is striped.", [1.0, 0.0, 0.0]),
        ("A zebra eats grass on the plain.", [0.8, 0.6, 0.0]),
        ("The lion sleeps.", [0.0, 0.0, 1.0]),
    )
]
"""Three chunks whose similarities to [1, 0, 0] are 1, 0.8 and 0."""


def store_document(
    database: str | Connection,
    key: str,
    texts: Mapping[str, Sequence[float] | None],
    model: str = "by-hand",
    **document: Any,
) -> UUID:
    """Store a document of these texts with their embeddings, if any; return its id."""
    if isinstance(database, str):
        with psycopg.connect(database, autocommit=True) as connection:
            return store_document(connection, key, texts, model, **document)
    chunks: list[dict[str, object]] = [
        {"content": text}
        | ({} if embedding is None else {"embedding": embedding, "embedding_model": model})
        for text, embedding in texts.items()
    ]
    writer = KnowledgeWriter(database)
    return writer.upsert_document({"external_key": key, **document}, chunks).document_id


USERS = [UUID(int=number) for number in range(1, 5)]
VOCABULARY = ("alpha", "beta", "gamma", "delta")
TAGS = ("red", "green", "blue")
GROUPS = ("board", "editors", "guests", "staff")

# A word with digits would also be read in pieces, and a word of one other letter as a misspelling.
_SYLLABLES = ("bab", "cec", "did", "fof", "gug", "hah", "jej", "kik", "lol", "mum")

Row = dict[str, Any]
_JSON = ("filters", "required_filters", "formulations", "boosts", "queries", "search")
TYPES: dict[str, LiteralString] = {
    **dict.fromkeys(_JSON, "::jsonb"),
    "query_embedding": "::extensions.vector",
    "document": "::uuid",
}
Visibility = Literal["private", "public"]


def own_word(kind: str, number: int) -> str:
    """Return the word that one row alone has; two of them differ in at least two letters."""
    return kind + "".join(_SYLLABLES[int(digit)] for digit in str(number)) + "x"


@dataclass(frozen=True)
class Document:
    number: int
    owner: UUID | None
    visibility: Visibility
    sensitivity: str | None
    groups: frozenset[str]

    @property
    def id(self) -> UUID:
        return UUID(int=10_000 + self.number)


@dataclass(frozen=True)
class Chunk:
    """A stored chunk: most are as their document, some were changed afterwards."""

    number: int
    document: int | None
    owner: UUID | None
    visibility: Visibility
    sensitivity: str | None
    groups: frozenset[str]
    status: str
    words: tuple[str, ...]
    tag: str
    collection: str
    place: int | None
    embedding: tuple[float, ...] | None
    date: str | None

    @property
    def id(self) -> UUID:
        return UUID(int=20_000 + self.number)

    @property
    def word(self) -> str:
        return own_word("row", self.number)


@dataclass(frozen=True)
class Viewer:
    """Who asks. Without a user and without groups, a service that sees all active rows."""

    user: UUID | None
    public_only: bool = False
    groups: frozenset[str] | None = None

    def sees(self, row: Document | Chunk) -> bool:
        if isinstance(row, Chunk) and row.status != "active":
            return False
        if row.visibility == "public":
            return True
        if self.public_only:
            return False
        if self.user is None and self.groups is None:
            return True
        is_own = row.owner is not None and row.owner == self.user
        return is_own or not row.groups.isdisjoint(self.groups or ())


@dataclass
class Corpus:
    documents: dict[int, Document]
    chunks: dict[int, Chunk]

    def seen(self, viewer: Viewer) -> list[Chunk]:
        """List the chunks that a viewer may see."""
        return [chunk for chunk in self.chunks.values() if viewer.sees(chunk)]

    def words(self, viewer: Viewer) -> set[str]:
        """List the words that may be in an answer to this viewer."""
        of_chunks = {
            own_word(kind, one.number) for one in self.seen(viewer) for kind in ("row", "head")
        }
        return of_chunks | {
            own_word("doc", number) for number, one in self.documents.items() if viewer.sees(one)
        }


def words_of(answer: object) -> set[str]:
    return set(re.findall(rf"(?:row|head|doc)(?:{'|'.join(_SYLLABLES)})+x", repr(answer)))


def drawn(draw: random.Random) -> Corpus:
    def access() -> tuple[UUID | None, Visibility, str | None, frozenset[str]]:
        owner = draw.choice([*USERS, *USERS, None])
        visibility: Visibility = draw.choice(["private", "private", "public"])
        groups = frozenset(draw.sample(GROUPS, draw.choice([0, 0, 1, 2])))
        return owner, visibility, draw.choice([None, "high"]), groups

    documents = {number: Document(number, *access()) for number in range(draw.randint(1, 8))}
    chunks = {}
    for number in range(draw.choice([8, 20, 40, 40, 250])):
        place = draw.choice([None, *documents, *documents])
        own = access()
        if place is not None and draw.random() < 0.7:
            one = documents[place]
            own = one.owner, one.visibility, one.sensitivity, one.groups
        chunks[number] = Chunk(
            number,
            place,
            *own,
            status=draw.choice(["active"] * 6 + ["superseded", "archived", "deleted"]),
            words=tuple(draw.choices(VOCABULARY, k=draw.randint(1, 5))),
            tag=draw.choice(TAGS),
            collection=draw.choice(["one", "one", "two"]),
            place=draw.choice([None, *range(6)]),
            embedding=draw.choice([None, *((draw.uniform(-1, 1), 1.0, draw.random()),) * 3]),
            date=draw.choice([None, "2020-01-01", "2026-01-01"]),
        )
    return Corpus(documents, chunks)


def store(owner: Connection, corpus: Corpus) -> None:
    def access(one: Document | Chunk) -> tuple[object, ...]:
        return one.owner, one.visibility, one.sensitivity, list(one.groups)

    with owner.transaction(), owner.cursor() as cursor:
        cursor.execute("delete from public.knowledge_chunks")
        cursor.execute("delete from public.knowledge_documents")
        named = [(one, own_word("doc", one.number)) for one in corpus.documents.values()]
        cursor.executemany(
            "insert into public.knowledge_documents (id, external_key, title, source_url, author,"
            " owner_id, visibility, sensitivity, allowed_groups, metadata)"
            " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            [(one.id, *[word] * 4, *access(one), Jsonb({"note": word})) for one, word in named],
        )
        # A document's columns are copied to its chunks, so what differs is changed afterwards.
        cursor.executemany(
            "insert into public.knowledge_chunks (id, document_id, chunk_index, heading, content,"
            " metadata, embedding, collection) values (%s, %s, %s, %s, %s, %s, %s, %s)",
            [
                (
                    one.id,
                    None if one.document is None else corpus.documents[one.document].id,
                    one.place,
                    own_word("head", one.number),
                    " ".join([*one.words, one.word]),
                    Jsonb({"word": one.word, "tag": one.tag, "note": one.word}),
                    None if one.embedding is None else str(list(one.embedding)),
                    one.collection,
                )
                for one in corpus.chunks.values()
            ],
        )
        cursor.executemany(
            "update public.knowledge_chunks set owner_id = %s, visibility = %s, sensitivity = %s,"
            " allowed_groups = %s, status = %s, document_date = %s where id = %s",
            [(*access(one), one.status, one.date, one.id) for one in corpus.chunks.values()],
        )


def ask_groups_of_token(owner: Connection) -> None:
    """Make the function that a project replaces: the groups that the token has."""
    owner.execute(
        "create or replace function public.knowledge_viewer_groups() returns text[]"
        " language sql stable set search_path = pg_catalog, pg_temp as $$"
        " select array(select jsonb_array_elements_text("
        "   auth.jwt() -> 'app_metadata' -> 'groups'"
        " )) $$"
    )


def sign_in(connection: Connection, user: UUID | None, groups: Iterable[str]) -> None:
    """Make the connection that of this user, with these groups in the token."""
    groups_of_token = {"groups": sorted(groups)}
    claims = {"role": "authenticated", "sub": str(user), "app_metadata": groups_of_token}
    connection.execute("select set_config('request.jwt.claims', %s, false)", [json.dumps(claims)])


def call(connection: Connection, function: str, arguments: Row) -> list[Row]:
    """Return the rows of a function of schema public; arguments of a search go as one object."""
    arguments = packed(function, arguments) if "search" not in arguments else arguments
    statement = sql.SQL("select * from public.{}({})").format(
        sql.Identifier(function),
        sql.SQL(", ").join(
            sql.SQL("{} => {}{}").format(
                sql.Identifier(name), sql.Placeholder(name), sql.SQL(TYPES.get(name, ""))
            )
            for name in arguments
        ),
    )
    given = {
        name: Jsonb(value, partial(json.dumps, default=str))
        if TYPES.get(name) == "::jsonb"
        else value
        for name, value in arguments.items()
    }
    if "query_embedding" in given:
        given["query_embedding"] = str(given["query_embedding"])
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, given, prepare=False).fetchall()


def ask(connection: Connection, function: str, **arguments: Any) -> list[Row]:
    return call(connection, function, arguments)
