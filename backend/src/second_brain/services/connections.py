"""Connection strings, connections, and pools with settings for a transaction pooler.

If a password has an unescaped @ or /, libpq parses a part of it as host, port or database and
shows it in error messages. So this module checks a connection string before libpq uses it.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from second_brain.errors import (
    AuthenticationError,
    ConfigurationError,
    SecondBrainError,
    UnavailableError,
)
from second_brain.redaction import QUOTED, redacted, safe_message
from second_brain.services.processes import remember

_NO_DATABASE = re.compile(r'database ".*" does not exist', re.DOTALL)
_NO_USER = re.compile(r'role ".*" does not exist|[Tt]enant or user not found')
_UNRESOLVED = re.compile(
    r"could not translate host name|failed to resolve host|Name or service not known"
)

_WRONG_OPTION = re.compile(
    r"invalid \w+ value|does not support SSL|channel binding|certificate|requirepeer|no pg_hba.conf"
)
# Supabase's address of a database itself.
_DIRECT = re.compile(r"db\.\w+\.supabase\.(?:co|com|net|in|red)")

POOL_DEFAULTS: Mapping[str, str | int] = {
    "application_name": "second-brain",
    # In seconds; tcp_user_timeout is in milliseconds. They limit the wait for a dead host.
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Connection options of `connection_pool`; options in the connection string replace them."""


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a connection string without secrets, with libpq's defaults."""

    host: str
    port: str
    database: str
    user: str


def address(dsn: str) -> Address:
    """Return the host, port, database and user of a connection string.

    Raises ConfigurationError when the string is malformed, or when one of these parts may contain
    a part of the password. The message does not contain any part of the string.
    """
    dsn = libpq(dsn)
    try:
        given = conninfo_to_dict(dsn)
    except (psycopg.Error, ValueError):
        given = None
    if given is None:
        # Not in the except block: the context would be libpq's error, which contains the string.
        if unknown := _UNKNOWN_PARAMETER.search(dsn):
            raise ConfigurationError(
                f"the connection string has a parameter that libpq does not know: {unknown[1]}",
                remedy="Remove it, or use one of libpq's, such as sslmode=require.",
            )
        raise ConfigurationError("the connection string is malformed", remedy=_ESCAPE)
    own = {one.keyword.decode(): (one.val or b"").decode() for one in pq.Conninfo.get_defaults()}

    def named(*keywords: str) -> str:
        values = (given.get(one) or own.get(one) for one in keywords)
        return next((str(value) for value in values if value), "")

    found = Address(
        named("host", "hostaddr"), named("port"), named("dbname", "user"), named("user")
    )
    if "@" in f"{found.host}{found.port}{found.database}" or (
        found.port and not found.port.replace(",", "").isdecimal()
    ):
        raise ConfigurationError(
            "the connection string is malformed: the host, port or database seems to contain a "
            "part of the password",
            remedy=_ESCAPE,
        )
    return found


_ESCAPE = (
    "Write it as postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with @ as %40, / as %2F, : as %3A "
    "and % as %25 in the password."
)


def libpq(dsn: str) -> str:
    """Return a connection string of Prisma or SQLAlchemy as libpq reads it; others as they are.

    Files and secret stores often add a line feed.
    """
    dsn = dsn.strip()
    scheme, found, rest = dsn.partition("://")
    if not found or not re.fullmatch(r"postgres(ql)?(\+\w+)?", scheme):
        return dsn
    place, _, query = rest.rpartition("?") if "?" in rest else (rest, "", "")
    if "@" in query:
        place, query = rest, ""
    kept = [one for one in query.split("&") if one and not _OF_OTHERS.match(one)]
    return f"postgresql://{place}{'?' * bool(kept)}{'&'.join(kept)}"


# What poolers and Prisma add, and the only schema that they may name.
_OF_OTHERS = re.compile(
    r"(?:pgbouncer|connection_limit|pool_timeout|socket_timeout|statement_cache_size|pool_mode"
    r"|prepared_statements?|supa|workaround)=|schema=public$"
)
_NAMES = frozenset(one.keyword.decode() for one in pq.Conninfo.get_defaults())
# Not in a password: no @ follows.
_UNKNOWN_PARAMETER = re.compile(rf"[?&](?!(?:{'|'.join(sorted(_NAMES))})=)([a-z_]+)=[^@]*$")


def connect(dsn: str, **options: Any) -> psycopg.Connection[Any]:
    """Open a connection; raises a SecondBrainError that names the wrong part of the address."""
    with explained(dsn):
        # Where the database is in SQL_ASCII, texts would be bytes.
        return psycopg.connect(libpq(dsn), **{"client_encoding": "utf8", **options})


