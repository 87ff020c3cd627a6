"""Connection pools for a service, with settings that suit a transaction pooler."""

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool

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
    return make_conninfo("", **{**POOL_DEFAULTS, **conninfo_to_dict(dsn)})
