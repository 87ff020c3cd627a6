"""Input that nobody means well, in every argument that takes text or JSON.

Each call is answered or refused, as SQL would cast and PostgREST would send it: a refusal is 22023
and names the argument, or it is the type's own, before the function is reached. Nothing may take
longer than five seconds on a few hundred chunks.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest
from hostile_values import (
    ALWAYS,
    FILTER_VALUES,
    JSON,
    LONGEST_REFUSAL,
    MANY_VALUES,
    ME,
    OBJECTS,
    TEXTS,
    TYPED_TEXTS,
    TYPES,
    mostly,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from psycopg import sql
from psycopg.types.json import Jsonb

from conftest import Connection
from homes import present
from second_brain import errors
from second_brain.services.arguments import FUSIONS
from second_brain.services.postgres import PostgresProvider
from support.properties import tried

CHUNKS = 300
LANGUAGES = ("english", "german", "simple")
SEARCH = "hybrid_search_knowledge_chunks"
EXPLAIN = "explain_hybrid_search"


@pytest.fixture(scope="module")
def corpus(shared: Connection) -> Connection:
    """A few hundred chunks in several languages, with words that the queries have."""
    rows = [
        {
            "content": " ".join(f"w{(number * 37 + place * 11) % 9_000}" for place in range(150))
            + " cat dog a b",
            "language": LANGUAGES[number % len(LANGUAGES)],
            "collection": f"c{number % 5}",
            "chunk_index": number % 7,
            "document_date": f"20{number % 30:02}-01-31",
            "sensitivity": [None, "high"][number % 2],
            "metadata": Jsonb({"a": number, "b": {"c": [number, "x"]}, "tags": ["api", "x"]}),
            "embedding": str([number % 11 - 5, number % 7 + 1, number % 3]),
        }
        for number in range(CHUNKS)
    ]
    with shared.cursor() as cursor:
        cursor.executemany(
            "insert into public.knowledge_chunks (content, language, collection, chunk_index,"
            " document_date, sensitivity, metadata, embedding, visibility)"
            " values (%(content)s, %(language)s, %(collection)s, %(chunk_index)s,"
            " %(document_date)s, %(sensitivity)s, %(metadata)s, %(embedding)s, 'public')",
            rows,
        )
    return shared


@pytest.fixture
def hostile(corpus: Connection) -> Iterator[Connection]:
    """The corpus in a transaction that ends with it unharmed, on pain of thirty seconds."""
    with corpus.transaction(force_rollback=True):
        corpus.execute("set local statement_timeout = '30s'")
        yield corpus
        ((left,),) = corpus.execute("select count(*) from public.knowledge_chunks").fetchall()
        assert left == CHUNKS


def converts(connection: Connection, text: str | None, type_: LiteralString) -> bool:
    """Whether a text becomes a value of the type at all."""
    try:
        with connection.transaction():
            connection.execute(sql.SQL("select %s::{}").format(sql.SQL(type_)), [text])
    except (psycopg.Error, UnicodeEncodeError) as error:
        known = errors.translate(error)
    else:
        return True
    assert isinstance(known, errors.InvalidInputError), (known, known.code)
    return False


def answered(
    connection: Connection, function: str, named: str, arguments: Mapping[str, str | None]
) -> bool:
    """Call with texts that are cast to the arguments' types.

    True when answered, False when refused as it should be: the refusal names `named`, or the value
    of `named` has no such type.
    """
    sent = as_search(arguments) if function == EXPLAIN else arguments
    statement = sql.SQL("select * from public.{}({})").format(
        sql.Identifier(function),
        sql.SQL(", ").join(
            sql.SQL("{} => {}::{}").format(
                sql.Identifier(name), sql.Placeholder(name), sql.SQL(TYPES[name])
            )
            for name in sent
        ),
    )
    try:
        with connection.transaction():
            connection.execute(statement, sent).fetchall()
    except (psycopg.Error, UnicodeEncodeError) as error:
        refusal: Exception = error
    else:
        return True
    known = errors.translate(refusal)
    if isinstance(known, errors.ModuleMissingError):
        return False
    assert isinstance(known, errors.InvalidInputError), (known, known.code)
    if converts(connection, arguments[named], TYPES[named]):
        assert known.code == "22023", (known, known.code)
        assert isinstance(refusal, psycopg.Error)
        message = refusal.diag.message_primary or ""
        assert named in message
        assert len(message) <= LONGEST_REFUSAL
    return False


def as_search(arguments: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the arguments as one object, written as JSON."""
    members = [
        f"{json.dumps(name)}: {value if TYPES[name] == 'jsonb' else json.dumps(value)}"
        for name, value in arguments.items()
    ]
    return {"search": "{" + ", ".join(members) + "}"}


