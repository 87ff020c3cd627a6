"""The Supabase provider over HTTP: each method, its request and its results, and writing."""

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest
from supabase_gateway import (
    HYBRID_ROW,
    ROW,
    SIDES,
    VIEWER,
    Answer,
    Gateway,
    Rest,
    blocking,
    error,
    gateway,
    rest,
)

from second_brain import errors
from second_brain.errors import ConflictError, InvalidInputError, UncertainWriteError
from second_brain.filters import FilterBuilder
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.judgments import Judgment
from second_brain.services.last_write import last_write
from second_brain.services.results import EmbeddingModel
from second_brain.services.supabase import SupabaseProvider
from second_brain.services.write import DeletedCounts, KnowledgeWriter
from second_brain.services.writing import AsyncWrites

__all__ = ["gateway", "rest"]  # fixtures


def test_hybrid_search_finds_a_row(rest: Rest) -> None:
    rest.given(Answer(body=[HYBRID_ROW]))
    (result,), details = rest.provider().hybrid_search(
        (0.8, 0.6, 0.0), "zebra grass", top_k=1, threshold=0.5, fusion="rrf"
    )
    assert details == {
        "provider": "supabase",
        "mode": "hybrid",
        "real_provider": True,
        "raw_count": 1,
        "total_count": 2,
        "answer_confidence": pytest.approx(0.99, abs=0.01),
    }
    assert (result.content, result.source) == (ROW["content"], "supabase")
    assert result.confidence == pytest.approx(1)
    metadata: dict[str, Any] = dict(result.metadata)
    assert sorted(metadata["matched_terms"]) == ["grass", "zebra"]
    names = ("match_type", "title", "collection", "document_date", "total_count")
    assert {name: metadata[name] for name in names} == {name: HYBRID_ROW[name] for name in names}
    assert metadata["team"] == "search"
    assert [metadata["rrf_score"], metadata["similarity"]] == pytest.approx([2 / 61, 1])


OWN_DOCUMENT = {
    **{"id": ROW["document_id"], "external_key": "savanna", "title": "Savanna"},
    **{"knowledge_type": "note", "source_origin": "obsidian", "source_url": None},
    **{"document_date": "2026-01-31", "collection": "knowledge", "visibility": "public"},
    **{"is_own": True, "chunk_count": 3},
    **dict.fromkeys(("created_at", "updated_at"), "2026-02-01T10:00:00+00:00"),
}
OWNED = f"update public.knowledge_documents set owner_id = '{VIEWER}'"


def test_a_user_and_a_backend_for_a_viewer_list_documents(rest: Rest) -> None:
    rest.given(Answer(body=[OWN_DOCUMENT]), OWNED)
    for (found,) in (
        rest.provider("authenticated").list_my_documents(page_size=2),
        rest.provider("service_role").list_documents(viewer_id=VIEWER),
    ):
        assert (found.external_key, found.chunk_count, found.is_own) == ("savanna", 3, True)
        assert found.document_date == date(2026, 1, 31)


def test_a_user_reads_a_document(gateway: Gateway) -> None:
    chunk = {"content": "a", "metadata": {}, "id": ROW["id"], "collection": "knowledge"}
    chunk |= {"chunk_index": None, "heading": None}
    whole: dict[str, Any] = {**OWN_DOCUMENT, "language": "english", "metadata": {"a": 1}}
    whole |= {"author": None, "sensitivity": None, "allowed_groups": None, "chunks": [chunk]}
    gateway.answer = Answer(body=whole)
    document = str(ROW["document_id"])
    found = blocking(gateway, lambda one: one.read_my_document(document, chunk_count=1))
    assert [one.content for one in found.chunks] == ["a"]


def test_a_user_deletes_nothing_of_others(rest: Rest) -> None:
    rest.given(Answer(body="false"))
    assert rest.provider("authenticated").delete_my_document(UUID(int=7)) is False


def test_a_deletion_is_not_sent_twice(gateway: Gateway) -> None:
    gateway.drops = ["before the answer", "before the answer"]
    with pytest.raises(errors.ConnectionLostError):
        blocking(gateway, lambda one: one.delete_my_document(UUID(int=7)))
    assert len(gateway.bodies) == 1


