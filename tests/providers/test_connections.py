"""Timeouts, lost connections and round trips, over real connections that are broken on purpose.

`side` is the blocking provider and the one for a loop; `Wire` stands between client and server.
"""

import asyncio
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from sides import Side, corpus, side

from conftest import Connection
from second_brain.errors import SecondBrainError
from second_brain.replicas import reachability
from second_brain.replicas.reachability import Reachability
from second_brain.services import connection_calls
from second_brain.services.calls import FIRST_PAUSE, LONGEST_TIMEOUT
from second_brain.services.connections import async_connection_pool
from second_brain.services.postgres import AsyncPostgresProvider

__all__ = ["corpus", "side"]  # fixtures

FOUND = ["A zebra eats grass on the plain."]
NOWHERE = "postgresql://someone@127.0.0.1:1/nosuch"
PREPARED = "select count(*) from pg_prepared_statements"


class Wire:
    """A TCP relay to the server: counts the client's turns, drops answers, or loses them.

    An answer is held back for `LATENCY`: what a client sends in that time did not wait for it. A
    pipeline ends in two messages, and a busy machine may answer the first before the second is out.
    """

    LATENCY = 0.05

    def __init__(self, dsn: str) -> None:
        parts = conninfo_to_dict(dsn)
        self._upstream = (str(parts["host"]), int(parts["port"] or 5432))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.dsn = make_conninfo(
            dsn, host="127.0.0.1", port=self._listener.getsockname()[1], sslmode="disable"
        )
        self._lock = threading.Lock()
        self._is_clients_turn = False
        self._open: list[socket.socket] = []
        self.turns = 0
        self.connections = 0
        self.drops = 0
        """How many of the next answers end in the middle."""
        self.is_deaf = False
        """Whether the client hears nothing."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._upstream)
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += 1
                self._open += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._relay, args=(source, sink, source is client), daemon=True
                    ).start()

    def _relay(self, source: socket.socket, sink: socket.socket, is_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not is_client:
                    time.sleep(self.LATENCY)
                with self._lock:
                    self.turns += is_client and not self._is_clients_turn
                    self._is_clients_turn = is_client
                    is_dropped = not is_client and b"grass" in data and self.drops > 0
                    self.drops -= is_dropped
                if is_dropped:
                    sink.sendall(data[: len(data) // 2])
                    break
                if is_client or not self.is_deaf:
                    sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._open:
            end.close()


@pytest.fixture
def wire(shared_dsn: str) -> Iterator[Wire]:
    made = Wire(shared_dsn)
    yield made
    made.close()


def ask(provider: Any, **options: Any) -> list[str]:
    hits, details = provider.fulltext_search("grass", **options)
    assert "fallback_reason" not in details, details
    return [hit.content for hit in hits]


def failure(provider: Any, **options: Any) -> tuple[str, str | None]:
    hits, details = provider.fulltext_search("grass", **options)
    assert hits == []
    assert details["real_provider"] is False
    return details["error_kind"], details["code"]


def end_backends(shared: Connection) -> None:
    shared.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )


@contextmanager
def locked(dsn: str) -> Iterator[Connection]:
    """Keep every search waiting."""
    with psycopg.connect(dsn) as connection:
        connection.execute("lock table public.knowledge_chunks in access exclusive mode")
        yield connection
        connection.rollback()


@pytest.mark.parametrize("kind", ["autocommit", "in a transaction", "pool", "plain pool"])
def test_a_search_is_one_round_trip(side: Side, wire: Wire, kind: str) -> None:
    if kind == "pool":
        database = side.pool(wire.dsn)
    elif kind == "plain pool":
        database = side.pool(wire.dsn, ready=False, min_size=1)
    else:
        database = side.connect(wire.dsn, autocommit=kind == "autocommit")
        side.do(database.execute("select 1"))
    provider = side.provider(database)
    for timeout in (None, 30.0) * 4:
        before = wire.turns
        assert ask(provider, timeout=timeout) == FOUND
        assert wire.turns - before == 1
    assert wire.connections == 1


def test_an_idle_connection_without_autocommit_is_left_idle(side: Side, wire: Wire) -> None:
    connection = side.connect(wire.dsn)
    provider = side.provider(connection)
    for timeout in (None, 30.0):
        before = wire.turns
        assert ask(provider, timeout=timeout) == FOUND
        assert wire.turns - before == 3
        assert connection.info.transaction_status == TransactionStatus.IDLE
    assert failure(provider, search_mode="nosuch", timeout=30.0) == ("invalid_input", "22023")
    assert connection.info.transaction_status == TransactionStatus.IDLE


def test_a_pools_connection_comes_back_as_it_was(side: Side, shared_dsn: str) -> None:
    pool = side.pool(shared_dsn, ready=False, min_size=1, max_size=1)
    provider = side.provider(pool, timeout=30.0)
    assert ask(provider) == FOUND
    assert failure(provider, search_mode="nosuch") == ("invalid_input", "22023")
    with side.borrowed(pool) as connection:
        assert connection.autocommit is False
        assert connection.info.transaction_status == TransactionStatus.IDLE
        assert side.value(connection, "show statement_timeout") == "0"
        assert side.value(connection, PREPARED) == 0


def test_the_pool_keeps_no_state_of_a_session(side: Side, shared_dsn: str) -> None:
    pool = side.pool(make_conninfo(shared_dsn, application_name="mine"), max_size=1)
    with side.borrowed(pool) as connection:
        for _ in range(7):
            side.value(connection, "select 1")
        assert side.value(connection, PREPARED) == 0
        assert side.value(connection, "show application_name") == "mine"
        assert connection.info.get_parameters()["tcp_user_timeout"] == "30000"
    assert ask(side.provider(pool)) == FOUND


def test_connections_that_were_ended_are_replaced(
    side: Side, shared_dsn: str, shared: Connection
) -> None:
    pool = side.pool(shared_dsn, min_size=4, max_size=4)
    provider = side.provider(pool)
    end_backends(shared)
    assert ask(provider) == FOUND
    assert len(side.pauses) == 1
    assert 0 <= side.pauses[0] <= FIRST_PAUSE
    side.pauses.clear()
    for _ in range(4):
        assert ask(provider) == FOUND
    assert side.pauses == []


def test_a_backend_that_is_ended_during_a_search_is_replaced(
    side: Side, shared_dsn: str, shared: Connection
) -> None:
    provider = side.provider(side.pool(shared_dsn, min_size=1))
    with ThreadPoolExecutor(1) as thread:
        with locked(shared_dsn):
            answer = thread.submit(ask, provider)
            ended = None
            while ended is None:
                assert not answer.done()
                ended = shared.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and wait_event_type = 'Lock'"
                ).fetchone()
        assert answer.result(30) == FOUND
    assert len(side.pauses) == 1


def test_an_aborted_answer_is_retried_and_retries_end(
    side: Side, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.LATENCY = 0.0
    wire.drops = 2
    assert ask(side.provider(wire.dsn)) == FOUND
    assert len(side.pauses) == 2
    assert wire.connections == 3
    side.pauses.clear()
    monkeypatch.setattr(random, "uniform", lambda least, most: most)
    wire.drops = 100
    assert failure(side.provider(wire.dsn, retries=3)) == ("connection_lost", None)
    assert side.pauses == [0.1, 0.2, 0.4]
    side.pauses.clear()
    assert failure(side.provider(wire.dsn, retries=0)) == ("connection_lost", None)
    assert side.pauses == []
    provider = side.provider(wire.dsn, retries=1)
    with pytest.raises(SecondBrainError) as caught:
        provider.find([1, 0, 0], "grass")
    assert caught.value.kind == "connection_lost"
    assert len(side.pauses) == 1
    # No pause goes past the timeout.
    monkeypatch.setattr(random, "uniform", lambda least, most: 100.0)
    side.pauses.clear()
    assert failure(side.provider(wire.dsn, timeout=30.0)) == ("connection_lost", None)
    assert side.pauses == []


def test_a_callers_own_connection_is_not_replaced(
    side: Side, shared_dsn: str, shared: Connection
) -> None:
    connection = side.connect(shared_dsn, autocommit=True)
    provider = side.provider(connection)
    end_backends(shared)
    assert failure(provider)[0] == "connection_lost"
    assert "pool" in provider.fulltext_search("grass")[1]["remedy"]
    assert side.pauses == []


def test_who_is_not_there_or_has_no_free_connection_is_not_asked_again(
    side: Side, shared_dsn: str
) -> None:
    assert failure(side.provider(NOWHERE)) == ("unavailable", None)
    pool = side.pool(shared_dsn, max_size=1)
    with side.borrowed(pool):
        assert failure(side.provider(pool), timeout=0.05) == ("unavailable", None)
    assert side.pauses == []


@pytest.mark.parametrize("kind", ["autocommit", "idle", "pool", "dsn"])
def test_a_statement_that_takes_too_long_is_ended(side: Side, shared_dsn: str, kind: str) -> None:
    database: Any = shared_dsn
    if kind == "pool":
        database = side.pool(shared_dsn, min_size=1, max_size=1)
    elif kind != "dsn":
        database = side.connect(shared_dsn, autocommit=kind == "autocommit")
    # A provider with a DSN connects within its timeout, too.
    provider = side.provider(database, timeout=1.0 if kind == "dsn" else 0.1)
    with locked(shared_dsn):
        assert failure(provider) == ("timeout", "57014")
        with pytest.raises(SecondBrainError) as caught:
            provider.find(None, "grass")
        assert caught.value.code == "57014"
    assert side.pauses == []
    assert ask(provider, timeout=30.0) == FOUND
    if kind in ("autocommit", "idle"):
        assert side.value(database, "show statement_timeout") == "0"


def test_a_timeout_leaves_the_callers_transaction_as_it_was(side: Side, shared_dsn: str) -> None:
    connection = side.connect(shared_dsn)
    side.do(connection.execute("create temporary table mine (number integer)"))
    side.do(connection.execute("insert into mine values (1)"))
    side.do(connection.execute("set local statement_timeout = '47s'"))
    provider = side.provider(connection)
    other = side.connect(shared_dsn)
    side.do(other.execute("lock table public.knowledge_chunks in access exclusive mode"))
    assert failure(provider, timeout=0.05) == ("timeout", "57014")
    side.do(other.rollback())
    assert side.value(connection, "show statement_timeout") == "47s"
    assert ask(provider, timeout=30.0) == FOUND
    assert side.value(connection, "show statement_timeout") == "47s"
    assert connection.info.transaction_status == TransactionStatus.INTRANS
    side.do(connection.commit())
    assert side.value(connection, "select sum(number) from mine") == 1


def test_a_refusal_leaves_the_callers_transaction_as_it_was(side: Side, shared_dsn: str) -> None:
    connection = side.connect(shared_dsn)
    provider = side.provider(connection)
    side.do(connection.execute("select 1"))
    hits, details = provider.fulltext_search("a\x00b")
    assert (hits, details["error_kind"]) == ([], "invalid_input")
    assert connection.info.transaction_status == TransactionStatus.INTRANS
    assert ask(provider) == FOUND
    with pytest.raises(psycopg.errors.DivisionByZero):
        side.do(connection.execute("select 1 / 0"))
    assert failure(provider)[1] == "25P02"
    side.do(connection.rollback())
    assert ask(provider) == FOUND


@pytest.mark.parametrize("role", ["20ms", "1min", "0"])
def test_the_shorter_of_both_limits_holds(side: Side, shared_dsn: str, role: str) -> None:
    connection = side.connect(shared_dsn, autocommit=True, options=f"-c statement_timeout={role}")
    with locked(shared_dsn):
        timeout = 30.0 if role == "20ms" else 0.02
        assert failure(side.provider(connection), timeout=timeout) == ("timeout", "57014")
    assert side.value(connection, "show statement_timeout") == role


def test_a_silent_server_causes_a_client_timeout(
    side: Side, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_calls, "GRACE", 0.05)
    wire.LATENCY = 0.0
    pool = side.pool(wire.dsn, min_size=1, max_size=1)
    provider = side.provider(pool)
    wire.is_deaf = True
    _, details = provider.fulltext_search("grass", timeout=0.05)
    assert (details["error_kind"], details["code"]) == ("client_timeout", None)
    assert details["remedy"] != ""
    assert side.pauses == []
    wire.is_deaf = False
    # The pool opens another connection; a caller's own one is ended.
    assert ask(provider, timeout=30.0) == FOUND
    connection = side.connect(wire.dsn)
    side.do(connection.execute("select 1"))
    wire.is_deaf = True
    assert failure(side.provider(connection), timeout=0.05) == ("client_timeout", None)
    assert connection.closed


def test_a_server_that_accepts_and_says_nothing_is_unavailable(side: Side) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        provider = side.provider(f"postgresql://a@127.0.0.1:{port}/b?sslmode=disable")
        assert failure(provider, timeout=0.1) == ("unavailable", None)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 2 * LONGEST_TIMEOUT])
def test_an_invalid_timeout_is_refused(side: Side, timeout: float) -> None:
    _, details = side.provider(NOWHERE).hybrid_search(None, "grass", timeout=timeout)
    assert details["error_kind"] == "invalid_input"
    assert "timeout" in details["error_message"]
    with pytest.raises(SecondBrainError, match="timeout"):
        side.provider(NOWHERE, timeout=timeout)


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_a_search_that_is_cancelled_leaves_its_connection_usable(
    shared_dsn: str, timeout: float | None
) -> None:
    async def cancel(database: Any) -> None:
        provider = AsyncPostgresProvider(database, timeout=timeout, on_error="empty")
        with locked(shared_dsn), pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await provider.fulltext_search("grass")
        hits, _ = await provider.fulltext_search("grass", timeout=60.0)
        assert [hit.content for hit in hits] == FOUND

    async def cancel_both() -> None:
        async with await psycopg.AsyncConnection.connect(shared_dsn) as connection:
            await connection.execute("select 1")
            await cancel(connection)
            assert connection.info.transaction_status == TransactionStatus.INTRANS
        async with async_connection_pool(shared_dsn, min_size=1, max_size=1) as pool:
            await cancel(pool)

    asyncio.run(cancel_both())


def test_searches_on_a_loop_run_side_by_side(shared_dsn: str, shared: Connection) -> None:
    async def many() -> list[Any]:
        async with async_connection_pool(shared_dsn, min_size=3, max_size=3) as pool:
            provider = AsyncPostgresProvider(pool, on_error="empty")
            with locked(shared_dsn) as lock:
                searches = [
                    asyncio.create_task(provider.fulltext_search("grass")) for _ in range(3)
                ]
                waiting: Any = (0,)
                while waiting != (3,):
                    await asyncio.wait(searches, timeout=0.01)
                    waiting = shared.execute(
                        "select count(*) from pg_stat_activity"
                        " where datname = current_database() and wait_event_type = 'Lock'"
                    ).fetchone()
                lock.rollback()
            return await asyncio.gather(*searches)

    answers = asyncio.run(many())
    assert [[hit.content for hit in hits] for hits, _ in answers] == [FOUND] * 3


def test_searches_work_through_a_transaction_pooler(
    side: Side, pooler: str, shared_dsn: str, shared: Connection
) -> None:
    pool = side.pool(pooler, min_size=1, max_size=1)
    provider = side.provider(pool)
    # As many transactions at once have it open as many connections to the server.
    others = [side.connect(pooler) for _ in range(3)]
    for other in others:
        side.do(other.execute("select 1"))
    for other in others:
        side.do(other.rollback())
    for _ in range(7):
        assert ask(provider) == FOUND
        assert ask(provider, timeout=30.0) == FOUND
    with locked(shared_dsn):
        assert failure(provider, timeout=0.05) == ("timeout", "57014")
    state = "select array[pg_backend_pid()::text, current_setting('statement_timeout'),"
    state += f" ({PREPARED})::text]"
    with side.borrowed(pool) as connection:
        served = [side.value(connection, state) for _ in range(6)]
    assert len({backend for backend, _, _ in served}) == 3
    assert {(timeout, prepared) for _, timeout, prepared in served} == {("0", "0")}
    end_backends(shared)
    assert ask(provider) == FOUND


Clock = Callable[[float], None]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let seconds pass."""
    now = [1000.0]

    def pass_(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return pass_


def test_one_call_tests_a_server_that_has_failed(later: Clock) -> None:
    server = Reachability()
    assert [server.admits(5), server.admits(5)] == [True, True]
    server.has_failed()
    assert not server.admits(5)
    later(reachability.FIRST_REST)
    assert [server.admits(5), server.admits(5)] == [True, False]
    later(5)
    assert [server.admits(5), server.admits(5)] == [True, False]
    server.has_answered()
    assert [server.admits(5), server.admits(5)] == [True, True]


def test_each_test_that_fails_makes_the_rest_longer(later: Clock) -> None:
    server = Reachability()
    rests = []
    for _ in range(7):
        server.has_failed()
        # A concurrent call that fails with it.
        server.has_failed()
        waited = 0.0
        while not server.admits(60):
            later(0.5)
            waited += 0.5
        rests.append(waited)
    assert rests == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
