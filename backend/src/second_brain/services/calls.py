"""Calls of SQL functions: a deadline, retries after temporary failures, and safe errors.

How a function is called is `_send` in the classes for psycopg (`connection_calls.OverPsycopg`) and
for REST (`supabase._Project`). Calls are coroutines; `finished` runs one for threads.
"""

import inspect
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from itertools import count
from typing import Any, ClassVar, TypedDict, TypeVar, cast, get_origin

from pydantic import TypeAdapter, ValidationError

from second_brain.errors import (
    TIMEOUT_OF_WRITES,
    ConnectionLostError,
    InvalidInputError,
    SearchTimeoutError,
    SecondBrainError,
    UncertainWriteError,
    UnexpectedAnswerError,
    redacted,
    safe_message,
    translate,
)
from second_brain.services.arguments import PYTHON_NAMES, renamed
from second_brain.services.functions import functions, integers
from second_brain.services.last_write import written
from second_brain.services.results import OnError, Source

logger = logging.getLogger(__name__)

Outcome = TypeVar("Outcome")

RETRIES = 2
"""The maximum number of retries of a search after temporary failures."""

SERIALIZATION_FAILURE, DEADLOCK = "40001", "40P01"
"""SQLSTATEs. A standby cancels a search with 40001 when it conflicts with a change to apply."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds: the maximum pause before the first retry, and before any retry."""

LONGEST_TIMEOUT = 86_400.0
"""Seconds."""


