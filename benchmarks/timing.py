"""Times of clients, measured alternately, their throughput, and calls at a steady rate."""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from pgvector.psycopg import register_vector
from psycopg import Connection

from benchmarks.corpus import Query
from benchmarks.exact import COUNT
from benchmarks.memory import process_cpu
from benchmarks.peers.system import Client

LEAST_QUERIES = 5

Result = TypeVar("Result")


def timed(client: Client, query: Query) -> tuple[list[int], float]:
    """Return the ids and the milliseconds that it took to get them."""
    begin = time.perf_counter()
    ids = client.search(query, COUNT)
    return ids, 1000 * (time.perf_counter() - begin)


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and p99 by name."""
    return {f"p{share}": float(np.percentile(times, share)) for share in (50, 95, 99)}


@dataclass
class Series:
    """One client's answers to the queries of a kind, and the milliseconds of each."""

    client: Client
    spent: float = 0.0
    asked: int = 0
    rows: list[int] = field(default_factory=list)
    times: dict[int, list[float]] = field(default_factory=dict)
    cpu_times: dict[int, list[float]] = field(default_factory=dict)

    def warm_up(self, number: int, query: Query, budget: float) -> None:
        """Ask the next query, unless earlier ones have spent the seconds of the budget."""
        within = number < LEAST_QUERIES or self.spent < 1000 * budget
        if self.asked == number and within:
            ids, milliseconds = timed(self.client, query)
            self.spent += milliseconds
            self.asked += 1
            self.rows.append(len(ids))

    def ask(self, number: int, query: Query) -> None:
        """Ask a query and add its times."""
        begin = self.client.cpu()
        self.times.setdefault(number, []).append(timed(self.client, query)[1])
        end = self.client.cpu()
        if begin is not None and end is not None:
            self.cpu_times.setdefault(number, []).append(end - begin)

    def figures(self) -> dict[str, Any]:
        """Return percentiles over the queries of the median of each query's rounds."""
        medians = [statistics.median(found) for found in self.times.values()]
        of_cpu = [statistics.median(found) for found in self.cpu_times.values()]
        cpu = percentiles(of_cpu) if of_cpu else {}
        return {
            **percentiles(medians),
            **{f"cpu_{name}": milliseconds for name, milliseconds in cpu.items()},
            "queries": self.asked,
            "rows": statistics.mean(self.rows),
        }


def time_kind(
    stores: Sequence[Sequence[Client]], queries: Sequence[Query], rounds: int, budget: float
) -> list[Series]:
    """Ask all clients; the first round warms up and finds who is too slow for all queries.

    The clients of a store take turns query by query, the stores round by round, because a store
    that runs after others finds a cold processor cache.
    """
    series = [[Series(client) for client in clients] for clients in stores]
    for one in range(rounds + 1):
        for place in range(len(series)):
            turns = series[(place + one) % len(series)]
            for number, query in enumerate(queries):
                for turn in range(len(turns)):
                    current = turns[(turn + number + one) % len(turns)]
                    if one == 0:
                        current.warm_up(number, query, budget)
                    elif number < current.asked:
                        current.ask(number, query)
    return [one for turns in series for one in turns]


def together(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """Do each work in a thread of its own, and return the results; raises what one has raised."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [running.result() for running in [pool.submit(work) for work in works]]


def throughput(
    connect: Callable[[], Client], queries: Sequence[Query], clients: int, seconds: float
) -> float:
    """Return the throughput of this number of clients, in questions per second."""
    opened = [connect() for _ in range(clients)]
    for client in opened:
        client.search(queries[0], COUNT)
    begin = time.perf_counter()

    def ask(place: int) -> int:
        count = 0
        while time.perf_counter() < begin + seconds:
            query = queries[(place + count * clients) % len(queries)]
            opened[place].search(query, COUNT)
            count += 1
        return count

    asked = sum(together([partial(ask, place) for place in range(clients)]))
    taken = time.perf_counter() - begin
    for client in opened:
        client.close()
    return asked / taken


class Worker(threading.Thread):
    """A thread with a connection that does something at a steady rate until it is stopped.

    After a delay it continues without a pause. `times` has when each call began and how many
    milliseconds it took, `cpu` the server's CPU time for it, in milliseconds.
    """

    def __init__(self, dsn: str, every: float, once: Callable[["Connection[Any]"], object]) -> None:
        super().__init__()
        self.connection: Connection[Any] = Connection.connect(dsn, autocommit=True)
        register_vector(self.connection)
        self._every = every
        self._once = once
        self._stopped = threading.Event()
        self.failure: BaseException | None = None
        self.times: list[tuple[float, float]] = []
        self.cpu: list[float] = []
        self.start()

    def run(self) -> None:
        """Do it until stopped."""
        process = self.connection.info.backend_pid
        try:
            due = time.perf_counter()
            while not self._stopped.wait(max(due - time.perf_counter(), 0.0)):
                begin, before = time.perf_counter(), process_cpu(process)
                self._once(self.connection)
                self.times.append((begin, 1000 * (time.perf_counter() - begin)))
                self.cpu.append((process_cpu(process) or 0.0) - (before or 0.0))
                due = max(due + self._every, begin)
        except BaseException as exc:  # noqa: BLE001 - raised again by stop
            self.failure = exc

    def stop(self) -> None:
        """Wait for the call that is under way; raises what a call has raised."""
        self._stopped.set()
        self.join()
        self.connection.close()
        if self.failure is not None:
            raise self.failure
