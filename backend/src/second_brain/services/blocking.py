"""Methods of both kinds from one `async` text: for an event loop, and for threads.

`blocking` turns a method for an event loop into a method for threads. There the method awaits
coroutines that never suspend, and psycopg's objects of either kind through `settled` and `entered`,
so one `send` runs the whole method.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from inspect import isawaitable
from typing import Any, Concatenate, ParamSpec, TypeVar

from second_brain.errors import WRONG_VALUE, refuse

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def blocking(
    method: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Arguments], Result]:
    """Return the method for threads, with the same arguments and documentation."""
    # What `documented` does for an event loop is done here, so that a call has one frame less.
    body = getattr(method, "documented", method)

    @wraps(method)
    def call(self: Any, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        coroutine = body(self, *args, **kwargs)
        try:
            coroutine.send(None)
        except StopIteration as end:
            result: Result = end.value
            return result
        except WRONG_VALUE as error:
            if body is method:
                raise
            refuse(body, error)
        raise _suspended(coroutine)

    return call


def blocking_iterator(
    method: Callable[Concatenate[Any, Arguments], AsyncIterator[Result]],
) -> Callable[Concatenate[Any, Arguments], Iterator[Result]]:
    """Return the method that yields, for threads, with the same arguments and documentation."""

    @wraps(method)
    def call(self: Any, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[Result]:
        results = method(self, *args, **kwargs)

        async def following() -> Result:
            return await anext(results)

        while True:
            try:
                result = finished(following())
            except StopAsyncIteration:
                return
            yield result

    return call


def finished(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise _suspended(coroutine)


def _suspended(coroutine: Coroutine[Any, Any, object]) -> RuntimeError:
    coroutine.close()
    return RuntimeError("the coroutine of a blocking method suspended: it needs an event loop")


async def settled(result: Any) -> Any:
    """Return the result of a call that a blocking object has finished, or another one awaits."""
    return await result if isawaitable(result) else result


@asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:
    """Enter a context manager of either kind."""
    if hasattr(manager, "__aenter__"):
        async with manager as entry:
            yield entry
    else:
        with manager as entry:
            yield entry
