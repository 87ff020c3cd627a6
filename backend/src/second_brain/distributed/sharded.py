"""Search one corpus that is spread over several databases, each a provider of its own.

The databases rank and fuse; this module only sends and collects. A search has four steps: what the
databases know of the question, their candidates, the fusion of all candidates in one of them, and
the rows of the page. `sharded_write` places the documents.
"""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, ClassVar, Literal, TypeAlias, cast

from psycopg_pool import PoolTimeout

from second_brain.errors import (
    InvalidInputError,
    SearchTimeoutError,
    SecondBrainError,
    UnavailableError,
    UnexpectedAnswerError,
    safe_message,
    translate,
)
from second_brain.services.arguments import DEFAULTS, SQL_NAMES
from second_brain.services.blocking import finished
from second_brain.services.calls import Deadline
from second_brain.services.emptiness import OnError
from second_brain.services.provider import AsyncSearchProvider, SearchProvider
from second_brain.services.reachability import PROBE_WAIT, Reachability
from second_brain.services.results import MOST_PENDING, PartialRows, Source
from second_brain.services.searches import (
    BATCH,
    COUNT,
    EMPTY,
    FACETS,
    HYBRID,
    MINE,
    MY_FACETS,
    MY_PENDING,
    PENDING,
    PUBLIC,
    Searches,
)

TIMEOUT = 10.0
"""Seconds: the default timeout of a search."""

LONGEST_REST = 4.0
"""Seconds after which a database that fails is tested again. No search waits for the test."""

OnMissing = Literal["partial", "error"]
"""What a search does without a database: answer without it and say so, or fail."""

_SQL_DEFAULTS = {SQL_NAMES.get(name, name): value for name, value in DEFAULTS.items()}
# The share of the remaining time that a step may take.
_QUESTION_SHARE, _CANDIDATES_SHARE, _FUSION_SHARE, _ROWS_SHARE = 0.4, 0.6, 0.5, 0.5
# More than a pool has connections, so that a search waits there and not here.
_THREADS_PER_SHARD = 32

Calls: TypeAlias = Mapping[str, dict[str, Any]]
Answers: TypeAlias = dict[str, Any]
Failures: TypeAlias = dict[str, Exception]
Probe: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


@dataclass
class _Call:
    """One call of a provider of this module: the databases that it asks, and those it lacks."""

    deadline: Deadline
    asked: list[str]
    missing: Failures = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    @property
    def present(self) -> list[str]:
        """The databases that have not failed."""
        return [name for name in self.asked if name not in self.missing]


