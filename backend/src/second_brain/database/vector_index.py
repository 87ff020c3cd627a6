"""The indexes of the two legs: the vector index (HNSW) and the text index (GIN).

This module lists them, replaces the vector index by one of another kind or with other parameters,
and drops both before a bulk load. Searches and writes continue during a build.
"""

from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from second_brain.database.maintenance import (
    OnProgress,
    Progress,
    build_index,
    check_session,
    ignore_progress,
    in_short_transaction,
    session,
)
from second_brain.database.migrations import stored_dimensions
from second_brain.errors import InvalidInputError
from second_brain.services.install import SCHEMA, Database

Kind = Literal["vector", "halfvec"]

MAX_VECTOR_DIMENSIONS = 2000
VECTOR_INDEX = "knowledge_chunks_embedding"
_BUILDING = "knowledge_chunks_embedding_building"
_REPLACED = "knowledge_chunks_embedding_replaced"
_TEXT_INDEX = "knowledge_chunks_content_tsv"

_SHOW = """
select class.relname as name,
       case method.amname
         when 'gin' then 'text'
         else split_part(opclass.opcname, '_', 1)
       end as kind,
       case when method.amname = 'hnsw' then coalesce(options.m, 16) end as m,
       case
         when method.amname = 'hnsw' then coalesce(options.ef_construction, 64)
       end as ef_construction,
       pg_relation_size(class.oid) as size,
       index.indisvalid as is_valid
  from pg_catalog.pg_index as index
  join pg_catalog.pg_class as class on class.oid = index.indexrelid
  join pg_catalog.pg_am as method on method.oid = class.relam
  join pg_catalog.pg_opclass as opclass on opclass.oid = index.indclass[0]
 cross join lateral (
         select max(option.option_value) filter (where option.option_name = 'm')::integer as m,
                max(option.option_value) filter (where option.option_name = 'ef_construction')
                  ::integer as ef_construction
           from pg_options_to_table(class.reloptions) as option
       ) as options
 where index.indrelid = to_regclass('public.knowledge_chunks')
   and (method.amname = 'hnsw' or class.relname = 'knowledge_chunks_content_tsv')
 order by method.amname = 'gin', class.relname
"""
_DEFINITION = """
select format(
         'create index concurrently %%I on public.knowledge_chunks'
         ' using hnsw ((%%s) extensions.%%I) with (m = %%s, ef_construction = %%s)'
         ' where status = ''active''',
         %(name)s::text,
         knowledge_internal.indexed_embedding(%(kind)s::text, %(column)s::name),
         %(kind)s::text || '_cosine_ops',
         %(m)s::integer,
         %(ef_construction)s::integer
       )
"""
_CREATE_TEXT_INDEX = """
create index concurrently knowledge_chunks_content_tsv on public.knowledge_chunks
  using gin (content_tsv) with (fastupdate = on, gin_pending_list_limit = 4096)
  where status = 'active'
"""
_MEMORY = "select set_config('maintenance_work_mem', %s, false)"
# A node of HNSW is its vector and its neighbours. effective_cache_size says how much memory there
# is only where somebody has set it.
_MEMORY_THERE_IS = """
select set_config(
         'maintenance_work_mem',
         (greatest(
           pg_size_bytes(current_setting('maintenance_work_mem')),
           least(
             1.2 * facts.estimated_rows * (
               facts.dimensions * case %(kind)s::text when 'vector' then 4 else 2 end
                 + %(m)s::integer * 50
             ),
             pg_size_bytes(current_setting(cache.name)) / 2
           )
         ) / 1024)::bigint || 'kB',
         false
       )
  from knowledge_internal.chunk_table as facts
  join pg_catalog.pg_settings as cache
    on cache.name = 'effective_cache_size' and cache.source <> 'default'
"""
_ANALYZE = "analyze public.knowledge_chunks"
_COPY_STATISTICS = "select public.refresh_knowledge_statistics()"
_WORKERS = "select set_config('max_parallel_maintenance_workers', %s, false)"
_KIND_IN_USE = """
select type.typname
  from pg_catalog.pg_attribute as attribute
  join pg_catalog.pg_type as type on type.oid = attribute.atttypid
 where attribute.attrelid = to_regclass('knowledge_internal.searchable_chunks')
   and attribute.attname = 'indexed_embedding'
"""
_USE = "select knowledge_internal.use_vector_index(%s)"
DROP_INDEX = "drop index concurrently if exists public.{index}"
_SET_ASIDE = """
alter index if exists public.knowledge_chunks_embedding
  rename to knowledge_chunks_embedding_replaced
"""
_TAKE_ITS_PLACE = """
alter index public.knowledge_chunks_embedding_building rename to knowledge_chunks_embedding
"""


