"""Which database and schema a tenant's install is in: from a file, a table or a function."""

import json
import logging
import os
import re
import tempfile
import threading
import time
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from second_brain.errors import ConfigurationError, InvalidInputError, UnavailableError
from second_brain.services.connections import connect, connection_pool
from second_brain.services.install import SCHEMA, check_schema

logger = logging.getLogger(__name__)

CACHED_FOR = 5.0
"""Seconds for which a process caches the place of a tenant."""

# Seconds in which a look-up in a table must get a connection.
_WAIT = 2.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class Place:
    """The name of a database, and the schema of the install there.

    The name is a key of the mapping from names to connection strings, so that a directory, a log
    and an error hold no password.
    """

    database: str
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        if not isinstance(self.database, str) or not _NAME.fullmatch(self.database):
            raise InvalidInputError(
                "the name of a database has letters, digits, _, . and -, at most 100, "
                f"not {self.database!r:.120}"
            )
        check_schema(self.schema)

    @classmethod
    def read(cls, text: str) -> "Place":
        """Return the place that is written as DATABASE or DATABASE/SCHEMA."""
        if not isinstance(text, str):
            raise InvalidInputError(f"a place is written as DATABASE/SCHEMA, not {text!r:.120}")
        database, slash, schema = text.partition("/")
        return cls(database, schema if slash else SCHEMA)

    def __str__(self) -> str:
        return self.database if self.schema == SCHEMA else f"{self.database}/{self.schema}"


class UnknownTenantError(ConfigurationError):
    """The directory does not have the tenant."""

    kind = "unknown_tenant"
    http_status = 404
    default_remedy = (
        "Add the tenant to the directory: `second-brain server tenants add ID DATABASE`."
    )


class TenantDirectory:
    """Where each tenant is. The answers are remembered for `cached_for` seconds.

    `find` is the caller's function: it takes a tenant and returns its Place, or None. A process
    that reads a tenant which another process has moved reads the old copy for at most this time,
    and longer while `find` fails: then the last answer holds.
    """

    def __init__(
        self, find: Callable[[str], Place | None], *, cached_for: float = CACHED_FOR
    ) -> None:
        self._find = find
        self._cached_for = cached_for
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Place]] = {}

    def find(self, tenant: str) -> Place:
        """Return the place of a tenant; raises UnknownTenantError."""
        with self._lock:
            until, place = self._known.get(tenant, (0.0, None))
        if place is not None and time.monotonic() < until:
            return place
        try:
            found = self._find(tenant)
        except Exception as error:
            # Whatever the caller's function raises: a directory that fails must not stop tenants
            # whose place is known. A write at an old place is refused.
            if place is None:
                raise
            logger.warning("the directory of tenants failed: %s", type(error).__name__)
            found = place
        if found is None:
            raise UnknownTenantError(f"the directory has no tenant {tenant!r:.120}")
        with self._lock:
            self._known[tenant] = (time.monotonic() + self._cached_for, found)
        return found

    def forget(self, tenant: str) -> None:
        """Ask for the place again the next time."""
        with self._lock:
            self._known.pop(tenant, None)

    def close(self) -> None:
        """Close what the directory has open: nothing, except for a table."""


class WritableDirectory(TenantDirectory, ABC):
    """A directory that lists its tenants, and in which a tenant can be moved."""

    def __init__(self, *, cached_for: float = CACHED_FOR) -> None:
        super().__init__(self._read, cached_for=cached_for)

    @abstractmethod
    def tenants(self) -> dict[str, Place]:
        """Return all tenants in the order of their names."""

    @abstractmethod
    def _read(self, tenant: str) -> Place | None:
        """Return the place of one tenant."""

    @abstractmethod
    def _write(self, tenant: str, place: Place) -> None:
        """Store the place of one tenant."""

    def set(self, tenant: str, place: Place) -> None:
        """Add a tenant, or say where it is now."""
        if not _NAME.fullmatch(tenant):
            raise InvalidInputError(
                "the name of a tenant has letters, digits, _, . and -, at most 100, "
                f"not {tenant!r:.120}"
            )
        self._write(tenant, place)
        self.forget(tenant)


