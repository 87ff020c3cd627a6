"""Callers of the pipeline (base, hybrid, rerank): a test for each row of compatibility.md.

The code is a caller's: it imports nothing of this test suite.
"""

import asyncio
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from mcp import Client

import second_brain
from second_brain import (
    AsyncPostgresProvider,
    AsyncRetrievalService,
    KnowledgeWriter,
    PostgresProvider,
    RetrievalService,
    SearchSettings,
)
from second_brain.evaluation import collection, scratch
from second_brain.evaluation.comparison import LEGS, Mode, measure
from second_brain.evaluation.runs import Searcher
from second_brain.ingest import find_files, ingest
from second_brain.mcp_server import Scope, create_server
from second_brain.models import CallableEmbedder
from second_brain.services.install import Database

HANDBOOK = UUID(int=1)
LEAK = "A leaked key is revoked first."
KEYS = "Service role keys stay on the server."
INVOICE = "An invoice is cancelled by a credit note."


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0 * ("invoice" in text), 0.1, 1.0 * ("key" in text)] for text in texts]


def longest_first(_question: str, passages: Sequence[str]) -> list[float]:
    return [float(len(passage)) for passage in passages]


EMBEDDER = CallableEmbedder(embed, "by-hand", 3)


@pytest.fixture(scope="module")
def handbook(shared_dsn: str) -> str:
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        # As `migrate` does in a new install.
        connection.execute("select public.set_knowledge_settings(fusion => 'auto')")
        connection.execute(
            "insert into public.knowledge_sources (id, name) values (%s, 'handbook')", [HANDBOOK]
        )
        writer = KnowledgeWriter(connection)
        for document, texts in (
            ({"external_key": "keys", "title": "Keys"}, [KEYS, LEAK]),
            ({"external_key": "invoices", "source_id": str(HANDBOOK)}, [INVOICE]),
        ):
            writer.upsert_document(
                document | {"metadata": {"document_type": "pdf"}} if len(texts) == 1 else document,
                [
                    {"content": text, "embedding": vector, "embedding_model": "by-hand"}
                    for text, vector in zip(texts, embed(texts), strict=True)
                ],
            )
    return shared_dsn


@pytest.fixture
def service(handbook: str) -> RetrievalService:
    return RetrievalService(PostgresProvider(handbook), EMBEDDER, longest_first)


def passages(response: Any) -> list[str]:
    return [one.content for one in response.results]


@pytest.mark.parametrize(
    "filters", [{"source_id": str(HANDBOOK)}, {"document_type": "pdf"}, "document_id"], ids=str
)
def test_filters_source_id_document_id_document_type(
    service: RetrievalService, filters: Any
) -> None:
    if filters == "document_id":
        (invoice,) = service.search("invoice", mode="text").results
        filters = {"document_id": invoice.document_id}
    assert passages(service.search("leaked key", filters=filters)) == [INVOICE]


@pytest.mark.parametrize("name", ["markdown", "md"])
def test_document_type_markdown(dsn: str, tmp_path: Path, name: str) -> None:
    (tmp_path / "keys.md").write_text("# Keys\n\nKeys are rotated.")
    (tmp_path / "cars.txt").write_text("A car has a key.")
    with psycopg.connect(dsn, autocommit=True) as connection:
        list(ingest(find_files([tmp_path]).documents, connection, EMBEDDER))
    search = RetrievalService(PostgresProvider(dsn), EMBEDDER).search
    assert passages(search("key", filters={"document_type": name})) == ["Keys are rotated."]
    listed = [{"field": "document_type", "op": "in", "value": [name, "pdf"]}]
    assert passages(search("key", filters=listed)) == ["Keys are rotated."]


def test_source_id_may_be_the_name_of_the_source(service: RetrievalService) -> None:
    assert passages(service.search("key", filters={"source_id": "handbook"})) == [INVOICE]


