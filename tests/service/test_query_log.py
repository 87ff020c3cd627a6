"""The query log: what the service writes after an answer, its bounds, its report, its privacy."""

import asyncio
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from conftest import Connect, Connection, Server
from corpora import store_document
from postgrest_server import PostgREST, provider_of
from second_brain.database.corpus_overview import QueryReport
from second_brain.errors import ConfigurationError, InvalidInputError
from second_brain.models import CallableEmbedder
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from waiting import await_locks

ANA, BEN = UUID(int=1), UUID(int=2)
BY_HAND = CallableEmbedder(lambda texts: [[1.0, 0.0, 0.0] for _ in texts], "by-hand", 3)
Search = Callable[..., SearchResponse]


@pytest.fixture(autouse=True)
def corpus(database: Connection) -> None:
    """Store two chunks."""
    texts = {"A zebra sleeps.": [1, 0, 0], "A zebra runs.": [1, 0, 0]}
    store_document(database, "savanna", texts, visibility="public")


def blocking_service(dsn: str, query_log: Any = "all", **settings: Any) -> RetrievalService:
    chosen = SearchSettings(query_log=query_log, **settings)
    return RetrievalService(PostgresProvider(dsn), BY_HAND, settings=chosen)


def blocking_search(dsn: str, **settings: Any) -> Search:
    service = blocking_service(dsn, **settings)

    def search(*asked: str, **options: Any) -> SearchResponse:
        try:
            return service.search(*asked, **options)
        finally:
            service.flush_query_log()

    return search


def loop_search(dsn: str, **settings: Any) -> Search:
    service = AsyncRetrievalService(
        AsyncPostgresProvider(dsn), BY_HAND, settings=SearchSettings(query_log="all", **settings)
    )
    # The end of the loop flushes.
    return lambda *asked, **options: asyncio.run(service.search(*asked, **options))


@pytest.fixture(params=[blocking_search, loop_search], ids=["sync", "async"])
def logged(request: pytest.FixtureRequest) -> Callable[..., Search]:
    """Make the search of a service of either kind, which writes its log at once."""
    made: Callable[..., Search] = request.param
    return made


def lines(connection: Connection) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            "select * from public.knowledge_query_log order by asked_at"
        ).fetchall()


def record(connection: Connection, *queries: dict[str, Any], **bounds: Any) -> None:
    given = [{"mode": "hybrid", "total_ms": 1, "question": "zebra", **one} for one in queries]
    connection.execute(
        "select public.record_knowledge_queries(%s, most_rows => %s, max_age => %s)",
        [json.dumps(given), bounds.get("most_rows", 100), bounds.get("max_age", "30 days")],
    )


def report(connection: Connection, *, since: str = "'-infinity'") -> QueryReport:
    call = f"select public.report_knowledge_queries(since => {since})"
    ((reported,),) = connection.execute(call.encode()).fetchall()
    return QueryReport.model_validate(reported)


def test_a_search_is_a_line(logged: Callable[..., Search], dsn: str, database: Connection) -> None:
    response = logged(dsn)("zebra sleeps", limit=1, collections=["knowledge"], viewer_id=ANA)
    (line,) = lines(database)
    assert (line["question"], line["collections"]) == ("zebra sleeps", ["knowledge"])
    assert (line["mode"], line["mode_used"], line["hits"]) == ("hybrid", "hybrid", 1)
    assert line["confidence"] == pytest.approx(response.results[0].confidence)
    assert line["total_ms"] == pytest.approx(response.query_time_ms, rel=0.01)
    assert 0 < line["search_ms"] < line["total_ms"]
    assert (line["is_cached"], line["degraded"], line["error_kind"]) == (False, None, None)
    assert str(ANA).encode() not in repr(line).encode()
    assert ANA.bytes not in line["viewer_mark"]


def test_searches_of_a_viewer_can_be_left_out(dsn: str, database: Connection) -> None:
    service = blocking_service(dsn, query_log="without_viewer")
    service.search("private", viewer_id=ANA)
    service.search("of a group", viewer_groups=["staff"])
    service.search("public", public_only=True)
    service.flush_query_log()
    assert [line["question"] for line in lines(database)] == ["public"]


