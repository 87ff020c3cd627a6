"""PostgresProvider over a real database."""

import dataclasses
import inspect
import json
import threading
from collections.abc import Callable
from datetime import date
from typing import Any, cast, get_type_hints
from uuid import UUID, uuid4

import numpy as np
import psycopg
import pytest
from pgvector import Vector
from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

from second_brain import errors
from second_brain.filters import FilterBuilder, FilterExpression
from second_brain.services.arguments import (
    DEFAULTS,
    KEYWORD_DEFAULTS,
    SQL_NAMES,
    VIEWER,
    BatchQuery,
    FindOptions,
    HybridOptions,
    OwnSearchOptions,
    PublicSearchOptions,
    SearchOptions,
)
from second_brain.services.postgres import PostgresProvider
from second_brain.services.provider import SearchProvider
from second_brain.services.supabase import SupabaseProvider
from second_brain.services.write import KnowledgeWriter

Connection = psycopg.Connection[tuple[Any, ...]]
Connect = Callable[..., Connection]

CHUNKS: list[dict[str, object]] = [
    {"content": "The zebra crossing is striped.", "embedding": [1.0, 0.0, 0.0]},
    {"content": "A zebra eats grass on the plain.", "embedding": [0.8, 0.6, 0.0]},
    {"content": "The lion sleeps.", "embedding": [0.0, 0.0, 1.0]},
]


@pytest.fixture
def writer(service_role: Connection) -> KnowledgeWriter:
    return KnowledgeWriter(service_role)


@pytest.fixture
def corpus(writer: KnowledgeWriter) -> UUID:
    document = {
        "external_key": "savanna",
        "title": "Savanna",
        "source_url": "https://example.org/savanna",
        "knowledge_type": "note",
        "source_origin": "obsidian",
        "document_date": date(2026, 1, 31),
        "metadata": {"team": "search", "rrf_score": "a lie", "snippet": "<script>"},
    }
    return writer.upsert_document(document, CHUNKS).document_id


def contents(results: list[Any]) -> list[str]:
    return [result.content for result in results]


@pytest.mark.parametrize(
    "embedding",
    [
        [1, 0, 0],
        (1.0, 0.0, 0.0),
        np.array([1, 0, 0], dtype=np.float32),
        [np.float32(1), np.float32(0), np.float32(0)],
        Vector([1, 0, 0]),
        "[1,0,0]",
    ],
    ids=["list", "tuple", "array", "list of float32", "Vector", "text"],
)
def test_an_embedding_may_come_in_any_of_these_forms(
    service_role: Connection, corpus: UUID, embedding: Any
) -> None:
    results, details = PostgresProvider(service_role, on_error="empty").search(
        embedding, threshold=0.5
    )
    assert "fallback_reason" not in details
    assert contents(results) == [CHUNKS[0]["content"], CHUNKS[1]["content"]]
    assert [result.confidence for result in results] == pytest.approx([1.0, 0.8])


def test_a_hybrid_hit_tells_where_it_came_from(service_role: Connection, corpus: UUID) -> None:
    results, details = PostgresProvider(service_role, on_error="empty").hybrid_search(
        [1, 0, 0], "zebra grass", fusion="rrf"
    )
    assert details == {
        "provider": "postgres",
        "mode": "hybrid",
        "real_provider": True,
        "raw_count": 3,
        "total_count": 3,
    }
    hit = next(result for result in results if "grass" in result.content)
    assert UUID(hit.id)
    assert hit.source == "postgres"
    assert hit.metadata["document_id"] == str(corpus)
    assert hit.metadata["knowledge_type"] == "note"
    assert hit.metadata["source_origin"] == "obsidian"
    assert hit.metadata["title"] == "Savanna"
    assert hit.metadata["source_url"] == "https://example.org/savanna"
    assert hit.metadata["collection"] == "knowledge"
    assert hit.metadata["document_date"] == "2026-01-31"
    assert hit.metadata["snippet"] is None
    assert hit.metadata["context"] is None
    assert hit.metadata["total_count"] == 3
    assert dict(hit.metadata)["team"] == "search"
    assert hit.metadata["chunk_index"] == 1
    assert hit.metadata["vector_rank"] == 2
    assert hit.metadata["text_rank"] == 1
    assert hit.metadata["match_type"] == "both"
    assert sorted(hit.metadata["matched_terms"]) == ["grass", "zebra"]
    assert hit.metadata["rrf_score"] == pytest.approx(1 / 62 + 1 / 61)
    assert hit.confidence == pytest.approx((1 / 62 + 1 / 61) / (2 / 61))


