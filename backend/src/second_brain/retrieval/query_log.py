"""The queue of the query log: searches wait here until they are written, after the answer.

A search only adds a line to the queue. A thread, or a task of the event loop, writes the lines in
batches. What cannot be written is dropped: a search never waits or fails because of the log.
"""

import asyncio
import atexit
import logging
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from second_brain.errors import ConfigurationError, translate
from second_brain.retrieval.plan import Plan
from second_brain.retrieval.settings import SearchSettings
from second_brain.retrieval.telemetry import Watch
from second_brain.services.provider import AsyncSearchProvider, SearchProvider
from second_brain.services.query_log import LoggedQuery

logger = logging.getLogger(__name__)

MOST_WAITING = 1000
"""Lines that wait to be written; when there are more, the oldest are dropped."""

_BATCH = 500
_MOST_NAMES = 20
_PAUSE = 1.0
"""Seconds between two writes, in which lines gather."""
_LONGEST_WRITE = 5.0
_LAST_WRITE = 2.0
"""Seconds that the end of a program waits for its last lines."""


@dataclass(frozen=True, slots=True)
class _Line:
    query: LoggedQuery
    asked: float

    def aged(self) -> LoggedQuery:
        """Return the search with the time that has gone by since."""
        return self.query.model_copy(update={"seconds_ago": time.monotonic() - self.asked})


class QueryLog(ABC):
    """The lines of one service that are not written yet."""

    def __init__(
        self, provider: SearchProvider | AsyncSearchProvider, settings: SearchSettings
    ) -> None:
        if not provider.is_concurrent:
            raise ConfigurationError(
                "QUERY_LOG is on, and the provider has one connection, which searches use",
                remedy="Give the provider a pool or a connection string, or set QUERY_LOG=off.",
            )
        self._logs_viewers = settings.query_log == "all"
        self._most_rows = settings.query_log_max_rows
        self._max_age = timedelta(days=settings.query_log_max_days)
        self._waiting: deque[_Line] = deque(maxlen=MOST_WAITING)
        self._is_failing = False

    @contextmanager
    def line(self, plan: Plan, watch: Watch) -> Iterator[None]:
        """Add the search that runs meanwhile; it is over when this ends."""
        try:
            yield
        except Exception as error:
            self._add(plan, watch, error)
            raise
        self._add(plan, watch, None)

    def _add(self, plan: Plan, watch: Watch, error: Exception | None) -> None:
        try:
            self._add_line(plan, watch, error)
        # The search has its answer, or its own error.
        except Exception as failure:  # noqa: BLE001
            self._note(failure)

    def _add_line(self, plan: Plan, watch: Watch, error: Exception | None) -> None:
        access = plan.access
        has_viewer = access.viewer_id is not None or access.viewer_groups is not None
        # A later page is the same question once more, and like_ids alone are none.
        if not plan.query.query or plan.query.offset > 0 or (has_viewer and not self._logs_viewers):
            return
        attributes, response = watch.attributes(error), watch.response
        names = plan.query.collections
        query = LoggedQuery(
            question=_storable(plan.query.query),
            collections=None if names is None else [_storable(one) for one in names[:_MOST_NAMES]],
            mode=plan.mode,
            mode_used=attributes.get("mode_used"),
            hits=attributes.get("results"),
            confidence=max((one.confidence for one in response.results), default=None)
            if response is not None
            else None,
            embed_ms=attributes["embed_ms"],
            search_ms=attributes["search_ms"],
            rerank_ms=attributes["rerank_ms"],
            total_ms=attributes["total_ms"],
            is_cached=attributes.get("cached", False),
            degraded=attributes.get("degraded"),
            error_kind=attributes.get("error_kind"),
            viewer_id=access.viewer_id,
        )
        self._waiting.append(_Line(query, time.monotonic()))
        self._wake()

    @abstractmethod
    def _wake(self) -> None:
        """Start to write the waiting lines."""

    def _batch(self) -> list[_Line]:
        taken: list[_Line] = []
        with suppress(IndexError):
            while len(taken) < _BATCH:
                taken.append(self._waiting.popleft())
        return taken

    def _note(self, error: Exception | None) -> None:
        # One line for consecutive failures, without the questions.
        if error is not None and not self._is_failing:
            logger.warning("the query log was not written: %s", translate(error).kind)
        self._is_failing = error is not None


