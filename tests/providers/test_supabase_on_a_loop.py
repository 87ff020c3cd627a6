"""The Supabase provider over HTTP: connections, and the asynchronous provider beside the other."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from supabase.lib.client_options import AsyncClientOptions
from supabase_gateway import (
    HYBRID_ROW,
    ROW,
    SIDES,
    VIEWER,
    Answer,
    Gateway,
    Recorded,
    blocking,
    error,
    gateway,
    looping,
    rest,
    token,
)

from second_brain.services.supabase import AsyncSupabaseProvider
from supabase import acreate_client
from waiting import until

__all__ = ["gateway", "rest"]  # fixtures


def test_one_connection_serves_many_calls_and_a_closed_provider_opens_another(
    gateway: Gateway,
) -> None:
    with Recorded(gateway).provider() as provider:
        for _ in range(3):
            provider.fulltext_search("zebra")
    assert gateway.connections == 1
    provider.fulltext_search("zebra")
    provider.close()
    assert gateway.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=[HYBRID_ROW]),
        Answer(body=[]),
        error(400, "22023", "pool_size must be between 1 and 1000, not 0"),
        error(500, "57014", "canceling statement due to statement timeout"),
        Answer(302, "", "text/html"),
        Answer(502, "<html>Bad Gateway</html>", "text/html"),
        Answer(200, '[{"id": "cut o'),
        Answer(200, {"id": "no rows"}),
    ],
    ids=str,
)
def test_a_loop_gets_the_answers_that_a_thread_gets(gateway: Gateway, answer: Answer) -> None:
    gateway.answer = answer
    searches: list[Callable[[Any], Any]] = [
        lambda provider: provider.hybrid_search([1, 0, 0], "zebra", snippet=True),
        lambda provider: provider.search_my_knowledge(None, "zebra"),
        lambda provider: provider.search_public_knowledge(None, "zebra"),
        lambda provider: provider.search([1, 0, 0], 3, 0.5),
        lambda provider: provider.fulltext_search("zebra", viewer_id=VIEWER),
        lambda provider: provider.hybrid_search_batch([{"query_text": "zebra"}]),
    ]

    async def on_a_loop(provider: AsyncSupabaseProvider) -> list[Any]:
        return [await search(provider) for search in searches]

    in_a_thread = blocking(gateway, lambda provider: [search(provider) for search in searches])
    assert looping(gateway, on_a_loop) == in_a_thread
    # Without the calls that ask why there are no hits.
    bodies = [body for body in gateway.bodies if "search" not in body]
    assert len(bodies) == 2 * len(searches)
    assert bodies[: len(searches)] == bodies[len(searches) :]


@SIDES
@pytest.mark.parametrize("place", ["before the answer", "in the answer"])
def test_a_connection_that_is_lost_is_opened_again(gateway: Gateway, side: Any, place: Any) -> None:
    gateway.answer = Answer(body=[HYBRID_ROW])
    gateway.drops = [place] * 2
    hits, details = side(gateway, lambda provider: provider.hybrid_search(None, "zebra"))
    assert "fallback_reason" not in details, details
    assert [hit.content for hit in hits] == [ROW["content"]]
    assert len(gateway.bodies) == gateway.connections == 3


@SIDES
def test_a_connection_that_stays_lost_is_told_so(gateway: Gateway, side: Any) -> None:
    gateway.drops = ["before the answer"] * 9
    search = lambda provider: provider.hybrid_search(None, "zebra")  # noqa: E731
    hits, details = side(gateway, search, retries=1)
    assert (hits, details["error_kind"]) == ([], "connection_lost")
    assert details["error_type"] == "RemoteProtocolError"
    assert len(gateway.bodies) == 2
    assert side(gateway, search, retries=0)[1]["error_kind"] == "connection_lost"
    assert len(gateway.bodies) == 3


@SIDES
def test_a_call_has_a_timeout_of_its_own(gateway: Gateway, side: Any) -> None:
    gateway.held.clear()
    _, details = side(gateway, lambda provider: provider.fulltext_search("zebra", timeout=0.05))
    assert details["error_kind"] == "client_timeout"
    until(lambda: gateway.bodies)
    # One that was sent may be running, and is not sent again.
    assert len(gateway.bodies) == 1


def test_calls_on_a_loop_share_connections(gateway: Gateway) -> None:
    async def ask(provider: AsyncSupabaseProvider) -> None:
        for _ in range(3):
            await provider.fulltext_search("zebra")
        assert gateway.connections == 1
        await provider.close()
        await asyncio.gather(*(provider.fulltext_search("zebra") for _ in range(3)))

    looping(gateway, ask)
    assert gateway.connections <= 4
    assert len(gateway.bodies) == 6


def test_a_client_that_is_given_is_used_on_a_loop(gateway: Gateway) -> None:
    async def ask() -> None:
        async with httpx.AsyncClient() as http:
            client = await acreate_client(
                gateway.url, token("authenticated"), AsyncClientOptions(httpx_client=http)
            )
            provider = AsyncSupabaseProvider(client=client)
            _, details = await provider.search_my_knowledge(None, "zebra")
            await provider.close()
            assert "fallback_reason" not in details, details
            assert not http.is_closed

    asyncio.run(ask())
    assert "viewer_id" not in gateway.bodies[0]


def test_without_credentials_a_loop_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPABASE_URL", raising=False)
    monkeypatch.delenv("SUPABASE_KEY", raising=False)
    hits, details = asyncio.run(AsyncSupabaseProvider().hybrid_search(None, "zebra"))
    assert (hits, details["fallback_reason"]) == ([], "client_unavailable")
