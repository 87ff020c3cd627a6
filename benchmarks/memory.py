"""The memory and CPU time of processes, from /proc; no figures without /proc."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def private_bytes(process: int) -> int:
    """Return the private memory of a process and its children."""
    return sum(_kilobytes(pid, "status", "RssAnon:") for pid in _family(process)) * 1024


def all_bytes(process: int) -> int:
    """Return the memory of a process and its children, shared memory counted once."""
    return sum(_kilobytes(pid, "smaps_rollup", "Pss:") for pid in _family(process)) * 1024


def memory_bytes() -> int:
    """Return the memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def process_cpu(process: int) -> float | None:
    """Return the CPU time of a process with one thread, in milliseconds."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e6
    except OSError:
        return None


@contextmanager
def peak(read_bytes: Callable[[], int], base: int, every: float) -> Iterator[list[int]]:
    """Yield a list that contains the largest growth over the base when the block ends.

    It stays empty where there is no /proc to read, or no permission.
    """
    most: list[int] = []
    stopped = threading.Event()

    def look() -> None:
        greatest = 0
        while True:
            greatest = max(greatest, read_bytes())
            if stopped.wait(every):
                break
        if greatest:
            most.append(max(greatest - base, 0))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield most
    finally:
        stopped.set()
        watcher.join()


def _family(process: int) -> list[int]:
    import psutil  # type: ignore[import-untyped, unused-ignore]

    with contextlib.suppress(psutil.Error):
        children = psutil.Process(process).children(recursive=True)
        return [process, *(child.pid for child in children)]
    return []


def _kilobytes(process: int, file: str, name: str) -> int:
    # A process may end after it was listed.
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0
