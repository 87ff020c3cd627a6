"""PostgresProvider and SupabaseProvider: the same options change the same answers.

The arguments that shape the list of hits, and the field weights, are tried over a real PostgREST,
which casts JSON to uuid[], jsonb and numbers: POSTGREST_BIN names its binary.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
import pytest
from psycopg.types.json import Jsonb

from conftest import Connect, Connection, Server, copy_of
from corpora import store_document
from postgrest_server import PostgREST, provider_of
from second_brain import errors
from second_brain.errors import InvalidInputError, PermissionDeniedError
from second_brain.filters import FilterBuilder, FilterExpression
from second_brain.services.arguments import BatchQuery, SearchOptions
from second_brain.services.corpus_settings import CorpusSettings
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
    api = {"visibility": "public", "knowledge_type": "note", "metadata": {"tags": ["api"]}}
    documents: list[tuple[dict[str, Any], dict[str, float]]] = [
        ({**api, "document_date": "2026-01-31"}, {"alpha": 0, "gamma": 0.2, "zeta": 0.5}),
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


@pytest.mark.module("like", "arrange")
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
        pytest.param(
            {"recency_half_life": 1.0},
            "delta alpha gamma zeta beta epsilon",
            marks=pytest.mark.module("arrange"),
        ),
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
        ([{"query_text": "zebra"}, {"query_text": "zebra", "top_k": 0}], "top_k"),
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
    assert "top_k must be between 1 and 50" in details["error_message"]
    with pytest.raises(TypeError, match="public_only"):
        visitor.search_public_knowledge(None, "zebra", public_only=False)  # type: ignore[call-arg]
    shared.execute("revoke execute on function public.search_public_knowledge_chunks from anon")


ANA, BEN = UUID(int=1), UUID(int=2)
LAKE = "The heron flies over the lake."
WAITS = "The heron waits."
SLEEPS = f"The heron eats. {'The sun goes down behind the trees. ' * 20}The heron sleeps."
BENS = "Ben saw a heron at the lake."
DOCUMENTS: dict[str, tuple[dict[str, object], dict[str, list[float]]]] = {
    "lake": ({"document_date": "2026-01-01", "metadata": {"stars": 1}}, {LAKE: [1, 0, 0]}),
    "copy": ({"document_date": "2025-01-01", "metadata": {"stars": 3}}, {LAKE: [1, 0.1, 0]}),
    "day": (
        {"document_date": "2024-01-01", "metadata": {"stars": 2, "place": "reeds"}},
        {WAITS: [0, 1, 0], SLEEPS: [0, 1, 0.2]},
    ),
    "ben": ({"owner_id": BEN}, {BENS: [1, 0, 0]}),
}
DECAY = {"field": "document_date", "decay": "exp", "origin": "2025-01-01", "scale": 9}
DAY = {"filters": {"document_date": "2024-01-01"}, "factor": 3}
STARS = {"field": "metadata.stars", "modifier": "log1p", "weight": 5}
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "lake copy day day"),
    ({"boosts": [DAY]}, "day day lake copy"),
    ({"boosts": [STARS]}, "copy day day lake"),
    ({"boosts": [DECAY]}, "copy lake day day"),
    ({"diversity": 1.0}, "lake day day copy"),
    ({"max_per_document": 1}, "lake copy day"),
    ({"merge_duplicates": True}, "lake day day"),
    ({"min_confidence": 0.9}, "lake copy"),
    ({"order_by": "document_date asc"}, "day day copy lake"),
    ({"order_by": "metadata.stars"}, "copy day day lake"),
]
QUESTION: tuple[list[float], str] = ([1, 0, 0], "heron lake")
VECTORS_FIRST: dict[str, Any] = {"text_weight": 0.1}
"""The text leg alone leaves the order of two equal texts to their ids."""


@dataclass(frozen=True)
class Project:
    """The providers of the service and of a signed-in user, the owner, and the documents' ids."""

    service: SupabaseProvider
    user: SupabaseProvider
    owner: Connection
    ids: dict[str, UUID]