def test_rrf_k_reaches_the_function(service_role: Connection, corpus: UUID) -> None:
    results, _ = PostgresProvider(service_role, on_error="empty").hybrid_search(
        [1, 0, 0], None, top_k=1, rrf_k=1.0, fusion="rrf"
    )
    assert results[0].metadata["rrf_score"] == pytest.approx(1 / 2)
    assert results[0].confidence == pytest.approx(1)


def test_fulltext_confidence_is_the_share_of_the_best_rank(
    service_role: Connection, corpus: UUID
) -> None:
    results, details = PostgresProvider(service_role, on_error="empty").fulltext_search(
        "zebra grass"
    )
    assert details["mode"] == "fulltext"
    assert contents(results)[0] == CHUNKS[1]["content"]
    best, second = (hit.metadata["text_score"] or 0.0 for hit in results[:2])
    assert [hit.confidence for hit in results[:2]] == pytest.approx([1, second / best])
    assert 0 < results[1].confidence < 1


def test_no_more_than_top_k_come(service_role: Connection, corpus: UUID) -> None:
    results, details = PostgresProvider(service_role, on_error="empty").hybrid_search(
        [1, 0, 0], None, top_k=2
    )
    assert len(results) == details["raw_count"] == 2


class RestOverDatabase:
    """Stands for supabase-py and PostgREST, which has Postgres make the rows' JSON as here."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def rpc(
        self, function: str, params: dict[str, Any], count: str | None = None
    ) -> "RestOverDatabase":
        """Note the call."""
        json.dumps(params)  # PostgREST is sent JSON.
        names = ", ".join(f"{name} => %({name})s" for name in params)
        if params.get("query_embedding") is not None:
            params = {**params, "query_embedding": str(params["query_embedding"])}
            names = names.replace("%(query_embedding)s", "%(query_embedding)s::extensions.vector")
        for name in ("filters", "formulations", "queries", "search"):
            if name in params:
                params = {**params, name: Jsonb(params[name])}
        self.query = f"select coalesce(json_agg(hit), '[]') from public.{function}({names}) as hit"
        if function.startswith("explain_"):
            self.query = f"select public.{function}({names})"
        self.params = params
        return self

    def execute(self) -> "RestOverDatabase":
        """Make the call."""
        row = self.connection.execute(self.query, self.params).fetchone()
        assert row is not None
        self.data = row[0]
        return self


def test_both_providers_return_the_same(service_role: Connection, corpus: UUID) -> None:
    over_psycopg = PostgresProvider(service_role, on_error="empty")
    over_rest = SupabaseProvider(client=RestOverDatabase(service_role), on_error="empty")  # type: ignore[arg-type]
    calls: list[Callable[[Any], Any]] = [
        lambda provider: provider.hybrid_search([0.9, 0.1, 0], "zebra", text_weight=0.5),
        lambda provider: provider.hybrid_search([0.9, 0.1, 0], "lion", rrf_k=10.0),
        lambda provider: provider.hybrid_search(
            [0.9, 0.1, 0],
            "zebra",
            filters={"team": "search"},
            date_from=date(2026, 1, 1),
            date_to="2026-12-31",
            collections=("knowledge",),
            neighbor_window=1,
            recency_half_life=30,
            snippet=True,
            formulations=[{"query_embedding": np.array([0.0, 1.0, 0.0])}],
        ),
        lambda provider: provider.search([0.9, 0.1, 0], threshold=-1),
        lambda provider: provider.fulltext_search("zebra"),
        lambda provider: provider.hybrid_search_batch(
            [{"query_embedding": [0.9, 0.1, 0]}, {"query_text": "zebra"}], fuse=True
        ),
    ]
    for call in calls:
        expected, _ = call(over_psycopg)
        received, details = call(over_rest)
        assert "fallback_reason" not in details, details
        assert expected
        assert [dataclasses.replace(hit, source="postgres") for hit in received] == expected


MINE = UUID(int=1)
"""Whose second document of the zoo is; the third is somebody else's."""