def test_hybrid_fails_and_base_vector_search_answers(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        KnowledgeWriter(connection).upsert_document(
            {"external_key": "keys"},
            [{"content": LEAK, "embedding": [0, 0.1, 1], "embedding_model": "by-hand"}],
        )
        connection.execute("drop function knowledge_internal.read_plain_question cascade")
        connection.execute("drop function knowledge_internal.read_text cascade")
    response = RetrievalService(PostgresProvider(dsn), EMBEDDER).search("leaked key", mode="hybrid")
    assert passages(response) == [LEAK]
    assert (response.mode, response.mode_used) == ("hybrid", "vector")
    assert response.degraded is not None
    assert response.degraded.part == "text"


def test_defaults_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # Differs: the names are the same, the defaults are not.
    settings = SearchSettings()
    assert (settings.similarity_threshold, settings.hybrid_candidate_count) == (0, 50)
    assert (settings.vector_weight, settings.text_weight) == (1, 1)
    page = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text("utf-8")
    variables = page.partition("```sh\nSIMILARITY_THRESHOLD=")
    for line in (variables[1] + variables[2]).split("```")[1].splitlines()[1:]:
        monkeypatch.setenv(*line.split("="))
    settings = SearchSettings()
    assert (settings.similarity_threshold, settings.hybrid_candidate_count) == (0.05, 100)
    assert (settings.vector_weight, settings.text_weight) == (0.7, 0.3)


def test_original_score_beside_rerank_score_and_cached_scores(handbook: str) -> None:
    scored: list[str] = []

    def reranker(question: str, texts: Sequence[str]) -> list[float]:
        scored.extend(texts)
        return longest_first(question, texts)

    service = RetrievalService(PostgresProvider(handbook), EMBEDDER, reranker)
    fused = {one.id: one.score for one in service.search("leaked key").results}
    reranked = service.search("leaked key", mode="rerank").results
    assert {one.id: one.original_score for one in reranked} == fused
    assert {one.id: one.original_combined_score for one in reranked} == fused
    assert all(0 <= score <= 1 for score in fused.values())
    assert [one.rerank_score for one in reranked] == sorted(map(len, (KEYS, LEAK, INVOICE)))[::-1]
    service.search("leaked key", mode="rerank")
    assert sorted(scored) == sorted([KEYS, LEAK, INVOICE])


def ask(dsn: str, tool: str, **arguments: Any) -> Any:
    async def call() -> Any:
        provider = AsyncPostgresProvider(dsn)
        server = create_server(AsyncRetrievalService(provider, EMBEDDER), provider, Scope())
        async with Client(server) as client:
            return await client.call_tool(tool, arguments)

    return asyncio.run(call())


def test_mcp_search_knowledge_base(handbook: str) -> None:
    asked = {"query": "leaked key", "match_count": 10, "search_type": "hybrid"}
    assert f"> {LEAK}" in ask(handbook, "search_knowledge_base", **asked).content[0].text
    narrowed = ask(handbook, "search_knowledge_base", **asked, source_id="handbook")
    (found,) = narrowed.structured_content["results"]
    assert found["content"] == f"> {INVOICE}"


def test_mcp_perform_rag_query(handbook: str) -> None:
    answer = ask(handbook, "perform_rag_query", query="key", source="handbook", match_count=5)
    (found,) = answer.structured_content["results"]
    assert found["content"] == f"> {INVOICE}"


def test_one_report_of_base_hybrid_and_rerank(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    lines = [json.dumps({"_id": f"d{n}", "text": text}) for n, text in enumerate((KEYS, INVOICE))]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "server keys"}))
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td0\t1\n")
    judged = collection.load(tmp_path)
    vectors = collection.embed(judged, EMBEDDER)
    with psycopg.connect(dsn, autocommit=True) as connection:
        scratch.load(connection, judged, vectors, "english", lambda _step: None)
        report = measure(
            Searcher(Database(connection), vectors.queries).answer,
            judged,
            [*LEGS, Mode("hybrid")],
            reference="hybrid",
            reranker=longest_first,
        )
    assert tuple(report.modes) == ("vector", "text", "hybrid", "rerank")
    # The other text is longer, so it comes first.
    assert report.mean("rerank", "nDCG@10") == pytest.approx(1 / math.log2(3))
    for search in report.modes:
        assert 0 <= report.mean(search, "nDCG@10") <= 1
        assert 0 < report.latency(search, 0.5) <= report.latency(search, 0.95)


def test_match_types_are_logged_for_each_search(
    service: RetrievalService, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "second_brain.search"):
        found = [one.match_type for one in service.search("leaked key").results]
    fields = vars(caplog.records[-1])
    for name in ("both", "vector", "text"):
        assert fields[f"match_{name}"] == found.count(name)
    assert found.count("both") >= 1


def test_strategy_classes(service: RetrievalService) -> None:
    # Differs: the mode and the settings select the strategy.
    assert not [name for name in dir(second_brain) if "Strategy" in name]
    used = [service.search("key", mode=mode).mode_used for mode in ("vector", "hybrid", "rerank")]
    assert used == ["vector", "hybrid", "rerank"]
