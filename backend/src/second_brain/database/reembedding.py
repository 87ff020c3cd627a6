"""Changing the embedding model of a table that is in use.

The new embeddings grow in columns beside the old ones, with an index of their own, until one
transaction swaps the names. The table's columns say how far it is, so that a run that was killed
goes on from there:

    embedding_next present   embeddings are being made; `cancel` takes them away again
    embedding_old present    the new ones are in use; `finish` drops the old ones
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, LiteralString, cast
from uuid import UUID

import psycopg
from psycopg import sql

from second_brain.database import vector_index
from second_brain.database.maintenance import (
    LOCK_PATIENCE,
    Connection,
    Progress,
    Tell,
    build_index,
    check_session,
    in_short_transaction,
    pause,
    session,
    tell_nobody,
)
from second_brain.database.migrations import MAX_DIMENSIONS
from second_brain.errors import (
    ConfigurationError,
    ConflictError,
    InvalidInputError,
)
from second_brain.models import Embedder, unit_vectors

Stage = Literal["none", "embedding", "switched"]

BATCH_SIZE = 64
# So often are rows that were written meanwhile embedded before the switch is tried again; after
# that the last ones are embedded inside it, and everybody waits for that.
_TRIES_OUTSIDE = 5

_COLUMNS = ("embedding", "embedding_bits", "embedding_model")
_MARK = "re-embedding: "

_STATE = """
select attribute.attname, attribute.atttypmod, col_description(attribute.attrelid, attribute.attnum)
  from pg_catalog.pg_attribute as attribute
 where attribute.attrelid = 'public.knowledge_chunks'::regclass
   and attribute.attname in ('embedding', 'embedding_next', 'embedding_old')
"""
_MODELS = """
select model, chunks from public.knowledge_embedding_models()
"""
_ADD_COLUMNS = """
alter table public.knowledge_chunks
  add column embedding_next extensions.vector({dimensions}),
  add column embedding_bits_next bit varying,
  add column embedding_model_next text,
  add constraint knowledge_chunks_embedding_not_zero_next
    check ((embedding_next operator(extensions.<=>) embedding_next) < 0.5) not valid
"""
_MARK_COLUMN = "comment on column public.knowledge_chunks.{column} is {comment}"
_SETTINGS = """
select attribute.attname, attribute.attstorage::text, nullif(attribute.attstattarget, -1)
  from pg_catalog.pg_attribute as attribute
 where attribute.attrelid = 'public.knowledge_chunks'::regclass
   and attribute.attname = any (%s)
"""
_SET_STORAGE = "alter table public.knowledge_chunks alter column {column} set storage {storage}"
_SET_STATISTICS = (
    "alter table public.knowledge_chunks alter column {column} set statistics {target}"
)
_STORAGE: dict[str, LiteralString] = {
    "p": "plain",
    "e": "external",
    "x": "extended",
    "m": "main",
}
# After complete_chunk, which triggers' names decide.
_FOLLOW: tuple[LiteralString, ...] = (
    """
    create function knowledge_internal.follow_reembedding()
    returns trigger
    language plpgsql
    volatile
    security invoker
    set search_path = pg_catalog, pg_temp
    as $$
    begin
      if new.embedding_model_next is distinct from old.embedding_model_next then
        -- Nothing that the chunk says has changed.
        new.updated_at := old.updated_at;
      elsif new.content_hash <> old.content_hash then
        new.embedding_next := null;
        new.embedding_bits_next := null;
        new.embedding_model_next := null;
      end if;
      return new;
    end
    $$
    """,
    """
    comment on function knowledge_internal.follow_reembedding() is
      'While a re-embedding runs: a chunk whose text changes is embedded again.'
    """,
    """
    revoke all on function knowledge_internal.follow_reembedding()
      from public, anon, authenticated, service_role
    """,
    """
    create trigger follow_reembedding
      before update on public.knowledge_chunks
      for each row execute function knowledge_internal.follow_reembedding()
    """,
)
_UNFOLLOW: tuple[LiteralString, ...] = (
    "drop trigger if exists follow_reembedding on public.knowledge_chunks",
    "drop function if exists knowledge_internal.follow_reembedding()",
)
_COUNT = """
select count(embedding_next), count(*) from public.knowledge_chunks where status = 'active'
"""
_LACKING = """
select chunk.id, chunk.content_hash, concat_ws(E'\\n', chunk.heading, chunk.content)
  from public.knowledge_chunks as chunk
 where chunk.status = 'active'
   and chunk.embedding_next is null
   and chunk.content_hash <> all (%(without)s)
   and chunk.id > coalesce(%(after)s::uuid, '00000000-0000-0000-0000-000000000000'::uuid)
 order by chunk.id
 limit %(limit)s
