"""Search over psycopg, for backends with a direct connection to the database.

It does not need session state, so it also works through a transaction pooler.
"""

from typing import Any, ClassVar, TypeAlias

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from second_brain.services.connection_calls import OverPsycopg
from second_brain.services.provider import AsyncSearchProvider, SearchProvider
from second_brain.services.results import Source

Database: TypeAlias = str | psycopg.Connection[Any] | ConnectionPool[Any]
AsyncDatabase: TypeAlias = str | psycopg.AsyncConnection[Any] | AsyncConnectionPool[Any]


class PostgresProvider(OverPsycopg[Database], SearchProvider):
    """Search over a psycopg connection, a pool, or a connection string.

    The provider does not commit or close a connection of the caller, does not leave its open
    transaction in a failed state, and restores all settings after a call. On one connection, the
    calls of several threads wait for each other; a service should use a pool. With a connection
    string, each call opens and closes its own connection. A lost connection of the caller is not
    opened again.

    `schema` is the schema of the install. `timeout` becomes the statement_timeout, unless the role
    has a shorter one. If the server does not cancel the statement, the connection is closed half a
    second later.
    """

    name: ClassVar[Source] = "postgres"
    connection_type = psycopg.Connection
    pool_type = ConnectionPool


class AsyncPostgresProvider(OverPsycopg[AsyncDatabase], AsyncSearchProvider):
    """`PostgresProvider` for an event loop: psycopg's AsyncConnection or AsyncConnectionPool."""

    name: ClassVar[Source] = "postgres"
    connection_type = psycopg.AsyncConnection
    pool_type = AsyncConnectionPool
