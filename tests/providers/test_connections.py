"""Timeouts, lost connections and round trips, over real connections that are broken on purpose.

Each test that takes a `side` runs twice: with the blocking provider and with the one for an event
loop. `Wire` stands between client and server; `pgbouncer` is the real one, where there is one.
"""

import asyncio
import inspect
import os
import random
import shutil
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from conftest import Connection
from second_brain.errors import PermissionDeniedError, SecondBrainError
from second_brain.services import reading
from second_brain.services.calls import FIRST_PAUSE, LONGEST_TIMEOUT
from second_brain.services.connections import async_connection_pool, connection_pool
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.provider import SearchProvider
from second_brain.services.write import KnowledgeWriter

CHUNKS: list[dict[str, object]] = [
    {"content": "The zebra crossing is striped.", "embedding": [1.0, 0.0, 0.0]},
    {"content": "A zebra eats grass on the plain.", "embedding": [0.8, 0.6, 0.0]},
    {"content": "The lion sleeps.", "embedding": [0.0, 0.0, 1.0]},
]
FOUND = ["A zebra eats grass on the plain."]


@pytest.fixture(scope="module", autouse=True)
def corpus(shared: Connection) -> None:
    document = {"external_key": "savanna", "title": "Savanna", "visibility": "public"}
    KnowledgeWriter(shared).upsert_document(document, CHUNKS)


class Wire:
    """A TCP relay to the server: counts the client's turns, drops answers, or loses them."""

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
        """End everything."""
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


class Side(ABC):
    """One of the two ways to use a provider."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.cleanup: list[Callable[[], object]] = []

    @abstractmethod
    def provider(self, database: Any, **options: Any) -> Any:
        """Return a provider whose pauses are noted and not made."""

    @abstractmethod
    def connect(self, dsn: str, **options: Any) -> Any:
        """Open a connection."""

    @abstractmethod
    def pool(self, dsn: str, *, ready: bool = True, **options: Any) -> Any:
        """Open the pool that the package offers, or a plain one."""

    @abstractmethod
    def do(self, outcome: Any) -> Any:
        """Wait for the outcome of a connection's method."""

    def value(self, connection: Any, query: str) -> Any:
        """Return the single value of a query."""
        row = self.do(self.do(connection.execute(query)).fetchone())
        return row[0]

    def close(self) -> None:
        """Close what was opened."""
        for step in reversed(self.cleanup):
            self.do(step())


class Blocking(Side):
    """Threads."""

    def provider(self, database: Any, **options: Any) -> Any:
        """See Side."""
        return PostgresProvider(database, **{"sleep": self.pauses.append, **options})

    def connect(self, dsn: str, **options: Any) -> Any:
        """See Side."""
        connection = psycopg.connect(dsn, **options)
        self.cleanup.append(connection.close)
        return connection

    def pool(self, dsn: str, *, ready: bool = True, **options: Any) -> Any:
        """See Side."""
        pool = (
            connection_pool(dsn, **options) if ready else ConnectionPool(dsn, open=True, **options)
        )
        self.cleanup.append(pool.close)
        pool.wait()
        return pool

    def do(self, outcome: Any) -> Any:
        """See Side."""
        return outcome