@pytest.fixture(params=["postgres", "supabase"])
def zoo(request: pytest.FixtureRequest, service_role: Connection) -> SearchProvider:
    """Search six chunks of three documents, the nearest to [1, 0, 0] first: alpha to zeta."""
    documents: list[tuple[dict[str, object], dict[str, float]]] = [
        (
            {
                "visibility": "public",
                "knowledge_type": "note",
                "document_date": "2026-01-31",
                "metadata": {"tags": ["api"]},
            },
            {"alpha": 0, "gamma": 0.2, "zeta": 0.5},
        ),
        (
            {"owner_id": MINE, "document_date": "2025-06-01", "collection": "memory"},
            {"beta": 0.1, "epsilon": 0.4},
        ),
        ({"owner_id": UUID(int=2), "collection": "history"}, {"delta": 0.3}),
    ]
    writer = KnowledgeWriter(service_role)
    for number, (document, chunks) in enumerate(documents):
        writer.upsert_document(
            {"external_key": f"{number}", **document},
            [
                {"content": f"{name} & zebra", "embedding": [1, away, 0]}
                for name, away in chunks.items()
            ],
        )
    if request.param == "postgres":
        return PostgresProvider(service_role, on_error="empty")
    return SupabaseProvider(client=RestOverDatabase(service_role), on_error="empty")  # type: ignore[arg-type]


def names(results: list[Any]) -> str:
    return " ".join(hit.content.split()[0] for hit in results)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "alpha beta gamma delta epsilon zeta"),
        ({"filters": {"tags": ["api"]}}, "alpha gamma zeta"),
        ({"filters": [FilterExpression("document_date", "exists", False)]}, "delta"),
        ({"date_from": date(2026, 1, 31)}, "alpha gamma zeta"),
        ({"date_to": "2026-01-30"}, "beta epsilon"),
        ({"collections": ["history"]}, "delta"),
        ({"collections": {"history"}, "threshold": 0.99}, ""),
        ({"viewer_id": MINE}, "alpha beta gamma epsilon zeta"),
        ({"viewer_id": str(MINE)}, "alpha beta gamma epsilon zeta"),
        ({"public_only": True}, "alpha gamma zeta"),
        ({"one_per_document": True}, "alpha beta delta"),
        ({"recency_half_life": 1.0}, "delta alpha gamma zeta beta epsilon"),
        ({"match_offset": 4}, "epsilon zeta"),
        ({"top_k": 2, "match_offset": 1}, "beta gamma"),
        ({"match_offset": 6}, ""),
        ({"filter_type": "note"}, "alpha gamma zeta"),
        (
            {"formulations": [{"query_text": "zeta"}, {"query_embedding": np.array([1, 0.2, 0])}]},
            "zeta gamma beta alpha delta epsilon",
        ),
    ],
    ids=str,
)
def test_each_option_changes_the_answer(
    zoo: SearchProvider, options: SearchOptions, expected: str
) -> None:
    given: SearchOptions = {"top_k": 6, "fusion": "rrf", **options}
    results, details = zoo.hybrid_search([1, 0, 0], None, **given)
    assert "fallback_reason" not in details, details
    assert names(results) == expected
    explained = zoo.explain_hybrid_search([1, 0, 0], None, **given)
    assert [hit["id"] for hit in explained["hits"]] == [hit.id for hit in results]