def test_failures_and_empty_answers_are_lines_and_later_pages_are_not(
    logged: Callable[..., Search], dsn: str, database: Connection
) -> None:
    search = logged(dsn)
    with pytest.raises(InvalidInputError):
        search("zebra", filters={"knowledge_type": "nothing"})
    search("unknown", mode="text")
    search("zebra", offset=1)
    failed, empty = lines(database)
    assert failed["error_kind"] == InvalidInputError.kind
    assert (failed["hits"], failed["mode_used"]) == (None, None)
    assert (empty["hits"], empty["confidence"], empty["mode"]) == (0, None, "text")


def test_texts_that_postgres_cannot_store_do_not_spoil_the_batch(
    dsn: str, database: Connection
) -> None:
    service = blocking_service(dsn)
    for question in ("zebra", "zebra\0"):
        with suppress(InvalidInputError):
            service.search(question, collections=["a\0b"])
    service.flush_query_log()
    assert [line["question"] for line in lines(database)] == ["zebra", "zebra?"]


def test_a_log_that_cannot_be_written_does_not_fail_the_search(
    logged: Callable[..., Search], dsn: str, database: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    search = logged(dsn)
    database.execute("drop function public.record_knowledge_queries")
    with caplog.at_level(logging.WARNING, logger="second_brain.retrieval.query_log"):
        assert len(search("zebra").results) == 2
        search("zebra again")
    (reported,) = [one.getMessage() for one in caplog.records]
    assert "zebra" not in reported


def test_a_search_does_not_wait_for_the_log(
    dsn: str, database: Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("second_brain.retrieval.query_log._PAUSE", 0)
    service, watching = blocking_service(dsn), connect()
    with database.transaction():
        database.execute("lock table public.knowledge_query_log in access exclusive mode")
        for question in ("first", "second"):
            assert len(service.search(question, timeout=60).results) == 2
            # The thread writes now, and waits for the lock.
            await_locks(watching, "relation")
    service.flush_query_log(60)
    assert {line["question"] for line in lines(database)} == {"first", "second"}


def test_one_connection_cannot_serve_searches_and_log(database: Connection) -> None:
    settings = SearchSettings(query_log="all")
    with pytest.raises(ConfigurationError, match="QUERY_LOG"):
        RetrievalService(PostgresProvider(database), BY_HAND, settings=settings)


def test_the_log_is_written_over_rest(dsn: str, server: Server, tmp_path: Path) -> None:
    binary = os.environ.get("POSTGREST_BIN")
    if not binary:
        pytest.skip("POSTGREST_BIN names no PostgREST")
    rest = PostgREST(binary, server.admin_dsn(), dsn, tmp_path)
    try:
        rest.start()
        with provider_of(rest, "public") as provider:
            settings = SearchSettings(query_log="all")
            service = RetrievalService(provider, BY_HAND, settings=settings)
            service.search("zebra", viewer_id=ANA)
            service.flush_query_log()
    finally:
        rest.stop()
    with psycopg.connect(dsn) as connection:
        assert [line["question"] for line in lines(connection)] == ["zebra"]


def test_the_oldest_lines_are_deleted(database: Connection) -> None:
    record(database, *({"question": f"q{number}"} for number in range(6)), most_rows=4)
    assert [line["question"] for line in lines(database)] == ["q2", "q3", "q4", "q5"]
    record(database, {"question": "old", "seconds_ago": 3600}, {"question": "new"}, most_rows=3)
    assert [line["question"] for line in lines(database)] == ["q4", "q5", "new"]
    record(database, {"question": "old", "seconds_ago": 3600})
    assert lines(database)[0]["question"] == "old"
    record(database, {"question": "newest"}, most_rows=9, max_age="1 minute")
    assert [line["question"] for line in lines(database)] == ["q4", "q5", "new", "newest"]
    record(database, {"question": "long " * 200})
    assert len(lines(database)[-1]["question"]) == 500


def test_lines_that_another_writer_deletes_are_left_to_it(
    database: Connection, connect: Connect
) -> None:
    record(database, *({"question": f"q{number}"} for number in range(3)))
    other = connect()
    with other.transaction():
        other.execute("select from public.knowledge_query_log where question = 'q0' for update")
        database.execute("set lock_timeout = '5s'")
        record(database, {"question": "q3"}, most_rows=2)
        assert [line["question"] for line in lines(database)] == ["q0", "q2", "q3"]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("record_knowledge_queries('{}')", "queries must be an array"),
        ('record_knowledge_queries(\'[{"mode": "text", "total_ms": 1}]\')', "queries has"),
        ("record_knowledge_queries('[]', most_rows => 0)", "most_rows"),
        ("record_knowledge_queries('[]', max_age => '0')", "max_age"),
        ("report_knowledge_queries(most => 201)", "most must"),
    ],
)
def test_wrong_arguments_are_named(database: Connection, call: str, named: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=named):
        database.execute(f"select public.{call}".encode())
    assert lines(database) == []