@pytest.fixture(scope="module")
def project(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Ana's three documents and one of Ben's."""
    binary = os.environ.get("POSTGREST_BIN")
    if not binary:
        pytest.skip("POSTGREST_BIN names no PostgREST")
    place: Path = tmp_path_factory.mktemp("postgrest")
    for dsn in copy_of(server, server.template(3)):
        running = PostgREST(binary, server.admin_dsn(), dsn, place)
        try:
            running.start()
            with (
                provider_of(running, "public") as service,
                provider_of(running, "public", role="authenticated", sub=str(ANA)) as user,
                psycopg.connect(dsn, autocommit=True) as owner,
            ):
                yield Project(service, user, owner, stored(service))
        finally:
            running.stop()


def stored(service: SupabaseProvider) -> dict[str, UUID]:
    return {
        key: service.upsert_document(
            {"external_key": key, "owner_id": ANA, **columns},
            [
                {"content": content, "embedding_model": "m", "embedding": embedding}
                for content, embedding in texts.items()
            ],
        ).document_id
        for key, (columns, texts) in DOCUMENTS.items()
    }


def keys(hits: Any) -> list[str]:
    return [hit.metadata["external_key"] for hit in hits]


@pytest.mark.module("batch")
@pytest.mark.parametrize(("options", "expected"), OPTIONS)
def test_an_argument_changes_the_list_of_the_service_of_a_user_and_of_a_batch(
    project: Project, options: dict[str, Any], expected: str
) -> None:
    options = {**VECTORS_FIRST, **options}
    for_ana = {"viewer_id": ANA, **options}
    embedding, text = QUESTION
    query: Any = {"query_embedding": embedding, "query_text": text, **for_ana}
    (of_batch,), details = project.service.hybrid_search_batch([query])
    assert details.get("error_message") is None
    for hits in (
        project.service.find(*QUESTION, **for_ana)[0],
        project.user.search_my_knowledge(*QUESTION, **options)[0],
        of_batch,
    ):
        assert keys(hits) == expected.split()


def test_duplicates_are_counted_and_a_snippet_has_two_passages(project: Project) -> None:
    hits, _ = project.user.search_my_knowledge(*QUESTION, merge_duplicates=True)
    assert [hit.metadata["duplicates"] for hit in hits] == [1, 0, 0]
    marked = []
    for passages in (1, 2):
        shown: Any = {"snippet": True, "snippets": passages}
        (hit, *_), _ = project.user.search_my_knowledge(None, "sun heron", **shown)
        marked.append(str(hit.metadata["snippet"]).count("<mark>heron</mark>"))
    assert marked == [1, 2]


def test_known_documents_find_others_that_the_user_may_see(project: Project) -> None:
    known: list[UUID | str] = [project.ids["lake"], str(project.ids["day"])]
    for viewer, expected in ((None, ["ben", "copy"]), (ANA, ["copy"])):
        hits, _ = project.service.find(None, None, like_ids=known, viewer_id=viewer)
        assert sorted(keys(hits)) == expected
    assert keys(project.user.search_my_knowledge(None, None, like_ids=known)[0]) == ["copy"]
    for unknown in ("ben", "nobody"):
        given = [project.ids.get(unknown, UUID(int=7))]
        _, details = project.user.search_my_knowledge(None, None, like_ids=given)
        assert details["code"] == "22023"
        assert (
            f"like_ids: no visible chunk or document has the id {given[0]}"
            in (details["error_message"])
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("like_ids", [UUID(int=7)]),
        ("boosts", {"factor": 2}),
        ("boosts[0]", [{"field": "document_date", "decay": "exp", "origin": "now", "scale": 0}]),
        ("merge_duplicates", "perhaps"),
    ],
)
def test_a_refusal_names_the_argument_and_has_a_remedy(
    project: Project, name: str, value: Any
) -> None:
    options: Any = {"snippet": True, name.removesuffix("[0]"): value}
    with pytest.raises(InvalidInputError) as refused:
        project.service.find(*QUESTION, **options)
    assert refused.value.code == ("22023" if name != "merge_duplicates" else "22P02")
    assert (name if name != "merge_duplicates" else "perhaps") in str(refused.value)
    assert refused.value.remedy


def test_stored_fields_are_searched_once_the_chunks_are_rewritten(project: Project) -> None:
    assert project.service.find(None, "reeds")[0] == []
    settings = CorpusSettings(title_weight=2, text_keys=["place", "a key, with {a} comma"])
    with pytest.raises(PermissionDeniedError):
        project.user.set_fields(settings)
    with pytest.raises(PermissionDeniedError):
        project.user.rewrite_chunks()
    try:
        stored = project.service.set_fields(settings)
        assert (stored.fields, stored.text_keys) == (settings.fields, settings.text_keys)
        assert [project.service.rewrite_chunks(most) for most in (2, 1000)] == [3, 0]
        assert keys(project.service.find(None, "reeds")[0]) == ["day", "day"]
        with pytest.raises(InvalidInputError, match="title_weight must be between 0 and 5, not 6"):
            project.service.set_fields(CorpusSettings(title_weight=6))
    finally:
        assert project.service.reset_settings("")
        assert project.service.rewrite_chunks() == 0