def test_a_page_tells_the_length_of_the_list(zoo: SearchProvider) -> None:
    results, details = zoo.hybrid_search([1, 0, 0], None, top_k=2, match_offset=3)
    assert details["total_count"] == 6
    assert [hit.metadata["total_count"] for hit in results] == [6, 6]
    assert zoo.hybrid_search([1, 0, 0], None, match_offset=9)[1]["total_count"] == 6


def test_a_hit_brings_its_neighbours_and_an_excerpt(zoo: SearchProvider) -> None:
    (hit,), _ = zoo.hybrid_search([1, 0.2, 0], "gamma", top_k=1, neighbor_window=1, snippet=True)
    assert (hit.metadata["context"] or "").split("\n[CHUNK BOUNDARY]\n") == [
        "alpha & zebra",
        "gamma & zebra",
        "zeta & zebra",
    ]
    assert hit.metadata["snippet"] == "<mark>gamma</mark> &amp; zebra"


def test_a_batch_answers_each_query_by_itself(zoo: SearchProvider) -> None:
    queries: list[BatchQuery] = [
        {"query_embedding": np.array([1, 0, 0]), "top_k": 2, "fusion": "rrf"},
        {"query_text": "nosuchword"},
        {"query_text": "zebra", "viewer_id": MINE, "filters": FilterBuilder().add_tags("api")},
        {"query_embedding": (1, 0, 0)},
    ]
    answers, details = zoo.hybrid_search_batch(queries)
    why = cast(dict[str, Any], details).pop("empty")
    assert [one and one["reason"] for one in why] == [None, "no_words", None, None]
    assert details == {
        "provider": zoo.name,
        "mode": "hybrid",
        "real_provider": True,
        "raw_count": 10,
        "total_count": [6, None, 3, 6],
    }
    given: list[dict[str, Any]] = [{**EMPTY, **query} for query in queries]
    singly = [zoo.hybrid_search(**query)[0] for query in given]
    assert answers == singly
    # Without top_k it is hybrid_search's.
    assert [len(hits) for hits in answers] == [2, 0, 3, 5]


EMPTY: BatchQuery = {"query_embedding": None, "query_text": None}


def test_a_fused_batch_is_one_list(zoo: SearchProvider) -> None:
    results, details = zoo.hybrid_search_batch(
        [
            {"query_embedding": [1, 0, 0], "fusion": "rrf", "top_k": 6, "public_only": True},
            {"query_text": "zeta"},
            {"query_embedding": [1, 9, 0]},
        ],
        fuse=True,
    )
    assert names(results) == "zeta alpha gamma"
    assert (details["raw_count"], details["total_count"]) == (3, 3)


@pytest.mark.parametrize(
    ("queries", "fuse", "named"),
    [
        ([], False, "queries"),
        ([], True, "queries"),
        ([{"query_text": "zebra"}, {"query_text": "zebra", "top_k": 0}], False, "match_count"),
        ([{"query_text": "zebra"}, {"query_text": "a", "match_count": 3}], False, "queries[1]"),
        ([{"query_text": "zebra", "viewer": MINE}], False, "'viewer'"),
        ([{"query_text": "zebra"}, "zebra"], False, "queries[1]"),
        ([{"query_text": "zebra"}, {"query_text": "a", "top_k": 3}], True, "queries[1]"),
        ([{"query_text": "zebra", "filters": {"a": b"x"}}], False, "filters"),
        ([{"query_text": "zebra", "rrf_k": float("nan")}], False, "rrf_k"),
    ],
    ids=str,
)
def test_a_batch_with_a_wrong_query_is_refused_by_name(
    zoo: SearchProvider, queries: Any, fuse: bool, named: str
) -> None:
    answers, details = zoo.hybrid_search_batch(queries, fuse=fuse)
    assert answers == ([] if fuse else [[] for _ in queries])
    assert details["error_kind"] == "invalid_input"
    assert named in details["error_message"]