"""
# Never waits for a row while it holds others: a writer would wait for those.
_STORE = """
with made as materialized (
  select made.content_hash, made.embedding::extensions.vector as embedding
    from unnest(%(hashes)s::text[], %(embeddings)s::text[]) as made (content_hash, embedding)
),
locked as materialized (
  select chunk.id, made.embedding
    from public.knowledge_chunks as chunk
    join made on made.content_hash = chunk.content_hash
   where chunk.status = 'active'
     and chunk.embedding_next is null
     for no key update of chunk skip locked
)
update public.knowledge_chunks as chunk
   set embedding_next = locked.embedding,
       embedding_bits_next = knowledge_internal.embedding_bits(locked.embedding),
       embedding_model_next = %(model)s
  from locked
 where chunk.id = locked.id
"""
_VALIDATE = """
alter table public.knowledge_chunks validate constraint knowledge_chunks_embedding_not_zero_next
"""
_IS_VALID = """
select index.indisvalid
  from pg_catalog.pg_index as index
 where index.indexrelid = to_regclass('public.' || %s)
"""
_CREATE_LACKING_INDEX = b"""
create index concurrently knowledge_chunks_embedding_lacking on public.knowledge_chunks (id)
  where status = 'active' and embedding_next is null
"""
_LACKING_INDEX, _NEXT_INDEX, _OLD_INDEX = (
    "knowledge_chunks_embedding_lacking",
    "knowledge_chunks_embedding_next",
    "knowledge_chunks_embedding_old",
)
_DROP_INDEX: dict[str, LiteralString] = {
    _LACKING_INDEX: "drop index concurrently if exists public.knowledge_chunks_embedding_lacking",
    _NEXT_INDEX: "drop index concurrently if exists public.knowledge_chunks_embedding_next",
    _OLD_INDEX: "drop index concurrently if exists public.knowledge_chunks_embedding_old",
}
# In the order in which a search locks them.
_LOCK: tuple[LiteralString, ...] = (
    "lock table only public.knowledge_chunks in access exclusive mode",
    "drop view if exists knowledge_internal.searchable_chunks",
)
_COMMENTS = """
select attribute.attname, col_description(attribute.attrelid, attribute.attnum)
  from pg_catalog.pg_attribute as attribute
 where attribute.attrelid = 'public.knowledge_chunks'::regclass
   and attribute.attname = any (%s)
"""
_SWAP: tuple[LiteralString, ...] = (
    *_UNFOLLOW,
    "drop index if exists public.knowledge_chunks_embedding_lacking",
    "alter index if exists public.knowledge_chunks_embedding"
    " rename to knowledge_chunks_embedding_old",
    "alter index public.knowledge_chunks_embedding_next rename to knowledge_chunks_embedding",
    "alter table public.knowledge_chunks rename constraint knowledge_chunks_embedding_not_zero"
    " to knowledge_chunks_embedding_not_zero_old",
    "alter table public.knowledge_chunks rename constraint knowledge_chunks_embedding_not_zero_next"
    " to knowledge_chunks_embedding_not_zero",
    "alter table public.knowledge_chunks rename column embedding to embedding_old",
    "alter table public.knowledge_chunks rename column embedding_next to embedding",
    "alter table public.knowledge_chunks rename column embedding_bits to embedding_bits_old",
    "alter table public.knowledge_chunks rename column embedding_bits_next to embedding_bits",
    "alter table public.knowledge_chunks rename column embedding_model to embedding_model_old",
    "alter table public.knowledge_chunks rename column embedding_model_next to embedding_model",
    "notify pgrst, 'reload schema'",
)
_USE = "select knowledge_internal.use_vector_index(%s)"
_ANALYSE: tuple[LiteralString, ...] = (
    "analyze public.knowledge_chunks",
    "select public.refresh_knowledge_statistics()",
)
_DROP_NEXT = """
alter table public.knowledge_chunks
  drop column if exists embedding_next,
  drop column if exists embedding_bits_next,
  drop column if exists embedding_model_next
"""
_DROP_OLD = """
alter table public.knowledge_chunks
  drop column if exists embedding_old,
  drop column if exists embedding_bits_old,
  drop column if exists embedding_model_old