@contextmanager
def explained(dsn: str) -> Iterator[None]:
    """Check a connection string; if connecting fails, raise an error that names the wrong part."""
    target = address(dsn)
    failure: SecondBrainError | None = None
    try:
        yield
    except psycopg.OperationalError as error:
        if error.sqlstate is not None:
            raise
        failure = _connection_failure(
            error, host=target.host, user=target.user, database=target.database
        )
        failure.__cause__ = redacted(error, secrets=secrets(dsn))
    if failure is not None:
        raise failure


def secrets(dsn: str) -> tuple[str, ...]:
    """Return the texts that no message may contain: the connection string and its passwords."""
    try:
        given = conninfo_to_dict(libpq(dsn))
    except (psycopg.Error, ValueError):
        given = {}
    return dsn, *(str(given[name]) for name in ("password", "sslpassword") if given.get(name))


def connection_pool(
    dsn: str, *, min_size: int = 1, max_size: int = 10, timeout: float = 10.0, **options: Any
) -> ConnectionPool[psycopg.Connection[Any]]:
    """Return an open pool for a service; it also works through a transaction pooler.

    `timeout` is the maximum wait for a free connection, in seconds. Further options are those of
    ConnectionPool. Connections use no prepared statements and no session state. Close the pool, or
    use it as a context manager. Make it after a fork.
    """
    pool: ConnectionPool[psycopg.Connection[Any]] = ConnectionPool(
        _pool_conninfo(dsn),
        min_size=min_size,
        max_size=max_size,
        timeout=timeout,
        open=True,
        kwargs=_POOL_CONNECTION,
        **options,
    )
    remember(pool)
    return pool


def async_connection_pool(
    dsn: str, *, min_size: int = 1, max_size: int = 10, timeout: float = 10.0, **options: Any
) -> AsyncConnectionPool[psycopg.AsyncConnection[Any]]:
    """Return the same pool for an event loop; `async with` opens it."""
    pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]] = AsyncConnectionPool(
        _pool_conninfo(dsn),
        min_size=min_size,
        max_size=max_size,
        timeout=timeout,
        open=False,
        kwargs=_POOL_CONNECTION,
        **options,
    )
    remember(pool)
    return pool


# Prepared statements belong to a session, and a transaction pooler does not keep sessions.
_POOL_CONNECTION = {"autocommit": True, "prepare_threshold": None}


def _pool_conninfo(dsn: str) -> str:
    address(dsn)
    return make_conninfo("", **{**POOL_DEFAULTS, **conninfo_to_dict(libpq(dsn))})


def _connection_failure(
    error: psycopg.Error, *, host: str, user: str, database: str
) -> SecondBrainError:
    """Return a failure to connect as an error that names what of the address was wrong.

    The names must be those that the connection string means: see `connections.address`.
    """
    original = str(error)
    where = f"host {host}" if host else "this machine"
    if _NO_DATABASE.search(original):
        return ConfigurationError(
            f"there is no database {database!r} at {where}",
            code="3D000",
            remedy="Check the database's name in the connection string.",
        )
    if _NO_USER.search(original):
        return AuthenticationError(
            f"there is no user {user!r} at {where}",
            code="28000",
            remedy="Check the user's name in the connection string (through Supabase's pooler: "
            "postgres.PROJECT).",
        )
    if "authentication failed" in original or "no password supplied" in original:
        return AuthenticationError(
            f"the password of user {user!r} was not accepted at {where}",
            code="28P01",
            remedy="Check the password in the connection string.",
        )
    text = safe_message(QUOTED.sub('"…"', original))
    remedy = (
        "Try again shortly; if it stays, check host and port in the connection string, and that "
        "the server runs."
    )
    if _UNRESOLVED.search(original):
        remedy = "Check the host in the connection string, and that this machine's DNS answers."
    if _DIRECT.fullmatch(host):
        remedy = (
            "Supabase's direct address has IPv6 only: where this machine has none, take the "
            "address of the pooler (Connect in the dashboard). Else check the project's name, and "
            "that it is not paused."
        )
    if _UNRESOLVED.search(original):
        return UnavailableError(f"the host {host} is not known", remedy=remedy)
    if _WRONG_OPTION.search(original):
        return ConfigurationError(
            f"the connection to {where} was not made: {text}",
            remedy="Check sslmode and the other options of the connection string.",
        )
    return UnavailableError(
        f"no connection to database {database!r} at {where} as user {user!r}: {text}",
        remedy=remedy,
    )
