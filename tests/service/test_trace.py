"""How far it is from a question to its rows: the functions of the package that a search calls."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from retrieving import BY_HAND, fill

import second_brain
from command_line import runner
from conftest import Server
from second_brain.cli import search
from second_brain.retrieval.service import RetrievalService
from second_brain.services.postgres import PostgresProvider

PACKAGE = second_brain.__path__[0]


@pytest.fixture
def corpus(emptied_dsn: str) -> str:
    """The handbook of the other tests."""
    fill(emptied_dsn)
    return emptied_dsn


@pytest.fixture
def provider(corpus: str) -> Iterator[PostgresProvider]:
    with psycopg.connect(corpus, autocommit=True) as connection:
        yield PostgresProvider(connection)


def functions(call: Callable[[], object]) -> set[str]:
    """Return what a second call goes through; a comprehension is no function."""
    seen = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_own = code.co_filename.startswith(PACKAGE) and not code.co_name.endswith("comp>")
        if event == "call" and is_own:
            seen.add(f"{code.co_filename.removeprefix(PACKAGE)} {code.co_qualname}")

    call()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def test_a_search_of_a_provider_is_short(provider: PostgresProvider) -> None:
    passed = functions(lambda: provider.hybrid_search([1, 0, 0], "invoice"))
    assert "/services/provider.py SearchProvider.hybrid_search" in passed
    assert len(passed) <= 20, sorted(passed)
    assert len({one.split()[0] for one in passed}) <= 5, sorted(passed)
    own = [one for one in PostgresProvider.__mro__ if one.__module__.startswith("second_brain")]
    assert len(own) <= 4, own


def test_a_search_of_the_service_is_short(provider: PostgresProvider) -> None:
    service = RetrievalService(provider, BY_HAND)
    passed = functions(lambda: service.search("invoice"))
    # Up to three more where another test has turned on logs or spans.
    assert len(passed) <= 100, sorted(passed)


def test_a_search_of_the_command_line_sends_few_statements(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = list[object]()
    real: Any = psycopg.Cursor.execute

    def execute(cursor: Any, statement: Any, *arguments: Any, **options: Any) -> Any:
        sent.append(statement)
        return real(cursor, statement, *arguments, **options)

    monkeypatch.setattr(search, "question_embedder", lambda _: BY_HAND)
    run = runner(monkeypatch, capsys, tmp_path)
    monkeypatch.setattr(psycopg.Cursor, "execute", execute)
    done = run("search", "invoice", "--dsn", corpus)
    assert done.code == 0, done.err
    # The models of the corpus, the search, the limit of the count's time, and the count.
    assert len(sent) <= 4, sent


def test_a_plain_search_runs_few_functions_of_the_database(corpus: str, server: Server) -> None:
    """What a search runs once its statements are planned, in a corpus of one language."""
    name = conninfo_to_dict(corpus)["dbname"]
    count = (
        "select array_agg(funcname::text order by funcname) from pg_stat_user_functions"
        " where schemaname in ('public', 'knowledge_internal') and calls > 0"
    )
    with psycopg.connect(server.admin_dsn(str(name)), autocommit=True) as connection:
        connection.execute("set track_functions = 'all'")
        provider = PostgresProvider(connection)
        for _ in range(8):
            provider.find([1, 0, 0], "invoice")
        connection.execute("select pg_stat_force_next_flush()")
        connection.execute("select pg_stat_reset()")
        provider.find([1, 0, 0], "invoice")
        connection.execute("select pg_stat_force_next_flush()")
        ((passed,),) = connection.execute(count).fetchall()
    assert {"vector_leg", "text_leg"} <= {*passed}
    assert len(passed) <= 26, passed
