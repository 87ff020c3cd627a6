"""PostgresProvider and SupabaseProvider: the same options change the same answers."""

import dataclasses
import json
from collections.abc import Callable
from datetime import date
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
import pytest
from psycopg.types.json import Jsonb

from conftest import Connect, Connection
from corpora import store_document
from second_brain import errors
from second_brain.filters import FilterBuilder, FilterExpression
from second_brain.services.arguments import BatchQuery, SearchOptions
from second_brain.services.postgres import PostgresProvider
from second_brain.services.provider import SearchProvider
from second_brain.services.supabase import SupabaseProvider


class RestOverDatabase:
    """Stands for supabase-py and PostgREST, which has Postgres make the rows' JSON as here."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def rpc(
        self, function: str, params: dict[str, Any], count: str | None = None
    ) -> "RestOverDatabase":
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
        row = self.connection.execute(self.query, self.params).fetchone()
        assert row is not None
        self.data = row[0]
        return self


Kind = Callable[..., SearchProvider]


def over_rest(connection: Connection, **options: Any) -> SearchProvider:
    client: Any = RestOverDatabase(connection)
    return SupabaseProvider(client=client, **options)


def over_psycopg(connection: Connection, **options: Any) -> SearchProvider:
    return PostgresProvider(connection, on_error="empty", **options)


@pytest.fixture(params=[over_psycopg, over_rest], ids=["postgres", "supabase"])
def kind(request: pytest.FixtureRequest) -> Kind:
    made: Kind = request.param
    return made


MINE = UUID(int=1)
"""Whose second document of the zoo is; the third is somebody else's."""


@pytest.fixture(scope="module", autouse=True)
def corpus(shared_service: Connection) -> None:
    """Store six chunks of three documents, the nearest to [1, 0, 0] first: alpha to zeta."""
    documents: list[tuple[dict[str, Any], dict[str, float]]] = [
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
    for number, (document, chunks) in enumerate(documents):
        texts = {f"{name} & zebra": [1, away, 0] for name, away in chunks.items()}
        store_document(shared_service, f"{number}", texts, **document)


@pytest.fixture
def zoo(kind: Kind, shared_service: Connection) -> SearchProvider:
    return kind(shared_service)


@pytest.mark.module("like")
def test_both_providers_return_the_same(shared_service: Connection) -> None:
    calls: list[Callable[[SearchProvider], Any]] = [
        lambda provider: provider.hybrid_search([0.9, 0.1, 0], "zebra", text_weight=0.5),
        lambda provider: provider.hybrid_search([0.9, 0.1, 0], "delta", rrf_k=10.0),
        lambda provider: provider.hybrid_search(
            [0.9, 0.1, 0],
            "zebra",
            filters={"tags": ["api"]},
            date_from=date(2026, 1, 1),
            date_to="2026-12-31",
            collections=("knowledge",),
            neighbor_window=1,
            recency_half_life=30,
            snippet=True,
            formulations=[{"query_embedding": np.array([0.0, 1.0, 0.0])}],
        ),
        lambda provider: provider.hybrid_search(None, None, like_ids=[known(provider)]),
        lambda provider: provider.find(None, None, like_ids=[known(provider)], viewer_id=MINE),
        lambda provider: provider.search([0.9, 0.1, 0], threshold=-1),
        lambda provider: provider.fulltext_search("zebra"),
    ]
    for call in calls:
        expected, _ = call(PostgresProvider(shared_service))
        received, details = call(over_rest(shared_service))
        assert "fallback_reason" not in details, details
        assert expected
        assert [dataclasses.replace(hit, source="postgres") for hit in received] == expected


def known(provider: SearchProvider) -> str:
    """Return the id of a chunk of the second document."""
    ((hit,), _) = provider.hybrid_search([1, 0.1, 0], "beta", top_k=1)
    return hit.id


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
    zoo: SearchProvider, options: SearchOptions, expected: str, modules: tuple[str, ...]
) -> None:
    given: SearchOptions = {"top_k": 6, "fusion": "rrf", **options}
    results, details = zoo.hybrid_search([1, 0, 0], None, **given)
    assert "fallback_reason" not in details, details
    assert names(results) == expected
    if "insight" not in modules:
        return
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


