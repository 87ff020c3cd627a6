"""Callers of the search across collections: a test for each row of docs/compatibility.md.

The code is a caller's: it imports nothing of this test suite.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from datetime import date
from random import Random
from typing import Any

import psycopg
import pytest
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from typer.testing import CliRunner

from second_brain import (
    AsyncPostgresProvider,
    AsyncRetrievalService,
    KnowledgeWriter,
    PostgresProvider,
    RetrievalService,
)
from second_brain.cli.commands import app
from second_brain.errors import InvalidInputError
from second_brain.mcp_server import Scope, create_server
from second_brain.models import CallableEmbedder
from second_brain.services.arguments import FUSIONS

LEAK = "A leaked key is revoked first."
ROTATION = "Service role keys are rotated."
WHOLE = "All about keys: rotation, leaks."
CAMERAS = "After a power cut the recorder shows no cameras."
HABIT = "Asks about the leaked key every morning."
TURN = "Yesterday we talked about a leaked key."


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0 * ("camera" in text), 0.1, 1.0 * ("key" in text)] for text in texts]


EMBEDDER = CallableEmbedder(embed, "by-hand", 3)


def chunk(text: str, embedding: list[float]) -> dict[str, Any]:
    return {"content": text, "embedding": embedding, "embedding_model": "by-hand"}


@pytest.fixture(scope="module")
def brain(shared_dsn: str) -> str:
    """Return the DSN of two artifacts, the whole text of one, a memory and a turn of history."""
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        # As `migrate` does.
        connection.execute("select public.set_knowledge_settings(fusion => 'auto')")
        writer = KnowledgeWriter(connection)
        documents: list[tuple[dict[str, Any], list[str]]] = [
            (
                {
                    "external_key": "keys",
                    "title": "Keys",
                    "knowledge_type": "decision",
                    "sensitivity": "internal",
                    "document_date": date(2025, 11, 3),
                    "source_url": "https://example.org/keys",
                    "collection": "artifact_chunks",
                },
                [LEAK, ROTATION],
            ),
            ({"external_key": "cameras", "document_date": date(2025, 3, 14)}, [CAMERAS]),
            ({"external_key": "habit", "collection": "memory"}, [HABIT]),
            ({"external_key": "turn", "collection": "history"}, [TURN]),
        ]
        for document, texts in documents:
            writer.upsert_document(document, [chunk(text, *embed([text])) for text in texts])
        connection.execute(
            """
            insert into public.knowledge_chunks (
              document_id, content, collection, embedding, embedding_model
            )
            select id, %s, 'artifacts', '[0, 0.1, 1]', 'by-hand'
              from public.knowledge_documents where external_key = 'keys'
            """,
            [WHOLE],
        )
    return shared_dsn


@pytest.fixture
def service(brain: str) -> RetrievalService:
    return RetrievalService(PostgresProvider(brain), EMBEDDER)


def passages(response: Any) -> set[str]:
    return {one.content for one in response.results}


def mcp_server(dsn: str) -> Server[Any]:
    provider = AsyncPostgresProvider(dsn)
    return create_server(AsyncRetrievalService(provider, EMBEDDER), provider, Scope())


def ask(dsn: str, tool: str, **arguments: Any) -> Any:
    async def call() -> Any:
        async with Client(mcp_server(dsn)) as client:
            return await client.call_tool(tool, arguments)

    return asyncio.run(call())


def on_the_command_line(dsn: str, *options: str) -> set[str]:
    asked = ["search", "leaked key", "--mode", "text", "--json", "--dsn", dsn, *options]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    return {one["content"] for one in json.loads(done.stdout)["results"]}


def test_include_memory_is_false_by_default(service: RetrievalService, brain: str) -> None:
    response = service.search("leaked key")
    assert HABIT not in passages(response)
    assert "memory" in response.applied_filters["left_out"]
    assert HABIT in passages(service.search("leaked key", include_memory=True))
    assert HABIT in passages(service.search("leaked key", collections=["memory"]))
    assert f"> {HABIT}" not in ask(brain, "hybrid_search", query="leaked key").content[0].text
    asked = {"query": "leaked key", "include_memory": True}
    assert f"> {HABIT}" in ask(brain, "hybrid_search", **asked).content[0].text
    assert HABIT not in on_the_command_line(brain)
    assert HABIT in on_the_command_line(brain, "--include-memory")


@pytest.mark.parametrize("k", [60, 1])
def test_retrieval_service_hybrid_search(service: RetrievalService, k: float) -> None:
    found = service.hybrid_search("leaked key", k=k, fusion="rrf", limit=2)
    assert found.mode_used == "hybrid"
    assert [*found] == found.results
    for one in found:
        ranks = (one.vector_rank, one.text_rank)
        assert one.rrf_score == pytest.approx(sum(1 / (k + rank) for rank in ranks if rank))


def test_history_is_searched_only_when_it_is_asked_for(
    service: RetrievalService, brain: str
) -> None:
    response = service.search("leaked key", include_memory=True)
    assert TURN not in passages(response)
    assert response.applied_filters["left_out"] == ["history"]
    assert passages(service.search("leaked key", collections=["history"])) == {TURN}
    named = {"field": "collection", "op": "in", "value": ["history", "memory"]}
    assert passages(service.search("leaked key", filters=[named])) == {TURN, HABIT}
    assert passages(service.search("leaked key", required_filters=[named])) == {TURN, HABIT}
    asked = {"query": "leaked key", "include_memory": True}
    assert f"> {TURN}" not in ask(brain, "hybrid_search", **asked).content[0].text
    asked |= {"filters": {"collection": "history"}}
    assert f"> {TURN}" in ask(brain, "hybrid_search", **asked).content[0].text
    assert TURN not in on_the_command_line(brain, "--include-memory")
    assert on_the_command_line(brain, "--collection", "history") == {TURN}


def test_leaving_memory_out_does_not_change_the_ranking(service: RetrievalService) -> None:
    everything = service.search("leaked key", include_memory=True).results
    left = service.search("leaked key").results
    assert [one.id for one in left] == [one.id for one in everything if one.content != HABIT]


@pytest.mark.parametrize("fusion", FUSIONS)
def test_included_memory_is_ranked_as_a_list_of_its_own(dsn: str, fusion: Any) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        writer = KnowledgeWriter(connection)
        for number in range(60):
            is_memory = number >= 57
            text = f"A leaked key is revoked first, part {number}."
            if is_memory:
                text = f"Asks about a key, the {number}th time, and about many other things too."
            document = {"external_key": str(number)}
            document["collection"] = "memory" if is_memory else "notes"
            writer.upsert_document(document, [chunk(text, [0, number / 60, 1])])
    search = RetrievalService(PostgresProvider(dsn), EMBEDDER).search
    asked: dict[str, Any] = {"fusion": fusion, "limit": 60}
    results = search("leaked key", include_memory=True, **asked).results
    memories = [one for one in results if one.collection == "memory"]
    assert 1 in {one.vector_rank for one in memories} <= {1, 2, 3}
    assert 1 in {one.text_rank for one in memories} <= {1, 2, 3}
    assert memories[0].rank <= 5
    rest = [one.id for one in results if one.collection != "memory"]
    assert rest == [one.id for one in search("leaked key", **asked).results][: len(rest)]


@pytest.mark.parametrize("fusion", FUSIONS)
def test_an_included_memory_is_among_the_first_five(dsn: str, fusion: Any) -> None:
    random = Random(71)
    listed = "lease boiler meter tenant deposit flat repair invoice roof key lamp stairs"
    words = listed.split()
    with psycopg.connect(dsn, autocommit=True) as connection:
        writer = KnowledgeWriter(connection)
        for number in range(60):
            chunks = [
                chunk(
                    " ".join(random.choices(words, k=20)),
                    [random.gauss(0, 1), random.gauss(0, 1), random.gauss(2, 1)],
                )
                for _ in range(1 if number % 3 == 0 else 4)
            ]
            collection = "memory" if number % 3 == 0 else "notes"
            writer.upsert_document({"external_key": str(number), "collection": collection}, chunks)
    search = RetrievalService(PostgresProvider(dsn), EMBEDDER).search
    found = 0
    for number in range(60):
        asked: dict[str, Any] = {"fusion": fusion, "limit": 5, "one_per_document": number % 2 == 0}
        question = " ".join(random.sample(words, 3))
        results = search(question, include_memory=True, **asked).results
        found += any(one.collection == "memory" for one in results)
    assert found >= 55


def test_mcp_hybrid_search_gives_one_hit_for_each_artifact(brain: str) -> None:
    arguments: dict[str, Any] = {"query": "leaked key", "limit": 5, "filters": None}
    arguments |= {"include_memory": False, "expand_neighbors": True}
    results = ask(brain, "hybrid_search", **arguments).structured_content["results"]
    assert [one["external_key"] for one in results] == ["keys", "cameras"]
    # Differs: the content is the quoted context.
    assert results[0]["content"].startswith(f"> {LEAK}\n")
    assert results[0]["content"].endswith(f"> {ROTATION}")


@pytest.mark.module("insight")
def test_mcp_text(brain: str, dsn: str) -> None:
    text = ask(brain, "hybrid_search", query="leaked key", limit=1).content[0].text
    header, best, *_ = text.split("\n\n")
    assert header == "1 result of 2, hybrid search:"
    for part in (
        "1. Keys",
        "score 1.0000",
        "type: decision; collection: artifact_chunks; sensitivity: internal; date: 2025-11-03",
        "; source: manual; evidence: https://example.org/keys",
        f"> {LEAK}",
    ):
        assert part in best
    none = {"query": "leaked key", "filters": {"artifact_type": "note"}}
    nothing = ask(brain, "hybrid_search", **none).content[0].text
    assert nothing.startswith("No results found. ")
    assert 'knowledge_type "note"; they have "decision", "document"' in nothing
    wrong = ask(brain, "hybrid_search", query="leaked key", filters={"artifact_type": "poem"})
    assert wrong.is_error
    assert wrong.content[0].text.startswith("Search failed: ")
    with psycopg.connect(dsn, autocommit=True) as connection:
        KnowledgeWriter(connection).upsert_document(
            {"external_key": "long"}, [{"content": "Keys are rotated. " + "Nothing else. " * 99}]
        )
    *_, shown = ask(dsn, "hybrid_search", query="keys rotated").content[0].text.splitlines()
    assert shown.startswith("> Keys are rotated. Nothing")
    assert len(shown) <= len("> ") + 200 + len(" …")


def test_mcp_memory_search(brain: str) -> None:
    # Differs: hybrid_search searches memory with a filter.
    async def call() -> None:
        async with Client(mcp_server(brain)) as client:
            with pytest.raises(MCPError, match="there is no tool 'memory_search'"):
                await client.call_tool("memory_search", {"query": "leaked key"})

    asyncio.run(call())
    asked = {"query": "key", "include_memory": True, "filters": {"collection": "memory"}}
    (found,) = ask(brain, "hybrid_search", **asked).structured_content["results"]
    assert found["content"] == f"> {HABIT}"


def test_result_fields(service: RetrievalService) -> None:
    response = service.search(
        "leaked key", collections=["artifact_chunks", "artifacts"], one_per_document=True
    )
    (best,) = response.results
    # Differs: ranks count from 1.
    assert (best.content, best.collection, best.rank) == (LEAK, "artifact_chunks", 1)
    assert best.collections == ["artifact_chunks", "artifacts"]
    assert best.distance == pytest.approx(1 - (best.similarity or 0))
    assert (best.is_chunk, best.artifact_id) == (True, best.document_id)
    assert best.sensitivity == "internal"
    (whole,) = service.search("leaked key", collections=["artifacts"]).results
    assert (whole.is_chunk, whole.chunk_index) == (False, None)


def test_neighbours_are_in_context(service: RetrievalService) -> None:
    # Differs: the content stays the chunk's own.
    asked: dict[str, object] = {"collection": "artifact_chunks"}
    best = service.search("leaked key", expand_neighbors=True, filters=asked).results[0]
    assert best.content == LEAK
    assert (best.context or "").split("\n[CHUNK BOUNDARY]\n") == [LEAK, ROTATION]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"artifact_type": "decision", "collection": "artifact_chunks"}, {LEAK, ROTATION}),
        ({"sensitivity": "internal", "collection": "artifacts"}, {WHOLE}),
        ({"time_range": {"start": date(2025, 3, 1), "end": "2025-03-31"}}, {CAMERAS}),
    ],
)
def test_filters_artifact_type_sensitivity_and_time_range(
    service: RetrievalService, filters: Any, found: set[str]
) -> None:
    assert passages(service.search("leaked key", filters=filters)) == found


def test_an_artifact_type_that_nobody_declared(service: RetrievalService) -> None:
    # Differs: it is refused.
    with pytest.raises(InvalidInputError, match="one of conversation, decision"):
        service.search("leaked key", filters={"artifact_type": "poem"})


def test_log_events_for_merging_and_deduplication(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        KnowledgeWriter(connection).upsert_document(
            {"external_key": "keys"}, [chunk(f"Key {n}.", [0, n, 1]) for n in range(6)]
        )
    service = RetrievalService(PostgresProvider(dsn), EMBEDDER)
    with caplog.at_level(logging.INFO, "second_brain.search"):
        service.search("key")
        service.search("key", one_per_document=True)
    counted = [(vars(one)["merged"], vars(one)["deduplicated"]) for one in caplog.records]
    assert counted == [(6, 0), (1, 5)]