def test_erasing_an_owner_erases_the_lines_in_which_the_owner_asked(database: Connection) -> None:
    for viewer in (ANA, BEN):
        record(database, *2 * [{"question": str(viewer), "viewer_id": str(viewer)}])
    record(database, {"question": "nobody"})
    assert len({line["viewer_mark"] for line in lines(database)}) == 5
    database.execute("select public.delete_knowledge_owner(%s)", [ANA])
    assert [line["question"] for line in lines(database)] == [str(BEN), str(BEN), "nobody"]


def test_the_service_role_reads_and_deletes_lines_and_no_more(connect: Connect) -> None:
    role = connect("service_role")
    record(role, {"viewer_id": str(ANA)})
    assert len(lines(role)) == 1
    for statement in (
        "insert into public.knowledge_query_log (question) values ('mine')",
        "update public.knowledge_query_log set question = 'changed'",
        "select secret from public.knowledge_query_log_key",
        "select knowledge_internal.erase_derived(null)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            role.execute(statement.encode())
    user = connect("authenticated", uid=ANA)
    for statement in (
        "select from public.knowledge_query_log",
        "select public.report_knowledge_queries()",
        "select public.record_knowledge_queries('[]')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            user.execute(statement.encode())
    role.execute("delete from public.knowledge_query_log")
    assert lines(role) == []


def test_the_report_counts_spellings_of_one_question_together(database: Connection) -> None:
    record(
        database,
        {"question": "Opening  hours?", "hits": 3, "confidence": 0.5, "total_ms": 10},
        {"question": "opening hours", "hits": 3, "confidence": 0.7, "total_ms": 30},
        {"question": "opening hours", "hits": 3, "total_ms": 9000, "is_cached": True},
        {"question": "parking", "hits": 0, "total_ms": 5},
        {"question": "slow", "hits": 1, "confidence": 0.1, "total_ms": 500, "degraded": "embed"},
        {"question": "broken", "error_kind": "unavailable", "total_ms": 9000},
    )
    reported = report(database)
    assert (reported.searches, reported.questions, reported.empty, reported.failed) == (6, 4, 1, 1)
    assert (reported.degraded, reported.cached, reported.p50_ms) == (1, 1, 20)
    first = reported.frequent[0]
    assert (first.question, first.searches, first.p50_ms) == ("opening hours", 3, 20)
    assert first.confidence == pytest.approx(0.6)
    assert [one.question for one in reported.slow] == ["slow", "opening hours", "parking"]
    assert [one.question for one in reported.without_hits] == ["parking"]
    assert [one.question for one in reported.unsure] == ["slow", "opening hours"]
    record(database, *2 * [{"question": "zoo", "hits": 0}])
    assert [one.question for one in report(database).without_hits] == ["zoo", "parking"]
    assert report(database, since="clock_timestamp()").searches == 0
