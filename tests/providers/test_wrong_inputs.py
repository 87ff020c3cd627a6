"""Wrong inputs over SQL, Python, REST, the command line and MCP: each answer says why.

Values of wrong types: every public method of the clients answers, or raises as documented.
"""

import asyncio
import inspect
import math
import re
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

import httpx
import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mcp import Client
from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb
from supabase.lib.client_options import SyncClientOptions
from test_postgres_and_supabase import RestOverDatabase

from command_line import Run, runner
from conftest import Server, copy_of
from corpora import store_document
from second_brain import AsyncRetrievalService
from second_brain.embedding_queue.queue import EmbeddingResult, PostgresEmbeddingQueue
from second_brain.errors import InvalidInputError, SecondBrainError
from second_brain.mcp_server import Scope, create_server
from second_brain.models import CallableEmbedder
from second_brain.retrieval.query import SearchQuery, takes
from second_brain.retrieval.service import RetrievalService
from second_brain.services.calls import Deadline, finished
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.functions import functions, integers
from second_brain.services.judgments import Judgment
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.supabase import SupabaseProvider
from second_brain.services.write import KnowledgeWriter
from supabase import create_client

OWNER, STRANGER = ("00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b")
EMBEDDER = CallableEmbedder(lambda texts: [[1.0, 0.0, 0.0] for _ in texts], "by-hand", 3)
NOWHERE = "postgresql://someone@127.0.0.1:1/nowhere"


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> str:
    chunk = {"Keys rotate.": [1, 0, 0]}
    store_document(shared_dsn, "keys", chunk, owner_id=OWNER, metadata={"team": "search"})
    return shared_dsn


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    return runner(monkeypatch, capsys, tmp_path)


