"""Methods that are written once, with `await`, and offered to threads as well.

`blocking` makes the method for threads of the method for an event loop. What the method awaits is
the object's own: in a class for threads that is a coroutine which calls a blocking function and
never suspends, so one step runs the whole method.
"""

from collections.abc import Callable, Coroutine
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


def finished(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking method waits for an event loop")