def test_explain_raises(zoo: SearchProvider) -> None:
    with pytest.raises(errors.InvalidInputError, match="pool_size") as caught:
        zoo.explain_hybrid_search([1, 0, 0], None, pool_size=0)
    assert caught.value.code == "22023"
    assert isinstance(caught.value.__cause__, psycopg.Error)
    with pytest.raises(TypeError, match="'viewer'"):
        zoo.explain_hybrid_search([1, 0, 0], None, viewer=MINE)  # type: ignore[call-arg]


def test_explain_describes_both_legs(zoo: SearchProvider) -> None:
    explained = zoo.explain_hybrid_search([1, 0, 0], "delta", public_only=True, top_k=2)
    assert explained["vector"]["rows"] == 3
    assert explained["text"]["rows"] == 0
    assert [one["lexeme"] for one in explained["text"]["lexemes"]] == ["delta"]
    assert len(explained["hits"]) == 2


@pytest.mark.parametrize("multi_tenant", [True, False])
def test_a_user_searches_what_the_token_says(
    zoo: SearchProvider, connect: Connect, multi_tenant: bool
) -> None:
    def made(connection: Connection) -> SearchProvider:
        if isinstance(zoo, PostgresProvider):
            return PostgresProvider(connection, multi_tenant=multi_tenant, on_error="empty")
        client: Any = RestOverDatabase(connection)
        return SupabaseProvider(client=client, multi_tenant=multi_tenant)

    mine = made(connect("authenticated", uid=MINE))
    results, details = mine.search_my_knowledge(
        [1, 0, 0], None, top_k=6, fusion="rrf", date_from="2025-01-01"
    )
    assert "fallback_reason" not in details, details
    assert names(results) == "alpha beta gamma epsilon zeta"
    with pytest.raises(TypeError, match="viewer_id"):
        mine.search_my_knowledge(None, "zebra", viewer_id=UUID(int=2))  # type: ignore[call-arg]
    nobody = made(connect("authenticated"))
    results, details = nobody.search_my_knowledge(None, "zebra")
    assert (results, details["code"]) == ([], "42501")
    assert "signed-in user" in details["error_message"]


@pytest.mark.parametrize("multi_tenant", [True, False])
def test_a_visitor_searches_public_rows_after_the_grant(
    zoo: SearchProvider, connect: Connect, multi_tenant: bool
) -> None:
    def made(connection: Connection) -> SearchProvider:
        if isinstance(zoo, PostgresProvider):
            return PostgresProvider(connection, multi_tenant=multi_tenant, on_error="empty")
        client: Any = RestOverDatabase(connection)
        return SupabaseProvider(client=client, multi_tenant=multi_tenant)

    owner, visitor = connect(), made(connect("anon"))
    refused, details = visitor.search_public_knowledge([1, 0, 0], None)
    assert (refused, details["code"]) == ([], "42501")
    assert "grant execute on function search_public_knowledge_chunks" in details["remedy"]
    owner.execute("grant execute on function public.search_public_knowledge_chunks to anon")
    results, details = visitor.search_public_knowledge([1, 0, 0], None, top_k=6)
    assert "fallback_reason" not in details, details
    public, _ = zoo.hybrid_search([1, 0, 0], None, 6, public_only=True)
    everything, _ = zoo.hybrid_search([1, 0, 0], None, 6)
    assert 0 < len(results) < len(everything)
    assert names(results) == names(public)
    _, details = visitor.search_public_knowledge(None, "zebra", top_k=51)
    assert "match_count must be between 1 and 50" in details["error_message"]
    with pytest.raises(TypeError, match="public_only"):
        visitor.search_public_knowledge(None, "zebra", public_only=False)  # type: ignore[call-arg]
    owner.execute("revoke execute on function public.search_public_knowledge_chunks from anon")


