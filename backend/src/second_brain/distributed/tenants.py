"""Searches and writes of many tenants, each in a database and a schema of its own."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import psycopg
from psycopg_pool import ConnectionPool

from second_brain.distributed.tenant_directory import Place, TenantDirectory
from second_brain.errors import (
    ConfigurationError,
    InvalidInputError,
    MigrationMissingError,
    SecondBrainError,
    TenantMovedError,
    UnavailableError,
    translate,
)
from second_brain.services.blocking import finished
from second_brain.services.calls import RETRIES, pause_before
from second_brain.services.connection_calls import ConnectionCall, pool_wait
from second_brain.services.connections import connection_pool, secrets
from second_brain.services.postgres import PostgresProvider
from second_brain.services.provider import SearchProvider
from second_brain.services.replicas import Server, Turn
from second_brain.services.results import Source
from second_brain.services.write import KnowledgeWriter

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

Pool: TypeAlias = ConnectionPool[psycopg.Connection[Any]]
Work: TypeAlias = Callable[[Pool, Place, Server], Result]

MAX_CONNECTIONS = 40
"""The connections of a process to all databases together."""

PER_DATABASE = 8
"""The connections of a process to one database."""

WAIT = 2.0
"""Seconds in which a call must get a connection."""

MOVE_WAIT = 30.0
"""Seconds for which a write is repeated while its tenant is moved."""


class _Pool:
    """The pool of one database, and its calls."""

    def __init__(self) -> None:
        self.users = 0
        self.last_used = 0.0
        self.lock = threading.Lock()
        self.pool: Pool | None = None


class Tenants:
    """The tenants of a directory: a provider and a writer for each.

    `databases` maps the names of databases to connection strings. A database has one pool of at
    most `per_database` connections, which opens with its first call. All pools together have at
    most `max_connections`: when a further database is needed, the pool that was not used for the
    longest time is closed. Close the object, or use it as a context manager.

    A database that cannot be reached makes the calls of its own tenants fail, after at most `wait`
    seconds, and then at once until a single call succeeds.
    """

    def __init__(
        self,
        directory: TenantDirectory,
        databases: Mapping[str, str],
        *,
        max_connections: int = MAX_CONNECTIONS,
        per_database: int = PER_DATABASE,
        wait: float = WAIT,
    ) -> None:
        if not 1 <= per_database <= max_connections:
            raise InvalidInputError(
                f"per_database must be 1 to max_connections ({max_connections}), not {per_database}"
            )
        self.directory = directory
        self._databases = dict(databases)
        self._servers = {
            name: Server(dsn, name, is_replica=False) for name, dsn in databases.items()
        }
        self._per_database = per_database
        self._most_pools = max_connections // per_database
        self._wait = wait
        self._pools: dict[str, _Pool] = {}
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all pools."""
        with self._changed:
            pools, self._pools = list(self._pools.values()), {}
        for one in pools:
            if one.pool is not None:
                one.pool.close()

    def secrets(self) -> list[str]:
        """Return the texts that no message may contain."""
        return [secret for dsn in self._databases.values() for secret in secrets(dsn)]

    @property
    def open_databases(self) -> list[str]:
        """The databases that have a pool now."""
        with self._changed:
            return sorted(self._pools)

    def for_tenant(
        self,
        tenant: str,
        *,
        multi_tenant: bool = False,
        timeout: float | None = None,
        retries: int = RETRIES,
    ) -> "TenantProvider":
        """Return the provider of a tenant, with the options of every provider.

        It follows the tenant to another database. Nothing is looked up before the first search.
        """
        return TenantProvider(
            self, tenant, multi_tenant=multi_tenant, timeout=timeout, retries=retries
        )

    def write(
        self,
        tenant: str,
        work: Callable[[KnowledgeWriter], Result],
        *,
        wait: float = MOVE_WAIT,
    ) -> Result:
        """Call `work` with a writer of the tenant and return its result.

        While the tenant is moved to another database, `work` is called again, for at most `wait`
        seconds; so it must be one write, or writes that may be repeated. A tenant that is still
        moving then raises TenantMovedError.
        """
        give_up, attempt = time.monotonic() + wait, 0

        def written(pool: Pool, place: Place, server: Server) -> Result:
            with pool.connection() as connection, server.connected():
                connection.autocommit = True
                return work(KnowledgeWriter(connection, schema=place.schema))

        while True:
            try:
                return self.run(tenant, written)
            except TenantMovedError:
                if time.monotonic() > give_up:
                    raise
                self.directory.forget(tenant)
            time.sleep(pause_before(attempt))
            attempt = min(attempt + 1, 2)

    def run(
        self,
        tenant: str,
        work: Work[Result],
        timeout: float | None = None,
    ) -> Result:
        """Call `work` with the pool and the place of a tenant, and with its database's state.

        `work` counts itself in `Server.connected` while it has a connection.
        """
        place = self.directory.find(tenant)
        try:
            return self._run(place, work, timeout)
        except SecondBrainError as error:
            if not isinstance(error, MigrationMissingError):
                raise
            # The old copy of a moved tenant may be gone.
            self.directory.forget(tenant)
            now = self.directory.find(tenant)
            if now == place:
                raise
        return self._run(now, work, timeout)

    def _run(
        self,
        place: Place,
        work: Work[Result],
        timeout: float | None,
    ) -> Result:
        server = self._servers.get(place.database)
        if server is None:
            raise ConfigurationError(
                f"the directory names the database {place.database!r}, which has no connection "
                "string",
                remedy="Add it to `databases`.",
            )
        if not server.admits(self._wait):
            raise UnavailableError(
                f"the database {place.database} could not be reached a moment ago",
                remedy="Try again shortly. Tenants of other databases are not affected.",
            )
        try:
            with self._lease(place.database, timeout) as pool:
                result = work(pool, place, server)
        except _NoPoolError:
            # The database has not failed.
            raise UnavailableError(
                f"all {self._most_pools} pools of connections are in use",
                remedy="Raise max_connections, or lower per_database.",
            ) from None
        except (psycopg.Error, SecondBrainError) as error:
            # Any other error is of the caller's function, not of the database.
            known = translate(error)
            if server.is_failing(error):
                server.has_failed()
                logger.warning("database %s: %s", place.database, known.kind)
            if known is error:
                raise
            raise known from error
        server.has_answered()
        return result

    @contextmanager
    def _lease(self, database: str, timeout: float | None) -> Iterator[Pool]:
        entry = self._reserved(database, pool_wait(timeout, self._wait))
        try:
            with entry.lock:
                if entry.pool is None:
                    entry.pool = connection_pool(
                        self._databases[database],
                        min_size=0,
                        max_size=self._per_database,
                        timeout=self._wait,
                        max_waiting=4 * self._per_database,
                        max_idle=60.0,
                        num_workers=1,
                        reconnect_timeout=self._wait,
                    )
            yield entry.pool
        finally:
            with self._changed:
                entry.users -= 1
                entry.last_used = time.monotonic()
                self._changed.notify()

    def _reserved(self, database: str, wait: float) -> _Pool:
        """Return the pool of a database with this call counted; close another one if needed."""
        give_up = time.monotonic() + wait
        closing = None
        with self._changed:
            while database not in self._pools and len(self._pools) >= self._most_pools:
                idle = [name for name, one in self._pools.items() if one.users == 0]
                if idle:
                    name = min(idle, key=lambda one: self._pools[one].last_used)
                    closing = self._pools.pop(name).pool
                    break
                left = give_up - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    raise _NoPoolError
            entry = self._pools.setdefault(database, _Pool())
            entry.users += 1
            if closing is not None:
                # Under the lock, so that the connections are closed before others are opened.
                closing.close(timeout=0)
        return entry


class _NoPoolError(Exception):
    """All pools are in use."""


class TenantProvider(SearchProvider):
    """Search of one tenant: a provider like `PostgresProvider`, wherever the tenant is."""

    name: ClassVar[Source] = "postgres"

    def __init__(
        self,
        tenants: Tenants,
        tenant: str,
        *,
        multi_tenant: bool = False,
        timeout: float | None = None,
        retries: int = RETRIES,
    ) -> None:
        super().__init__(multi_tenant=multi_tenant, timeout=timeout, retries=retries)
        self._tenants = tenants
        self._tenant = tenant

    def _secrets(self) -> Iterable[object]:
        return self._tenants.secrets()

    async def _send(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        def send(pool: Pool, place: Place, server: Server) -> object:
            provider = PostgresProvider(pool, schema=place.schema)
            call = ConnectionCall(function, arguments, timeout, provider._install)
            turn = Turn(server, None, None, 0.0, None)
            return finished(provider._on(pool, call, timeout, turn))

        return self._tenants.run(self._tenant, send, timeout)
