"""Blocking methods made from `async` methods, so that each method is written only once.

`blocking` turns a method for an event loop into a method for threads. In a class for threads, what
the method awaits are coroutines that call a blocking function and never suspend, and blocking
objects in an `Awaited`, so one `send` runs the whole method.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def blocking(
    method: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Arguments], Result]:
    """Return the method for threads, with the same arguments and documentation."""

    @wraps(method)
    def call(self: Any, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return finished(method(self, *args, **kwargs))

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
    coroutine.close()
    raise RuntimeError("the coroutine of a blocking method suspended: it needs an event loop")


class Awaited:
    """A blocking object, or a result of one, whose methods are awaited; they never suspend.

    Methods run when they are called, so `await` only unpacks the result. Attributes are the
    object's own.
    """

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._blocking, name)
        if not callable(found):
            return found
        return lambda *args, **kwargs: Awaited(found(*args, **kwargs))

    def __await__(self) -> Generator[None, None, Any]:
        return self._blocking
        yield

    async def __aenter__(self) -> Any:
        return self._blocking.__enter__()

    async def __aexit__(self, *raised: Any) -> Any:
        return self._blocking.__exit__(*raised)