def test_a_search_is_called_with_the_functions_own_names_and_defaults(
    database: Connection,
) -> None:
    """Otherwise a default that is not sent over PostgREST would be another one there."""
    rows = database.execute(
        "select parameter_name, parameter_default from information_schema.parameters"
        " where specific_schema = 'public' and parameter_mode = 'IN'"
        " and specific_name ~ '^hybrid_search_knowledge_chunks_[0-9]+$'"
        " order by ordinal_position"
    ).fetchall()
    theirs = {}
    for name, default in rows:
        (theirs[name],) = database.execute(f"select {default}".encode()).fetchone() or ()
    ours = {SQL_NAMES.get(name, name): default for name, default in DEFAULTS.items()}
    # Only functions of the database give the lists that it fuses.
    assert theirs.pop("ranked_lists") is None
    assert theirs.keys() == ours.keys()
    assert {name for name in ours if ours[name] != theirs[name]} == {"match_count"}


def test_the_first_arguments_are_positional_with_the_defaults_of_a_batch() -> None:
    parameters = list(inspect.signature(SearchProvider.hybrid_search).parameters.values())[1:-1]
    assert [one.name for one in parameters] == [
        name for name in DEFAULTS if name not in KEYWORD_DEFAULTS
    ]
    for one in parameters[2:]:
        assert one.default == DEFAULTS[one.name]


def test_the_options_of_every_search_have_the_types_of_hybrid_search() -> None:
    hints = get_type_hints(SearchProvider.hybrid_search)
    del hints["return"], hints["options"]
    names = get_type_hints(HybridOptions).keys() - {"timeout", "exact_total"}
    assert names == KEYWORD_DEFAULTS.keys()
    hints |= get_type_hints(HybridOptions)
    find_options = get_type_hints(FindOptions)
    assert find_options.items() <= hints.items()
    assert hints.keys() - find_options == {"query_embedding", "query_text"}
    del hints["exact_total"]
    options = get_type_hints(SearchOptions)
    assert options.items() <= hints.items()
    assert hints.keys() - options == {"query_embedding", "query_text"}
    del hints["timeout"]
    assert get_type_hints(BatchQuery) == hints
    assert get_type_hints(SearchOptions).keys() - get_type_hints(OwnSearchOptions) == {*VIEWER}
    own = get_type_hints(OwnSearchOptions).keys()
    assert own - get_type_hints(PublicSearchOptions) == {"public_only"}


