"""What a forked process returns."""

import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

PATIENCE = 60
"""Seconds, after which a child that hangs is ended."""


def in_fork(call: Callable[[], Any]) -> Any:
    """Return what the call returns in a child of this process, or the exception that it raises."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        try:
            outcome: object = call()
        except Exception as error:  # noqa: BLE001
            outcome = error
        try:
            os.write(writing, pickle.dumps(outcome))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        content = answer.read()
    os.waitpid(child, 0)
    assert content, "the child ended without an answer"
    return pickle.loads(content)
