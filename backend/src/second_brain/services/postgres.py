"""Search and writing over psycopg, for backends that sit next to the database.

Every statement calls one SQL function of the migrations with named arguments. Nothing needs a
session: it works behind a transaction pooler.
"""

import asyncio
import json
import math
import socket
import threading
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, LiteralString, Protocol, TypeAlias, TypeVar
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import RowFactory, class_row, dict_row, scalar_row
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from second_brain.errors import ClientTimeoutError, ConnectionLostError, translate
from second_brain.filters import json_default
from second_brain.services import cache
from second_brain.services.provider import RETRIES, AsyncSearchProvider, SearchProvider
from second_brain.services.results import Source

Row = TypeVar("Row")
Database: TypeAlias = str | psycopg.Connection[Any] | ConnectionPool[Any]
AsyncDatabase: TypeAlias = str | psycopg.AsyncConnection[Any] | AsyncConnectionPool[Any]

GRACE = 0.5
"""Seconds after the timeout in which the server's own word of it is waited for."""

_OWN_CONNECTION_LOST = (
    "Open another connection: this one is gone, and is the caller's. A provider that is given a "
    "pool or a connection string asks again by itself."
)

POOL_DEFAULTS: Mapping[str, str | int] = {
    "application_name": "second-brain",
    # Seconds; milliseconds for the last: a host that is gone says nothing.
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Connection options of `connection_pool`, which the connection string's own go before."""

_HIT_COLUMNS = """
  id, content, knowledge_type, document_id, chunk_index, source_origin, metadata,
  rrf_score, vector_rank, text_rank,
  similarity, text_score, match_type, matched_terms, title, source_url,
  collection, document_date, snippet, context, total_count
"""

_OWN_ARGUMENTS = """
  query_embedding => %(query_embedding)s::extensions.vector,
  query_text => %(query_text)s::text,
  match_count => %(match_count)s::integer,
  match_threshold => %(match_threshold)s::float8,
  vector_weight => %(vector_weight)s::float8,
  text_weight => %(text_weight)s::float8,
  filter_type => %(filter_type)s::text,
  search_mode => %(search_mode)s::text,
  pool_size => %(pool_size)s::integer,
  rrf_k => %(rrf_k)s::float8,
  fusion => %(fusion)s::text,
  filters => %(filters)s::jsonb,
  date_from => %(date_from)s::date,
  date_to => %(date_to)s::date,
  collections => %(collections)s::text[],
  public_only => %(public_only)s::boolean,
  one_per_document => %(one_per_document)s::boolean,
  neighbor_window => %(neighbor_window)s::integer,
  recency_half_life => %(recency_half_life)s::float8,
  match_offset => %(match_offset)s::integer,
  snippet => %(snippet)s::boolean,
  formulations => %(formulations)s::jsonb
"""

_ARGUMENTS = f"{_OWN_ARGUMENTS}, viewer_id => %(viewer_id)s::uuid"

# Nothing but the constants above is put into a statement.
_CALLS: dict[str, LiteralString] = {
    "hybrid_search_knowledge_chunks": f"""
        select {_HIT_COLUMNS} from public.hybrid_search_knowledge_chunks({_ARGUMENTS})
    """,  # noqa: S608
    "search_my_knowledge_chunks": f"""
        select {_HIT_COLUMNS} from public.search_my_knowledge_chunks({_OWN_ARGUMENTS})
    """,  # noqa: S608
    "hybrid_search_knowledge_chunks_batch": f"""
        select query_index, {_HIT_COLUMNS}
        from public.hybrid_search_knowledge_chunks_batch(
          queries => %(queries)s::jsonb,
          fuse => %(fuse)s::boolean
        )
    """,  # noqa: S608
    "explain_hybrid_search": f"""
        select public.explain_hybrid_search({_ARGUMENTS}) as explained
    """,
    "match_knowledge_chunks": """
        select
          id, content, knowledge_type, document_id, chunk_index, source_origin, metadata, similarity
        from public.match_knowledge_chunks(
          query_embedding => %(query_embedding)s::extensions.vector,
          match_count => %(match_count)s::integer,
          match_threshold => %(match_threshold)s::float8,
          filter_type => %(filter_type)s::text
        )
    """,
    "search_knowledge_chunks_fulltext": """
        select
          id, content, knowledge_type, document_id, chunk_index, source_origin, metadata, rank
        from public.search_knowledge_chunks_fulltext(
          query_text => %(query_text)s::text,
          search_mode => %(search_mode)s::text,
          filter_type => %(filter_type)s::text,
          match_count => %(match_count)s::integer
        )
    """,
    "knowledge_embedding_models": """
        select model, dimensions, chunks from public.knowledge_embedding_models()
    """,
}

_JSON_ARGUMENTS = {"filters", "formulations", "queries"}

# The role's own limit stays one.
_SET_TIMEOUT = """
    select pg_catalog.set_config(
      'statement_timeout',
      least(
        nullif(
          1000 * extract(
            epoch from pg_catalog.current_setting('statement_timeout')::pg_catalog.interval
          ),
          0
        ),
        %(milliseconds)s::integer
      )::integer::text,
      true
    )
"""

_UPSERT_DOCUMENT = """
    select
      document_id, chunks_added, chunks_changed, chunks_unchanged, chunks_removed,
      embeddings_reused, embeddings_missing
    from public.upsert_knowledge_document(
      document => %(document)s::jsonb,
      chunks => %(chunks)s::jsonb
    )
"""

_MISSING_EMBEDDINGS = """
    select hash
    from public.missing_knowledge_embeddings(
      content_hashes => %(content_hashes)s::text[],
      model => %(embedding_model)s::text
    ) as hash
"""

_DELETE_DOCUMENT = """
    select public.delete_knowledge_document(document_key => %(external_key)s::text)
"""

_DELETE_OWNER = """
    select documents_deleted, chunks_deleted
    from public.delete_knowledge_owner(owner => %(owner_id)s::uuid)
"""

_PURGE = """
    select public.purge_knowledge_chunks(older_than => %(older_than)s::interval)
"""

_REFRESH_STATISTICS = """
    select public.refresh_knowledge_statistics()
"""


class _Postgres:
    """What both providers know of the database that they were given."""

    _database: Any

    def _reading(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> "_Reading":
        is_own = isinstance(self._database, psycopg.BaseConnection)
        return _Reading(function, arguments, timeout, _OWN_CONNECTION_LOST if is_own else None)

    def _secrets(self) -> Iterable[object]:
        if not isinstance(self._database, str):
            return ()
        try:
            password = conninfo_to_dict(self._database).get("password")
        except psycopg.ProgrammingError:
            password = None
        return self._database, password


class PostgresProvider(_Postgres, SearchProvider):
    """Search over a psycopg connection, a pool, or a connection string.

    A connection and a pool stay the caller's: nothing is committed, closed or left failed in a
    transaction that is open, and no setting outlives a call. A connection serves one thread at a
    time; a service gives a pool. With a connection string each call opens a connection of its own
    and closes it. A connection that was given and is lost is not opened again.

    A `timeout` is the statement's, under which the role's own statement_timeout still holds. Half a
    second later, when the server has not said so, the connection is broken off.
    """

    name: ClassVar[Source] = "postgres"

    def __init__(
        self,
        database: Database,
        *,
        multi_tenant: bool = False,
        timeout: float | None = None,
        retries: int = RETRIES,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if not isinstance(database, str | psycopg.Connection | ConnectionPool):
            raise TypeError(
                "database must be a psycopg Connection, a ConnectionPool or a connection string, "
                f"not {type(database).__name__}"
            )
        super().__init__(
            multi_tenant=multi_tenant,
            timeout=timeout,
            retries=0 if isinstance(database, psycopg.Connection) else retries,
            sleep=sleep,
        )
        self._database: Database = database

    @contextmanager
    def _connection(self, timeout: float | None) -> Iterator[psycopg.Connection[Any]]:
        if isinstance(self._database, psycopg.Connection):
            yield self._database
        elif isinstance(self._database, ConnectionPool):
            wait = _wait(timeout, self._database.timeout)
            with self._database.connection(wait) as connection:
                # It is this call's alone, which needs no transaction.
                as_it_was = connection.autocommit
                connection.autocommit = True
                try:
                    yield connection
                finally:
                    if connection.info.transaction_status == TransactionStatus.IDLE:
                        connection.autocommit = as_it_was
        else:
            with psycopg.connect(
                self._database, autocommit=True, **_connect_timeout(timeout)
            ) as connection:
                yield connection

    def _call(self, function: str, arguments: dict[str, Any], timeout: float | None) -> object:
        reading = self._reading(function, arguments, timeout)
        try:
            with self._connection(timeout) as connection:
                return self._read(connection, reading)
        except ConnectionLostError:
            if isinstance(self._database, ConnectionPool):
                # A restart takes all of a pool's connections, and the next one would fail as well.
                self._database.check()
            raise

    def _read(self, connection: psycopg.Connection[Any], reading: "_Reading") -> object:
        with reading.guarded(connection, _after):
            plan = reading.plan(connection)
            cursor = connection.cursor(row_factory=dict_row)
            try:
                with connection.pipeline() if plan.is_pipelined else nullcontext():
                    for statement, values in plan.before:
                        connection.execute(statement, values, prepare=False)
                    # Prepared statements belong to a session, and behind a pooler the next call
                    # has another.
                    cursor.execute(reading.statement, reading.values, prepare=False)
                    for statement in plan.after:
                        connection.execute(statement, prepare=False)
                if plan.is_committed:
                    connection.commit()
                return reading.answer(cursor.fetchall())
            except BaseException:
                with suppress(psycopg.Error):
                    if plan.is_committed:
                        connection.rollback()
                    for statement in plan.after:
                        connection.execute(statement, prepare=False)
                raise


class AsyncPostgresProvider(_Postgres, AsyncSearchProvider):
    """`PostgresProvider` for an event loop: psycopg's AsyncConnection or AsyncConnectionPool."""

    name: ClassVar[Source] = "postgres"

    def __init__(
        self,
        database: AsyncDatabase,
        *,
        multi_tenant: bool = False,
        timeout: float | None = None,
        retries: int = RETRIES,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if not isinstance(database, str | psycopg.AsyncConnection | AsyncConnectionPool):
            raise TypeError(
                "database must be a psycopg AsyncConnection, an AsyncConnectionPool or a "
                f"connection string, not {type(database).__name__}"
            )
        super().__init__(
            multi_tenant=multi_tenant,
            timeout=timeout,
            retries=0 if isinstance(database, psycopg.AsyncConnection) else retries,
            sleep=sleep,
        )
        self._database: AsyncDatabase = database

    @asynccontextmanager
    async def _connection(
        self, timeout: float | None
    ) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        if isinstance(self._database, psycopg.AsyncConnection):
            yield self._database
        elif isinstance(self._database, AsyncConnectionPool):
            wait = _wait(timeout, self._database.timeout)
            async with self._database.connection(wait) as connection:
                as_it_was = connection.autocommit
                await connection.set_autocommit(True)
                try:
                    yield connection
                finally:
                    if connection.info.transaction_status == TransactionStatus.IDLE:
                        await connection.set_autocommit(as_it_was)
        else:
            async with await psycopg.AsyncConnection.connect(
                self._database, autocommit=True, **_connect_timeout(timeout)
            ) as connection:
                yield connection

    async def _call(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        reading = self._reading(function, arguments, timeout)
        try:
            async with self._connection(timeout) as connection:
                return await self._read(connection, reading)
        except ConnectionLostError:
            if isinstance(self._database, AsyncConnectionPool):
                await self._database.check()
            raise

    async def _read(self, connection: psycopg.AsyncConnection[Any], reading: "_Reading") -> object:
        with reading.guarded(connection, asyncio.get_running_loop().call_later):
            plan = reading.plan(connection)
            cursor = connection.cursor(row_factory=dict_row)
            try:
                async with connection.pipeline() if plan.is_pipelined else nullcontext():
                    for statement, values in plan.before:
                        await connection.execute(statement, values, prepare=False)
                    await cursor.execute(reading.statement, reading.values, prepare=False)
                    for statement in plan.after:
                        await connection.execute(statement, prepare=False)
                if plan.is_committed:
                    await connection.commit()
                return reading.answer(await cursor.fetchall())
            except BaseException:
                with suppress(psycopg.Error):
                    if plan.is_committed:
                        await connection.rollback()
                    for statement in plan.after:
                        await connection.execute(statement, prepare=False)
                raise


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


@dataclass(frozen=True, slots=True)
class _Plan:
    """The statements around the call, which together with it are one round trip.

    `after` also undoes what a failed call left behind.
    """

    before: list[tuple[LiteralString, dict[str, object]]]
    after: tuple[LiteralString, ...]
    is_committed: bool

    @property
    def is_pipelined(self) -> bool:
        return bool(self.before)


class _Reading:
    """One call of a function: what is sent, by when, and what the rows mean."""

    def __init__(
        self,
        function: str,
        arguments: dict[str, Any],
        timeout: float | None,
        remedy_of_loss: str | None,
    ) -> None:
        # As text, the form whose errors are the same over PostgREST.
        as_text = {
            name: json.dumps(value)
            for name, value in arguments.items()
            if name in _JSON_ARGUMENTS and value is not None
        }
        embedding = arguments.get("query_embedding")
        if embedding is not None and not isinstance(embedding, str):
            as_text["query_embedding"] = json.dumps(embedding)
        self.statement = _CALLS[function]
        self.values = arguments | as_text
        self._is_object = function == "explain_hybrid_search"
        self._remedy_of_loss = remedy_of_loss
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def answer(self, rows: list[dict[str, Any]]) -> object:
        return rows[0]["explained"] if self._is_object else rows

    def plan(self, connection: psycopg.BaseConnection[Any]) -> _Plan:
        before: list[tuple[LiteralString, dict[str, object]]] = []
        after: tuple[LiteralString, ...] = ()
        is_idle = connection.info.transaction_status == TransactionStatus.IDLE
        if not is_idle:
            before.append(("savepoint second_brain_read", {}))
            # Takes the setting back, too.
            after = (
                "rollback to savepoint second_brain_read",
                "release savepoint second_brain_read",
            )
        if self._deadline is not None:
            milliseconds = max(int(1000 * (self._deadline - time.monotonic())), 1)
            # Without a transaction it holds until the end of the pipeline, which is one.
            before.append((_SET_TIMEOUT, {"milliseconds": milliseconds}))
        return _Plan(before, after, is_committed=is_idle and not connection.autocommit)

    @contextmanager
    def guarded(
        self,
        connection: psycopg.BaseConnection[Any],
        call_later: Callable[[float, Callable[[], None]], "_Cancellable"],
    ) -> Iterator[None]:
        """Break the connection off some time after the timeout, and name what broke."""
        cut = _Cut(connection)
        timer = None
        if self._deadline is not None:
            timer = call_later(max(self._deadline - time.monotonic(), 0) + GRACE, cut)
        try:
            yield
        except psycopg.Error as error:
            if cut.is_made:
                raise ClientTimeoutError("the database did not answer in time") from error
            if connection.closed:
                known = translate(error)
                raise ConnectionLostError(
                    str(known), code=known.code, remedy=self._remedy_of_loss
                ) from error
            raise
        finally:
            cut.prevent()
            if timer is not None:
                timer.cancel()


class _Cut:
    """Ends a connection from outside, for what waits on it to fail at once."""

    def __init__(self, connection: psycopg.BaseConnection[Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._is_prevented = False
        self.is_made = False

    def __call__(self) -> None:
        # An error says that the connection is gone already.
        with self._lock, suppress(psycopg.Error, OSError):
            if self._is_prevented:
                return
            lent = socket.socket(fileno=self._connection.fileno())
            self.is_made = True
            try:
                lent.shutdown(socket.SHUT_RDWR)
            finally:
                lent.detach()

    def prevent(self) -> None:
        with self._lock:
            self._is_prevented = True


class _Cancellable(Protocol):
    def cancel(self) -> None: ...


def _after(seconds: float, function: Callable[[], None]) -> _Cancellable:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
    return timer


def _wait(timeout: float | None, pools_own: float) -> float:
    # A pool whose database is gone keeps a caller waiting: no longer than its owner thought right.
    return pools_own if timeout is None else min(timeout, pools_own)


def _connect_timeout(timeout: float | None) -> dict[str, Any]:
    # libpq takes whole seconds, and two at least.
    return {} if timeout is None else {"connect_timeout": max(math.ceil(timeout), 2)}


@dataclass(frozen=True, slots=True)
class UpsertCounts:
    """What an upsert changed, in chunks; `document_id` is the document's."""

    document_id: UUID
    chunks_added: int
    chunks_changed: int
    chunks_unchanged: int
    chunks_removed: int
    embeddings_reused: int
    embeddings_missing: int


@dataclass(frozen=True, slots=True)
class DeletedCounts:
    """What a deletion removed."""

    documents_deleted: int
    chunks_deleted: int


class KnowledgeWriter:
    """The writing side: one method per SQL function, each in a transaction of its own.

    Inside a transaction of the caller's it is a savepoint, and the caller commits. The role must
    be service_role or the tables' owner. Every method raises a `SecondBrainError`.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        if not isinstance(connection, psycopg.Connection):
            raise TypeError(
                f"connection must be a psycopg Connection, not {type(connection).__name__}"
            )
        self._connection = connection

    def upsert_document(
        self, document: Mapping[str, object], chunks: Sequence[Mapping[str, object]]
    ) -> UpsertCounts:
        """Store a document and its chunks, in their order; what is unchanged keeps its row.

        `document` needs `external_key`, a chunk `content`. An embedding may be a list, tuple or
        numpy array; a chunk without one takes it from a stored chunk with the same text and
        `embedding_model`.
        """
        with _writing():
            return _fetch(
                self._connection,
                class_row(UpsertCounts),
                _UPSERT_DOCUMENT,
                {"document": _jsonb(dict(document)), "chunks": _jsonb(list(map(dict, chunks)))},
            )[0]

    def missing_embeddings(self, content_hashes: Sequence[str], embedding_model: str) -> set[str]:
        """Return the hashes that no stored chunk has an embedding of that model for."""
        with _translated():
            return set(
                _fetch(
                    self._connection,
                    scalar_row,
                    _MISSING_EMBEDDINGS,
                    {"content_hashes": list(content_hashes), "embedding_model": embedding_model},
                )
            )

    def delete_document(self, external_key: str) -> int:
        """Delete a document and return how many chunks went with it; 0 when there is none."""
        return self._count(_DELETE_DOCUMENT, {"external_key": external_key})

    def delete_owner(self, owner_id: UUID | str) -> DeletedCounts:
        """Delete everything that one owner has."""
        with _writing():
            arguments = {"owner_id": owner_id}
            return _fetch(self._connection, class_row(DeletedCounts), _DELETE_OWNER, arguments)[0]

    def purge(self, older_than: timedelta) -> int:
        """Remove chunks that were superseded or deleted longer ago, and return how many."""
        return self._count(_PURGE, {"older_than": older_than})

    def refresh_statistics(self) -> bool:
        """Renew the document frequencies that ranking reads, after ANALYZE."""
        return bool(self._count(_REFRESH_STATISTICS, {}))

    def _count(self, query: LiteralString, arguments: Mapping[str, object]) -> int:
        with _writing():
            return int(_fetch(self._connection, scalar_row, query, arguments)[0])


def _fetch(
    connection: psycopg.Connection[Any],
    row_factory: RowFactory[Row],
    query: LiteralString,
    arguments: Mapping[str, object],
) -> list[Row]:
    with connection.transaction(), connection.cursor(row_factory=row_factory) as cursor:
        # Prepared statements belong to a session, and behind a pooler the next call has another.
        cursor.execute(query, arguments, prepare=False)
        return cursor.fetchall()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (psycopg.Error, ValueError, TypeError) as error:
        raise translate(error) from error


@contextmanager
def _writing() -> Iterator[None]:
    with _translated():
        yield
    cache.written()


def _jsonb(value: object) -> Jsonb:
    return Jsonb(value, dumps=lambda item: json.dumps(item, default=json_default))