@pytest.mark.parametrize(
    ("arguments", "kind", "named"),
    [
        ({"query_embedding": [1, 2]}, "dimension_mismatch", "query_embedding"),
        ({"query_embedding": [0, 0, 0]}, "invalid_input", "query_embedding"),
        ({"query_embedding": []}, "invalid_input", "dimension"),
        ({"query_embedding": [float("nan"), 0, 0]}, "invalid_input", "NaN"),
        ({"query_embedding": [None, 0, 0]}, "invalid_input", "list of numbers"),
        ({"query_embedding": [[1.0], [2.0]]}, "invalid_input", "list of numbers"),
        ({"query_embedding": {1}}, "invalid_input", "set"),
        ({"query_embedding": None, "query_text": " "}, "invalid_input", "query_text"),
        ({"query_text": "a\x00b"}, "invalid_input", "NUL"),
        ({"query_text": "\ud800"}, "invalid_input", "surrogate"),
        ({"top_k": 0}, "invalid_input", "match_count"),
        ({"top_k": 10**12}, "invalid_input", "out of range"),
        ({"pool_size": 0}, "invalid_input", "pool_size"),
        ({"rrf_k": float("nan")}, "invalid_input", "rrf_k"),
        ({"search_mode": "nosuch"}, "invalid_input", "search_mode"),
        ({"filter_type": "'; drop table x"}, "invalid_input", "filter_type"),
        ({"viewer_id": "nobody"}, "invalid_input", "viewer_id"),
        ({"date_from": "soon"}, "invalid_input", "soon"),
        ({"collections": []}, "invalid_input", "collections"),
        ({"collections": "memory"}, "invalid_input", "collections"),
        ({"date_from": "01.02.2026"}, "invalid_input", "date_from"),
        ({"neighbor_window": 6}, "invalid_input", "neighbor_window"),
        ({"recency_half_life": 0}, "invalid_input", "recency_half_life"),
        ({"recency_half_life": float("inf")}, "invalid_input", "recency_half_life"),
        ({"match_offset": -1}, "invalid_input", "match_offset"),
        ({"formulations": [{"query_text": b"a"}]}, "invalid_input", "formulations"),
        ({"formulations": [{"query_embedding": [1]}]}, "dimension_mismatch", "formulations"),
        ({"fusion": object()}, "invalid_input", "fusion"),
    ],
)
def test_a_refusal_names_its_reason(
    service_role: Connection, arguments: dict[str, Any], kind: str, named: str
) -> None:
    given = {"query_embedding": [1, 0, 0], "query_text": "zebra", **arguments}
    results, details = PostgresProvider(service_role, on_error="empty").hybrid_search(**given)
    assert results == []
    assert details["real_provider"] is False
    assert details["raw_count"] == 0
    assert details["fallback_reason"] == "provider_error"
    assert details["error_kind"] == kind
    assert named in details["error_message"]
    assert details["remedy"]
    # The connection stays usable.
    assert service_role.info.transaction_status == TransactionStatus.IDLE


def test_a_role_without_the_grant_is_told_so(connect: Connect) -> None:
    provider = PostgresProvider(connect("authenticated", uid=uuid4()), on_error="empty")
    _, details = provider.hybrid_search([1, 0, 0], "zebra")
    assert (details["code"], details["error_kind"]) == ("42501", "permission_denied")
    assert "service_role" in details["remedy"]


def test_a_database_without_the_migrations_is_told_so(plain_dsn: str) -> None:
    for details in (
        PostgresProvider(plain_dsn, on_error="empty").hybrid_search([1, 0, 0], "zebra")[1],
        PostgresProvider(plain_dsn, on_error="empty").fulltext_search("zebra")[1],
    ):
        # An install in another schema lacks its schema, too.
        assert details["code"] in ("42883", "3F000")
        assert details["error_kind"] == "migration_missing"
        assert "second-brain migrate" in details["remedy"]


def test_a_statement_timeout_is_told_so(database: Connection, corpus: UUID) -> None:
    database.execute(
        "create or replace function public.match_knowledge_chunks(query_embedding"
        " extensions.vector, match_count integer default 5, match_threshold float8 default 0.6,"
        " filter_type text default null, viewer_id uuid default null, public_only boolean default"
        " false, viewer_groups text[] default null) returns table (id uuid, content text,"
        " knowledge_type text, document_id uuid, chunk_index integer, source_origin text, metadata"
        " jsonb, similarity float8) language plpgsql as 'begin perform pg_sleep(60); end'"
    )
    database.execute("set statement_timeout = '50ms'")
    _, details = PostgresProvider(database, on_error="empty").search([1, 0, 0])
    assert (details["code"], details["error_kind"]) == ("57014", "timeout")


def test_an_open_transaction_survives_a_failure(dsn: str, corpus: UUID) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("create table mine ()")
        provider = PostgresProvider(connection, on_error="empty")
        assert provider.hybrid_search([1], "zebra")[1]["fallback_reason"] == "provider_error"
        assert provider.hybrid_search([1, 0, 0], "zebra")[0]
        assert connection.info.transaction_status == TransactionStatus.INTRANS
        connection.rollback()
        assert connection.execute("select to_regclass('mine')").fetchone() == (None,)


def test_an_idle_connection_is_left_idle(dsn: str, corpus: UUID) -> None:
    with psycopg.connect(dsn) as connection:
        assert PostgresProvider(connection, on_error="empty").hybrid_search([1, 0, 0], "zebra")[0]
        assert connection.info.transaction_status == TransactionStatus.IDLE


