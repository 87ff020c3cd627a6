"""Searches that meet a passing failure, or a row that Python cannot read."""

import json
from typing import Any

import psycopg
import pytest

from conftest import Connect
from second_brain.errors import InvalidInputError, UnavailableError, translate
from second_brain.services.postgres import PostgresProvider
from second_brain.services.provider import SearchProvider
from second_brain.services.results import Source


class _Failing(SearchProvider):
    """Stands for a database that fails some times before it answers."""

    name: Source = "postgres"  # type: ignore[misc]

    def __init__(self, code: str, times: int, pauses: list[float]) -> None:
        super().__init__(sleep=pauses.append, on_error="empty")
        self._code, self._left = code, times

    async def _send(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        self._left -= 1
        if self._left >= 0:
            raise psycopg.errors.lookup(self._code)("canceling statement due to conflict")
        return []


def test_only_a_read_that_a_standby_cancels_is_sent_again() -> None:
    pauses: list[float] = []
    _, details = _Failing("40001", 2, pauses).fulltext_search("text")
    assert ("fallback_reason" in details, len(pauses)) == (False, 2)
    _, details = _Failing("42501", 1, pauses).fulltext_search("text")
    assert (details["error_kind"], len(pauses)) == ("permission_denied", 2)


@pytest.mark.module("batch")
@pytest.mark.parametrize("metadata", ['{"n": 1e5000}', '{"a":' * 1100 + "1" + "}" * 1100])
def test_a_row_that_python_cannot_read_leaves_the_others(connect: Connect, metadata: str) -> None:
    owner = connect()
    owner.execute("insert into public.knowledge_chunks (content) values ('zebra')")
    # As a row that was stored before the limits of metadata.
    owner.execute("alter table public.knowledge_chunks disable trigger complete_chunk")
    owner.execute("update public.knowledge_chunks set metadata = %s", [metadata])
    owner.execute("alter table public.knowledge_chunks enable trigger complete_chunk")
    owner.execute(
        "insert into public.knowledge_chunks (content, metadata) values ('zebra', %s)",
        [json.dumps({"page": 1})],
    )
    provider = PostgresProvider(owner, on_error="empty")
    hits, details = provider.hybrid_search(None, "zebra")
    assert sorted(hit.metadata.get("page", 0) for hit in hits) == [0, 1]  # type: ignore[type-var]
    (unreadable,) = [hit.id for hit in hits if "page" not in hit.metadata]
    assert details.get("unreadable_metadata") == [unreadable]
    _, batch_details = provider.hybrid_search_batch([{"query_text": "zebra"}])
    assert batch_details.get("unreadable_metadata") == [unreadable]


@pytest.mark.parametrize("code", ["54000", "54001", "54023", "413"])
def test_too_large_and_too_deep_are_invalid_input_over_rest(code: str) -> None:
    from postgrest.exceptions import APIError

    known = translate(APIError({"code": code, "message": "too large"}))
    assert isinstance(known, InvalidInputError)


def test_a_full_disk_is_named_with_a_remedy() -> None:
    known = translate(psycopg.errors.DiskFull("could not extend file: No space left on device"))
    assert isinstance(known, UnavailableError)
    assert "disk is full" in known.remedy
