"""The arguments that shape the list of hits, and the field weights, over a real PostgREST.

It casts JSON to uuid[], jsonb and numbers. POSTGREST_BIN names the binary; without it, the tests
are skipped.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from conftest import Connection, Server, copy_of
from postgrest_server import PostgREST, provider_of
from second_brain.errors import InvalidInputError, PermissionDeniedError
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.supabase import SupabaseProvider

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
