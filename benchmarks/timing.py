"""Times of clients, measured alternately, and their throughput in questions per second."""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.exact import COUNT
from benchmarks.peers.system import Client, Query

LEAST_QUERIES = 5


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


def throughput(
    connect: Callable[[], Client], queries: Sequence[Query], clients: int, seconds: float
) -> float:
    """Return the throughput of this number of clients, in questions per second."""
    opened = [connect() for _ in range(clients)]
    for client in opened:
        client.search(queries[0], COUNT)
    begin = threading.Barrier(clients + 1)
    counts = [0] * clients
    failures: list[BaseException] = []
    end = 0.0

    def ask(place: int) -> None:
        try:
            begin.wait()
            number = place
            while time.perf_counter() < end:
                opened[place].search(queries[number % len(queries)], COUNT)
                counts[place] += 1
                number += clients
        except BaseException as exc:  # noqa: BLE001 - raised again below, in the main thread
            failures.append(exc)

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(clients)]
    for thread in threads:
        thread.start()
    started = time.perf_counter()
    end = started + seconds
    begin.wait()
    for thread in threads:
        thread.join()
    taken = time.perf_counter() - started
    for client in opened:
        client.close()
    if failures:
        raise failures[0]
    return sum(counts) / taken