def test_nothing_is_prepared_in_the_session(database: Connection, corpus: UUID) -> None:
    provider = PostgresProvider(database, on_error="empty")
    for _ in range(7):  # psycopg prepares a statement at its sixth use.
        provider.fulltext_search("zebra")
    assert database.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)


def test_a_callers_row_factory_does_not_matter(dsn: str, corpus: UUID) -> None:
    with psycopg.connect(dsn, row_factory=psycopg.rows.namedtuple_row) as connection:
        assert len(PostgresProvider(connection, on_error="empty").search([1, 0, 0])[0]) == 2


def test_a_connection_string_opens_and_closes_a_connection(
    dsn: str, corpus: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Connection] = []
    connect = psycopg.Connection.connect

    def noted(conninfo: str, *, autocommit: bool) -> Connection:
        opened.append(connect(conninfo, autocommit=autocommit))
        return opened[-1]

    monkeypatch.setattr(psycopg.Connection, "connect", noted)
    provider = PostgresProvider(dsn, on_error="empty")
    assert opened == []
    assert len(provider.search([1, 0, 0])[0]) == 2
    assert [connection.closed for connection in opened] == [True]


def test_a_pool_serves_many_threads(dsn: str, corpus: UUID) -> None:
    found: list[int] = []
    with ConnectionPool(dsn, min_size=1, max_size=3, open=True) as pool:
        provider = PostgresProvider(pool, on_error="empty")

        def search() -> None:
            found.extend(len(provider.search([1, 0, 0])[0]) for _ in range(5))

        threads = [threading.Thread(target=search) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        provider.hybrid_search([1], None)
        assert pool.get_stats()["pool_size"] >= 1
    assert found == [2] * 30


def test_an_unreachable_server_is_told_without_the_password() -> None:
    provider = PostgresProvider("postgres://someone:hunter2@127.0.0.1:1/nosuch", on_error="empty")
    results, details = provider.search([1, 0, 0])
    assert results == []
    assert details["error_kind"] == "unavailable"
    assert "hunter2" not in str(details)


def test_a_wrong_password_is_told_without_it(dsn: str) -> None:
    wrong = psycopg.conninfo.make_conninfo(dsn, password="hunter2")
    details = PostgresProvider(wrong, on_error="empty").search([1, 0, 0])[1]
    assert details["error_kind"] == "authentication_failed"
    assert "hunter2" not in str(details)


def test_a_database_that_is_not_there_is_a_wrong_setting(dsn: str) -> None:
    wrong = psycopg.conninfo.make_conninfo(dsn, dbname="nosuch")
    details = PostgresProvider(wrong, on_error="empty").search([1, 0, 0])[1]
    assert details["error_kind"] == "configuration"
    assert "connection string" in details["remedy"]


def test_a_wrong_type_of_database_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="not dict"):
        PostgresProvider({})  # type: ignore[arg-type]


def test_the_callers_connection_learns_no_new_type(dsn: str, corpus: UUID) -> None:
    with psycopg.connect(dsn) as connection:
        assert PostgresProvider(connection, on_error="empty").search([1, 0, 0])[0]
        with pytest.raises(psycopg.ProgrammingError, match="cannot adapt type 'Vector'"):
            connection.execute("select %s", (Vector([1, 0, 0]),))


def test_find_raises_what_failed_with_its_cause(service_role: Connection, corpus: UUID) -> None:
    provider = PostgresProvider(service_role, on_error="empty")
    hits, details = provider.find([1, 0, 0], "zebra", top_k=1)
    assert len(hits) == details["raw_count"] == 1
    with pytest.raises(errors.InvalidInputError, match="pool_size") as caught:
        provider.find([1, 0, 0], "zebra", pool_size=0)
    assert isinstance(caught.value.__cause__, psycopg.Error)
