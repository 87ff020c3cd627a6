"""Search one corpus that is spread over several databases, each a provider of its own.

The databases rank and fuse; this module only sends and collects. A search has four steps: what the
databases know of the question, their candidates, the fusion of all candidates in one of them, and
the rows of the page. `sharded_write` places the documents.
"""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Literal, TypeAlias, cast

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
from second_brain.services.provider import AsyncSearchProvider, SearchProvider
from second_brain.services.results import MOST_PENDING, PartialRows, Source
from second_brain.services.searches import (
    BATCH,
    COUNT,
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

PAUSE = 5.0
"""Seconds in which a database that missed a deadline is not asked again."""

OnMissing = Literal["partial", "error"]
"""What a search does without a database: answer without it and say so, or fail."""

_SQL_DEFAULTS = {SQL_NAMES.get(name, name): value for name, value in DEFAULTS.items()}
# The share of the remaining time that a step may take.
_QUESTION_SHARE, _CANDIDATES_SHARE, _FUSION_SHARE = 0.4, 0.6, 0.5
# More than a pool has connections, so that a search waits there and not here.
_THREADS_PER_SHARD = 32

Calls: TypeAlias = Mapping[str, dict[str, Any]]
Answers: TypeAlias = dict[str, Any]
Failures: TypeAlias = dict[str, Exception]


@dataclass
class _Call:
    """One call of a provider of this module: its deadline, and the databases that it lacks."""

    deadline: Deadline
    missing: Failures = field(default_factory=dict)


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
        self._paused_until: dict[str, float] = {}
        self._turn = count()

    def _secrets(self) -> Iterable[object]:
        return [secret for shard in self._shards.values() for secret in shard._secrets()]

    @abstractmethod
    async def _everywhere(
        self, function: str, calls: Calls, timeout: float | None
    ) -> tuple[Answers, Failures]:
        """Call the function in several databases at the same time; return what they answered."""

    async def _ask(self, call: _Call, function: str, calls: Calls, share: float) -> Answers:
        """Return the answers; note the databases that gave none. Raise where no one answered."""
        answers, failures = await self._everywhere(function, calls, call.deadline.left(share))
        for name, error in failures.items():
            known = translate(error)
            if isinstance(known, InvalidInputError):
                # The call is wrong, not the database.
                raise error
            if isinstance(known, SearchTimeoutError):
                self._paused_until[name] = time.monotonic() + PAUSE
            call.missing[name] = error
        if failures and (self._on_missing == "error" or not answers):
            raise _named(*next(iter(failures.items())))
        # In the order of the databases, not in that of their answers.
        return {name: answers[name] for name in calls if name in answers}

    def _present(self, call: _Call) -> list[str]:
        """Return the databases to ask: not one that missed a deadline a moment ago."""
        now = time.monotonic()
        # Not over the items of the mapping: another thread may add one meanwhile.
        paused = [name for name in self._shards if self._paused_until.get(name, now) > now]
        if self._on_missing == "error" or len(paused) == len(self._shards):
            return list(self._shards)
        for name in paused:
            call.missing[name] = UnavailableError("it missed a deadline a moment ago")
        return [name for name in self._shards if name not in paused]

    async def _all(self, call: _Call, function: str, arguments: dict[str, Any]) -> Answers:
        calls = dict.fromkeys(self._present(call), arguments)
        return await self._ask(call, function, calls, 1.0)

    async def _hybrid(self, given: dict[str, Any], call: _Call) -> "PartialRows":
        arguments = {**_SQL_DEFAULTS, **given}
        present = dict.fromkeys(self._present(call), arguments)
        readings = await self._ask(call, "read_knowledge_question", present, _QUESTION_SHARE)
        arguments = {**arguments, "readings": list(readings.values())}
        asked = dict.fromkeys(readings, arguments)
        found = await self._ask(call, "knowledge_candidates", asked, _CANDIDATES_SHARE)
        holders = list(found)
        page = await self._fused(call, holders, {**arguments, "candidates": list(found.values())})
        hits: list[dict[str, Any]] = page["hits"]
        by_holder: dict[str, list[dict[str, Any]]] = {}
        for hit in hits:
            by_holder.setdefault(holders[hit["shard"] - 1], []).append(hit)
        rows = await self._rows_of(call, by_holder, arguments, page)
        # A document that moved since then is in another database now.
        moved = [hit for hit in hits if hit["id"] not in rows]
        if moved:
            others = {name: moved for name in holders if name not in call.missing}
            rows |= await self._rows_of(call, others, arguments, page)
        ordered = [rows[hit["id"]] for hit in hits if hit["id"] in rows]
        return self._partial(ordered, call, readings)

    async def _fused(
        self, call: _Call, holders: list[str], arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """Fuse in one of the databases, each in turn; in the next one where that fails."""
        first = next(self._turn) % len(holders)
        failed: Exception = UnavailableError("no database is left")
        for name in holders[first:] + holders[:first]:
            calls = {name: arguments}
            timeout = call.deadline.left(_FUSION_SHARE)
            answers, failures = await self._everywhere("fuse_knowledge_candidates", calls, timeout)
            if name in answers:
                return cast(dict[str, Any], answers[name])
            if isinstance(translate(failures[name]), InvalidInputError):
                raise failures[name]
            failed = _named(name, failures[name])
        raise failed

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
        answers = await self._ask(call, "knowledge_candidate_hits", calls, 1.0)
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

    async def _answered(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        call = _Call(Deadline(timeout))
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
    calls: Mapping[str, "Future[object] | asyncio.Future[object]"],
) -> tuple[Answers, Failures]:
    """Return what the databases answered; a call that has not ended missed the deadline."""
    answers: Answers = {}
    failures: Failures = {}
    for name, call in calls.items():
        if not call.done() or call.cancelled():
            failures[name] = SearchTimeoutError("it did not answer in time")
        elif error := call.exception():
            if not isinstance(error, Exception):
                raise error
            failures[name] = error
        else:
            answers[name] = call.result()
    return answers, failures


class ShardedProvider(_Sharded, SearchProvider):
    """The searches of a provider over several databases that have one corpus together.

    `shards` are providers with a pool, a connection string or a Supabase project, by the names that
    the placement of documents uses; a list names them `shard 1`, `shard 2` and so on. The databases
    are asked at the same time. `timeout` is in seconds for the whole search. A database that gave
    no answer in its part of the time is named in `details["missing_shards"]`, and the hits are
    those of the others; with `on_missing="error"` the search fails. A database that missed a
    deadline is not asked again for 5 seconds. Thread-safe; close it after use.
    """

    name: ClassVar[Source] = "sharded"

    def __init__(
        self,
        shards: Mapping[str, SearchProvider] | Sequence[SearchProvider],
        *,
        on_missing: OnMissing = "partial",
        multi_tenant: bool = False,
        timeout: float | None = TIMEOUT,
    ) -> None:
        # The providers of the databases retry.
        super().__init__(multi_tenant=multi_tenant, timeout=timeout, retries=0)
        self._prepare(shards, on_missing)
        # An executor for each database: one that hangs must not use the threads of the others.
        self._threads = {
            name: ThreadPoolExecutor(_THREADS_PER_SHARD, thread_name_prefix="second_brain_shard")
            for name in self._shards
        }

    def __enter__(self) -> "ShardedProvider":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads. The providers of the databases stay open."""
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    def _send_blocking(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        return finished(self._answered(function, arguments, timeout))

    async def _everywhere(
        self, function: str, calls: Calls, timeout: float | None
    ) -> tuple[Answers, Failures]:
        def one(name: str, arguments: dict[str, Any]) -> object:
            return finished(self._shards[name]._call(function, arguments, timeout))

        futures = {
            name: self._threads[name].submit(one, name, arguments)
            for name, arguments in calls.items()
        }
        wait(futures.values(), timeout)
        for future in futures.values():
            future.cancel()
        return _collected(futures)


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
    ) -> None:
        super().__init__(multi_tenant=multi_tenant, timeout=timeout, retries=0)
        self._prepare(shards, on_missing)

    async def _send(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        return await self._answered(function, arguments, timeout)

    async def _everywhere(
        self, function: str, calls: Calls, timeout: float | None
    ) -> tuple[Answers, Failures]:
        tasks = {
            name: asyncio.ensure_future(self._shards[name]._call(function, arguments, timeout))
            for name, arguments in calls.items()
        }
        try:
            await asyncio.wait(tasks.values(), timeout=timeout)
        finally:
            for task in tasks.values():
                task.cancel()
        return _collected(tasks)
