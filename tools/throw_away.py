"""Where a server of the tests and of the tools has its data, and how little it does for safety."""

import os
import shutil
import tempfile
from pathlib import Path

SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    # A connection costs the client 1 ms, not 3.
    "scram_iterations": "1",
    # Modules that need an extension can be read, and their plain way tested, without it.
    "second_brain.without_extensions": "allowed",
}

_MEMORY = Path("/dev/shm")  # noqa: S108
_ROOM = 4 * 2**30


def folder() -> Path:
    """Make a folder for servers: in memory where 4 GB are free, else on a disk.

    A copy of a database takes 15 ms of CPU time in memory and 70 to 270 on a disk. TMPDIR, if
    set, decides.
    """
    in_memory = (
        "TMPDIR" not in os.environ
        and os.access(_MEMORY, os.W_OK)
        and shutil.disk_usage(_MEMORY).free >= _ROOM
    )
    place = Path(tempfile.mkdtemp("", "second-brain-tests-", _MEMORY if in_memory else None))
    # As root the server runs as another account, which has to pass through.
    place.chmod(0o711)
    return place
