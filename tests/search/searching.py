"""Chunks to search, searches by argument names, and BM25 in Python."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from conftest import Connection
from second_brain.services.arguments import FUSIONS as FUSIONS
from second_brain.services.functions import packed

Row = dict[str, Any]

NORTH, NORTH_EAST, EAST, UP = [1, 0, 0], [0.8, 0.6, 0], [0, 1, 0], [0, 0, 1]
MODES = ("websearch", "simple", "phrase")
JSON_ARGUMENTS = {"filters", "required_filters", "formulations", "boosts", "queries"}


def chunk(number: int) -> UUID:
    return UUID(int=number)


def today(connection: Connection) -> date:
    """Return the day of the transaction, that of a run would be another one after midnight."""
    day: date
    ((day,),) = connection.execute("select (now() at time zone 'utc')::date").fetchall()
    return day


def store(connection: Connection, *chunks: Mapping[str, Any] | str) -> None:
    """Store chunks, each its columns or its content, under the ids 1, 2, 3, ... in their order."""
    for number, one in enumerate(chunks, 1):
        columns = {"content": one} if isinstance(one, str) else one
        values = {"id": chunk(number), "content": "text", **columns}
        if values.get("embedding") is not None:
            values["embedding"] = str(values["embedding"])
        if "metadata" in values:
            values["metadata"] = Jsonb(values["metadata"])
        insert(connection, "knowledge_chunks", values)


def insert(connection: Connection, table: str, values: Mapping[str, Any]) -> None:
    statement = sql.SQL("insert into {} ({}) values ({})").format(
        sql.Identifier("public", table),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(map(sql.Placeholder, values)),
    )
    connection.execute(statement, values)


def store_document(connection: Connection, id_: UUID, **columns: Any) -> UUID:
    insert(connection, "knowledge_documents", {"id": id_, "external_key": str(id_), **columns})
    return id_


def taken(function: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call; those of a search as `search` where the function has that."""
    given = packed(function, dict(arguments))
    if "search" in given:
        plain = {
            name: value.obj if isinstance(value, Jsonb) else value
            for name, value in given["search"].items()
        }
        given["search"] = Jsonb(plain, dumps=partial(json.dumps, default=str))
    return given


def call(connection: Connection, function: str, **arguments: Any) -> list[Row]:
    """Call a function by argument names, in a savepoint of its own."""
    if isinstance(arguments.get("query_embedding"), list):
        arguments["query_embedding"] = str(arguments["query_embedding"])
    arguments = taken(function, arguments)
    for name in JSON_ARGUMENTS & arguments.keys():
        if isinstance(arguments[name], list | dict):
            arguments[name] = Jsonb(arguments[name], dumps=partial(json.dumps, default=str))
    statement = sql.SQL("select * from public.{}({})").format(
        sql.Identifier(function),
        sql.SQL(", ").join(
            sql.SQL("{} => {}{}").format(
                sql.Identifier(name),
                sql.Placeholder(name),
                sql.SQL("::extensions.vector" if name == "query_embedding" else ""),
            )
            for name in arguments
        ),
    )
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, arguments).fetchall()


def answer(connection: Connection, function: str, **arguments: Any) -> Any:
    """Call a function that returns one value."""
    ((value,),) = [row.values() for row in call(connection, function, **arguments)]
    return value


def search(connection: Connection, **arguments: Any) -> list[Row]:
    """Search with fusion rrf, whose scores can be computed by hand."""
    return call(connection, "hybrid_search_knowledge_chunks", **{"fusion": "rrf"} | arguments)


def searched(
    connection: Connection, query: str, *contents: Mapping[str, Any] | str, **arguments: Any
) -> list[Row]:
    """Search a corpus of these chunks alone, which is gone afterwards."""
    with connection.transaction(force_rollback=True):
        store(connection, *contents)
        return search(connection, query_text=query, **arguments)


def numbers(rows: Sequence[Row]) -> list[int]:
    return [row["id"].int for row in rows]


def refused(connection: Connection, function: str, **arguments: Any) -> str:
    with pytest.raises(psycopg.Error) as caught:
        call(connection, function, **arguments)
    assert caught.value.sqlstate == "22023"
    return caught.value.diag.message_primary or ""


# What scoring should give, in Python.


def lexemes(connection: Connection, text: str, language: str = "english") -> Counter[str]:
    rows = connection.execute(
        "select word.lexeme, cardinality(word.positions)"
        " from unnest(to_tsvector(%s::regconfig, %s)) as word",
        [language, text],
    )
    return Counter(dict(rows.fetchall()))


def bm25(corpus: Mapping[Any, Counter[str]], query: Counter[str]) -> dict[Any, float]:
    """Score the documents that share a lexeme with the query: BM25, k1 1.2, b 0.75."""
    mean = max(1, sum(words.total() for words in corpus.values()) / len(corpus))
    scores: dict[Any, float] = {}
    for word, occurrences in query.items():
        having = [one for one, words in corpus.items() if word in words]
        idf = math.log(1 + (len(corpus) - len(having) + 0.5) / (len(having) + 0.5))
        for one in having:
            tf, length = corpus[one][word], corpus[one].total()
            share = tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / mean))
            scores[one] = scores.get(one, 0) + occurrences * idf * share
    return scores


ANIMALS: list[dict[str, Any]] = [
    {"content": "the cat sat on the mat", "embedding": NORTH},
    {"content": "a dog chased the cat", "embedding": NORTH_EAST},
    {"content": "dogs and wolves run", "embedding": EAST},
    {"content": "stock markets fell", "embedding": UP},
]