class FileDirectory(WritableDirectory):
    """A TOML or JSON file with the names of databases and the places of tenants.

    `databases` gives for each name of a database the environment variable that has its connection
    string; `tenants` gives for each tenant DATABASE or DATABASE/SCHEMA. With `directory`, the name
    of a database, the tenants are in a table there instead: see `directory_of`.
    """

    def __init__(self, path: Path | str, *, cached_for: float = CACHED_FOR) -> None:
        super().__init__(cached_for=cached_for)
        self._path = Path(path)

    def databases(self) -> dict[str, str]:
        """Return the connection string of each database; raises ConfigurationError."""
        found = {}
        for name, variable in self._section("databases").items():
            if not isinstance(variable, str) or not re.fullmatch(r"[A-Za-z_]\w*", variable):
                # Not quoted: it may be a connection string.
                raise ConfigurationError(
                    f"{self._path}: databases.{name} must be the name of an environment variable",
                    remedy="Put the connection string into a variable, and its name here.",
                )
            if not os.environ.get(variable):
                raise ConfigurationError(
                    f"${variable}, the connection string of the database {name}, is not set",
                    remedy=f"Set {variable}.",
                )
            found[name] = os.environ[variable]
        return found

    @property
    def table(self) -> str | None:
        """The name of the database whose table has the tenants, if the file says so."""
        found = self._content().get("directory")
        return None if found is None else str(found)

    def tenants(self) -> dict[str, Place]:
        """Return all tenants in the order of their names."""
        return {name: Place.read(text) for name, text in sorted(self._section("tenants").items())}

    def _read(self, tenant: str) -> Place | None:
        text = self._section("tenants").get(tenant)
        return None if text is None else Place.read(text)

    def _write(self, tenant: str, place: Place) -> None:
        text = self._path.read_text("utf-8")
        wanted = self._parsed(text)
        wanted.setdefault("tenants", {})[tenant] = str(place)
        if self._path.suffix == ".json":
            changed = json.dumps(wanted, indent=2, ensure_ascii=False) + "\n"
        else:
            # Line by line, so that comments and the order stay.
            changed = _with_line(text, tenant, f'"{place}"')
            try:
                is_right = tomllib.loads(changed) == wanted
            except tomllib.TOMLDecodeError:
                is_right = False
            if not is_right:
                raise ConfigurationError(
                    f"{self._path} is written in a way that this program cannot change",
                    remedy=f'Write {tenant} = "{place}" into its section [tenants] yourself.',
                )
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(changed)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(self._path.stat().st_mode & 0o777)
        Path(name).replace(self._path)

    def _section(self, name: str) -> dict[str, Any]:
        found = self._content().get(name, {})
        if not isinstance(found, dict):
            raise ConfigurationError(f"{self._path}: {name} must be a table of names")
        return found

    def _content(self) -> dict[str, Any]:
        try:
            return self._parsed(self._path.read_text("utf-8"))
        except FileNotFoundError:
            raise ConfigurationError(f"there is no file {self._path}") from None

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = (
                json.loads(text) if self._path.suffix == ".json" else tomllib.loads(text)
            )
        except ValueError as error:
            raise ConfigurationError(f"{self._path} cannot be read: {error}") from error
        return found


def _with_line(text: str, tenant: str, value: str) -> str:
    """Return a TOML text in which the tenant has another value; everything else stays."""
    before, header, section = text.partition("[tenants]")
    if not header:
        return f'{text.rstrip()}\n\n[tenants]\n"{tenant}" = {value}\n'
    line = re.compile(
        rf"^[ \t]*([\"']?){re.escape(tenant)}\1[ \t]*=[ \t]*[\"'][^\"'\n]*[\"']", re.MULTILINE
    )
    changed, count = line.subn(f'"{tenant}" = {value}', section, count=1)
    return before + header + (changed if count else f'\n"{tenant}" = {value}' + section)


_CREATE = """
create schema if not exists second_brain_directory;
create table if not exists second_brain_directory.tenants (
  tenant text primary key,
  database text not null,
  schema text not null,
  moved_at timestamptz not null default now()
);
alter table second_brain_directory.tenants enable row level security;
revoke all on schema second_brain_directory from public;
"""
_FIND = "select database, schema from second_brain_directory.tenants where tenant = %s"
_LIST = "select tenant, database, schema from second_brain_directory.tenants order by tenant"
_STORE = """
insert into second_brain_directory.tenants (tenant, database, schema)
values (%s, %s, %s)
on conflict (tenant)
do update set database = excluded.database, schema = excluded.schema, moved_at = now()
"""


class TableDirectory(WritableDirectory):
    """The table `second_brain_directory.tenants` of a database, which `create` makes.

    It keeps at most two connections, which open with the first look-up. Close it after use.
    """

    def __init__(self, dsn: str, *, cached_for: float = CACHED_FOR) -> None:
        super().__init__(cached_for=cached_for)
        self._dsn = dsn
        self._pool: ConnectionPool[psycopg.Connection[Any]] | None = None
        self._opening = threading.Lock()

    def create(self) -> None:
        """Create the table, unless it exists; only its owner can use it."""
        with connect(self._dsn) as connection:
            connection.execute(_CREATE)

    def close(self) -> None:
        """Close the connections; the next look-up opens others."""
        with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def tenants(self) -> dict[str, Place]:
        """Return all tenants in the order of their names."""
        with self._connection() as connection:
            rows = connection.execute(_LIST).fetchall()
        return {tenant: Place(database, schema) for tenant, database, schema in rows}

    def _read(self, tenant: str) -> Place | None:
        with self._connection() as connection:
            row = connection.execute(_FIND, [tenant]).fetchone()
        return None if row is None else Place(*row)

    def _write(self, tenant: str, place: Place) -> None:
        with self._connection() as connection:
            connection.execute(_STORE, [tenant, place.database, place.schema])

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        with self._opening:
            if self._pool is None:
                self._pool = connection_pool(
                    self._dsn,
                    min_size=0,
                    max_size=2,
                    timeout=_WAIT,
                    max_idle=60.0,
                    num_workers=1,
                    reconnect_timeout=_WAIT,
                    # A look-up can come long after the one before it.
                    check=ConnectionPool.check_connection,
                )
            pool = self._pool
        try:
            with pool.connection() as connection:
                yield connection
        except PoolTimeout as error:
            raise UnavailableError(
                f"the database that has the directory of tenants gave no connection in {_WAIT:g} s"
            ) from error


def directory_of(path: Path | str) -> tuple[WritableDirectory, Mapping[str, str]]:
    """Return the directory that a file has or names, and the connection strings of databases.

    Close the directory after use.
    """
    file = FileDirectory(path)
    databases = file.databases()
    if file.table is None:
        return file, databases
    if file.table not in databases:
        raise ConfigurationError(
            f"{path}: directory names the database {file.table!r}, which is not in databases"
        )
    table = TableDirectory(databases[file.table])
    table.create()
    return table, databases