def test_every_option_goes_through_as_json(rest: Rest) -> None:
    rest.given(Answer(body=[HYBRID_ROW]))
    plain: dict[str, Any] = {
        "rrf_k": 10.0,
        "fusion": "rrf",
        "date_to": "2026-12-31",
        "public_only": True,
        "one_per_document": True,
        "neighbor_window": 1,
        "recency_half_life": 30.0,
        "snippet": True,
        "diversity": 0.2,
        "max_per_document": 2,
        "merge_duplicates": True,
        "min_confidence": 0.01,
        "snippets": 2,
        "order_by": "document_date",
    }
    boost = {"field": "document_date", "decay": "exp", "origin": "now", "scale": 99}
    results, details = rest.provider().hybrid_search(
        [0.8, 0.6, 0],
        "zebra",
        top_k=1,
        match_offset=0,
        date_from=date(2026, 1, 1),
        collections=("knowledge",),
        viewer_id=VIEWER,
        boosts=(boost,),
        filters=FilterBuilder().add_metadata("team", "search").add_date_range(date(2026, 1, 1)),
        formulations=[{"query_embedding": np.array([0.0, 1.0, 0.0]), "query_text": "grass"}],
        **plain,
    )
    assert "fallback_reason" not in details, details
    assert [result.content for result in results] == [ROW["content"]]
    sent = rest.gateway.bodies[0]
    assert plain.items() <= sent.items()
    # It is at its default: an older database might not know it.
    assert "match_offset" not in sent
    assert sent["date_from"] == "2026-01-01"
    assert sent["collections"] == ["knowledge"]
    assert sent["viewer_id"] == str(VIEWER)
    assert sent["boosts"] == [boost]
    assert sent["formulations"] == [{"query_embedding": [0.0, 1.0, 0.0], "query_text": "grass"}]
    assert sent["filters"] == [
        {"field": "metadata.team", "op": "eq", "value": "search"},
        {"field": "document_date", "op": "gte", "value": "2026-01-01"},
    ]


def test_a_single_leg_takes_a_viewer(rest: Rest) -> None:
    rest.given(Answer(body=[{**ROW, "rank": 1.4}]))
    (result,), details = rest.provider().fulltext_search("grass", viewer_id=VIEWER)
    assert details["mode"] == "fulltext"
    assert result.confidence == 1
    (body,) = rest.gateway.bodies
    assert (body["viewer_id"], body["query_text"], body["match_count"]) == (str(VIEWER), "grass", 5)
    assert "query_embedding" not in body


def test_a_batch_is_one_request(rest: Rest) -> None:
    rows = [{**HYBRID_ROW, "query_index": index} for index in (0, 2, 2)]
    rest.given(Answer(body=rows))
    answers, details = rest.provider().hybrid_search_batch(
        [
            {"query_embedding": np.array([0.8, 0.6, 0.0]), "top_k": 1, "threshold": 0.5},
            {"query_text": "unicorn", "date_to": date(2026, 12, 31)},
            {"query_text": "zebra"},
        ]
    )
    assert "fallback_reason" not in details, details
    assert [len(answer) for answer in answers] == [1, 0, 2]
    assert details["raw_count"] == 3
    assert details["total_count"] == [2, None, 2]
    (body,) = rest.gateway.bodies
    assert body["queries"][0]["query_embedding"] == [0.8, 0.6, 0.0]
    assert body["queries"][0]["match_threshold"] == 0.5
    assert body["queries"][1]["date_to"] == "2026-12-31"


@pytest.mark.parametrize("index", [None, "x", -1, 1])
def test_a_row_of_no_query_is_no_empty_result(gateway: Gateway, index: object) -> None:
    gateway.answer = Answer(body=[{**HYBRID_ROW, "query_index": index}])
    batch = [{"query_text": "zebra"}]
    answers, details = blocking(gateway, lambda one: one.hybrid_search_batch(batch))
    assert (answers, details["error_kind"]) == ([[]], "unexpected_answer")


EXPLAINED = {
    "milliseconds": {"hybrid": 1.5, "vector": 1.0, "text": None},
    "vector": {"strategy": "compared: few rows", "rows": 3, "ran_dry": "fewer rows …"},
    "hits": [{"title": "Savanna"}],
}


def test_an_explanation_is_one_object(rest: Rest) -> None:
    rest.given(Answer(body=EXPLAINED))
    explained = rest.provider().explain_hybrid_search([0.8, 0.6, 0], None, viewer_id=VIEWER)
    assert explained["vector"]["rows"] == 3
    assert explained["hits"][0]["title"] == "Savanna"
    assert explained["milliseconds"]["text"] is None


def test_an_explanation_that_fails_raises(rest: Rest) -> None:
    rest.given(error(400, "22023", "pool_size must be between 1 and 1000, not 0"))
    with pytest.raises(errors.InvalidInputError, match="pool_size"):
        rest.provider().explain_hybrid_search(None, "zebra", pool_size=0)