class Looping(Side):
    """An event loop, which runs only during a call."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()

    def provider(self, database: Any, **options: Any) -> Any:
        """See Side."""

        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)

        return Waited(self, AsyncPostgresProvider(database, **{"sleep": sleep, **options}))

    def connect(self, dsn: str, **options: Any) -> Any:
        """See Side."""
        connection = self.do(psycopg.AsyncConnection.connect(dsn, **options))
        self.cleanup.append(connection.close)
        return connection

    def pool(self, dsn: str, *, ready: bool = True, **options: Any) -> Any:
        """See Side."""

        async def make() -> Any:
            if ready:
                pool = async_connection_pool(dsn, **options)
            else:
                pool = AsyncConnectionPool(dsn, open=False, **options)
            await pool.open(wait=True)
            return pool

        pool = self.do(make())
        self.cleanup.append(pool.close)
        return pool

    def do(self, outcome: Any) -> Any:
        """See Side."""

        async def wait() -> Any:
            return await outcome

        return self.runner.run(wait()) if inspect.isawaitable(outcome) else outcome

    def close(self) -> None:
        """See Side."""
        super().close()
        self.runner.close()


class Waited:
    """A provider for an event loop, whose methods are waited for."""

    def __init__(self, side: Looping, provider: AsyncPostgresProvider) -> None:
        self._side, self._provider = side, provider

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._provider, name)
        return lambda *arguments, **options: self._side.do(method(*arguments, **options))


@pytest.fixture(params=[Blocking, Looping])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    made: Side = request.param()
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


@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize("kind", ["autocommit", "in a transaction", "pool", "plain pool"])
def test_a_search_is_one_round_trip(
    side: Side, wire: Wire, kind: str, timeout: float | None
) -> None:
    if kind == "pool":
        database = side.pool(wire.dsn)
    elif kind == "plain pool":
        database = side.pool(wire.dsn, ready=False, min_size=1)
    else:
        database = side.connect(wire.dsn, autocommit=kind == "autocommit")
        side.do(database.execute("select 1"))
    provider = side.provider(database, timeout=timeout)
    for _ in range(7):
        before = wire.turns
        assert ask(provider) == FOUND
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
    connection = side.do(pool.getconn())
    try:
        assert connection.autocommit is False
        assert connection.info.transaction_status == TransactionStatus.IDLE
        assert side.value(connection, "show statement_timeout") == "0"
        assert side.value(connection, "select count(*) from pg_prepared_statements") == 0
    finally:
        side.do(pool.putconn(connection))


def test_the_pool_keeps_no_state_of_a_session(side: Side, shared_dsn: str) -> None:
    pool = side.pool(make_conninfo(shared_dsn, application_name="mine"), max_size=1)
    provider = side.provider(pool)
    connection = side.do(pool.getconn())
    try:
        for _ in range(7):
            side.value(connection, "select 1")
        assert side.value(connection, "select count(*) from pg_prepared_statements") == 0
        assert side.value(connection, "show application_name") == "mine"
        assert connection.info.get_parameters()["tcp_user_timeout"] == "30000"
    finally:
        side.do(pool.putconn(connection))
    assert ask(provider) == FOUND


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


def test_an_aborted_answer_is_retried(side: Side, wire: Wire) -> None:
    provider = side.provider(wire.dsn)
    wire.drops = 2
    assert ask(provider) == FOUND
    assert len(side.pauses) == 2
    assert wire.connections == 3


def test_retries_end(side: Side, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda least, most: most)
    wire.drops = 100
    assert failure(side.provider(wire.dsn, retries=3)) == ("connection_lost", None)
    assert side.pauses == [0.1, 0.2, 0.4]
    side.pauses.clear()
    assert failure(side.provider(wire.dsn, retries=0)) == ("connection_lost", None)
    assert side.pauses == []
    # Neither a batch nor what raises is another case.
    provider = side.provider(wire.dsn, retries=1)
    with pytest.raises(SecondBrainError) as caught:
        provider.explain_hybrid_search([1, 0, 0], "grass")
    assert caught.value.kind == "connection_lost"
    assert len(side.pauses) == 1


def test_no_retry_goes_past_the_timeout(
    side: Side, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda least, most: 100.0)
    wire.drops = 100
    assert failure(side.provider(wire.dsn, timeout=30.0)) == ("connection_lost", None)
    assert side.pauses == []


def test_a_callers_own_connection_is_not_replaced(
    side: Side, shared_dsn: str, shared: Connection
) -> None:
    connection = side.connect(shared_dsn, autocommit=True)
    provider = side.provider(connection)
    end_backends(shared)
    assert failure(provider)[0] == "connection_lost"
    _, details = provider.fulltext_search("grass")
    assert details["error_kind"] == "connection_lost"
    assert "pool" in details["remedy"]
    assert side.pauses == []


def test_a_server_that_is_not_there_is_not_asked_again(side: Side) -> None:
    provider = side.provider("postgresql://someone@127.0.0.1:1/nosuch")
    assert failure(provider) == ("unavailable", None)
    assert side.pauses == []


def test_a_pool_without_a_free_connection_is_not_asked_again(side: Side, shared_dsn: str) -> None:
    pool = side.pool(shared_dsn, max_size=1)
    taken = side.do(pool.getconn())
    try:
        assert failure(side.provider(pool), timeout=0.05) == ("unavailable", None)
        assert side.pauses == []
    finally:
        side.do(pool.putconn(taken))


@pytest.mark.parametrize("kind", ["autocommit", "idle", "pool", "dsn"])
def test_a_statement_that_takes_too_long_is_ended(side: Side, shared_dsn: str, kind: str) -> None:
    database: Any = shared_dsn
    if kind == "pool":
        database = side.pool(shared_dsn, min_size=1, max_size=1)
    elif kind != "dsn":
        database = side.connect(shared_dsn, autocommit=kind == "autocommit")
    provider = side.provider(database, timeout=0.1)
    with locked(shared_dsn):
        assert failure(provider) == ("timeout", "57014")
        with pytest.raises(SecondBrainError) as caught:
            provider.explain_hybrid_search(None, "grass", timeout=0.05)
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
    assert ask(provider, timeout=0.5) == FOUND
    assert side.value(connection, "show statement_timeout") == "47s"
    assert connection.info.transaction_status == TransactionStatus.INTRANS
    side.do(connection.commit())
    assert side.value(connection, "select sum(number) from mine") == 1


def test_what_cannot_be_sent_leaves_the_callers_transaction_usable(
    side: Side, shared_dsn: str
) -> None:
    connection = side.connect(shared_dsn)
    side.do(connection.execute("select 1"))
    hits, details = side.provider(connection).fulltext_search("a\x00b")
    assert (hits, details["error_kind"]) == ([], "invalid_input")
    assert connection.info.transaction_status == TransactionStatus.INTRANS
    assert ask(side.provider(connection)) == FOUND


def test_a_transaction_that_had_failed_is_told_so(side: Side, shared_dsn: str) -> None:
    connection = side.connect(shared_dsn)
    with pytest.raises(psycopg.errors.DivisionByZero):
        side.do(connection.execute("select 1 / 0"))
    assert failure(side.provider(connection))[1] == "25P02"
    side.do(connection.rollback())
    assert ask(side.provider(connection)) == FOUND


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
    monkeypatch.setattr(reading, "GRACE", 0.05)
    pool = side.pool(wire.dsn, min_size=1, max_size=1)
    provider = side.provider(pool)
    wire.is_deaf = True
    _, details = provider.fulltext_search("grass", timeout=0.05)
    assert (details["error_kind"], details["code"]) == ("client_timeout", None)
    assert details["remedy"] != ""
    assert side.pauses == []
    wire.is_deaf = False
    # The pool opens another connection.
    assert ask(provider, timeout=30.0) == FOUND


def test_a_silent_server_ends_a_callers_own_connection(
    side: Side, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "GRACE", 0.05)
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
    nowhere = "postgresql://someone@127.0.0.1:1/nosuch"
    _, details = side.provider(nowhere).hybrid_search(None, "grass", timeout=timeout)
    assert details["error_kind"] == "invalid_input"
    assert "timeout" in details["error_message"]
    with pytest.raises(SecondBrainError, match="timeout"):
        side.provider(nowhere, timeout=timeout)


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_a_search_that_is_cancelled_leaves_the_transaction_usable(
    shared_dsn: str, timeout: float | None
) -> None:
    async def cancel() -> list[str]:
        async with await psycopg.AsyncConnection.connect(shared_dsn) as connection:
            await connection.execute("select 1")
            provider = AsyncPostgresProvider(connection, timeout=timeout)
            with locked(shared_dsn):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await provider.fulltext_search("grass")
                assert connection.info.transaction_status == TransactionStatus.INTRANS
            hits, _ = await provider.fulltext_search("grass")
            return [hit.content for hit in hits]

    assert asyncio.run(cancel()) == FOUND


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_a_cancelled_search_gives_its_connection_back(
    shared_dsn: str, timeout: float | None
) -> None:
    async def cancel() -> None:
        async with async_connection_pool(shared_dsn, min_size=1, max_size=1) as pool:
            provider = AsyncPostgresProvider(pool, timeout=timeout)
            with locked(shared_dsn), pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await provider.fulltext_search("grass")
            hits, _ = await provider.fulltext_search("grass", timeout=5.0)
            assert [hit.content for hit in hits] == FOUND

    asyncio.run(cancel())


def test_searches_on_a_loop_run_side_by_side(shared_dsn: str, shared: Connection) -> None:
    async def many() -> list[Any]:
        async with async_connection_pool(shared_dsn, min_size=3, max_size=3) as pool:
            provider = AsyncPostgresProvider(pool)
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


def test_a_wrong_type_of_database_is_refused_at_once(shared_dsn: str) -> None:
    with pytest.raises(TypeError, match="not Connection"), psycopg.connect(shared_dsn) as wrong:
        AsyncPostgresProvider(wrong)  # type: ignore[arg-type]


Asked = tuple[str, tuple[Any, ...], dict[str, Any]]

_EMBEDDINGS = st.sampled_from([None, [1, 0, 0], (0.6, 0.8, 0), "[0,0,1]", [1, 2], [0, 0, 0], "x"])
_TEXTS = st.sampled_from([None, "", "zebra", "grass lion", '"zebra crossing"', "a\x00", "nosuch"])
_VIEWERS = st.sampled_from([None, UUID(int=1), "nobody", str(UUID(int=1))])
_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.sampled_from([1, 2, 0, 10**12]),
        "threshold": st.sampled_from([0.9, -1.0, 2.0]),
        "fusion": st.sampled_from(["rrf", "auto", "nosuch"]),
        "search_mode": st.sampled_from(["simple", "phrase", "nosuch"]),
        "filters": st.sampled_from([None, {"team": "search"}, [{"field": "nosuch"}], 7]),
        "date_from": st.sampled_from(["2026-01-31", "soon"]),
        "snippet": st.booleans(),
        "public_only": st.booleans(),
        "timeout": st.sampled_from([None, 60.0, 0]),
    },
)
_LEG_OPTIONS = st.fixed_dictionaries(
    {}, optional={"top_k": st.sampled_from([1, 0]), "viewer_id": _VIEWERS}
)


def _without_timeout(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "timeout"}


_HYBRID = st.tuples(_EMBEDDINGS, _TEXTS)
_QUERIES = st.lists(
    st.builds(
        lambda asked, options: {
            "query_embedding": asked[0],
            "query_text": asked[1],
            **_without_timeout(options),
        },
        _HYBRID,
        _OPTIONS,
    ),
    max_size=3,
)
_CALLS: st.SearchStrategy[Asked] = st.one_of(
    st.tuples(
        st.just("hybrid_search"),
        _HYBRID,
        st.builds(lambda one, viewer: {**one, "viewer_id": viewer}, _OPTIONS, _VIEWERS),
    ),
    st.tuples(st.sampled_from(["search_my_knowledge", "explain_hybrid_search"]), _HYBRID, _OPTIONS),
    st.tuples(st.just("search"), st.tuples(_EMBEDDINGS), _LEG_OPTIONS),
    st.tuples(st.just("fulltext_search"), st.tuples(_TEXTS), _LEG_OPTIONS),
    st.tuples(
        st.just("hybrid_search_batch"),
        st.tuples(_QUERIES),
        st.fixed_dictionaries({"fuse": st.booleans()}),
    ),
)


def answer(provider: Any, asked: Asked) -> Any:
    method, arguments, options = asked
    try:
        found = getattr(provider, method)(*arguments, **options)
    except SecondBrainError as error:
        return type(error), str(error), error.code, error.remedy
    if method == "explain_hybrid_search":
        del found["milliseconds"]
    return found


@pytest.fixture(scope="module")
def both(shared_dsn: str) -> Iterator[list[Any]]:
    """The two kinds of provider, each multi-tenant too or not."""
    sides = [Blocking(), Looping()]
    yield [
        [
            one.provider(one.connect(shared_dsn, autocommit=True), multi_tenant=multi_tenant)
            for multi_tenant in (False, True)
        ]
        for one in sides
    ]
    for one in sides:
        one.close()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(asked=_CALLS, is_multi_tenant=st.booleans())
def test_a_loop_gets_the_answers_that_a_thread_gets(
    both: list[Any], asked: Asked, is_multi_tenant: bool
) -> None:
    blocking, looping = both
    assert answer(looping[is_multi_tenant], asked) == answer(blocking[is_multi_tenant], asked)


def test_the_methods_of_both_kinds_take_the_same() -> None:
    public = [name for name in vars(SearchProvider) if not name.startswith("_")]
    assert "embedding_models" in public
    for name in public:
        one = inspect.signature(getattr(PostgresProvider, name))
        method = getattr(AsyncPostgresProvider, name)
        other = inspect.signature(method)
        assert inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method), name
        # An iterator of pages has another type for an event loop.
        assert one.parameters == other.parameters, name
        if inspect.iscoroutinefunction(method):
            assert one == other, name


def test_the_embedding_models_are_returned(side: Side, shared: Connection, shared_dsn: str) -> None:
    document = {"external_key": "models"}
    chunks = [
        {"content": f"model {number}", "embedding": [0, 1, 0], "embedding_model": "mine"}
        for number in range(2)
    ]
    KnowledgeWriter(shared).upsert_document(document, chunks)
    try:
        models = side.provider(shared_dsn).embedding_models(timeout=30.0)
        assert ("mine", 3, 2) in [(one.model, one.dimensions, one.chunks) for one in models]
        nobody = side.connect(shared_dsn, autocommit=True)
        side.do(nobody.execute("set role anon"))
        with pytest.raises(PermissionDeniedError):
            side.provider(nobody).embedding_models()
    finally:
        KnowledgeWriter(shared).delete_document("models")


@pytest.fixture
def pooler(shared_dsn: str, tmp_path: Path) -> Iterator[str]:
    """The DSN of a pgbouncer that gives each transaction another server connection."""
    binary = os.environ.get("PGBOUNCER_BIN") or shutil.which("pgbouncer")
    if binary is None:
        pytest.skip("PGBOUNCER_BIN names no pgbouncer, and there is none in the path")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    parts = conninfo_to_dict(shared_dsn)
    configuration = tmp_path / "pgbouncer.ini"
    configuration.write_text(
        f"[databases]\n* = host={parts['host']} port={parts['port']}"
        f" user={parts['user']} password={parts['password']}\n"
        "[pgbouncer]\npool_mode = transaction\nauth_type = any\nserver_round_robin = 1\n"
        "min_pool_size = 3\ndefault_pool_size = 3\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
    )
    tmp_path.chmod(0o755)
    command = [binary, str(configuration)]
    if os.geteuid() == 0:
        command[1:1] = ["-u", "nobody"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            yield await_port(make_conninfo(shared_dsn, host="127.0.0.1", port=port), process)
        finally:
            process.terminate()


def await_port(dsn: str, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 10
    while True:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
        else:
            return dsn


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
    connection = side.do(pool.getconn())
    state = (
        "select array[pg_backend_pid()::text, current_setting('statement_timeout'),"
        " (select count(*) from pg_prepared_statements)::text]"
    )
    try:
        served = [side.value(connection, state) for _ in range(6)]
    finally:
        side.do(pool.putconn(connection))
    assert len({backend for backend, _, _ in served}) == 3
    assert {(timeout, prepared) for _, timeout, prepared in served} == {("0", "0")}
    end_backends(shared)
    assert ask(provider) == FOUND