def in_sql(dsn: str, run: Run, **search: Any) -> str:
    """Ask the function that explains a search without rows."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set role service_role")
        try:
            row = connection.execute(
                "select public.explain_empty_knowledge_search(%s) ->> 'message'", [Jsonb(search)]
            ).fetchone()
        except psycopg.Error as error:
            return f"error {error.sqlstate}: {error.diag.message_primary}"
    assert row is not None
    return str(row[0])


def of_provider(provider: Any, given: dict[str, Any]) -> str:
    asked = {"query_embedding": None, "query_text": None, **given}
    try:
        hits, details = provider.hybrid_search(**asked)
    except SecondBrainError as error:
        return f"{type(error).__name__}: {error} {error.remedy}"
    assert hits == []
    return str(details["empty"]["message"] if "empty" in details else details["error_message"])


def in_python(dsn: str, run: Run, **given: Any) -> str:
    database = given.pop("database", dsn)
    return of_provider(PostgresProvider(database), given)


def in_service(dsn: str, run: Run, **given: Any) -> str:
    try:
        response = RetrievalService(PostgresProvider(dsn), EMBEDDER).search("keys", **given)
    except SecondBrainError as error:
        return f"{type(error).__name__}: {error} {error.remedy}"
    assert response.empty is not None
    return response.empty.message


def over_rest(dsn: str, run: Run, **given: Any) -> str:
    if "supabase_url" in given:
        return of_provider(
            SupabaseProvider(given, on_error="raise", retries=0), {"query_text": "keys"}
        )
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set role service_role")
        client: Any = RestOverDatabase(connection)
        return of_provider(SupabaseProvider(client=client, on_error="raise"), given)


def on_the_command_line(dsn: str, run: Run, given: list[str]) -> str:
    done = run("search", *given, "--mode", "text", "--dsn", dsn)
    assert done.out == ""
    return done.err.strip().splitlines()[-1] if done.code == 0 else " ".join(done.err.split())


def over_mcp(dsn: str, run: Run, **arguments: Any) -> str:
    async def call() -> Any:
        provider = AsyncPostgresProvider(dsn)
        server = create_server(AsyncRetrievalService(provider, EMBEDDER), provider, Scope())
        async with Client(server) as client:
            return await client.call_tool("hybrid_search", {"query": "keys", **arguments})

    return str(asyncio.run(call()).content[0].text)


Ask = Callable[..., str]
WORDS = {"query_text": "keys"}
CASES: list[tuple[Ask, Any, str]] = [
    (in_sql, {}, "both missing"),
    (in_sql, {"query_text": "zebra"}, '"zebra"'),
    (in_sql, {"query_text": "?!"}, "only stop words"),
    (in_sql, {"query_tex": "keys"}, "query_tex"),
    (in_sql, {**WORDS, "collections": ["knowlege"]}, 'did you mean "knowledge"?'),
    (in_sql, {**WORDS, "filters": {"tem": "search"}}, 'did you mean "team"?'),
    (in_sql, {**WORDS, "filter_type": "decision"}, 'they have "document"'),
    (in_sql, {**WORDS, "filters": [{"field": "tem", "op": "eq", "value": 1}]}, "field must be"),
    (in_sql, {**WORDS, "viewer_id": STRANGER}, "visible to this viewer"),
    (in_sql, {**WORDS, "public_only": True}, "No document is public"),
    (in_sql, {**WORDS, "match_offset": 10}, "total_count is 1"),
    (in_sql, {"query_embedding": "[0,1,0]", "match_threshold": 0.9}, "best similarity is 0"),
    (in_sql, {"query_embedding": "[1,0]"}, "2 dimensions"),
    (in_python, {}, "both missing"),
    (in_python, {**WORDS, "filters": {"language": "englsh"}}, 'did you mean "english"?'),
    (in_python, {**WORDS, "filters": {"source_id": "wiki"}}, "source_id"),
    (in_python, {**WORDS, "date_from": "tomorrow"}, "date_from"),
    (in_python, {**WORDS, "database": NOWHERE}, "UnavailableError"),
    (in_service, {"filters": {"tem": "search"}}, 'did you mean "team"?'),
    (over_rest, {"query_text": "zebra"}, '"zebra"'),
    (over_rest, {**WORDS, "filters": {"team": "serch"}}, 'did you mean "search"?'),
    (
        over_rest,
        {"supabase_url": "http://127.0.0.1:1", "supabase_key": "wrong"},
        "UnavailableError: ",
    ),
    (over_rest, {"supabase_url": "nowhere", "supabase_key": "wrong"}, "Check SUPABASE_URL"),
    (on_the_command_line, ["zebra"], '"zebra"'),
    (on_the_command_line, ["keys", "--filters", '{"tem": "search"}'], 'did you mean "team"?'),
    (on_the_command_line, ["keys", "--filters", "team=search"], "is not JSON"),
    (over_mcp, {"filters": {"tem": "search"}}, 'did you mean "team"?'),
    (over_mcp, {"filters": {"collection": "memory"}, "include_memory": True}, "collection"),
    # Filters as other systems write them, and what JSON or a model makes of arguments.
    (in_sql, {**WORDS, "filters": {"page": {"$in": [1]}}}, "filters.page has $in, which is no"),
    (in_sql, {**WORDS, "filters": {"$and": [{"team": "a"}]}}, "filters.$and has $and"),
    (in_sql, {**WORDS, "filters": {"page": {"deep": [{"$gte": 1}]}}}, "filters.page has $gte"),
    (in_sql, {**WORDS, "filters": {"page": {"gte": 1}}}, "filters.page has gte, which is no"),
    (in_sql, {**WORDS, "filters": {"page": {"in": [1]}}}, "filters.page has in, which is no"),
    (in_sql, {**WORDS, "filters": {"page": {"between": [1, 2]}}}, "filters.page has between"),
    (in_sql, {**WORDS, "filters": {"team": {"like": "s%"}}}, "filters.team has like, which is no"),
    (in_sql, {**WORDS, "filters": {"team": {"nin": ["a"]}}}, "filters.team has nin, which is no"),
    (in_sql, {**WORDS, "filters": [{"team": "a"}, {"page": {"$ne": 1}}]}, "filters[1].page has"),
    (in_sql, {**WORDS, "required_filters": {"page": {"$lt": 9}}}, "required_filters.page has $lt"),
    (in_sql, {**WORDS, "filters": {"field": "page", "op": "in", "value": [1]}}, "field must be"),
    (in_sql, {**WORDS, "filters": {"document_date": {"$gte": "2026-01-01"}}}, "short form a range"),
    (in_python, {**WORDS, "filters": {"page": {"$between": [1, 2]}}}, "list of conditions"),
    (in_python, {**WORDS, "filters": len}, "has no JSON form"),
    (in_python, {**WORDS, "filters": {"team": len}}, "filters.team"),
    (in_python, {**WORDS, "filters": "team = 'search'"}, "filters must be a JSON array"),
    (in_python, {**WORDS, "filters": {"team": "\ud800"}}, "filters.team"),
    (in_python, {**WORDS, "filters": {"team": ["a\0"]}}, "filters.team[0]: a text has"),
    (in_python, {**WORDS, "filters": {"price": math.nan}}, "filters.price"),
    (in_service, {"filters": {"page": {"$exists": True}}}, "page has $exists"),
    (in_python, {**WORDS, "top_k": True}, "top_k must be an integer, not True"),
    (over_rest, {**WORDS, "top_k": 2.5}, "top_k must be an integer, not 2.5"),
    (in_python, {**WORDS, "threshold": True}, "threshold must be a number, not True"),
    (over_rest, {**WORDS, "one_per_document": 1}, "one_per_document must be true or false, not 1"),
    (in_python, {**WORDS, "date_from": 5}, "date_from must be an ISO date such as"),
    (over_rest, {**WORDS, "viewer_id": [5]}, "viewer_id must be a UUID"),
    (in_python, {**WORDS, "viewer_groups": "staff"}, "viewer_groups must be a list of names, not"),
    (in_python, {"query_embedding": [math.nan, 0, 1]}, "query_embedding must be a list of finite"),
    (in_python, {"query_embedding": []}, "query_embedding must be"),
    (in_python, {"query_text": "a\0"}, "query_text: a text has the character NUL"),
    (over_rest, {**WORDS, "filters": {"$or": [{"team": "a"}]}}, "filters.$or has $or"),
    (on_the_command_line, ["keys", "--filters", '{"page": {"$gte": 3}}'], "page has $gte"),
    (over_mcp, {"filters": '{"page": {"$in": [1]}}'}, "page has $in"),
    (over_mcp, {"viewer_id": STRANGER}, "viewer_id"),
    # The caller's name of an argument.
    (over_rest, {**WORDS, "top_k": 5000}, "top_k must be between 1 and 1000, not 5000"),
    (in_service, {"limt": 3}, "limt: no argument has this name, did you mean limit?"),
    (in_service, {"top_k": 3}, "did you mean limit?"),
    (in_service, {"max_tokens": True}, "max_tokens: must be an integer, not True"),
    (in_service, {"timeout": True}, "timeout must be above 0 and at most"),
    (in_service, {"as_of": "foo"}, "as_of: must be an ISO date or timestamp such as"),
    (in_service, {"category": "task", "mode": "text"}, "category: no visible row passes"),
    (on_the_command_line, ["keys", "--as-of", "foo"], "--as-of: must be an ISO date or timestamp"),
    (on_the_command_line, ["keys", "--max-tokens", "0"], "--max-tokens: Input should be greater"),
    (on_the_command_line, ["keys", "--knowledge-type", "x"], "--knowledge-type must be one of"),
    (on_the_command_line, ["keys", "--knowledge-type", "task"], "--knowledge-type: no visible"),
    (on_the_command_line, ["keys", "--collection", "x"], "--collection: no visible row"),
    (over_mcp, {"as_of": "foo"}, "as_of: must be an ISO date or timestamp"),
    (over_mcp, {"limit": "many"}, "limit"),
]


@pytest.mark.module("insight")
@pytest.mark.parametrize(
    ("ask", "given", "told"), CASES, ids=[f"{ask.__name__} {given}" for ask, given, _ in CASES]
)
def test_the_answer_says_what_is_wrong(
    corpus: str, run: Run, ask: Ask, given: Any, told: str
) -> None:
    asked = {"given": given} if isinstance(given, list) else given
    assert told in ask(corpus, run, **asked)


def write(dsn: str, document: Any, chunks: Any) -> object:
    with psycopg.connect(dsn) as connection:
        return KnowledgeWriter(connection).upsert_document(document, chunks)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (
            lambda dsn, one: one.hybrid_search("keys", [1, 0, 0]),
            "query_embedding must be a list of numbers, not 'keys'",
        ),
        (lambda dsn, one: one.fulltext_search([1, 0, 0]), "query_text must be a text, not list"),
        (
            lambda dsn, one: one.hybrid_search(None, "keys", limit=3),
            r"unexpected argument 'limit', did you mean top_k\? Known are .*, timeout, top_k,",
        ),
        (
            lambda dsn, one: write(dsn, {"external_key": "a"}, ["text"]),
            r"chunks\[0\] must be a dict, not str",
        ),
        (lambda dsn, one: write(dsn, "a", []), "document must be a dict, not str"),
    ],
)
def test_a_value_of_another_kind_is_named(
    corpus: str, ask: Callable[[str, Any], object], told: str
) -> None:
    with pytest.raises((SecondBrainError, TypeError), match=told):
        ask(corpus, PostgresProvider(corpus))


VECTOR = [1.0, 0.0, 0.0]
# Each method with options, and how it is called without them.
METHODS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("hybrid_search", "find", "search_my_knowledge"), (None, "keys")),
    **dict.fromkeys(("search_public_knowledge", "explain_hybrid_search"), (None, "keys")),
    **dict.fromkeys(("estimate_hybrid_search", "explain_missing"), (None, "keys")),
    **dict.fromkeys(("count_facets", "count_my_facets"), (None, "keys", ["collection"])),
    **{"search": (VECTOR,), "fulltext_search": ("keys",)},
    **dict.fromkeys(("count_pending_embeddings", "count_my_pending_embeddings"), ()),
    **{"read_document": (UUID(int=1),), "list_documents": ()},
}
LIKE = {
    **{"topk": "top_k", "match_count": "top_k", "limit": "top_k", "treshold": "threshold"},
    **{"match_threshold": "threshold", "min_similarity": "threshold", "category": "filter_type"},
    **{"viewer": "viewer_id", "timeouts": "timeout", "colection": "collections"},
    **{"extact_total": "exact_total", "offset": "match_offset", "as_off": "as_of", "zzz": None},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LIKE)
def test_an_unknown_argument_is_refused_with_the_one_that_is_like_it(
    method: str, name: str
) -> None:
    with pytest.raises(TypeError, match="unexpected argument") as refused:
        getattr(PostgresProvider(NOWHERE), method)(*METHODS[method], **{name: 1})
    _, _, known = str(refused.value).partition("Known are ")
    names = known.removesuffix(".").split(", ")
    assert "timeout" in names
    assert ("exact_total" in names) is (method in ("hybrid_search", "find"))
    is_told = f"did you mean {LIKE[name]}?" in str(refused.value)
    assert is_told is (LIKE[name] in names)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"top_k": 1001}, "top_k must be between 1 and 1000, not 1001"),
        ({"threshold": 3}, "threshold must be a cosine similarity between -1 and 1, not 3"),
        ({"filter_type": "match_count"}, "filter_type must be one of .*, not match_count"),
    ],
)
def test_details_of_a_refusal_name_the_argument_that_was_written(
    corpus: str, given: dict[str, Any], told: str
) -> None:
    provider = PostgresProvider(corpus, on_error="empty")
    for _, details in (
        provider.hybrid_search(None, "keys", **given),
        provider.search(VECTOR, **given),
    ):
        assert re.search(told, details["error_message"])


@pytest.mark.module("insight")
def test_an_empty_answer_names_the_argument_that_was_written(corpus: str) -> None:
    provider = PostgresProvider(corpus)
    far = [0.0, 0.6, -0.8]
    _, details = provider.hybrid_search(far, None, threshold=0.99)
    assert details["empty"]["message"].endswith("threshold is 0.99. Lower threshold.")
    assert "match_threshold" not in details["empty"]["message"]
    _, details = provider.hybrid_search(None, "zebra NOT match_count")
    assert details["notes"] == {"ignored": ["NOT"]}
    assert '"match_count"' in details["empty"]["message"]
    assert "notes" not in details["empty"]
    _, batch = provider.hybrid_search_batch([{"query_text": "zebra NOT gnu"}])
    assert batch["notes"] == [{"ignored": ["NOT"]}]
    service = RetrievalService(provider, EMBEDDER)
    answer = service.search("zebra NOT gnu", mode="text", min_similarity=0.5)
    assert answer.notes == {"ignored": ["NOT"]}
    answer = service.search("keys", mode="text", category="task")
    assert answer.empty is not None
    assert answer.empty.message.startswith("category: no visible row")


INTEGERS = sorted(
    (name, argument)
    for name, one in functions().items()
    for argument in integers(name)
    if one.arguments
)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize(("function", "argument"), INTEGERS)
def test_a_boolean_is_no_integer(function: str, argument: str, flag: bool) -> None:
    provider = PostgresProvider(NOWHERE)
    with pytest.raises(InvalidInputError, match=f"{argument} must be an integer, not {flag}"):
        finished(provider._call(function, {argument: flag}, Deadline(None)))


def test_a_boolean_is_no_number_of_a_query() -> None:
    numbers = [
        name
        for name, field in SearchQuery.model_fields.items()
        if takes(field.annotation, int, float) and name != "expand_neighbors"
    ]
    assert {"limit", "max_tokens", "rrf_k", "snippets"} < {*numbers}
    for name in numbers:
        for flag in (True, False):
            with pytest.raises(ValueError, match=rf"{name}\n.*must be an? .*, not {flag}"):
                SearchQuery.model_validate({"query": "keys", name: flag})


def test_a_failure_is_raised_or_returned_as_it_is_asked_for(corpus: str) -> None:
    with pytest.raises(SecondBrainError):
        PostgresProvider(NOWHERE).hybrid_search(None, "keys")
    with pytest.raises(SecondBrainError):
        PostgresProvider(NOWHERE).hybrid_search_batch([{"query_text": "keys"}])
    hits, details = PostgresProvider(NOWHERE, on_error="empty").hybrid_search(None, "keys")
    assert (hits, details["fallback_reason"], "empty" in details) == ([], "provider_error", False)
    wrong = {"supabase_url": "http://127.0.0.1:1", "supabase_key": "wrong"}
    assert SupabaseProvider(wrong, retries=0).hybrid_search(None, "keys")[0] == []
    for raising in (
        SupabaseProvider({**wrong, "on_error": "raise"}, retries=0),
        SupabaseProvider({**wrong, "on_error": "empty"}, retries=0, on_error="raise"),
    ):
        with pytest.raises(SecondBrainError):
            raising.hybrid_search(None, "keys")
    with pytest.raises(SecondBrainError, match="on_error must be raise or empty"):
        PostgresProvider(NOWHERE, on_error="no")  # type: ignore[arg-type]


def test_a_database_that_cannot_say_why_still_answers(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop function if exists public.explain_empty_knowledge_search")
        hits, details = PostgresProvider(connection).hybrid_search(None, "keys")
    assert (hits, "empty" in details) == ([], False)


@pytest.mark.module("insight", "batch")
def test_each_empty_query_of_a_batch_says_why(corpus: str) -> None:
    queries: Any = [{"query_text": "keys"}, {"query_text": "zebra"}, {"query_text": "?!"}]
    _, details = PostgresProvider(corpus).hybrid_search_batch(queries)
    reasons = [one and one["reason"] for one in details["empty"]]
    assert reasons == [None, "no_words", "no_searchable_words"]


CLIENTS: tuple[type[object], ...] = (
    KnowledgeWriter,
    PostgresProvider,
    SupabaseProvider,
    PostgresEmbeddingQueue,
    RetrievalService,
)
NOT_CALLED = {
    "close": "takes nothing",
    "clear_cache": "takes nothing",
    "embed_passages": "raises the errors of the embedder",
}
RIGHT: dict[str, Any] = {
    "chunk_id": UUID(int=1),
    "chunks": [{"content": "zebra grass", "embedding_model": "m", "embedding": [1, 0, 0]}],
    "content_hashes": ["a"],
    "document": {"external_key": "a"},
    "document_id": UUID(int=1),
    "embedding_model": "m",
    "external_key": "a",
    "facets": ["collection"],
    "key": "a",
    "judgments": [Judgment(question="zebra", document_key="a")],
    "max_chunks": 1,
    "model": "m",
    "new": "b",
    "old": "a",
    "older_than": timedelta(days=1),
    "owner_id": UUID(int=1),
    "position": "0/0",
    "queries": [{"query_text": "zebra"}],
    "query_embedding": [1, 0, 0],
    "query_text": "zebra",
    "question": "zebra",
    "results": [EmbeddingResult("a", "[1,0,0]")],
    "settings": CorpusSettings(),
}


class Deep(list[object]):
    """A list in a list in a list, without the repr that Python cannot make."""

    def __repr__(self) -> str:
        return "DEEP"


DEEP = Deep()
for _ in range(3_000):
    DEEP = Deep([DEEP])
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)

single = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.complex_numbers(),
    st.decimals(),
    st.dates(),
    st.timedeltas(),
    st.uuids(),
    st.builds(object),
    st.sampled_from(
        [
            *("\0", "\ud800", "\\", math.nan, -(10**400), Decimal("1e999999"), b"[1,0,0]"),
            *(..., int, len, date.min, timedelta.max, ValueError("one"), iter([1]), range(3)),
            *(np.zeros(3), np.ones((2, 2)), np.array(["a"]), np.float32(1), DEEP, ENDLESS),
        ]
    ),
)
values = st.recursive(
    single,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.sampled_from(sorted(RIGHT)), st.text(max_size=5)), inner),
        st.dictionaries(st.integers(), inner, max_size=2),
    ),
    max_leaves=5,
)


def arguments_of(method: Any) -> Iterator[tuple[str, bool]]:
    """Yield the name of each argument and whether it is needed."""
    for one in inspect.signature(method).parameters.values():
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            (options,) = get_args(one.annotation)
            yield from ((name, False) for name in options.__annotations__)
        elif one.name != "self":
            yield one.name, one.default is inspect.Parameter.empty


def methods_of(client: type[object]) -> list[str]:
    return [
        name
        for name, _ in inspect.getmembers(client, inspect.isfunction)
        if not name.startswith("_") and name not in NOT_CALLED
    ]


CALLS = [
    (client, method, argument)
    for client in CLIENTS
    for method in methods_of(client)
    for argument, _ in arguments_of(getattr(client, method))
]


@pytest.fixture(scope="module")
def connection(server: Server) -> Iterator[psycopg.Connection[Any]]:
    for dsn in copy_of(server, server.template(3)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("set statement_timeout = '30s'")
            yield connection


@pytest.fixture(scope="module")
def clients(connection: psycopg.Connection[Any]) -> Iterator[dict[type[object], Any]]:
    # A project that has nothing to answer.
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=[]))
    with httpx.Client(transport=transport) as http:
        project = create_client("http://x.test", "key", SyncClientOptions(httpx_client=http))
        embedder = CallableEmbedder(lambda texts: [[1, 0, 0] for _ in texts], "m", 3)
        provider = PostgresProvider(connection, on_error="empty")
        yield {
            KnowledgeWriter: KnowledgeWriter(connection),
            PostgresProvider: provider,
            SupabaseProvider: SupabaseProvider(client=project),
            PostgresEmbeddingQueue: PostgresEmbeddingQueue(connection),
            RetrievalService: RetrievalService(provider, embedder),
        }


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=st.sampled_from(CALLS), value=values)
@example(call=(KnowledgeWriter, "upsert_document", "document"), value={"metadata": DEEP})
@example(call=(KnowledgeWriter, "upsert_document", "chunks"), value=[{"embedding": b"[1,0,0]"}])
@example(call=(PostgresProvider, "hybrid_search_batch", "queries"), value=1)
@example(call=(RetrievalService, "search", "question"), value=1)
def test_a_value_of_a_wrong_type_raises_a_documented_error(
    clients: dict[type[object], Any],
    connection: psycopg.Connection[Any],
    call: tuple[type[object], str, str],
    value: object,
) -> None:
    client, name, argument = call
    method = getattr(clients[client], name)
    needed = {one: RIGHT[one] for one, is_needed in arguments_of(method) if is_needed}
    try:
        answer = method(**{**needed, argument: value})
        if inspect.isgenerator(answer):
            list(islice(answer, 2))
    except SecondBrainError as error:
        assert str(error)  # noqa: PT017
    assert connection.info.transaction_status == TransactionStatus.IDLE


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_an_argument_that_a_method_does_not_have_is_refused_by_its_name(
    clients: dict[type[object], Any], client: type[object]
) -> None:
    for name in methods_of(client):
        method = getattr(clients[client], name)
        needed = {one: RIGHT[one] for one, is_needed in arguments_of(method) if is_needed}
        with pytest.raises((TypeError, InvalidInputError), match="colour"):
            list(islice(method(**needed, colour=1), 1))