@dataclass(frozen=True)
class Index:
    """An index of the chunks; `kind` is vector, halfvec or text, `size` in bytes.

    `m` and `ef_construction` are None for the text index. `is_valid` is false after an interrupted
    build; searches do not use such an index.
    """

    name: str
    kind: str
    m: int | None
    ef_construction: int | None
    size: int
    is_valid: bool


@dataclass(frozen=True)
class IndexSettings:
    """Settings of a vector index to build. `memory` is like 2GB; None means what the graph needs.

    This is at most half of effective_cache_size, if that is set, and at least
    maintenance_work_mem; `workers` None means the server's setting.

    Raises InvalidInputError for parameters that HNSW does not support.
    """

    kind: Kind = "halfvec"
    m: int = 16
    ef_construction: int = 64
    memory: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("vector", "halfvec"):
            raise InvalidInputError(f"kind must be vector or halfvec, not {self.kind}")
        if not 2 <= self.m <= 100:
            raise InvalidInputError(f"m must be between 2 and 100, not {self.m}")
        if not max(4, 2 * self.m) <= self.ef_construction <= 1000:
            raise InvalidInputError(
                f"ef_construction must be between {max(4, 2 * self.m)} (twice m) and 1000, "
                f"not {self.ef_construction}"
            )
        if self.workers is not None and not 0 <= self.workers <= 1024:
            raise InvalidInputError(f"workers must be between 0 and 1024, not {self.workers}")

    def check_dimensions(self, dimensions: int) -> None:
        """Raise InvalidInputError if this kind of index does not support these dimensions."""
        if self.kind == "vector" and dimensions > MAX_VECTOR_DIMENSIONS:
            raise InvalidInputError(
                f"an index of kind vector supports up to {MAX_VECTOR_DIMENSIONS} dimensions, but "
                f"the stored embeddings have {dimensions}",
                remedy="Use --kind halfvec; above 4,000 dimensions it indexes the first 4,000.",
            )


def show(database: Database) -> list[Index]:
    """List the vector indexes, including those of an unfinished build, and the text index."""
    with database.connection.cursor(row_factory=class_row(Index)) as cursor:
        return cursor.execute(database.install.statement(_SHOW)).fetchall()


def settings_like_current(
    database: Database,
    *,
    kind: Kind | None = None,
    m: int | None = None,
    ef_construction: int | None = None,
    memory: str | None = None,
    workers: int | None = None,
) -> IndexSettings:
    """Return settings; `kind`, `m` and `ef_construction` default to those of the index in use.

    Without an index, they default to those of the class. Raises InvalidInputError as the class.
    """
    used = next((one for one in show(database) if one.name == VECTOR_INDEX), None)
    default = IndexSettings()
    if used is not None and used.m and used.ef_construction:
        found: Kind = "vector" if used.kind == "vector" else "halfvec"
        default = IndexSettings(found, used.m, used.ef_construction)
    return IndexSettings(
        kind or default.kind,
        default.m if m is None else m,
        default.ef_construction if ef_construction is None else ef_construction,
        memory,
        workers,
    )