@pytest.mark.large
@pytest.mark.parametrize("name", TEXTS)
def test_any_query_text_is_answered(hostile: Connection, name: str) -> None:
    sendable = converts(hostile, TEXTS[name], "text")
    for mode in ("websearch", "simple", "phrase"):
        given = {"query_text": TEXTS[name], "search_mode": mode, "query_embedding": "[1,0,0]"}
        assert answered(hostile, SEARCH, "query_text", given) is sendable


@pytest.mark.large
@pytest.mark.parametrize("name", mostly(TEXTS))
def test_any_query_text_is_answered_by_every_search(
    hostile: Connection, name: str, modules: tuple[str, ...]
) -> None:
    text = TEXTS[name]
    # What a text costs in each excerpt shows with a long one.
    count = "1000" if len(text) > 1_000 else "30"
    given = {"query_text": text, "match_count": count, "snippet": "true", "fusion": "auto"}
    refused = not converts(hostile, text, "text") or not text.strip("\u00a0\u3000 \t\r\n\v")
    assert answered(hostile, SEARCH, "query_text", given) is not refused
    for function in present(("search_knowledge_chunks_fulltext", EXPLAIN), modules):
        answered(hostile, function, "query_text", {"query_text": text})
    for argument in ("filter_type", "search_mode", "fusion"):
        for function in present((SEARCH, EXPLAIN), modules):
            assert not answered(hostile, function, argument, {"query_text": "cat", argument: text})
    if "batch" in modules:
        of_json = f'[{{"query_text": {json.dumps(text)}}}]'
        formulated = {"query_text": "cat", "formulations": of_json}
        answered(hostile, SEARCH, "formulations", formulated)
        answered(hostile, f"{SEARCH}_batch", "queries", {"queries": of_json})
    hostile.execute(
        "select set_config('request.jwt.claims', %s, true)", [json.dumps({"sub": str(ME)})]
    )
    hostile.execute("set local role authenticated")
    answered(hostile, "search_my_knowledge_chunks", "query_text", {"query_text": text})
    hostile.execute("reset role")


@pytest.mark.large
@pytest.mark.parametrize("name", mostly(TEXTS))
def test_hostile_values_and_names_are_data(hostile: Connection, name: str) -> None:
    text = TEXTS[name][:150]
    if not converts(hostile, text, "text"):
        pytest.skip("cannot be stored either")
    ((stored,),) = hostile.execute(
        "insert into public.knowledge_chunks"
        " (content, collection, sensitivity, embedding_model, embedding, metadata)"
        " values ('cat', %s, %s, %s, '[1,0,0]', %s) returning id",
        [text or "empty", text, text, Jsonb({text: text, "deep": {"value": [text]}})],
    ).fetchall()

    def found(filters: object, collections: list[str] | None = None) -> list[UUID]:
        rows = hostile.execute(
            f"select id from public.{SEARCH}(query_embedding => '[1,0,0]', match_threshold => -1,"
            " match_count => 1000, filters => %s::jsonb, collections => %s)".encode(),
            [Jsonb(filters), collections],
        ).fetchall()
        return [row[0] for row in rows]

    assert found({text: text}) == [stored]
    for field in ("sensitivity", "embedding_model"):
        assert found([{"field": field, "op": "eq", "value": text}]) == [stored]
        others = found([{"field": field, "op": "ne", "value": text}])
        assert len(others) == CHUNKS
        assert stored not in others
    deep = {"field": "metadata.deep.value", "op": "contains", "value": text}
    assert found([deep]) == [stored]
    assert stored in found([], [text or "empty"])
    hostile.execute("delete from public.knowledge_chunks where id = %s", [stored])


