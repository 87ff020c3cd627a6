"""The threads of a service: calls of embedders and rerankers, and counts beside a search."""

import contextvars
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MOST_THREADS = 32
"""The most calls at once that a service waits for."""

Outcome = TypeVar("Outcome")


class Threads:
    """A pool of threads that also works after a fork."""

    def __init__(self) -> None:
        self._begin()

    def submit(self, call: Callable[[], Outcome]) -> Future[Outcome]:
        """Run a call in a thread."""
        if self._process != os.getpid():
            # A fork copies a pool without its threads.
            self._begin()
        # A span that the model's client starts belongs to the search's.
        context = contextvars.copy_context()
        return self._pool.submit(context.run, _without_stop, call)

    def _begin(self) -> None:
        self._process = os.getpid()
        self._pool = ThreadPoolExecutor(MOST_THREADS, "second-brain-models")


def _without_stop(call: Callable[[], Outcome]) -> Outcome:
    try:
        return call()
    except StopIteration as error:
        # A future cannot hold a StopIteration, so its caller would wait for ever.
        raise RuntimeError("the model raised StopIteration") from error
