"""Logic that waits for nothing itself, so that a thread and an event loop run the same lines.

It is a generator that yields what is to be done and receives what came of it: a value, or the
exception, raised where it was yielded. What a step is and how it is done is not this module's.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeAlias, TypeVar

Step = TypeVar("Step")
Result = TypeVar("Result")

Steps: TypeAlias = Generator[Step, Any, Result]


def run(steps: Steps[Step, Result], perform: Callable[[Step], object]) -> Result:
    """Run to the end with `perform` doing each step, and return what the generator returns."""
    try:
        step = next(steps)
        while True:
            try:
                outcome = perform(step)
            except BaseException as error:  # noqa: BLE001
                step = steps.throw(error)
            else:
                step = steps.send(outcome)
    except StopIteration as end:
        result: Result = end.value
        return result


async def run_async(
    steps: Steps[Step, Result], perform: Callable[[Step], Awaitable[object]]
) -> Result:
    """Do the same on an event loop."""
    try:
        step = next(steps)
        while True:
            try:
                outcome = await perform(step)
            except BaseException as error:  # noqa: BLE001
                step = steps.throw(error)
            else:
                step = steps.send(outcome)
    except StopIteration as end:
        result: Result = end.value
        return result