def build(
    dsn: str,
    settings: IndexSettings | None = None,
    *,
    schema: str = SCHEMA,
    on_progress: OnProgress = ignore_progress,
) -> list[Index]:
    """Build a new vector index, replace the one in use by it, and drop the old one.

    Without `settings`, the new index has the settings of the one in use, or the defaults. A missing
    text index is built too. If one of both was missing, the table is analysed: a bulk load ends so.
    After an interruption, a new call continues. Raises InvalidInputError
    for invalid settings, and the errors of `maintenance.session`.
    """
    with session(dsn, schema) as database:
        settings = settings or settings_like_current(database)
        settings.check_dimensions(stored_dimensions(database.connection, schema) or 0)
        set_resources(database, settings)
        is_load = not {VECTOR_INDEX, _TEXT_INDEX} <= {one.name for one in show(database)}
        _build_text_index(database, dsn, on_progress)
        _drop(database, _REPLACED, "dropping the index that an earlier run replaced", on_progress)
        ready = next((one for one in show(database) if one.name == _BUILDING), None)
        if ready is None or not has_settings(ready, settings):
            if ready is not None:
                _drop(database, _BUILDING, "dropping an unfinished index", on_progress)
            statement = definition(database, settings, name=_BUILDING)
            build_index(database, dsn, statement, "building the vector index", on_progress)
        on_progress(Progress("switching to the new index"))
        in_short_transaction(
            database, lambda: _switch(database, settings.kind), on_progress=on_progress
        )
        _drop(database, _REPLACED, "dropping the old index", on_progress)
        if is_load:
            on_progress(Progress("counting the words of the chunks"))
            database.execute(_ANALYZE)
            database.execute(_COPY_STATISTICS)
        return show(database)


def drop(dsn: str, *, schema: str = SCHEMA, on_progress: OnProgress = ignore_progress) -> None:
    """Drop the vector index and the text index; then searches read all rows."""
    with session(dsn, schema) as database:
        for name in (_BUILDING, _REPLACED, VECTOR_INDEX, _TEXT_INDEX):
            _drop(database, name, f"dropping {name}", on_progress)


def definition(
    database: Database, settings: IndexSettings, *, name: str, column: str = "embedding"
) -> bytes:
    """Return the `create index concurrently` statement for these settings on a column."""
    arguments = {
        "name": name,
        "column": column,
        "kind": settings.kind,
        "m": settings.m,
        "ef_construction": settings.ef_construction,
    }
    (statement,) = database.execute(_DEFINITION, arguments).fetchone() or ("",)
    return str(statement).encode()


def set_resources(database: Database, settings: IndexSettings) -> None:
    """Set memory and workers of the session for the build; raises InvalidInputError."""
    try:
        if settings.memory is None:
            database.execute(_MEMORY_THERE_IS, {"kind": settings.kind, "m": settings.m})
        else:
            database.execute(_MEMORY, [settings.memory])
        if settings.workers is not None:
            database.execute(_WORKERS, [str(settings.workers)])
    except psycopg.errors.InvalidParameterValue as error:
        raise InvalidInputError(
            f"memory: {error.diag.message_primary}",
            code=error.sqlstate,
            remedy="Write a size in the format of Postgres, such as 512MB or 2GB.",
        ) from error


def kind_in_use(database: Database) -> Kind:
    """Return the kind of index that the searches' view is made for."""
    found = database.execute(_KIND_IN_USE).fetchone()
    return "vector" if found == ("vector",) else "halfvec"


def has_settings(index: Index, settings: IndexSettings) -> bool:
    """Return whether an index is valid and has this kind and these parameters."""
    found = (index.kind, index.m, index.ef_construction, index.is_valid)
    return found == (settings.kind, settings.m, settings.ef_construction, True)


def _build_text_index(database: Database, dsn: str, on_progress: OnProgress) -> None:
    present = next((one for one in show(database) if one.name == _TEXT_INDEX), None)
    if present is not None and present.is_valid:
        return
    if present is not None:
        _drop(database, _TEXT_INDEX, "dropping an unfinished index", on_progress)
    statement = database.install.statement(_CREATE_TEXT_INDEX)
    build_index(database, dsn, statement, "building the text index", on_progress)


def _switch(database: Database, kind: Kind) -> None:
    # Renaming an index does not block searches. The view is locked first, in the lock order of a
    # search. A missing view, for example after `drop … cascade`, is created again.
    if database.execute(_KIND_IN_USE).fetchone() != (kind,):
        database.execute(_USE, [kind])
    database.execute(_SET_ASIDE)
    database.execute(_TAKE_ITS_PLACE)


def _drop(database: Database, name: str, step: str, on_progress: OnProgress) -> None:
    check_session(database)
    if any(one.name == name for one in show(database)):
        on_progress(Progress(step))
        database.execute(DROP_INDEX, index=sql.Identifier(name))