@pytest.mark.large
@pytest.mark.parametrize("name", mostly(JSON))
def test_any_value_of_a_condition_is_answered_or_refused(hostile: Connection, name: str) -> None:
    for field, op in FILTER_VALUES:
        filters = f'[{{"field": "{field}", "op": "{op}", "value": {JSON[name]}}}]'
        answered(hostile, SEARCH, "filters", {"query_text": "cat", "filters": filters})


CONDITION = '[{{"field": "language", "op": '
FORMS = {
    "filters": [
        *("{}", "[{}]", '[{{"field": {}, "op": "eq", "value": 1}}]', '{{"a": {}}}'),
        CONDITION + '{}, "value": "x"}}]',
        CONDITION + '"eq", "value": "x", "more": {}}}]',
    ],
    "formulations": [
        *("{}", "[{}]", '[{{"query_text": {}}}]', '[{{"query_embedding": {}}}]'),
        '[{{"more": {}}}]',
    ],
    "queries": ["{}", "[{}]", '[{{"query_text": "cat"}}, {}]'],
}
TAKING = {"filters": (SEARCH, EXPLAIN), "formulations": (SEARCH,), "queries": (f"{SEARCH}_batch",)}


@pytest.mark.parametrize("name", mostly(JSON))
@pytest.mark.parametrize(
    ("argument", "form"), [(argument, form) for argument in FORMS for form in FORMS[argument]]
)
def test_any_json_is_answered_or_refused(
    hostile: Connection, argument: str, form: str, name: str, modules: tuple[str, ...]
) -> None:
    given = {} if argument == "queries" else {"query_text": "cat"}
    for function in present(TAKING[argument], modules):
        answered(hostile, function, argument, given | {argument: form.format(JSON[name])})


@pytest.mark.large
@pytest.mark.parametrize("name", MANY_VALUES)
def test_many_conditions_on_many_values_are_data(hostile: Connection, name: str) -> None:
    field, op, value = MANY_VALUES[name]
    filters = json.dumps([{"field": field, "op": op, "value": value}] * 100)
    answered(hostile, SEARCH, "filters", {"query_text": "cat", "filters": filters})


@pytest.mark.parametrize("name", mostly(TEXTS))
@pytest.mark.parametrize("prefix", ["", "metadata.", "metadata.a."])
def test_any_field_name_is_answered_or_refused(hostile: Connection, prefix: str, name: str) -> None:
    for op in ("eq", "ne", "gt"):
        filters = json.dumps([{"field": prefix + TEXTS[name], "op": op, "value": "x"}])
        answered(hostile, SEARCH, "filters", {"query_text": "cat", "filters": filters})


BATCH_ARGUMENTS = sorted(TYPES.keys() - {"queries", "search"})


@pytest.mark.module("batch")
@pytest.mark.parametrize("name", mostly(JSON))
def test_any_argument_of_a_batch_is_answered_or_refused(hostile: Connection, name: str) -> None:
    for argument in BATCH_ARGUMENTS:
        # Of a key that stands twice, JSON takes the last.
        queries = f'[{{"query_text": "dog", "{argument}": {JSON[name]}}}]'
        answered(hostile, f"{SEARCH}_batch", "queries", {"queries": queries})


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("argument", sorted(TYPES.keys() - {"queries", "fusion", "search"}))
def test_any_text_for_another_type_is_answered_or_refused(
    hostile: Connection, argument: str, fusion: str
) -> None:
    for text in (*TYPED_TEXTS.get(TYPES[argument], ()), *ALWAYS, None):
        given = {"query_text": "cat w37", "query_embedding": "[1,0,0]", "fusion": fusion}
        answered(hostile, SEARCH, argument, given | {argument: text})


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("weight", ["1e308", "1e-300", "5e-324"])
@pytest.mark.parametrize("rrf_k", ["1e308", "5e-324"])
@pytest.mark.module("arrange")
def test_extreme_weights_are_answered_or_refused(
    hostile: Connection, weight: str, rrf_k: str, fusion: str
) -> None:
    given = {"query_text": "cat w37", "query_embedding": "[1,0,0]", "recency_half_life": "1e-5"}
    given |= {"vector_weight": weight, "text_weight": weight, "rrf_k": rrf_k, "fusion": fusion}
    answered(hostile, SEARCH, "vector_weight", given)


letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0") | st.sampled_from(
    list("\"'\\-&|!()<>:*$%{}[]@?,;.#/+_~`= \n\t\u202e\u200b\u0301\u0316\ufdfa\u3042漢")
)
fragments = st.sampled_from([" or ", ' -"', '" ', "$$", "::text", "cat", "w37", " <-> ", "\\'"])
texts = st.lists(letters | fragments, max_size=80).map("".join)
numbers = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
documents = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
fields = texts | st.sampled_from(
    ["metadata", "metadata.a", "metadata.b.c", "language", "owner_id", "chunk_index", "created_at"]
)
operators = texts | st.sampled_from(
    ["eq", "ne", "in", "not_in", "contains", "gte", "lt", "between", "exists"]
)
conditions = st.fixed_dictionaries(
    {"field": fields, "op": operators}, optional={"value": documents, "operator": documents}
)


@pytest.mark.large
@tried(80)
@given(
    text=texts,
    mode=st.sampled_from(["websearch", "simple", "phrase"]),
    function=st.sampled_from([SEARCH, EXPLAIN]),
)
def test_every_text_is_answered(
    hostile: Connection, text: str, mode: str, function: str, modules: tuple[str, ...]
) -> None:
    assume(present([function], modules))
    given_ = {"query_text": text, "search_mode": mode, "query_embedding": "[1,0,0]"}
    assert answered(hostile, function, "query_text", given_ | {"snippet": "true"})


@pytest.mark.large
@tried(80)
@given(filters=documents | st.lists(conditions | documents, max_size=3))
def test_every_filter_is_answered_or_refused(hostile: Connection, filters: Any) -> None:
    given_ = {"query_text": "cat", "filters": json.dumps(filters)}
    answered(hostile, SEARCH, "filters", given_)


PROVIDER_ARGUMENTS = (
    *("query_embedding", "query_text", "top_k", "threshold", "filter_type", "search_mode"),
    *("rrf_k", "fusion", "filters", "date_from", "collections", "viewer_id", "public_only"),
    *("neighbor_window", "formulations"),
    *(
        pytest.param(name, marks=pytest.mark.module("arrange"))
        for name in ("boosts", "order_by", "recency_half_life")
    ),
)


@pytest.mark.module("batch")
@pytest.mark.parametrize("argument", PROVIDER_ARGUMENTS)
@pytest.mark.parametrize("name", OBJECTS)
def test_a_provider_answers_or_says_what_is_invalid(
    hostile: Connection, name: str, argument: str, modules: tuple[str, ...]
) -> None:
    provider = PostgresProvider(hostile, on_error="empty")
    given_: dict[str, Any] = {"query_embedding": [1, 0, 0], "query_text": "cat"}
    given_ |= {argument: OBJECTS[name]}
    for details in (
        provider.hybrid_search(**given_)[1],
        provider.hybrid_search_batch([{"query_text": "dog"}, given_])[1],  # type: ignore[list-item]
    ):
        if not details["real_provider"]:
            assert details["error_kind"] in ("invalid_input", "dimension_mismatch"), details
            assert details["error_message"]
            assert len(details["error_message"]) <= errors.MESSAGE_LIMIT
    with contextlib.suppress(errors.InvalidInputError):
        if "insight" in modules:
            provider.explain_hybrid_search(**given_)