"""
# The columns in use have the model: chunks that another one embedded, or none.
_LACKING_IN_PLACE = """
select chunk.id, chunk.content_hash, concat_ws(E'\\n', chunk.heading, chunk.content)
  from public.knowledge_chunks as chunk
 where chunk.status = 'active'
   and (chunk.embedding is null or chunk.embedding_model is distinct from %(model)s)
   and chunk.content_hash <> all (%(without)s)
   and chunk.id > coalesce(%(after)s::uuid, '00000000-0000-0000-0000-000000000000'::uuid)
 order by chunk.id
 limit %(limit)s
"""
_STORE_IN_PLACE = """
with made as materialized (
  select made.content_hash, made.embedding::extensions.vector as embedding
    from unnest(%(hashes)s::text[], %(embeddings)s::text[]) as made (content_hash, embedding)
),
locked as materialized (
  select chunk.id, made.embedding
    from public.knowledge_chunks as chunk
    join made on made.content_hash = chunk.content_hash
   where chunk.status = 'active'
     and (chunk.embedding is null or chunk.embedding_model is distinct from %(model)s)
     for no key update of chunk skip locked
)
update public.knowledge_chunks as chunk
   set embedding = locked.embedding, embedding_model = %(model)s
  from locked
 where chunk.id = locked.id
