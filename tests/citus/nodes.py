"""The nodes of a Citus cluster, each a server of its own.

CITUS_BIN is the folder with the programs of a Postgres that has Citus and pgvector.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from second_brain.database import embedded_machine
from second_brain.database.embedded import apply_prelude

BIN = os.environ.get("CITUS_BIN")
needs_citus = pytest.mark.skipif(
    BIN is None, reason="CITUS_BIN names no Postgres with Citus and pgvector"
)


@dataclass(frozen=True)
class Cluster:
    """A coordinator and its workers; node 0 is the coordinator."""

    place: Path
    ports: tuple[int, ...]

    def dsn(self, port: int) -> str:
        return make_conninfo(
            host="127.0.0.1", port=str(port), user="supabase_admin", dbname="postgres"
        )

    @property
    def coordinator(self) -> str:
        return self.dsn(self.ports[0])

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of Postgres; as root, as the account of the nodes."""
        user, group = embedded_machine.system_account() or (None, None)
        subprocess.run(
            [f"{BIN}/{program}", *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=user,
            group=group,
            cwd=self.place,
            env={**os.environ, "HOME": str(self.place)},
        )

    def start(self, port: int) -> None:
        """Start a node, which is made the first time."""
        data = self.place / str(port)
        if not data.exists():
            self.run("initdb", "-D", str(data), "-U", "supabase_admin", "-A", "trust", "-E", "UTF8")
            with (data / "postgresql.conf").open("a") as settings:
                settings.write(
                    f"shared_preload_libraries = 'citus'\nport = {port}\nwal_level = logical\n"
                    f"listen_addresses = '127.0.0.1'\nunix_socket_directories = '{self.place}'\n"
                    "fsync = off\nshared_buffers = 64MB\nmax_worker_processes = 32\n"
                )
        self.run("pg_ctl", "-D", str(data), "-l", str(data / "log"), "-w", "start")

    def stop(self, port: int) -> None:
        """Stop a node at once, as a machine that fails."""
        self.run("pg_ctl", "-D", str(self.place / str(port)), "-m", "immediate", "stop")


@contextmanager
def running(workers: int) -> Iterator[Cluster]:
    """Run a coordinator that knows its workers, with pgvector and the roles of Supabase on each."""
    place = Path(tempfile.mkdtemp(prefix="second-brain-citus-"))
    if account := embedded_machine.system_account():
        os.chown(place, *account)
    ports = tuple(embedded_machine.free_port() for _ in range(workers + 1))
    cluster = Cluster(place, ports)
    try:
        for port in ports:
            cluster.start(port)
            with psycopg.connect(cluster.dsn(port), autocommit=True) as node:
                node.execute("create extension citus")
                if port != ports[0]:
                    node.execute("set citus.enable_ddl_propagation = off")
                apply_prelude(node)
        with psycopg.connect(cluster.coordinator, autocommit=True) as connection:
            connection.execute("select citus_set_coordinator_host('127.0.0.1', %s)", [ports[0]])
            for port in ports[1:]:
                connection.execute("select citus_add_node('127.0.0.1', %s)", [port])
        yield cluster
    finally:
        for port in ports:
            if (place / str(port) / "postmaster.pid").exists():
                cluster.stop(port)
        shutil.rmtree(place)
