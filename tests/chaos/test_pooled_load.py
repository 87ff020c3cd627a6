"""Many clients on a small pool, with timeouts, cancellations and ended sessions.

Each search answers or names a documented failure, and the pool is as it was afterwards.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from conftest import Connect, Connection
from corpora import store_document
from second_brain.services.connections import async_connection_pool, connection_pool
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from trials import PATIENCE, Trial

pytestmark = pytest.mark.chaos(share=0.2)

CLIENTS, CONNECTIONS = 30, 3
CHUNKS = 400
TIMEOUTS = [0.002, 0.01, 0.05, 1.0, None]
FAILURES = ("timeout", "client_timeout", "unavailable", "connection_lost")
S = TypeVar("S")
APPLICATION = "second-brain"


def fill(service: Connection) -> None:
    for number in range(CHUNKS // 20):
        texts = {f"alpha beta w{number} w{place}": [1, number, place] for place in range(20)}
        store_document(service, f"d{number}", texts)


def arguments(draw: random.Random) -> dict[str, Any]:
    return {
        "query_embedding": [1.0, draw.random(), 1.0],
        "query_text": f"alpha w{draw.randrange(20)}",
        "top_k": draw.choice([5, 100]),
        "snippet": True,
        "timeout": draw.choice(TIMEOUTS),
    }


def judge(trial: Trial, hits: list[Any], details: Any) -> None:
    if "fallback_reason" not in details:
        if not hits:
            trial.violated("a search found nothing and named no failure")
        trial.held("answered")
    elif details["error_kind"] in FAILURES:
        trial.held(f"failed with {details['error_kind']}")
    else:
        trial.violated(f"a search: {details['error_kind']} {details['error_message']}")


def search(trial: Trial, pool: ConnectionPool[Any], name: str) -> None:
    draw, provider = trial.random(name), PostgresProvider(pool, on_error="empty")
    while trial.is_on(0.5):
        trial.note("searches in threads")
        try:
            judge(trial, *provider.hybrid_search(**arguments(draw)))
        except Exception as error:  # noqa: BLE001
            trial.violated(f"a search raised {type(error).__name__}: {error}")


async def search_async(trial: Trial, pool: AsyncConnectionPool[Any], name: str) -> None:
    draw, provider = trial.random(name), AsyncPostgresProvider(pool, on_error="empty")
    while trial.is_on():
        trial.note("searches on a loop")
        limit = draw.choice([None, None, 0.001, 0.02])
        try:
            judge(trial, *await asyncio.wait_for(provider.hybrid_search(**arguments(draw)), limit))
        except TimeoutError:
            trial.held("cancelled")
        except Exception as error:  # noqa: BLE001
            trial.violated(f"a search raised {type(error).__name__}: {error}")


def end_sessions(trial: Trial, owner: Connection, end: threading.Event) -> None:
    while not end.wait(0.5):
        ended = owner.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = %s and datname = current_database()"
            " order by random() limit 1",
            [APPLICATION],
        )
        trial.note("ended sessions", count=ended.rowcount)


@contextmanager
def ended_sessions(trial: Trial, owner: Connection) -> Iterator[None]:
    """End sessions within the block; afterwards none is being ended."""
    end = threading.Event()
    thread = threading.Thread(target=end_sessions, args=(trial, owner, end))
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def settles(trial: Trial, what: str, state: Callable[[], S], is_right: Callable[[S], bool]) -> S:
    """Wait until a state is right; it is a violation if it never is. Return the last state."""
    give_up = time.monotonic() + PATIENCE
    while not is_right(now := state()):
        if time.monotonic() > give_up:
            trial.violated(f"{what} after the load: {now}")
            break
        time.sleep(0.05)
    return now


def check_sessions(trial: Trial, owner: Connection) -> None:
    def sessions() -> list[str]:
        statement = "select state from pg_stat_activity where application_name = %s"
        statement += " and datname = current_database()"
        return [state for (state,) in owner.execute(statement.encode(), [APPLICATION])]

    settles(trial, "sessions", sessions, lambda now: len(now) <= CONNECTIONS and {*now} <= {"idle"})


def check_pool(trial: Trial, stats: Callable[[], dict[str, int]]) -> None:
    def is_idle(now: dict[str, int]) -> bool:
        return not now.get("requests_waiting") and now["pool_available"] == now["pool_size"]

    now = settles(trial, "the pool", stats, is_idle)
    if not 1 <= now["pool_size"] <= CONNECTIONS:
        trial.violated(f"the pool after the load: {now}")
    trial.held("pools without a lost connection")


def check_connection(trial: Trial, status: object, autocommit: bool, timeout: object) -> None:
    if (status, autocommit, timeout) != (TransactionStatus.IDLE, True, ("0",)):
        trial.violated(f"a pooled connection is {status}, {autocommit}, {timeout}")


def in_threads(trial: Trial, dsn: str, owner: Connection) -> None:
    with connection_pool(dsn, max_size=CONNECTIONS, timeout=1.0) as pool:
        threads = [
            threading.Thread(target=search, args=(trial, pool, f"client{number}"))
            for number in range(CLIENTS)
        ]
        with ended_sessions(trial, owner):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=trial.seconds + PATIENCE)
                if thread.is_alive():
                    trial.violated(f"{thread.name} waits for ever")
        # No search has met the session that was ended last.
        pool.check()
        check_pool(trial, pool.get_stats)
        for _ in range(CONNECTIONS):
            with pool.connection(timeout=10) as connection:
                status = connection.info.transaction_status
                timeout = connection.execute("show statement_timeout").fetchone()
                check_connection(trial, status, connection.autocommit, timeout)


async def on_a_loop(trial: Trial, dsn: str, owner: Connection) -> None:
    async with async_connection_pool(dsn, max_size=CONNECTIONS, timeout=1.0) as pool:
        tasks = [search_async(trial, pool, f"task{number}") for number in range(CLIENTS)]
        with ended_sessions(trial, owner):
            await asyncio.wait_for(asyncio.gather(*tasks), trial.seconds + 2 * PATIENCE)
        await pool.check()
        await asyncio.to_thread(check_pool, trial, pool.get_stats)
        for _ in range(CONNECTIONS):
            async with pool.connection(timeout=10) as connection:
                status = connection.info.transaction_status
                timeout = await (await connection.execute("show statement_timeout")).fetchone()
                check_connection(trial, status, connection.autocommit, timeout)


def test_a_small_pool_loses_no_connection(trial: Trial, dsn: str, connect: Connect) -> None:
    trial.needs("answered", "cancelled", "ended sessions", "pools without a lost connection")
    fill(connect("service_role"))
    owner = connect()
    try:
        in_threads(trial, dsn, owner)
        check_sessions(trial, owner)
        asyncio.run(on_a_loop(trial, dsn, owner))
        check_sessions(trial, owner)
    except psycopg.Error as error:
        trial.violated(f"the pool afterwards: {error}")
    trial.finish()