"""


@dataclass(frozen=True)
class State:
    """How far a re-embedding is: dimensions in use, and the new model once there is one."""

    stage: Stage
    dimensions: int
    model: str | None = None


@dataclass(frozen=True)
class Report:
    """What a run did: chunks `embedded` by it, and texts that the model gives no direction."""

    embedded: int
    without_direction: int
    old_is_kept: bool = False


def state(connection: Connection) -> State:
    """Read off the table how far a re-embedding is."""
    columns = {name: rest for name, *rest in connection.execute(_STATE).fetchall()}
    for stage, column in (("embedding", "embedding_next"), ("switched", "embedding_old")):
        if column in columns:
            comment = str(columns[column][1] or "").removeprefix(_MARK)
            model = json.loads(comment)["model"] if comment else None
            return State(cast(Stage, stage), columns["embedding"][0], model)
    return State("none", columns["embedding"][0])


def count(connection: Connection) -> tuple[int, int]:
    """Count the chunks that have a new embedding, and all, while it is being made."""
    done, chunks = connection.execute(_COUNT).fetchone() or (0, 0)
    return int(done), int(chunks)


def start(
    dsn: str,
    embedder: Embedder,
    *,
    memory: str | None = None,
    workers: int | None = None,
    keep_old: bool = False,
    batch_size: int = BATCH_SIZE,
    tell: Tell = tell_nobody,
) -> Report:
    """Embed every active chunk with another model and switch to it, from wherever a run stopped.

    Searches and writes go on; the old model answers until the switch. The new index is like the one
    in use, built with `memory` and `workers`. `keep_old` leaves the old columns until `finish`.
    Where the model is in use already, chunks that another one embedded, or none, are embedded in
    place.

    Raises ConfigurationError for another model than that of an unfinished run, ConflictError when
    the table is never free, and as `maintenance.session` and the embedder do.
    """
    if not 1 <= embedder.dimensions <= MAX_DIMENSIONS:
        raise InvalidInputError(
            f"{embedder.model} has {embedder.dimensions} dimensions: pgvector's type vector stores "
            f"1 to {MAX_DIMENSIONS}"
        )
    with session(dsn) as connection:
        before = state(connection)
        if before.model not in (None, embedder.model):
            raise ConfigurationError(
                f"an unfinished re-embedding is of the model {before.model}, not {embedder.model}",
                remedy="Run it again with that model, or `second-brain reembed "
                f"{'finish' if before.stage == 'switched' else 'cancel'}`.",
            )
        wanted = _index_like(connection, embedder.dimensions, memory, workers)
        vector_index.set_resources(connection, wanted)
        if before.stage == "none" and _is_in_use(connection, embedder, before):
            run = _Run(connection, embedder, batch_size, tell, _LACKING_IN_PLACE, _STORE_IN_PLACE)
            run.embed_all()
            return Report(run.embedded, len(run.without))
        run = _Run(connection, embedder, batch_size, tell, _LACKING, _STORE)
        if before.stage == "none":
            tell(Progress("adding the columns"))
            in_short_transaction(connection, lambda: _add_columns(connection, embedder), tell=tell)
        if before.stage != "switched":
            done, chunks = count(connection)
            run.chunks = chunks - done
            run.embed_all()
            tell(Progress("checking what is embedded"))
            connection.execute(_VALIDATE)
            _make_indexes(connection, dsn, wanted, tell)
            _switch(run, wanted.kind)
        tell(Progress("analysing the table"))
        for statement in _ANALYSE:
            connection.execute(statement)
        if not keep_old:
            _drop_old(connection, tell)
        return Report(run.embedded, len(run.without), keep_old)


def finish(dsn: str, *, tell: Tell = tell_nobody) -> bool:
    """Drop the old embeddings after the switch; False when there are none."""
    with session(dsn) as connection:
        now = state(connection)
        if now.stage == "embedding":
            raise ConfigurationError(
                f"the embeddings of {now.model} are not in use yet",
                remedy="Run `second-brain reembed start` with that model until it is done.",
            )
        if now.stage == "switched":
            _drop_old(connection, tell)
        return now.stage == "switched"


def cancel(dsn: str, *, tell: Tell = tell_nobody) -> bool:
    """Take away what was made before the switch; False when there is nothing."""
    with session(dsn) as connection:
        now = state(connection)
        if now.stage == "switched":
            raise ConfigurationError(
                f"the embeddings of {now.model} are in use already",
                remedy="Drop the old ones with `second-brain reembed finish`, or re-embed with the "
                "old model after that.",
            )
        if now.stage == "embedding":
            for name in (_NEXT_INDEX, _LACKING_INDEX):
                tell(Progress(f"dropping {name}"))
                connection.execute(_DROP_INDEX[name])
            tell(Progress("dropping the columns"))
            in_short_transaction(
                connection, lambda: _drop_columns(connection, (*_UNFOLLOW, _DROP_NEXT)), tell=tell
            )
        return now.stage == "embedding"


@dataclass
class _Run:
    connection: Connection
    embedder: Embedder
    batch_size: int
    tell: Tell
    lacking_chunks: LiteralString
    store: LiteralString
    without: set[str] = field(default_factory=set)
    embedded: int = 0
    chunks: int | None = None
    """How many there are to embed, where that was counted."""

    def lacking(self, after: UUID | None = None, more: int = 0) -> Sequence[tuple[UUID, str, str]]:
        """List chunks to embed, a batch and some more: id, content_hash, text."""
        arguments = {
            "after": after,
            "limit": self.batch_size + more,
            "model": self.embedder.model,
            "without": list(self.without),
        }
        return self.connection.execute(self.lacking_chunks, arguments).fetchall()

    def embed(self, chunks: Sequence[tuple[UUID, str, str]]) -> int:
        """Embed these chunks and all others with the same text; return how many were stored."""
        texts = {content_hash: text for _, content_hash, text in chunks}
        vectors = unit_vectors(
            self.embedder.embed(list(texts.values())),
            len(texts),
            self.embedder.dimensions,
            self.embedder.model,
        )
        made = {
            content_hash: str(vector.tolist())
            for content_hash, vector in zip(texts, vectors, strict=True)
            if vector.any()
        }
        self.without |= texts.keys() - made.keys()
        arguments = {
            "hashes": list(made),
            "embeddings": list(made.values()),
            "model": self.embedder.model,
        }
        stored = self.connection.execute(self.store, arguments).rowcount
        self.embedded += stored
        return stored

    def embed_all(self) -> None:
        """Embed until no chunk is left; those that a writer holds come in the next round."""
        begun = time.monotonic()
        while True:
            check_session(self.connection)
            met = stored = 0
            after = None
            while chunks := self.lacking(after):
                met += len(chunks)
                after = chunks[-1][0]
                stored += self.embed(chunks)
                share = min(self.embedded / self.chunks, 1) if self.chunks else None
                self.tell(Progress(f"embedding: {self.embedded:,} chunks", share))
            if stored:
                begun = time.monotonic()
            elif not self.lacking():
                return
            elif time.monotonic() - begun > LOCK_PATIENCE:
                raise ConflictError(
                    f"{met} chunks were never free of locks",
                    remedy="End long transactions, then run it again.",
                )
            else:
                pause(0.2)


def _is_in_use(connection: Connection, embedder: Embedder, now: State) -> bool:
    models = connection.execute(_MODELS).fetchall()
    same_model = not models or models[0][0] == embedder.model
    return same_model and now.dimensions == embedder.dimensions


def _index_like(
    connection: Connection, dimensions: int, memory: str | None, workers: int | None
) -> vector_index.Wanted:
    takes_vector = dimensions <= vector_index.MAX_VECTOR_DIMENSIONS
    return vector_index.like_the_one_in_use(
        connection, kind=None if takes_vector else "halfvec", memory=memory, workers=workers
    )


def _add_columns(connection: Connection, embedder: Embedder) -> None:
    dimensions = sql.Literal(embedder.dimensions)
    connection.execute(sql.SQL(_ADD_COLUMNS).format(dimensions=dimensions))
    for name, storage, statistics in connection.execute(_SETTINGS, [list(_COLUMNS)]).fetchall():
        column = sql.Identifier(f"{name}_next")
        connection.execute(
            sql.SQL(_SET_STORAGE).format(column=column, storage=sql.SQL(_STORAGE[storage]))
        )
        if statistics is not None:
            target = sql.Literal(statistics)
            connection.execute(sql.SQL(_SET_STATISTICS).format(column=column, target=target))
    _mark(connection, "embedding_next", embedder.model)
    for statement in _FOLLOW:
        connection.execute(statement)


def _mark(connection: Connection, column: str, model: str) -> None:
    comment = sql.Literal(_MARK + json.dumps({"model": model}))
    connection.execute(sql.SQL(_MARK_COLUMN).format(column=sql.Identifier(column), comment=comment))


def _make_indexes(
    connection: Connection, dsn: str, wanted: vector_index.Wanted, tell: Tell
) -> None:
    # Not before the embedding: a row that no index changes for can stay on its page.
    is_valid = connection.execute(_IS_VALID, [_LACKING_INDEX]).fetchone()
    if is_valid != (True,):
        connection.execute(_DROP_INDEX[_LACKING_INDEX])
        build_index(connection, dsn, _CREATE_LACKING_INDEX, "indexing what is left", tell)
    there = [one for one in vector_index.show(connection) if one.name == _NEXT_INDEX]
    if not there or not vector_index.is_as_wanted(there[0], wanted):
        connection.execute(_DROP_INDEX[_NEXT_INDEX])
        statement = vector_index.definition(
            connection, wanted, name=_NEXT_INDEX, column="embedding_next"
        )
        build_index(connection, dsn, statement, "building the vector index", tell)


class _LateChunksError(Exception):
    """Chunks were written since the last round."""


def _switch(run: _Run, kind: vector_index.Kind) -> None:
    tries = 0
    while True:
        run.embed_all()
        run.tell(Progress("switching to the new embeddings"))
        may_embed = tries >= _TRIES_OUTSIDE
        try:
            in_short_transaction(
                run.connection, partial(_swap, run, kind, may_embed), tell=run.tell
            )
        except _LateChunksError:
            tries += 1
        else:
            return


def _swap(run: _Run, kind: vector_index.Kind, may_embed: bool) -> None:
    connection = run.connection
    for statement in _LOCK:
        connection.execute(statement)
    late = run.lacking(more=1)
    if late:
        if not may_embed or len(late) > run.batch_size:
            raise _LateChunksError
        run.embed(late)
    comments = connection.execute(_COMMENTS, [list(_COLUMNS)]).fetchall()
    for statement in _SWAP:
        connection.execute(statement)
    for name, comment in comments:
        connection.execute(
            sql.SQL(_MARK_COLUMN).format(column=sql.Identifier(name), comment=sql.Literal(comment))
        )
    _mark(connection, "embedding_old", run.embedder.model)
    connection.execute(_USE, [kind])


def _drop_old(connection: Connection, tell: Tell) -> None:
    check_session(connection)
    tell(Progress("dropping the old index"))
    connection.execute(_DROP_INDEX[_OLD_INDEX])
    tell(Progress("dropping the old columns"))
    in_short_transaction(connection, lambda: _drop_columns(connection, (_DROP_OLD,)), tell=tell)


def _drop_columns(connection: Connection, statements: Sequence[LiteralString]) -> None:
    kind = vector_index.kind_in_use(connection)
    try:
        # The view reads columns that change.
        for statement in (*_LOCK, *statements):
            connection.execute(statement)
    except psycopg.errors.DependentObjectsStillExist as error:
        raise ConfigurationError(
            f"{error.diag.message_primary}: {error.diag.message_detail}",
            code=error.sqlstate,
            remedy="Change or drop what depends on the column, then run it again.",
        ) from error
    connection.execute(_USE, [kind])