def _storable(text: str) -> str:
    """Return a text without NUL, for which Postgres would refuse the whole batch."""
    return text.replace("\0", "?")


class BlockingQueryLog(QueryLog):
    """A queue that a thread empties; the thread starts with the first line."""

    def __init__(self, provider: SearchProvider, settings: SearchSettings) -> None:
        super().__init__(provider, settings)
        self._provider = provider
        self._writing = threading.Lock()
        self._arrived = threading.Event()
        self._process: int | None = None
        atexit.register(_flush, weakref.ref(self))

    def flush(self, timeout: float = _LONGEST_WRITE) -> None:
        """Write the waiting lines now; return after about `timeout` seconds in any case."""
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            # The thread may be writing the last lines now.
            if not self._writing.acquire(timeout=left):
                return
            try:
                if not self._waiting:
                    return
                self._write(left)
            finally:
                self._writing.release()

    def _wake(self) -> None:
        # A fork copies the lines, but no thread; the lock may be held by a thread of the parent.
        if self._process != os.getpid():
            if self._process is not None:
                self._writing, self._arrived = threading.Lock(), threading.Event()
            self._process = os.getpid()
            threading.Thread(
                target=_write_all, args=(weakref.ref(self), self._arrived), daemon=True
            ).start()
        self._arrived.set()

    def _write(self, timeout: float) -> None:
        batch = [line.aged() for line in self._batch()]
        failure: Exception | None = None
        try:
            self._provider.record_queries(
                batch, most_rows=self._most_rows, max_age=self._max_age, timeout=timeout
            )
        # Whatever failed, these lines are dropped.
        except Exception as error:  # noqa: BLE001
            failure = error
        self._note(failure)


def _write_all(log: "weakref.ref[BlockingQueryLog]", arrived: threading.Event) -> None:
    # It has no reference to the log while it waits, so that a service that is dropped ends it.
    while True:
        if not arrived.wait(timeout=60):
            if log() is None:
                return
            continue
        arrived.clear()
        time.sleep(_PAUSE)
        kept = log()
        if kept is None:
            return
        kept.flush()
        del kept


def _flush(log: "weakref.ref[BlockingQueryLog]") -> None:
    kept = log()
    if kept is not None:
        kept.flush(_LAST_WRITE)


class AsyncQueryLog(QueryLog):
    """A queue that a task of the event loop empties; the task ends with the last line."""

    def __init__(self, provider: AsyncSearchProvider, settings: SearchSettings) -> None:
        super().__init__(provider, settings)
        self._provider = provider
        self._task: asyncio.Task[None] | None = None

    async def flush(self, timeout: float = _LONGEST_WRITE) -> None:
        """Write the waiting lines now; return after about `timeout` seconds in any case."""
        end = time.monotonic() + timeout
        while self._waiting and (left := end - time.monotonic()) > 0:
            await self._write(left)

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(_PAUSE)
                await self.flush()
        except asyncio.CancelledError:
            # The loop ends.
            await self.flush(_LAST_WRITE)
            raise

    async def _write(self, timeout: float) -> None:
        batch = self._batch()
        failure: Exception | None = None
        try:
            await self._provider.record_queries(
                [line.aged() for line in batch],
                most_rows=self._most_rows,
                max_age=self._max_age,
                timeout=timeout,
            )
        except asyncio.CancelledError:
            self._waiting.extendleft(reversed(batch))
            raise
        except Exception as error:  # noqa: BLE001
            failure = error
        self._note(failure)
