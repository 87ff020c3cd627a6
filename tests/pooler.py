"""Fixture: a pgbouncer in front of the database that the tests of a module share."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo


@pytest.fixture
def pooler(shared_dsn: str, tmp_path: Path) -> Iterator[str]:
    """The DSN of a pgbouncer that gives each transaction another server connection."""
    with pooled(shared_dsn, tmp_path, takes_turns=True) as dsn:
        yield dsn


@contextmanager
def pooled(dsn: str, folder: Path, *, takes_turns: bool, size: int = 3) -> Iterator[str]:
    """Run a pgbouncer; without turns, a transaction gets the server connection last used."""
    binary = os.environ.get("PGBOUNCER_BIN") or shutil.which("pgbouncer")
    if binary is None:
        pytest.skip("PGBOUNCER_BIN names no pgbouncer, and there is none in the path")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    parts = conninfo_to_dict(dsn)
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        f"[databases]\n* = host={parts['host']} port={parts['port']}"
        f" user={parts['user']} password={parts['password']}\n"
        "[pgbouncer]\npool_mode = transaction\nauth_type = any\n"
        f"server_round_robin = {takes_turns:d}\nmin_pool_size = {size}\n"
        f"default_pool_size = {size}\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
    )
    folder.chmod(0o755)
    command = [binary, str(configuration)]
    if os.geteuid() == 0:
        command[1:1] = ["-u", "nobody"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            yield _await_port(make_conninfo(dsn, host="127.0.0.1", port=port), process)
        finally:
            process.terminate()


def _await_port(dsn: str, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
        else:
            return dsn