def test_an_explanation_that_is_a_list_raises(gateway: Gateway) -> None:
    with pytest.raises(errors.UnexpectedAnswerError, match="list"):
        blocking(gateway, lambda one: one.explain_hybrid_search(None, "zebra"))


KEPT = {
    "collection": "knowledge",
    "fusion": "auto",
    "vector_weight": 0.5,
    "text_weight": 1,
    "embedding_model": "mine",
    "bm25_k1": None,
    "bm25_b": None,
    "updated_at": "2026-02-01T10:00:00.123456+00:00",
}
KEEP = "select public.set_knowledge_settings('knowledge', 'auto', 0.5, 1, 'mine')"


def without_time(settings: CorpusSettings) -> CorpusSettings:
    assert settings.updated_at is not None
    return settings.model_copy(update={"updated_at": None})


WANTED = CorpusSettings(
    collection="knowledge", fusion="auto", vector_weight=0.5, embedding_model="mine"
)


def test_settings_are_stored_and_returned(rest: Rest) -> None:
    rest.given(Answer(body=KEPT))
    assert without_time(rest.provider().set_settings(WANTED)) == WANTED
    sent = {name: value for name, value in KEPT.items() if name != "updated_at"}
    assert rest.gateway.bodies == [{**sent, "measured_on": None}]


def test_stored_settings_are_listed(rest: Rest) -> None:
    rest.given(Answer(body=[KEPT]), KEEP)
    (stored,) = rest.provider().settings()
    assert without_time(stored) == WANTED


@pytest.mark.parametrize(("collection", "removed"), [("knowledge", True), ("memory", False)])
def test_settings_are_reset_if_there_were_any(rest: Rest, collection: str, removed: bool) -> None:
    rest.given(Answer(body=removed), KEEP)
    assert rest.provider().reset_settings(collection) is removed


def test_a_token_without_a_user_cannot_search_as_a_viewer(rest: Rest) -> None:
    rest.given(error(403, "42501", "search_my_knowledge_chunks needs a signed-in user"))
    results, details = rest.provider("nobody").search_my_knowledge(None, "zebra")
    assert (results, details["error_kind"]) == ([], "permission_denied")
    assert "signed-in user" in details["error_message"]
    assert "viewer_id" not in rest.gateway.bodies[0]


def test_search_finds_a_row(rest: Rest) -> None:
    rest.given(Answer(body=[{**ROW, "similarity": 1}]))
    (result,), details = rest.provider().search([0.8, 0.6, 0.0], threshold=0.9)
    assert details["mode"] == "vector"
    assert result.content == ROW["content"]
    assert result.confidence == pytest.approx(1)


def test_a_text_goes_through_as_it_is_and_no_hit_is_no_failure(rest: Rest) -> None:
    rest.given(Answer(body=[]))
    text = "'; drop table x; -- \"\\ \u202e 日本 🦓"
    results, details = rest.provider().fulltext_search(text)
    assert (results, details["real_provider"]) == ([], True)
    assert "fallback_reason" not in details
    assert rest.gateway.bodies[0]["query_text"] == text


@SIDES
def test_embedding_models_come_over_http(gateway: Gateway, side: Any) -> None:
    gateway.answer = Answer(body=[{"model": "mine", "dimensions": 3, "chunks": 2}])
    models = side(gateway, lambda provider: provider.embedding_models())
    assert models == [EmbeddingModel("mine", 3, 2)]
    for odd in ([{"name": "mine"}], ["mine"], {"model": "mine"}):
        gateway.answer = Answer(body=odd)
        with pytest.raises(errors.UnexpectedAnswerError):
            side(gateway, lambda provider: provider.embedding_models())


@SIDES
def test_the_schema_of_the_install_is_sent(gateway: Gateway, side: Any) -> None:
    for schema in (None, "knowledge_de"):
        side(gateway, lambda provider: provider.find(None, "zebra"), schema=schema)
    assert [gateway.schemas[0], gateway.schemas[-1]] == ["public", "knowledge_de"]


