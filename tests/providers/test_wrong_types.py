"""Values of wrong types: every public method of the clients answers, or raises as documented."""

import inspect
import math
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, get_args
from uuid import UUID

import httpx
import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg.pq import TransactionStatus
from supabase.lib.client_options import SyncClientOptions

from second_brain.embedding_queue.queue import EmbeddingResult, PostgresEmbeddingQueue
from second_brain.errors import InvalidInputError, SecondBrainError
from second_brain.models import CallableEmbedder
from second_brain.retrieval.service import RetrievalService
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.judgments import Judgment
from second_brain.services.postgres import PostgresProvider
from second_brain.services.supabase import SupabaseProvider
from second_brain.services.write import KnowledgeWriter
from supabase import create_client

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
def connection(shared_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
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
