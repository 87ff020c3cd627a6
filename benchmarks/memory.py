"""The memory and CPU time of processes, from /proc; no figures without /proc."""

import os
import re
from pathlib import Path


def private_bytes(process: int) -> int:
    """Return the private memory of a process."""
    status = Path(f"/proc/{process}/status")
    found = re.search(r"RssAnon:\s*(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 if found else 0


def memory_bytes() -> int:
    """Return the memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def process_cpu(process: int) -> float | None:
    """Return the CPU time of a process with one thread, in milliseconds."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e6
    except OSError:
        return None
