"""PostgresProvider over a real database, and the one for an event loop: the same answers."""

import ast
import inspect
import re
from datetime import date
from textwrap import dedent
from typing import Any, get_args, get_type_hints
from uuid import UUID

import psycopg
import pytest
from pgvector import Vector
from psycopg.pq import TransactionStatus
from sides import Side
from sides import side as side

from conftest import Connection
from corpora import SAVANNA, store_document
from second_brain.errors import PermissionDeniedError
from second_brain.retrieval import AsyncRetrievalService, RetrievalService
from second_brain.services.arguments import ARGUMENTS, names_of
from second_brain.services.own_documents import AsyncOwnDocuments, OwnDocuments
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.provider import AsyncSearchProvider, SearchProvider
from second_brain.services.searches import FULLTEXT, HYBRID, MINE, PUBLIC, VECTOR
from second_brain.services.write import AsyncKnowledgeWriter, KnowledgeWriter
from second_brain.services.writing import AsyncWrites, Writes


@pytest.fixture(scope="module", autouse=True)
def corpus(shared_service: Connection) -> UUID:
    document = {
        "external_key": "savanna",
        "title": "Savanna",
        "source_url": "https://example.org/savanna",
        "knowledge_type": "note",
        "source_origin": "obsidian",
        "document_date": date(2026, 1, 31),
        "metadata": {"team": "search", "rrf_score": "a lie", "snippet": "<script>"},
    }
    return KnowledgeWriter(shared_service).upsert_document(document, SAVANNA).document_id


def contents(results: list[Any]) -> list[str]:
    return [result.content for result in results]


def test_a_hybrid_hit_tells_where_it_came_from(shared_service: Connection, corpus: UUID) -> None:
    results, details = PostgresProvider(shared_service, on_error="empty").hybrid_search(
        [1, 0, 0], "zebra grass", fusion="rrf"
    )
    assert details == {
        "provider": "postgres",
        "mode": "hybrid",
        "real_provider": True,
        "raw_count": 3,
        "total_count": 3,
        "answer_confidence": results[0].metadata["answer_confidence"],
    }
    hit = next(result for result in results if "grass" in result.content)
    assert UUID(hit.id)
    assert hit.source == "postgres"
    expected = {
        "document_id": str(corpus),
        "knowledge_type": "note",
        "source_origin": "obsidian",
        "title": "Savanna",
        "source_url": "https://example.org/savanna",
        "collection": "knowledge",
        "document_date": "2026-01-31",
        "snippet": None,
        "context": None,
        "total_count": 3,
        "team": "search",
        "chunk_index": 1,
        "vector_rank": 2,
        "text_rank": 1,
        "match_type": "both",
        "rrf_score": pytest.approx(1 / 62 + 1 / 61),
    }
    assert {name: dict(hit.metadata)[name] for name in expected} == expected
    assert sorted(hit.metadata["matched_terms"]) == ["grass", "zebra"]
    assert hit.confidence == pytest.approx((1 / 62 + 1 / 61) / (2 / 61))


def test_fulltext_confidence_is_the_share_of_the_best_rank(
    shared_service: Connection, corpus: UUID
) -> None:
    results, details = PostgresProvider(shared_service, on_error="empty").fulltext_search(
        "zebra grass"
    )
    assert details["mode"] == "fulltext"
    assert contents(results)[0] == SAVANNA[1]["content"]
    best, second = (hit.metadata["text_score"] or 0.0 for hit in results[:2])
    assert [hit.confidence for hit in results[:2]] == pytest.approx([1, second / best])
    assert 0 < results[1].confidence < 1


METHODS = {
    **dict.fromkeys(("hybrid_search", "find", "search_pages"), HYBRID),
    **{"search_my_knowledge": MINE, "search_public_knowledge": PUBLIC},
    **{"search": VECTOR, "fulltext_search": FULLTEXT},
    **{name: name for name in ("explain_hybrid_search", "estimate_hybrid_search")},
    "explain_missing": "explain_missing_knowledge_chunk",
    "count_facets": "facet_knowledge_chunks",
    "count_my_facets": "facet_my_knowledge_chunks",
    "count_pending_embeddings": "count_pending_knowledge_embeddings",
    "count_my_pending_embeddings": "count_my_pending_knowledge_embeddings",
    "read_document": "read_knowledge_document",
    "list_documents": "list_visible_knowledge_documents",
}


@pytest.mark.parametrize(("method", "function"), METHODS.items())
def test_a_method_takes_the_arguments_of_its_function(method: str, function: str) -> None:
    hints = get_type_hints(getattr(SearchProvider, method))
    hints |= get_type_hints(get_args(hints["options"])[0])
    assert {name: hint for name, hint in hints.items() if name in ARGUMENTS} == {
        name: ARGUMENTS[name].type for name in names_of(function)
    }


