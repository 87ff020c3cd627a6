"""How a call runs: its steps are reported to the client, and the client can cancel it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
from mcp.server.session import ServerSession

from second_brain.mcp_server.tools import BeginStep

Outcome = TypeVar("Outcome")

_MESSAGES = {
    "embed": "Embedding",
    "search": "Searching",
    "rerank": "Reordering the results",
    "store": "Storing",
}


@asynccontextmanager
async def reported_steps(session: ServerSession) -> AsyncIterator[BeginStep]:
    """Yield a function that reports a step which begins, to a client that asked for progress."""
    steps: asyncio.Queue[tuple[int, int, str] | None] = asyncio.Queue()
    done = 0

    async def report() -> None:
        while (step := await steps.get()) is not None:
            await session.report_progress(*step)

    def begin(step: str, total: int) -> None:
        nonlocal done
        # A step can run twice, when the model of the corpus has changed.
        steps.put_nowait((done, max(total, done + 1), _MESSAGES[step]))
        done += 1

    reporting = asyncio.create_task(report())
    # The answer is complete without a report.
    reporting.add_done_callback(lambda one: one.cancelled() or one.exception())
    try:
        yield begin
        steps.put_nowait(None)
        await asyncio.wait([reporting])
    finally:
        reporting.cancel()


async def cancelled_once(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run in a task of its own, which a cancellation of this one reaches once.

    The SDK's cancellation is repeated at every `await`. It would interrupt psycopg while it cancels
    the SQL statement: the statement would continue in the database.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        if not task.cancelled():
            # Read, so that asyncio does not log it.
            task.exception()
        raise
