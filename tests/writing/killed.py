"""Processes that may be killed, and an embedder that leaves a trace of what they embedded."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from reembedded import Hashed

MODEL, DIMENSIONS = "hashed", 3

Start = Callable[[], multiprocessing.Process]


class Traced(Hashed):
    """Writes each text to a file, then embeds as slowly as a model."""

    def __init__(self, log: Path, pause: float) -> None:
        super().__init__(MODEL, DIMENSIONS)
        self.log = log
        self.pause = pause

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        with self.log.open("a") as file:
            file.write("".join(f"{text!r}\n" for text in texts))
        time.sleep(self.pause)
        return super().embed(texts)


def lines_of(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def processes(work: Callable[..., None], *arguments: object) -> Iterator[Start]:
    """Yield what starts processes, from a server that has imported everything; kill them after."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    started: list[multiprocessing.Process] = []

    def start_one() -> multiprocessing.Process:
        process: multiprocessing.Process = context.Process(  # type: ignore[assignment]
            target=work, args=arguments, daemon=True
        )
        process.start()
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.join()
