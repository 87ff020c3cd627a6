"""Blocking methods made from `async` methods, so that each method is written only once.

`blocking` turns a method for an event loop into a method for threads. The method may await only
methods of its own object. In a class for threads, these are coroutines that call a blocking
function and never suspend, so one `send` runs the whole method.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
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
