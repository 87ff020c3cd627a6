"""RetrievalService: models and databases that fail or do not answer, and core alone."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest
from psycopg_pool import ConnectionPool
from retrieving import (
    BY_HAND,
    CREDIT_NOTE,
    DOWN,
    LEAK,
    RECORDER,
    REMINDER,
    ROTATION,
    Make,
    contents,
    corpus,
    embedded,
    fill,
    make,
    out_of_order,
)

from conftest import Server, copy_of
from second_brain import errors
from second_brain.adoption import carrying
from second_brain.database import migrations, schedule
from second_brain.embedding_queue import reembedding
from second_brain.errors import ModuleMissingError
from second_brain.models import CallableEmbedder
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.embedding import NO_EMBEDDER
from second_brain.retrieval.retrieval import AnyReranker
from second_brain.retrieval.service import RetrievalService
from second_brain.services.calls import Deadline
from second_brain.services.install import Database, Install
from second_brain.services.postgres import PostgresProvider
from support.databases import query

__all__ = ["corpus", "make"]  # fixtures


def failed_part(response: SearchResponse) -> tuple[str, str]:
    """Return the part that a search continued without, and the kind of its error."""
    assert response.degraded is not None
    return response.degraded.part, response.degraded.kind


def test_without_its_embedder_a_hybrid_search_asks_by_the_text_hits(
    make: Make, corpus: str
) -> None:
    response = make(corpus, DOWN)("leaked key")
    assert contents(response)[:2] == [LEAK, ROTATION]
    assert [hit.match_type for hit in response.results] == ["both", "both"] + 3 * ["vector"]
    assert (response.mode, response.mode_used) == ("hybrid", "hybrid")
    assert response.notes == {"embedding": "from the best text hits"}
    assert response.embedding_model is None
    assert failed_part(response) == ("embed", "unavailable")
    assert response.degraded is not None
    assert response.degraded.message
    assert response.degraded.remedy
    assert response.degraded.also is None


@pytest.mark.parametrize("mode", ["hybrid", "rerank"])
def test_without_an_embedder_a_search_asks_by_the_text_hits(
    make: Make, corpus: str, mode: str
) -> None:
    response = make(corpus, NO_EMBEDDER, out_of_order)("leaked key", mode=mode, limit=2)
    assert {*contents(response)} <= {LEAK, ROTATION, REMINDER, RECORDER, CREDIT_NOTE}
    assert len(response.results) == 2
    assert response.notes == {"embedding": "from the best text hits"}
    assert response.mode_used == mode
    assert response.degraded is not None
    assert response.degraded.message == "the service is without an embedder"


def test_without_an_embedder_a_vector_search_is_refused(make: Make, corpus: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="without an embedder"):
        make(corpus, NO_EMBEDDER)("leaked key", mode="vector")
    with pytest.raises(errors.UnavailableError):
        make(corpus, DOWN)("leaked key", mode="vector")


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"search_on_bad_embedding": "text"}, {}),
        ({}, {"text_weight": 0}),
        ({}, {"vector_weight": 0}),
    ],
    ids=["a setting", "a vector leg alone", "a text leg alone"],
)
def test_nothing_is_made_of_text_hits_where_it_is_not_wanted(
    make: Make, corpus: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    response = make(corpus, DOWN, **settings)("leaked key", **options)
    assert contents(response) == [LEAK, ROTATION]
    assert (response.mode_used, response.notes) == ("text", None)


@pytest.mark.parametrize("question", ["zebra", "zebra -key"])
def test_without_a_text_hit_there_is_no_vector_leg(make: Make, corpus: str, question: str) -> None:
    response = make(corpus, NO_EMBEDDER)(question)
    assert (response.results, response.mode_used) == ([], "text")


def test_an_embedder_of_another_model_is_replaced_where_the_setting_says_so(
    make: Make, corpus: str
) -> None:
    other = CallableEmbedder(embedded, "another", 3)
    response = make(corpus, other, search_on_bad_embedding="from_text")("leaked key")
    assert response.mode_used == "hybrid"
    assert failed_part(response)[1] == "configuration"


def test_a_database_that_makes_no_embedding_answers_by_words(make: Make, dsn: str) -> None:
    fill(dsn)
    query(dsn, "alter function knowledge_internal.embedding_of_hits rename to lost")
    response = make(dsn, DOWN)("leaked key")
    assert contents(response) == [LEAK, ROTATION]
    assert response.mode_used == "text"
    assert failed_part(response)[0] == "embed"


def test_without_its_embedder_a_rerank_reads_the_hits_of_the_text_leg(
    make: Make, corpus: str
) -> None:
    response = make(corpus, DOWN, out_of_order)("leaked key", mode="rerank")
    assert contents(response) == sorted(contents(response), reverse=True)
    assert {LEAK, ROTATION} <= {*contents(response)}
    assert response.mode_used == "rerank"
    assert failed_part(response)[0] == "embed"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ([[1.0, 0.0]], "unexpected_answer"),
        ([[float("nan"), 0.0, 0.0]], "unexpected_answer"),
        ("a page of HTML", "unexpected_answer"),
        ([[0.0, 0.0, 0.0]], "invalid_input"),
    ],
    ids=["other dimensions", "nan", "no numbers", "no direction"],
)
def test_an_embedding_that_is_none_is_not_searched_with(
    make: Make, corpus: str, answer: Any, kind: str
) -> None:
    response = make(corpus, CallableEmbedder(lambda _: answer, "by-hand", 3))("leaked key")
    assert response.notes == {"embedding": "from the best text hits"}
    assert failed_part(response) == ("embed", kind)


def scoring_nothing(question: str, passages: Sequence[str]) -> list[float]:
    raise httpx.ConnectError("the model server is gone")


@pytest.mark.parametrize(
    ("reranker", "kind"),
    [
        (scoring_nothing, "unavailable"),
        (lambda question, passages: [1.0], "unexpected_answer"),
        (lambda question, passages: [float("nan")] * len(passages), "unexpected_answer"),
    ],
    ids=["down", "too few scores", "nan"],
)
def test_without_its_reranker_a_search_keeps_the_fused_order(
    make: Make, corpus: str, reranker: AnyReranker, kind: str
) -> None:
    search = make(corpus, reranker=reranker)
    response = search("leaked key", mode="rerank", limit=2, offset=1)
    assert contents(response) == contents(search("leaked key"))[1:3]
    assert (response.mode, response.mode_used) == ("rerank", "hybrid")
    assert response.results[0].rerank_score is None
    assert response.results[0].original_rank is None
    assert failed_part(response) == ("rerank", kind)


def test_without_the_extra_a_rerank_says_what_to_install(
    make: Make, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    response = make(corpus)("leaked key", mode="rerank", limit=2)
    assert response.mode_used == "hybrid"
    assert response.degraded is not None
    assert response.degraded.kind == errors.MissingExtraError.kind
    assert "pip install" in response.degraded.remedy


def test_both_failed_parts_are_in_the_answer(make: Make, corpus: str) -> None:
    response = make(corpus, DOWN, scoring_nothing)("leaked key", mode="rerank")
    assert contents(response)[:2] == [LEAK, ROTATION]
    assert response.mode_used == "hybrid"
    assert response.degraded is not None
    assert response.degraded.part == "embed"
    assert response.degraded.also is not None
    assert response.degraded.also.part == "rerank"


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """An event that a stuck model waits for, set when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_a_stuck_embedder_leaves_time_to_search_by_words(
    make: Make, corpus: str, never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(texts: Sequence[str]) -> list[list[float]]:
        never.wait(600)
        return embedded(texts)

    monkeypatch.setattr("second_brain.retrieval.embedding.EMBEDDING_SHARE", 0.005)
    response = make(corpus, CallableEmbedder(stuck, "by-hand", 3))("leaked key", timeout=60)
    assert contents(response)[:2] == [LEAK, ROTATION]
    assert failed_part(response) == ("embed", "timeout")


def test_a_stuck_reranker_costs_no_more_than_the_timeout(
    make: Make, corpus: str, never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(question: str, passages: Sequence[str]) -> list[float]:
        never.wait(600)
        return [0.0] * len(passages)

    def pass_time(part: str) -> None:
        # The reranker has what is left of the timeout: a fraction of a second.
        if part == "rerank":
            monkeypatch.setattr(Deadline, "left", lambda *_: 0.2)

    search = make(corpus, reranker=stuck)
    response = search("leaked key", mode="rerank", timeout=60, on_part=pass_time)
    assert contents(response)[0] == LEAK
    assert failed_part(response) == ("rerank", "timeout")


def test_a_statement_that_takes_too_long_is_an_error_at_once(make: Make, corpus: str) -> None:
    parts: list[str] = []
    search = make(corpus)
    search("leaked key")  # it knows the corpus's model now
    with psycopg.connect(corpus) as locking:
        locking.execute("lock table public.knowledge_chunks in access exclusive mode")
        with pytest.raises(errors.SearchTimeoutError):
            search("leaked key", timeout=0.5, on_part=parts.append)
    # Not a second time: that would double the load.
    assert parts.count("search") == 1


def test_a_closed_pool_is_an_error_with_the_remedy_to_open_it(corpus: str) -> None:
    pool = ConnectionPool(corpus, min_size=1, open=True)
    pool.close()
    with pytest.raises(errors.UnavailableError) as refused:
        RetrievalService(PostgresProvider(pool), BY_HAND).search("leaked key")
    assert "while it is open" in refused.value.remedy


@pytest.fixture(scope="module")
def core_dsn(server: Server) -> Iterator[str]:
    """A database with core alone and five chunks."""
    for dsn in copy_of(server, server.template(None)):
        migrations.apply(dsn, dimensions=3)
        fill(dsn)
        yield dsn


def test_the_service_answers_without_a_module_and_warns_of_nothing(
    make: Make, core_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    response = make(core_dsn)("leaked key")
    assert contents(response)[0] == LEAK
    assert response.degraded is None
    assert response.pending_embeddings is None
    nothing = make(core_dsn)("zebra", mode="text")
    assert (contents(nothing), nothing.empty) == ([], None)
    assert [one.message for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_methods_of_an_absent_module_name_it(core_dsn: str) -> None:
    provider = PostgresProvider(core_dsn)
    with psycopg.connect(core_dsn, autocommit=True) as connection:
        calls: dict[str, Callable[[], object]] = {
            "facets": lambda: provider.count_facets(None, None, ["collection"]),
            "insight": lambda: provider.explain_hybrid_search([1, 2, 3], "key"),
            "embedding_queue": provider.count_pending_embeddings,
            "own_documents": provider.list_documents,
            "adoption": lambda: carrying.listed(Database(connection)),
        }
        for module, call in calls.items():
            with pytest.raises(ModuleMissingError) as missing:
                call()
            assert missing.value.module == module
            assert f"second-brain migrate --with {module}" in missing.value.remedy


@pytest.mark.parametrize(
    ("module", "argument", "value"),
    [
        ("words", "prefix_last", True),
        ("like", "like_ids", [UUID(int=1)]),
        ("arrange", "boosts", [{"filters": {}, "factor": 2}]),
        ("arrange", "order_by", "document_date"),
        ("arrange", "diversity", 0.5),
        ("arrange", "merge_duplicates", True),
    ],
)
def test_an_argument_of_an_absent_module_is_refused_by_name(
    core_dsn: str, module: str, argument: str, value: object
) -> None:
    given: dict[str, Any] = {argument: value}
    with pytest.raises(ModuleMissingError, match=argument) as missing:
        PostgresProvider(core_dsn).find([1, 0, 0], "leaked key", **given)
    assert missing.value.module == module
    assert f"second-brain migrate --with {module}" in missing.value.remedy


def test_a_model_change_is_refused_before_it_begins(core_dsn: str) -> None:
    with pytest.raises(ModuleMissingError, match="module embedding_queue"):
        reembedding.start(core_dsn, BY_HAND)
    with psycopg.connect(core_dsn) as connection:
        assert reembedding.state(Database(connection)).stage == "none"


def test_the_job_of_the_query_log_is_scheduled_with_its_module() -> None:
    assert [job.name for job in schedule.jobs(Install(), modules=())] == [
        "second-brain-statistics",
        "second-brain-purge",
    ]
    assert len(schedule.jobs(Install(), modules=["insight"])) == 3
