"""A real PostgREST over a test's database, for tests that POSTGREST_BIN gives a binary."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jwt
import psycopg
import pytest
from postgrest import SyncPostgrestClient
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from second_brain.services.supabase import SupabaseProvider

JWT_SECRET = "a secret of at least thirty-two characters"
# One for all: a role is of the whole server, which tests that run at the same time share.
PASSWORD = "of the throw-away server"


class PostgREST:
    """One process, with the settings that Supabase has; `port` answers once it is started."""

    def __init__(
        self, binary: str, admin: str, owner: str, place: Path, schemas: str = "public"
    ) -> None:
        self._binary, self._admin, self._owner, self._place = binary, admin, owner, place
        self._schemas = schemas
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def start(self) -> None:
        """Start it after the database is as it should be: its schema cache is then right."""
        with psycopg.connect(self._admin) as connection:
            connection.execute("select pg_advisory_xact_lock(hashtext('authenticator'))")
            connection.execute(
                sql.SQL("alter role authenticator login password {}").format(sql.Literal(PASSWORD))
            )
        database = conninfo_to_dict(self._owner)
        admin_port = free_port()
        settings: dict[str, object] = {
            "db-uri": f"postgres://authenticator:{quote(PASSWORD)}@{database['host']}:{database['port']}"
            f"/{database['dbname']}",
            "db-schemas": self._schemas,
            "db-extra-search-path": "public, extensions",
            "db-anon-role": "anon",
            "db-max-rows": 1000,
            "db-pool": 4,
            "jwt-secret": JWT_SECRET,
            "server-host": "127.0.0.1",
            "server-port": self.port,
            "admin-server-port": admin_port,
        }
        configuration = self._place / "postgrest.conf"
        configuration.write_text(
            "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        )
        log = self._place / "postgrest.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [self._binary, str(configuration)], stdout=output, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + 60
        while not _is_ready(admin_port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"PostgREST did not start:\n{log.read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)


@contextmanager
def served(admin: str, owner: str, place: Path) -> Iterator[PostgREST]:
    """Run the PostgREST that POSTGREST_BIN names; skip the test if it names none."""
    binary = os.environ.get("POSTGREST_BIN")
    if not binary:
        pytest.skip("POSTGREST_BIN names no PostgREST")
    running = PostgREST(binary, admin, owner, place)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@contextmanager
def provider_of(server: PostgREST, schema: str, **claims: str) -> Iterator[SupabaseProvider]:
    """Yield a provider for an install, as the service role or with a token of these claims."""
    key = jwt.encode({"role": "service_role", **claims}, JWT_SECRET, algorithm="HS256")
    # A Supabase client calls functions by this one, below /rest/v1.
    client: Any = SyncPostgrestClient(
        f"http://127.0.0.1:{server.port}", headers={"Authorization": f"Bearer {key}"}
    )
    try:
        yield SupabaseProvider(client=client, schema=schema)
    finally:
        client.session.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_ready(admin_port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", admin_port, timeout=2)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