def finished(coroutine: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a coroutine of a client for threads to its end, and return its result.

    It never suspends: it awaits only such coroutines, and what `settled` and `entered` make of
    psycopg's blocking objects.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Outcome = end.value
        return result
    coroutine.close()
    raise RuntimeError("the coroutine of a blocking method suspended: it needs an event loop")


def iterated(results: AsyncIterator[Outcome]) -> Iterator[Outcome]:
    """Yield what an iterator of a client for threads yields."""

    async def following() -> Outcome:
        return await anext(results)

    with suppress(StopAsyncIteration):
        while True:
            yield finished(following())


async def settled(result: Any) -> Any:
    """Return the result of a call that a blocking object has finished, or another one awaits."""
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:
    """Enter a context manager of either kind."""
    if hasattr(manager, "__aenter__"):
        async with manager as entry:
            yield entry
    else:
        with manager as entry:
            yield entry


class Deadline:
    """The time when a call must be finished. Raises InvalidInputError for an invalid timeout."""

    def __init__(self, seconds: float | None, otherwise: float | None = None) -> None:
        seconds = otherwise if seconds is None else seconds
        self._end = None if seconds is None else time.monotonic() + checked_timeout(seconds)

    def left(self, share: float = 1.0) -> float | None:
        """Return a share of the remaining seconds, or None without a deadline.

        Raises SearchTimeoutError when no time is left.
        """
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise SearchTimeoutError(
                "the search took longer than its timeout", remedy="Raise timeout."
            )
        return left * share

    def allows(self, pause: float) -> bool:
        """Return whether time is left after a pause of this many seconds."""
        return self._end is None or time.monotonic() + pause < self._end


_NO_DEADLINE = Deadline(None)


def checked_timeout(seconds: float) -> float:
    """Return a timeout that is valid. Raises InvalidInputError."""
    if type(seconds) is bool or not (
        isinstance(seconds, int | float) and 0 < seconds <= LONGEST_TIMEOUT
    ):
        raise InvalidInputError(
            f"timeout must be above 0 and at most {LONGEST_TIMEOUT:g} seconds, not {seconds!r:.100}"
        )
    return seconds


async def retried(
    attempt: Callable[[float | None], Awaitable[Outcome]],
    wait: Callable[[float], Awaitable[object]],
    *,
    retries: int,
    is_passing: Callable[[SecondBrainError], bool],
    deadline: Deadline = _NO_DEADLINE,
) -> Outcome:
    """Return the result of an attempt; after a failure that may pass, wait and try again.

    `attempt` takes the seconds that are left.
    """
    for number in count():
        try:
            return await attempt(deadline.left())
        except Exception as error:
            # Full jitter: clients that failed at the same time do not retry at the same time.
            pause = random.uniform(0, min(FIRST_PAUSE * 2**number, LONGEST_PAUSE))  # noqa: S311
            failure = translate(error)
            if number >= retries or not deadline.allows(pause) or not is_passing(failure):
                raise
            logger.info("a call met a %s (%s), trying again", failure.kind, failure.code)
        await wait(pause)
    raise AssertionError


def is_rolled_back(error: SecondBrainError) -> bool:
    """Say whether the transaction failed because of another one, and may be repeated."""
    return error.code in (SERIALIZATION_FAILURE, DEADLOCK)


def keys_of(arguments: Mapping[str, object]) -> tuple[str, ...]:
    """Return the key of the document that a call writes, if it is about one."""
    document = arguments.get("document")
    key = document.get("external_key") if isinstance(document, Mapping) else None
    key = arguments.get("document_key") if key is None else key
    return () if key is None else (str(key),)


def uncertain(moment: str, keys: Sequence[str], code: str | None = None) -> UncertainWriteError:
    """Return the error that names the documents of a write whose outcome is not known."""
    about = f" of {safe_message(', '.join(map(repr, keys)), limit=100)}" if keys else ""
    return UncertainWriteError(
        f"the connection was lost {moment}{about}: it is not known whether the write is stored",
        keys=keys,
        code=code,
    )


class ClientOptions(TypedDict, total=False):
    """What every provider takes: see `AsyncSearchProvider`."""

    multi_tenant: bool
    timeout: float | None
    retries: int
    sleep: Callable[[float], object]
    on_error: OnError
    explain_empty: bool | None


class Client(ABC):
    """Base of providers and writers: one call, and the errors that it raises.

    `sleep` makes the pauses between attempts; for an event loop, what it returns is awaited. Only
    searches read `multi_tenant`, `on_error` and `explain_empty`.
    """

    name: ClassVar[Source]
    _pause: Any = staticmethod(time.sleep)

    def __init__(
        self,
        *,
        multi_tenant: bool = False,
        timeout: float | None = None,
        retries: int = RETRIES,
        sleep: Callable[[float], object] | None = None,
        on_error: OnError = "raise",
        explain_empty: bool | None = None,
    ) -> None:
        if on_error not in ("raise", "empty"):
            raise InvalidInputError(f"on_error must be raise or empty, not {on_error!r:.100}")
        self._timeout = None if timeout is None else checked_timeout(timeout)
        self._retries = retries
        self._sleep = sleep or self._pause
        self._multi_tenant = multi_tenant
        self._on_error = on_error
        self._explain_empty = explain_empty

    @property
    def is_concurrent(self) -> bool:
        """Whether several calls may run at the same time."""
        return True

    @abstractmethod
    async def _send(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        """Call the SQL function once and return its rows, row or value; raise on failure."""

    async def _wait(self, seconds: float) -> None:
        await settled(self._sleep(seconds))

    def _secrets(self) -> Iterable[object]:
        """Return the values that no message may contain."""
        return ()

    def _may_repeat(self, function: str, error: SecondBrainError) -> bool:
        """Say whether a call that failed with this may be sent again."""
        if functions()[function].writes:
            return is_rolled_back(error)
        return isinstance(error, ConnectionLostError) or error.code == SERIALIZATION_FAILURE

    async def _call(self, function: str, arguments: dict[str, Any], deadline: Deadline) -> Any:
        """Call the SQL function, and again after a failure that may pass."""
        for name in integers(function):
            if isinstance(value := arguments.get(name), bool):
                # Postgres casts it to 0 or 1.
                raise InvalidInputError(f"{name} must be an integer, not {value}")
        answer = await retried(
            partial(self._send, function, arguments),
            self._wait,
            retries=self._retries,
            is_passing=partial(self._may_repeat, function),
            deadline=deadline,
        )
        if functions()[function].writes:
            written()
        elif functions()[function].returns == "rows" and not isinstance(answer, list):
            raise UnexpectedAnswerError(f"expected rows, received {type(answer).__name__}")
        return answer

    async def _read(
        self,
        kind: type[Outcome],
        function: str,
        arguments: dict[str, Any],
        timeout: float | None = None,
    ) -> Outcome:
        """Call a function and return its answer as this type; raise a SecondBrainError.

        Of a function that returns rows, a type that is no list is that of the first one.
        """
        deadline = Deadline(timeout, self._timeout)
        answer = await self._safely(
            self._call(function, arguments, deadline), writes=functions()[function].writes
        )
        if functions()[function].returns == "rows" and get_origin(kind) is None:
            answer = answer[0] if answer else None
        with suppress(ValidationError):
            outcome: Outcome = _adapter(cast(Any, kind)).validate_python(answer)
            return outcome
        # Not in an except block: the context would be the error with the answer.
        raise UnexpectedAnswerError(
            f"{function} answered with something else than expected: {type(answer).__name__}"
        )

    async def _safely(self, work: Awaitable[Outcome], *, writes: bool = False) -> Outcome:
        """Wait for the work; raise a SecondBrainError without credentials."""
        try:
            return await work
        except Exception as error:
            failure, cause = self._safe(error)
            if failure.code == "57014" and writes:
                failure.remedy = TIMEOUT_OF_WRITES
            if failure is error:
                raise
        # Not in the except block: the context would be the error with its secrets.
        raise failure from cause

    def _safe(self, error: Exception) -> tuple[SecondBrainError, BaseException | None]:
        """Return a failure as a SecondBrainError without credentials, and its cause."""
        failure, held = translate(error), tuple(self._secrets())
        failure.args = (renamed(safe_message(failure, secrets=held), PYTHON_NAMES),)
        return failure, redacted(error, secrets=held)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