DOCUMENT = {"external_key": "lake", "title": "Lake", "document_date": date(2026, 1, 31)}
CHUNKS: list[dict[str, object]] = [
    {
        "content": "The heron waits.",
        "embedding_model": "m",
        "embedding": np.array([0.5, 0.25, 0.0], np.float32),
    },
    {"content": "The pike hides."},
]
COUNTS = {
    "document_id": str(UUID(int=3)),
    **{f"chunks_{one}": 0 for one in ("changed", "unchanged", "removed")},
    **{"chunks_added": 2, "embeddings_reused": 0, "embeddings_missing": 1},
}
WRITES: dict[str, Callable[[Any], Any]] = {
    "upsert": lambda one: one.upsert_document(DOCUMENT, CHUNKS),
    "delete": lambda one: one.delete_document("lake"),
    "delete my": lambda one: one.delete_my_document(UUID(int=3)),
    "settings": lambda one: one.reset_settings("lake"),
}


def test_a_provider_over_rest_has_the_methods_of_a_writer() -> None:
    methods = {name for name in vars(AsyncWrites) if not name.startswith("_")}
    assert {"upsert_document", "purge", "judgments", "settings"} <= methods
    for name in methods:
        assert getattr(SupabaseProvider, name) is getattr(KnowledgeWriter, name)


def test_a_document_is_stored_and_counted(rest: Rest) -> None:
    rest.given(Answer(body=[COUNTS]))
    before = last_write()
    counts = rest.provider().upsert_document(DOCUMENT, CHUNKS)
    assert (counts.chunks_added, counts.embeddings_missing) == (2, 1)
    assert isinstance(counts.document_id, UUID)
    assert last_write() > before
    assert rest.gateway.bodies == [
        {
            "document": {**DOCUMENT, "document_date": "2026-01-31"},
            "chunks": [{**CHUNKS[0], "embedding": "[0.5, 0.25, 0.0]"}, CHUNKS[1]],
            "fields": "merge",
        }
    ]
    # No second request asks for the rest of the answer.
    assert rest.gateway.counted == [False]


@pytest.mark.parametrize(
    ("recorded", "call", "expected"),
    [
        (["a", "b"], lambda one: one.missing_embeddings(["a", "b"], "mine"), {"a", "b"}),
        ([], lambda one: one.missing_embeddings([], "mine"), set()),
        (3, lambda one: one.delete_document("savanna"), 3),
        (
            [{"documents_deleted": 0, "chunks_deleted": 0}],
            lambda one: one.delete_owner(uuid4()),
            DeletedCounts(0, 0),
        ),
        (True, lambda one: one.refresh_statistics(), True),
    ],
)
def test_a_method_returns_what_its_function_says(
    rest: Rest, recorded: object, call: Callable[[Any], Any], expected: object
) -> None:
    rest.given(Answer(body=recorded), "analyze public.knowledge_chunks")
    assert call(rest.provider()) == expected


def test_superseded_chunks_are_purged(rest: Rest) -> None:
    rest.given(Answer(body=0))
    assert rest.provider().purge(timedelta(days=1)) == 0
    assert rest.gateway.bodies == [{"older_than": "86400.0 seconds"}]


@pytest.mark.module("insight")
def test_judgments_are_stored_listed_and_deleted(rest: Rest) -> None:
    judgment = Judgment(question="zebra?", document_key="savanna", grade=2)
    rest.given(Answer(body=1))
    provider = rest.provider()
    assert provider.set_judgments([judgment]) == 1
    assert provider.delete_judgments(question="zebra?", judged_by=None) == 1
    rest.gateway.answer = Answer(body=[])
    assert provider.judgments(judged_by=uuid4()) == []


@SIDES
def test_a_deadlock_is_sent_again_as_often_as_the_retries_say(gateway: Gateway, side: Any) -> None:
    gateway.answer = error(400, "40P01", "deadlock detected")
    with pytest.raises(ConflictError):
        side(gateway, WRITES["upsert"], retries=3)
    assert len(gateway.bodies) == 4


@SIDES
@pytest.mark.parametrize("write", WRITES)
def test_a_lost_connection_leaves_the_write_uncertain(
    gateway: Gateway, side: Any, write: str
) -> None:
    gateway.drops = ["in the answer"]
    with pytest.raises(UncertainWriteError, match="before the answer") as uncertain:
        side(gateway, WRITES[write])
    assert uncertain.value.keys == (("lake",) if write in ("upsert", "delete") else ())
    assert len(gateway.bodies) == 1


@pytest.mark.parametrize("value", [float("nan"), b"bytes", object()])
def test_what_has_no_json_form_is_refused_and_not_sent(gateway: Gateway, value: object) -> None:
    with pytest.raises(InvalidInputError):
        blocking(gateway, lambda one: one.upsert_document({**DOCUMENT, "title": value}, CHUNKS))
    assert gateway.bodies == []
