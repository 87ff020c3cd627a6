"""Connection strings, connections, and pools with settings that suit a transaction pooler.

libpq reads a password with an unescaped @ or / in it as host, port or database, and quotes these in
its messages. So a connection string is checked here before libpq sees it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from second_brain.errors import ConfigurationError, SecondBrainError, connection_failure, redacted

POOL_DEFAULTS: Mapping[str, str | int] = {
    "application_name": "second-brain",
    # Seconds, the last in milliseconds. They end the wait for a host that no longer answers.
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Connection options of `connection_pool`; those of the connection string replace them."""


@dataclass(frozen=True, slots=True)
class Address:
    """What a connection string names, with libpq's defaults. It holds no secret."""

    host: str
    port: str
    database: str
    user: str


def address(dsn: str) -> Address:
    """Return what the connection string names.

    Raises ConfigurationError, which quotes nothing of it, when it is malformed or when a piece of
    a password may stand where a name belongs.
    """
    try:
        given = conninfo_to_dict(dsn)
    except (psycopg.Error, ValueError):
        given = None
    if given is None:
        # Outside of the handler: libpq's message quotes the string, and would be the context.
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
            "the connection string is malformed: its password seems to go on in the host, port or "
            "database",
            remedy=_ESCAPE,
        )
    return found


_ESCAPE = (
    "Write it as postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with @ as %40, / as %2F, : as %3A "
    "and % as %25 in the password."
)


def connect(dsn: str, **options: Any) -> psycopg.Connection[Any]:
    """Open a connection; raises a SecondBrainError that names what of the address was wrong."""
    with explained(dsn):
        return psycopg.connect(dsn, **options)


@contextmanager
def explained(dsn: str) -> Iterator[None]:
    """Check a connection string, and name what of it is wrong when connecting fails."""
    target = address(dsn)
    failure: SecondBrainError | None = None
    try:
        yield
    except psycopg.OperationalError as error:
        if error.sqlstate is not None:
            raise
        failure = connection_failure(
            error, host=target.host, user=target.user, database=target.database
        )
        failure.__cause__ = redacted(error, secrets=secrets(dsn))
    if failure is not None:
        raise failure


def secrets(dsn: str) -> tuple[str, ...]:
    """Return what no message may hold of a connection string: itself, and its passwords."""
    try:
        given = conninfo_to_dict(dsn)
    except (psycopg.Error, ValueError):
        given = {}
    return dsn, *(str(given[name]) for name in ("password", "sslpassword") if given.get(name))


def connection_pool(
    dsn: str, *, min_size: int = 1, max_size: int = 10, timeout: float = 10.0, **options: Any
) -> ConnectionPool[psycopg.Connection[Any]]:
    """Return an open pool for a service, which may go through a transaction pooler.

    `timeout` is the most that a call waits for a free connection, in seconds. Further options are
    ConnectionPool's. Nothing is prepared, and a connection keeps no state of a session. Close it,
    or use it as a context manager.
    """
    return ConnectionPool(
        _pool_conninfo(dsn),
        min_size=min_size,
        max_size=max_size,
        timeout=timeout,
        open=True,
        kwargs=_POOL_CONNECTION,
        **options,
    )


def async_connection_pool(
    dsn: str, *, min_size: int = 1, max_size: int = 10, timeout: float = 10.0, **options: Any
) -> AsyncConnectionPool[psycopg.AsyncConnection[Any]]:
    """Return the same for an event loop; `async with` opens it."""
    return AsyncConnectionPool(
        _pool_conninfo(dsn),
        min_size=min_size,
        max_size=max_size,
        timeout=timeout,
        open=False,
        kwargs=_POOL_CONNECTION,
        **options,
    )


# A prepared statement belongs to a session, and a transaction pooler gives none.
_POOL_CONNECTION = {"autocommit": True, "prepare_threshold": None}


def _pool_conninfo(dsn: str) -> str:
    address(dsn)
    return make_conninfo("", **{**POOL_DEFAULTS, **conninfo_to_dict(dsn)})