@pytest.mark.parametrize(
    ("arguments", "kind", "named"),
    [
        ({"query_embedding": [1, 2]}, "dimension_mismatch", "query_embedding"),
        ({"query_embedding": []}, "invalid_input", "dimension"),
        ({"query_embedding": [float("nan"), 0, 0]}, "invalid_input", "NaN"),
        ({"query_embedding": [None, 0, 0]}, "invalid_input", "list of numbers"),
        ({"query_embedding": [[1.0], [2.0]]}, "invalid_input", "list of numbers"),
        ({"query_embedding": {1}}, "invalid_input", "set"),
        ({"query_text": "a\x00b"}, "invalid_input", "NUL"),
        ({"query_text": "\ud800"}, "invalid_input", "surrogate"),
        ({"top_k": 10**12}, "invalid_input", "out of range"),
        ({"collections": "memory"}, "invalid_input", "collections"),
        ({"recency_half_life": float("inf")}, "invalid_input", "recency_half_life"),
        ({"formulations": [{"query_text": b"a"}]}, "invalid_input", "formulations"),
        ({"formulations": [{"query_embedding": [1]}]}, "dimension_mismatch", "formulations"),
        ({"fusion": object()}, "invalid_input", "fusion"),
    ],
)
def test_a_refusal_names_its_reason(
    shared_service: Connection, arguments: dict[str, Any], kind: str, named: str
) -> None:
    given = {"query_embedding": [1, 0, 0], "query_text": "zebra", **arguments}
    results, details = PostgresProvider(shared_service, on_error="empty").hybrid_search(**given)
    assert results == []
    assert details["real_provider"] is False
    assert details["raw_count"] == 0
    assert details["fallback_reason"] == "provider_error"
    assert details["error_kind"] == kind
    assert named in details["error_message"]
    assert details["remedy"]
    # The connection stays usable.
    assert shared_service.info.transaction_status == TransactionStatus.IDLE


def test_nothing_is_prepared_in_the_session(shared: Connection, corpus: UUID) -> None:
    provider = PostgresProvider(shared, on_error="empty")
    for _ in range(7):  # psycopg prepares a statement at its sixth use.
        provider.fulltext_search("zebra")
    assert shared.execute("select statement from pg_prepared_statements").fetchall() == []


def test_a_caller_keeps_the_row_factory_and_the_types_of_the_connection(
    shared_dsn: str, corpus: UUID
) -> None:
    with psycopg.connect(shared_dsn, row_factory=psycopg.rows.namedtuple_row) as connection:
        assert len(PostgresProvider(connection, on_error="empty").search([1, 0, 0])[0]) == 2
        assert connection.row_factory is psycopg.rows.namedtuple_row
        with pytest.raises(psycopg.ProgrammingError, match="cannot adapt type 'Vector'"):
            connection.execute("select %s", (Vector([1, 0, 0]),))


def test_a_connection_string_opens_and_closes_a_connection(
    shared_dsn: str, corpus: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Connection] = []
    connect = psycopg.Connection.connect

    def noted(conninfo: str, *, autocommit: bool) -> Connection:
        opened.append(connect(conninfo, autocommit=autocommit))
        return opened[-1]

    monkeypatch.setattr(psycopg.Connection, "connect", noted)
    provider = PostgresProvider(shared_dsn, on_error="empty")
    assert opened == []
    assert len(provider.search([1, 0, 0])[0]) == 2
    assert [connection.closed for connection in opened] == [True]


def test_a_wrong_type_of_database_is_refused_at_once(shared: Connection) -> None:
    with pytest.raises(TypeError, match="not dict"):
        PostgresProvider({}, on_error="empty")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not Connection"):
        AsyncPostgresProvider(shared, on_error="empty")  # type: ignore[arg-type]


def body(method: Any) -> str:
    """Return the text of a method as it is for threads, without its documentation."""
    node = ast.parse(dedent(inspect.getsource(inspect.unwrap(method)))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    assert ast.get_docstring(node)
    lines = ast.unparse(ast.Module(node.body[1:], []))
    if isinstance(node, ast.AsyncFunctionDef):
        pages = re.sub(r"async for page in (.*):\n +yield page", r"yield from iterated(\1)", lines)
        lines = re.sub(r"\bawait (.*)", r"finished(\1)", pages)
    return lines


PAIRS: list[tuple[type[Any], type[Any]]] = [
    (SearchProvider, AsyncSearchProvider),
    (Writes, AsyncWrites),
    (OwnDocuments, AsyncOwnDocuments),
    (KnowledgeWriter, AsyncKnowledgeWriter),
    (RetrievalService, AsyncRetrievalService),
]
# Of the service: they wait for threads and for tasks.
NOT_THE_SAME = {"embedder", "flush_query_log"}


@pytest.mark.parametrize(
    ("blocking", "looping", "name"),
    [
        (*pair, name)
        for pair in PAIRS
        for name, method in vars(pair[0]).items()
        if inspect.isfunction(method) and not name.startswith("_") and name not in NOT_THE_SAME
    ],
)
def test_the_methods_of_both_kinds_differ_in_await_alone(
    blocking: type[Any], looping: type[Any], name: str
) -> None:
    one, other = getattr(blocking, name), vars(looping)[name]
    assert inspect.iscoroutinefunction(other) or inspect.isasyncgenfunction(other)
    signatures = inspect.signature(one), inspect.signature(other)
    assert signatures[0].parameters == signatures[1].parameters
    # An iterator of pages has another type for an event loop.
    assert signatures[0] == signatures[1] or "Iterator" in str(signatures[0])
    assert body(one) == body(other)


def test_the_embedding_models_are_returned(side: Side, shared: Connection, shared_dsn: str) -> None:
    store_document(shared, "models", {"model 0": [0, 1, 0], "model 1": [0, 1, 0]}, "mine")
    try:
        models = side.provider(shared_dsn).embedding_models(timeout=30.0)
        assert ("mine", 3, 2) in [(one.model, one.dimensions, one.chunks) for one in models]
        nobody = side.connect(shared_dsn, autocommit=True)
        side.do(nobody.execute("set role anon"))
        with pytest.raises(PermissionDeniedError):
            side.provider(nobody).embedding_models()
    finally:
        KnowledgeWriter(shared).delete_document("models")
