"""Writing over REST: the methods of a KnowledgeWriter, with a Supabase project's key."""

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest
from supabase_gateway import SIDES, Answer, Gateway, Rest, blocking, error, gateway, rest

from second_brain.errors import ConflictError, InvalidInputError, UncertainWriteError
from second_brain.services.judgments import Judgment
from second_brain.services.last_write import last_write
from second_brain.services.supabase import SupabaseProvider
from second_brain.services.write import DeletedCounts, KnowledgeWriter
from second_brain.services.writing import AsyncWrites

__all__ = ["gateway", "rest"]  # fixtures

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