class _Sharded(Searches):
    """Base of both providers."""

    _shards: Mapping[str, Searches]
    _on_missing: OnMissing

    def _prepare(self, shards: Mapping[str, Any] | Sequence[Any], on_missing: OnMissing) -> None:
        named = (
            dict(shards)
            if isinstance(shards, Mapping)
            else {f"shard {place}": shard for place, shard in enumerate(shards, start=1)}
        )
        if not named:
            raise InvalidInputError("shards is empty, give at least one provider")
        for name, shard in named.items():
            if not shard.is_concurrent:
                raise InvalidInputError(
                    f"the provider of {name} has one connection, which searches cannot share",
                    remedy="Give it a connection pool or a connection string.",
                )
        if on_missing not in ("partial", "error"):
            raise InvalidInputError(f"on_missing must be partial or error, not {on_missing!r:.100}")
        self._shards = named
        self._on_missing = on_missing
        self._states = {name: Reachability(LONGEST_REST) for name in named}
        # The last answers of each function: a search can hang in one of its steps.
        self._answered_at: dict[tuple[str, str], float] = {}
        self._turn = count()

    def _secrets(self) -> Iterable[object]:
        return [secret for shard in self._shards.values() for secret in shard._secrets()]

    @property
    def _until(self) -> str:
        """When an answer is complete: also with the first failure, if that makes the call fail."""
        return FIRST_EXCEPTION if self._on_missing == "error" else ALL_COMPLETED

    @abstractmethod
    async def _everywhere(
        self, function: str, calls: Calls, timeout: float | None
    ) -> tuple[Answers, Failures]:
        """Call the function in several databases at the same time; return what they answered."""

    @abstractmethod
    async def _begun(self, probes: Sequence[Probe], seconds: float) -> None:
        """Begin some calls, and wait for them at most so long; they go on afterwards."""

    async def _from_each(self, call: _Call, function: str, calls: Calls, share: float) -> Answers:
        """Return the answers; note the databases that gave none. Raise where no one is left."""
        answers, failures = await self._everywhere(function, calls, call.deadline.left(share))
        for name in answers:
            self._answered_at[name, function] = time.monotonic()
        for name, error in failures.items():
            known = translate(error)
            if isinstance(known, InvalidInputError):
                # The call is wrong, not the database.
                raise error
            call.missing[name] = error
            self._note(name, function, error, call.begun)
        if failures and (self._on_missing == "error" or not call.present):
            raise _named(*next(iter(failures.items())))
        # In the order of the databases, not in that of their answers.
        return {name: answers[name] for name in calls if name in answers}

    def _note(self, name: str, function: str, error: Exception, begun: float) -> None:
        """Let a database rest if the error means that it does not answer."""
        state, known = self._states[name], translate(error)
        is_wait = isinstance(error, PoolTimeout) or isinstance(known, SearchTimeoutError)
        if is_wait and self._answered_at.get((name, function), begun) > begun:
            # It has answered another call meanwhile: it is busy.
            return
        if is_wait or state.is_failing(error):
            state.has_failed()
        else:
            state.has_answered()

    async def _present(self, function: str, arguments: dict[str, Any], call: _Call) -> None:
        """Leave out the databases that rest after a failure; see whether they answer again."""
        seconds = self._timeout or TIMEOUT
        if probes := [
            partial(self._probe, function, arguments, _Call(Deadline(seconds), [name]))
            for name, state in self._states.items()
            if state.is_suspect and state.admits(seconds)
        ]:
            await self._begun(probes, PROBE_WAIT)
        resting = [name for name, state in self._states.items() if state.is_suspect]
        if self._on_missing == "partial" and len(resting) == len(self._states):
            return
        for name in resting:
            call.missing[name] = UnavailableError("it did not answer a moment ago")
        if resting and self._on_missing == "error":
            raise _named(resting[0], call.missing[resting[0]])

    async def _probe(self, function: str, arguments: dict[str, Any], alone: _Call) -> None:
        with suppress(Exception):
            await self._run(function, arguments, alone)

    async def _all(self, call: _Call, function: str, arguments: dict[str, Any]) -> Answers:
        return await self._from_each(call, function, dict.fromkeys(call.present, arguments), 1.0)

    async def _hybrid(self, given: dict[str, Any], call: _Call) -> "PartialRows":
        arguments = {**_SQL_DEFAULTS, **given}
        asked = dict.fromkeys(call.present, arguments)
        readings = await self._from_each(call, "read_knowledge_question", asked, _QUESTION_SHARE)
        arguments = {**arguments, "readings": list(readings.values())}
        asked = dict.fromkeys(readings, arguments)
        found = await self._from_each(call, "knowledge_candidates", asked, _CANDIDATES_SHARE)
        rows = None
        while rows is None:
            rows = await self._page(call, found, arguments)
            # A database that has failed meanwhile cannot return the rows of its candidates.
            found = {name: some for name, some in found.items() if name in call.present}
        return self._partial(rows, call, readings)

    async def _page(
        self, call: _Call, found: Answers, arguments: dict[str, Any]
    ) -> list[dict[str, Any]] | None:
        """Return the rows of the page; None if a database that has candidates fails."""
        holders = list(found)
        fuser = holders[next(self._turn) % len(holders)]
        calls = {fuser: {**arguments, "candidates": list(found.values())}}
        fused = await self._from_each(call, "fuse_knowledge_candidates", calls, _FUSION_SHARE)
        if not fused:
            return None
        page: dict[str, Any] = fused[fuser]
        hits: list[dict[str, Any]] = page["hits"]
        by_holder: dict[str, list[dict[str, Any]]] = {}
        for hit in hits:
            by_holder.setdefault(holders[hit["shard"] - 1], []).append(hit)
        rows = await self._rows_of(call, by_holder, arguments, page)
        # A document that moved since then is in another database now.
        moved = [hit for hit in hits if hit["id"] not in rows]
        if moved and not found.keys() & call.missing.keys():
            rows |= await self._rows_of(call, dict.fromkeys(holders, moved), arguments, page)
        if found.keys() & call.missing.keys():
            return None
        return [rows[hit["id"]] for hit in hits if hit["id"] in rows]

    async def _rows_of(
        self,
        call: _Call,
        hits: Mapping[str, list[dict[str, Any]]],
        arguments: dict[str, Any],
        page: dict[str, Any],
    ) -> dict[str, dict[str, Any]]:
        calls = {name: {**arguments, "page": {**page, "hits": some}} for name, some in hits.items()}
        if not calls:
            return {}
        answers = await self._from_each(call, "knowledge_candidate_hits", calls, _ROWS_SHARE)
        return {str(row["id"]): row for rows in answers.values() for row in rows}

    def _partial(
        self, rows: Sequence[Any], call: _Call, readings: Mapping[str, Any] | None = None
    ) -> PartialRows:
        partial = PartialRows(rows)
        partial.missing = {
            name: safe_message(translate(error), secrets=self._secrets())
            for name, error in call.missing.items()
        }
        if readings is not None:
            partial.is_uneven = len({one["statistics"] for one in readings.values()}) > 1
        return partial

    async def _send(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        call = _Call(Deadline(timeout), list(self._states))
        await self._present(function, arguments, call)
        return await self._run(function, arguments, call)

    async def _run(self, function: str, arguments: dict[str, Any], call: _Call) -> object:
        answer = await self._summed(function, arguments, call)
        for name in call.present:
            self._states[name].has_answered(call.begun)
        return answer

    async def _summed(self, function: str, arguments: dict[str, Any], call: _Call) -> object:
        if function == HYBRID:
            return await self._hybrid(arguments, call)
        if function == "match_knowledge_chunks":
            return await self._hybrid({**arguments, "text_weight": 0.0}, call)
        if function == "search_knowledge_chunks_fulltext":
            rows = await self._hybrid({**arguments, "vector_weight": 0.0}, call)
            for row in rows:
                cast(dict[str, Any], row)["rank"] = cast(dict[str, Any], row)["text_score"]
            return rows
        if function == BATCH:
            return await self._hybrid_batch(arguments["queries"], arguments["fuse"], call)
        if function in (MINE, PUBLIC, MY_FACETS, MY_PENDING):
            raise InvalidInputError(
                "a corpus in several databases is searched by a backend, not with a user's token",
                remedy="Give viewer_id, viewer_groups or public_only to hybrid_search.",
            )
        return await self._gathered(function, arguments, call)

    async def _hybrid_batch(
        self, queries: Sequence[dict[str, Any]], fuse: bool, call: _Call
    ) -> PartialRows:
        if fuse and queries:
            first, *others = queries
            queries = [{**first, "formulations": [*(first.get("formulations") or []), *others]}]
        rows: list[dict[str, Any]] = []
        for place, query in enumerate(queries):
            found = await self._hybrid(query, call)
            rows += ({**cast(dict[str, Any], row), "query_index": place} for row in found)
        return self._partial(rows, call)

    async def _gathered(self, function: str, arguments: dict[str, Any], call: _Call) -> object:
        """Return the sum of what the databases answered."""
        if function in (COUNT, FACETS) and arguments.get("min_confidence") is not None:
            raise InvalidInputError(
                "min_confidence is given, and counts of several databases do not obey it",
                remedy="Count without min_confidence, or read total_count of the search.",
            )
        if function == FACETS:
            limit = arguments["facet_limit"]
            # What is common in all may be at the end of each list.
            answers = await self._all(call, function, {**arguments, "facet_limit": 1000})
            return _summed_facets([row for rows in answers.values() for row in rows], limit)
        answers = await self._all(call, function, arguments)
        if function == COUNT:
            return sum(answers.values())
        if function == PENDING:
            return min(sum(answers.values()), MOST_PENDING)
        if function == EMPTY:
            return _least_empty(list(answers.values()))
        if function in (
            "explain_hybrid_search",
            "estimate_hybrid_search",
            "explain_missing_knowledge_chunk",
        ):
            return {"shards": answers, "missing_shards": self._partial([], call).missing}
        if function == "read_knowledge_document":
            return next((found for found in answers.values() if found is not None), None)
        if function == "knowledge_embedding_models":
            return _summed_models([row for rows in answers.values() for row in rows])
        raise UnexpectedAnswerError(f"{function} is not for several databases")


def _named(name: str, error: Exception) -> SecondBrainError:
    """Return an error of a database with the name of the database in its message."""
    known = translate(error)
    known.args = (f"database {name}: {known}",)
    if known is not error:
        known.__cause__ = error
    return known


# From the reason that leaves out most rows to the one that leaves out fewest.
_REASONS = (
    *("nothing_stored", "not_visible", "collection", "filter", "filters_together", "no_embedding"),
    *("no_searchable_words", "no_words", "words_not_together", "threshold", "min_confidence"),
    "offset",
)


def _least_empty(reasons: Sequence[Any]) -> Any:
    """Return the reason of the database that was nearest to a hit, for each query of a batch."""
    if any(isinstance(one, list) for one in reasons):
        return [_least_empty(of_query) for of_query in zip(*reasons, strict=True)]
    known = [one for one in reasons if one is not None]
    known.sort(key=lambda one: one.get("best_confidence") or 0, reverse=True)
    return max(known, key=lambda one: _REASONS.index(one["reason"]), default=None)


def _summed_facets(rows: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        same = sums.setdefault((row["facet"], repr(row["value"])), {**row, "count": 0})
        same["count"] += row["count"]
    ordered = sorted(sums.values(), key=lambda one: (-one["count"], repr(one["value"])))
    names = dict.fromkeys(row["facet"] for row in rows)
    return [
        one for name in names for one in [row for row in ordered if row["facet"] == name][:limit]
    ]


def _summed_models(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    sums: dict[tuple[Any, Any], dict[str, Any]] = {}
    for row in rows:
        same = sums.setdefault((row["model"], row["dimensions"]), {**row, "chunks": 0})
        same["chunks"] += row["chunks"]
    return sorted(sums.values(), key=lambda one: (-one["chunks"], str(one["model"])))


def _collected(
    calls: Mapping[str, "Future[object] | asyncio.Future[object]"], until: str
) -> tuple[Answers, Failures]:
    """Return what the databases answered.

    A call that has not ended missed the deadline, unless `until` made the others end before it.
    """
    answers: Answers = {}
    failures: Failures = {}
    late: Failures = {}
    for name, call in calls.items():
        if not call.done() or call.cancelled():
            late[name] = SearchTimeoutError("it did not answer in time")
        elif error := call.exception():
            if not isinstance(error, Exception):
                raise error
            failures[name] = error
        else:
            answers[name] = call.result()
    return answers, failures if failures and until == FIRST_EXCEPTION else {**failures, **late}


class ShardedProvider(_Sharded, SearchProvider):
    """The searches of a provider over several databases that have one corpus together.

    `shards` are providers with a pool, a connection string or a Supabase project, by the names that
    the placement of documents uses; a list names them `shard 1`, `shard 2` and so on. The databases
    are asked at the same time. `timeout` is in seconds for the whole search. A database that gave
    no answer in its part of the time is named in `details["missing_shards"]`, and the hits are
    those of the others; with `on_missing="error"` the search fails. A database that failed is not
    asked for half a second, up to 4 seconds after several failures; then a single call tests it
    beside the searches. Thread-safe; close it after use.
    """

    name: ClassVar[Source] = "sharded"

    def __init__(
        self,
        shards: Mapping[str, SearchProvider] | Sequence[SearchProvider],
        *,
        on_missing: OnMissing = "partial",
        multi_tenant: bool = False,
        timeout: float | None = TIMEOUT,
        on_error: OnError = "raise",
    ) -> None:
        # The providers of the databases retry.
        super().__init__(multi_tenant=multi_tenant, timeout=timeout, retries=0, on_error=on_error)
        self._prepare(shards, on_missing)
        # An executor for each database: one that hangs must not use the threads of the others.
        self._threads = {
            name: ThreadPoolExecutor(_THREADS_PER_SHARD, thread_name_prefix="second_brain_shard")
            for name in self._shards
        }
        self._probes = ThreadPoolExecutor(
            len(self._shards), thread_name_prefix="second_brain_probe"
        )

    def __enter__(self) -> "ShardedProvider":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads. The providers of the databases stay open."""
        for threads in (*self._threads.values(), self._probes):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _everywhere(
        self, function: str, calls: Calls, timeout: float | None
    ) -> tuple[Answers, Failures]:
        # From now on, not from when a thread is free.
        deadline = Deadline(timeout)

        def one(name: str, arguments: dict[str, Any]) -> object:
            return finished(self._shards[name]._call(function, arguments, deadline.left()))

        futures = {
            name: self._threads[name].submit(one, name, arguments)
            for name, arguments in calls.items()
        }
        wait(futures.values(), timeout, self._until)
        for future in futures.values():
            future.cancel()
        return _collected(futures, self._until)

    async def _begun(self, probes: Sequence[Probe], seconds: float) -> None:
        wait([self._probes.submit(lambda one: finished(one()), one) for one in probes], seconds)


class AsyncShardedProvider(_Sharded, AsyncSearchProvider):
    """`ShardedProvider` for an event loop, over asynchronous providers."""

    name: ClassVar[Source] = "sharded"

    def __init__(
        self,
        shards: Mapping[str, AsyncSearchProvider] | Sequence[AsyncSearchProvider],
        *,
        on_missing: OnMissing = "partial",
        multi_tenant: bool = False,
        timeout: float | None = TIMEOUT,
        on_error: OnError = "raise",
    ) -> None:
        super().__init__(multi_tenant=multi_tenant, timeout=timeout, retries=0, on_error=on_error)
        self._prepare(shards, on_missing)
        self._probes: set[asyncio.Task[None]] = set()

    async def _everywhere(
        self, function: str, calls: Calls, timeout: float | None
    ) -> tuple[Answers, Failures]:
        tasks = {
            name: asyncio.ensure_future(self._shards[name]._call(function, arguments, timeout))
            for name, arguments in calls.items()
        }
        try:
            await asyncio.wait(tasks.values(), timeout=timeout, return_when=self._until)
        finally:
            for task in tasks.values():
                task.cancel()
        return _collected(tasks, self._until)

    async def _begun(self, probes: Sequence[Probe], seconds: float) -> None:
        tasks = {asyncio.ensure_future(one()) for one in probes}
        # The loop itself does not keep them.
        self._probes |= tasks
        for task in tasks:
            task.add_done_callback(self._probes.discard)
        await asyncio.wait(tasks, timeout=seconds)