@pytest.mark.module("batch")
def test_a_batch_answers_each_query_by_itself(zoo: SearchProvider) -> None:
    queries: list[BatchQuery] = [
        {"query_embedding": np.array([1, 0, 0]), "top_k": 2, "fusion": "rrf"},
        {"query_text": "nosuchword"},
        {"query_text": "zebra", "viewer_id": MINE, "filters": FilterBuilder().add_tags("api")},
        {"query_embedding": (1, 0, 0)},
    ]
    answers, details = zoo.hybrid_search_batch(queries)
    given: list[dict[str, Any]] = [{**EMPTY, **query} for query in queries]
    singly = [zoo.hybrid_search(**query) for query in given]
    assert details == {
        "provider": zoo.name,
        "mode": "hybrid",
        "real_provider": True,
        "raw_count": 10,
        "total_count": [6, None, 3, 6],
        "answer_confidence": [alone.get("answer_confidence") for _, alone in singly],
    }
    assert answers == [hits for hits, _ in singly]
    # Without top_k it is hybrid_search's.
    assert [len(hits) for hits in answers] == [2, 0, 3, 5]


EMPTY: BatchQuery = {"query_embedding": None, "query_text": None}


@pytest.mark.module("batch")
@pytest.mark.parametrize(
    ("queries", "named"),
    [
        ([], "queries"),
        ([{"query_text": "zebra"}, {"query_text": "zebra", "top_k": 0}], "match_count"),
        ([{"query_text": "zebra"}, {"query_text": "a", "match_count": 3}], "queries[1]"),
        ([{"query_text": "zebra", "viewer": MINE}], "'viewer'"),
        ([{"query_text": "zebra"}, "zebra"], "queries[1]"),
        ([{"query_text": "zebra", "filters": {"a": b"x"}}], "filters"),
        ([{"query_text": "zebra", "rrf_k": float("nan")}], "rrf_k"),
    ],
    ids=str,
)
def test_a_batch_with_a_wrong_query_is_refused_by_name(
    zoo: SearchProvider, queries: Any, named: str
) -> None:
    answers, details = zoo.hybrid_search_batch(queries)
    assert answers == [[] for _ in queries]
    assert details["error_kind"] == "invalid_input"
    assert named in details["error_message"]


@pytest.mark.module("insight")
def test_explain_raises(zoo: SearchProvider) -> None:
    with pytest.raises(errors.InvalidInputError, match="pool_size") as caught:
        zoo.explain_hybrid_search([1, 0, 0], None, pool_size=0)
    assert caught.value.code == "22023"
    assert isinstance(caught.value.__cause__, psycopg.Error)
    with pytest.raises(TypeError, match="'viewer'"):
        zoo.explain_hybrid_search([1, 0, 0], None, viewer=MINE)  # type: ignore[call-arg]


@pytest.mark.parametrize("multi_tenant", [True, False])
def test_a_user_searches_what_the_token_says(
    kind: Kind, shared_connect: Connect, multi_tenant: bool
) -> None:
    made = partial(kind, multi_tenant=multi_tenant)
    mine = made(shared_connect("authenticated", uid=MINE))
    results, details = mine.search_my_knowledge(
        [1, 0, 0], None, top_k=6, fusion="rrf", date_from="2025-01-01"
    )
    assert "fallback_reason" not in details, details
    assert names(results) == "alpha beta gamma epsilon zeta"
    with pytest.raises(TypeError, match="viewer_id"):
        mine.search_my_knowledge(None, "zebra", viewer_id=UUID(int=2))  # type: ignore[call-arg]
    nobody = made(shared_connect("authenticated"))
    results, details = nobody.search_my_knowledge(None, "zebra")
    assert (results, details["code"]) == ([], "42501")
    assert "signed-in user" in details["error_message"]


@pytest.mark.module("visitors")
@pytest.mark.parametrize("multi_tenant", [True, False])
def test_a_visitor_searches_public_rows_after_the_grant(
    kind: Kind, zoo: SearchProvider, shared: Connection, shared_connect: Connect, multi_tenant: bool
) -> None:
    visitor = kind(shared_connect("anon"), multi_tenant=multi_tenant)
    refused, details = visitor.search_public_knowledge([1, 0, 0], None)
    assert (refused, details["code"]) == ([], "42501")
    assert "grant execute on function search_public_knowledge_chunks" in details["remedy"]
    shared.execute("grant execute on function public.search_public_knowledge_chunks to anon")
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
    shared.execute("revoke execute on function public.search_public_knowledge_chunks from anon")
