"""Search and writing over psycopg, for backends that sit next to the database.

Every statement calls one SQL function of the migrations with named arguments. Nothing needs a
session: it works behind a transaction pooler.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, LiteralString, TypeAlias, TypeVar
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import RowFactory, class_row, dict_row, scalar_row
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

from second_brain.errors import translate
from second_brain.filters import json_default
from second_brain.services.provider import SearchProvider
from second_brain.services.results import Source

Row = TypeVar("Row")
Database: TypeAlias = str | psycopg.Connection[Any] | ConnectionPool[Any]

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
}

_JSON_ARGUMENTS = {"filters", "formulations", "queries"}

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


class PostgresProvider(SearchProvider):
    """Search over a psycopg connection, a pool, or a connection string.

    A connection and a pool stay the caller's: nothing is committed, closed or left failed in a
    transaction that is open. A connection serves one thread at a time; a service gives a pool.
    With a connection string each call opens a connection of its own and closes it.
    """

    name: ClassVar[Source] = "postgres"

    def __init__(self, database: Database, *, multi_tenant: bool = False) -> None:
        super().__init__(multi_tenant=multi_tenant)
        if not isinstance(database, str | psycopg.Connection | ConnectionPool):
            raise TypeError(
                "database must be a psycopg Connection, a ConnectionPool or a connection string, "
                f"not {type(database).__name__}"
            )
        self._database = database

    def _secrets(self) -> Iterable[object]:
        if not isinstance(self._database, str):
            return ()
        try:
            password = conninfo_to_dict(self._database).get("password")
        except psycopg.ProgrammingError:
            password = None
        return self._database, password

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        if isinstance(self._database, psycopg.Connection):
            yield self._database
        elif isinstance(self._database, ConnectionPool):
            with self._database.connection() as connection:
                yield connection
        else:
            with psycopg.connect(self._database) as connection:
                yield connection

    def _call(self, function: str, arguments: dict[str, Any]) -> object:
        # As text, the form whose errors are the same over PostgREST.
        as_text = {
            name: json.dumps(value)
            for name, value in arguments.items()
            if name in _JSON_ARGUMENTS and value is not None
        }
        embedding = arguments.get("query_embedding")
        if embedding is not None and not isinstance(embedding, str):
            as_text["query_embedding"] = json.dumps(embedding)
        with self._connection() as connection:
            rows = _fetch(connection, dict_row, _CALLS[function], arguments | as_text)
        return rows[0]["explained"] if function == "explain_hybrid_search" else rows


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
        self._connection = connection

    def upsert_document(
        self, document: Mapping[str, object], chunks: Sequence[Mapping[str, object]]
    ) -> UpsertCounts:
        """Store a document and its chunks, in their order; what is unchanged keeps its row.

        `document` needs `external_key`, a chunk `content`. An embedding may be a list, tuple or
        numpy array; a chunk without one takes it from a stored chunk with the same text and
        `embedding_model`.
        """
        with _translated():
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
        with _translated():
            arguments = {"owner_id": owner_id}
            return _fetch(self._connection, class_row(DeletedCounts), _DELETE_OWNER, arguments)[0]

    def purge(self, older_than: timedelta) -> int:
        """Remove chunks that were superseded or deleted longer ago, and return how many."""
        return self._count(_PURGE, {"older_than": older_than})

    def refresh_statistics(self) -> bool:
        """Renew the document frequencies that ranking reads, after ANALYZE."""
        return bool(self._count(_REFRESH_STATISTICS, {}))

    def _count(self, query: LiteralString, arguments: Mapping[str, object]) -> int:
        with _translated():
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


def _jsonb(value: object) -> Jsonb:
    return Jsonb(value, dumps=lambda item: json.dumps(item, default=json_default))
