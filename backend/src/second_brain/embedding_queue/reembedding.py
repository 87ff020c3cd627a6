"""Change of the embedding model while the table is in use.

The new embeddings are written into new columns with a new index; then one transaction swaps the
names of the columns. The table's columns show the stage, so that a new run continues after a killed
one:

    embedding_next exists   the new embeddings are being written; `cancel` drops them
    embedding_old exists    the new embeddings are in use; `finish` drops the old ones
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, LiteralString, cast

import psycopg
from psycopg import sql

from second_brain.database import migrations, vector_index
from second_brain.database.maintenance import (
    LOCK_PATIENCE,
    OnProgress,
    Progress,
    build_index,
    check_session,
    ignore_progress,
    in_short_transaction,
    pause,
    session,
)
from second_brain.embedding_queue import reembedding_statements as statements
from second_brain.embedding_queue.queue import (
    EmbeddingResult,
    PostgresEmbeddingQueue,
    vector_literal,
)
from second_brain.errors import (
    ConfigurationError,
    ConflictError,
    InvalidInputError,
)
from second_brain.models import Embedder, unit_vectors
from second_brain.services.install import SCHEMA, Database

Stage = Literal["none", "embedding", "switched"]

BATCH_SIZE = 64
# Rows written since the last round are embedded before the switch, at most this many times. After
# that they are embedded inside the switch, while searches and writes wait for its lock.
_TRIES_OUTSIDE = 5
_WORKER = "second-brain reembed"


@dataclass(frozen=True)
class State:
    """The stage of a re-embedding, the dimensions in use, and the new model if there is one."""

    stage: Stage
    dimensions: int
    model: str | None = None


@dataclass(frozen=True)
class Report:
    """The result of a run: the number of chunks embedded, and of texts with a zero vector."""

    embedded: int
    without_direction: int
    old_is_kept: bool = False


def state(database: Database) -> State:
    """Read the stage of a re-embedding from the table's columns."""
    columns = {name: rest for name, *rest in database.execute(statements.STATE).fetchall()}
    for stage, column in (("embedding", "embedding_next"), ("switched", "embedding_old")):
        if column in columns:
            comment = str(columns[column][1] or "").removeprefix(statements.MARK)
            model = json.loads(comment)["model"] if comment else None
            return State(cast(Stage, stage), columns["embedding"][0], model)
    return State("none", columns["embedding"][0])


def count(database: Database) -> tuple[int, int]:
    """Count the active chunks with a new embedding, and all active chunks."""
    done, chunks = database.execute(statements.COUNT).fetchone() or (0, 0)
    return int(done), int(chunks)


def start(
    dsn: str,
    embedder: Embedder,
    *,
    memory: str | None = None,
    workers: int | None = None,
    keep_old: bool = False,
    batch_size: int = BATCH_SIZE,
    schema: str = SCHEMA,
    on_progress: OnProgress = ignore_progress,
) -> Report:
    """Embed every active chunk with another model and switch to it; continue an interrupted run.

    Searches and writes continue, and searches use the old model until the switch. The new index has
    the parameters of the current one and is built with `memory` and `workers`. With `keep_old`, the
    old columns stay until `finish`. If the model is already in use, only chunks without an
    embedding or with one of another model are embedded, in the current columns.

    Raises ConfigurationError if an unfinished run has another model, ConflictError if the table
    stays locked, and the errors of `maintenance.session` and of the embedder.
    """
    if not 1 <= embedder.dimensions <= migrations.MAX_DIMENSIONS:
        raise InvalidInputError(
            f"{embedder.model} has {embedder.dimensions} dimensions, but pgvector's type vector "
            f"stores 1 to {migrations.MAX_DIMENSIONS}"
        )
    with session(dsn, schema) as database:
        migrations.require(database.connection, "embedding_queue", schema)
        before = state(database)
        if before.model not in (None, embedder.model):
            raise ConfigurationError(
                f"an unfinished re-embedding uses {before.model}, not {embedder.model}",
                remedy="Run it again with that model, or `second-brain corpus reembed "
                f"{'finish' if before.stage == 'switched' else 'cancel'}`.",
            )
        takes_vector = embedder.dimensions <= vector_index.MAX_VECTOR_DIMENSIONS
        kind: vector_index.Kind | None = None if takes_vector else "halfvec"
        settings = vector_index.settings_like_current(
            database, kind=kind, memory=memory, workers=workers
        )
        vector_index.set_resources(database, settings)
        models = database.execute(statements.MODELS).fetchall()
        is_in_use = models in ([], [(embedder.model,)]) and before.dimensions == embedder.dimensions
        if before.stage == "none" and is_in_use:
            run = _Run(database, embedder, batch_size, on_progress, statements.IS_LEFT_IN_PLACE)
            run.set_model()
            run.embed_all()
            return Report(run.embedded, run.failed())
        run = _Run(database, embedder, batch_size, on_progress, statements.IS_LEFT)
        if before.stage == "none":
            on_progress(Progress("adding the columns"))
            in_short_transaction(
                database, lambda: _add_columns(database, embedder), on_progress=on_progress
            )
        if before.stage != "switched":
            done, chunks = count(database)
            run.chunks = chunks - done
            run.embed_all()
            on_progress(Progress("validating the new embeddings"))
            database.execute(statements.VALIDATE)
            _make_indexes(database, dsn, settings, on_progress)
            _switch(run, settings.kind)
        failed = run.failed()
        on_progress(Progress("analysing the table"))
        for statement in statements.ANALYSE:
            database.execute(statement)
        if not keep_old:
            _drop_old(database, on_progress)
        return Report(run.embedded, failed, keep_old)


def finish(dsn: str, *, schema: str = SCHEMA, on_progress: OnProgress = ignore_progress) -> bool:
    """Drop the old embeddings after the switch; False when there are none."""
    with session(dsn, schema) as database:
        now = state(database)
        if now.stage == "embedding":
            raise ConfigurationError(
                f"the embeddings of {now.model} are not in use yet",
                remedy="Run `second-brain corpus reembed start` with that model until it is done.",
            )
        if now.stage == "switched":
            _drop_old(database, on_progress)
        return now.stage == "switched"


def cancel(dsn: str, *, schema: str = SCHEMA, on_progress: OnProgress = ignore_progress) -> bool:
    """Drop the new columns and index before the switch; False when there are none."""
    with session(dsn, schema) as database:
        now = state(database)
        if now.stage == "switched":
            raise ConfigurationError(
                f"the embeddings of {now.model} are already in use",
                remedy="Drop the old ones with `second-brain corpus reembed finish`. To go back, "
                "re-embed with the old model after that.",
            )
        if now.stage == "embedding":
            for name in (statements.NEXT_INDEX, *statements.QUEUE_INDEXES):
                on_progress(Progress(f"dropping {name}"))
                _drop_index(database, name)
            database.execute(statements.FORGET, [now.model])
            on_progress(Progress("dropping the columns"))
            in_short_transaction(
                database,
                lambda: _drop_columns(database, (*statements.UNFOLLOW, statements.DROP_NEXT)),
                on_progress=on_progress,
            )
        return now.stage == "embedding"


class _Run:
    """Embeds through the queue, so that workers with the new model can help.

    `is_left` selects the chunks that are left to embed; `chunks` is their number, None if it was
    not counted.
    """

    def __init__(
        self,
        database: Database,
        embedder: Embedder,
        batch_size: int,
        on_progress: OnProgress,
        is_left: LiteralString,
    ) -> None:
        self.database = database
        self.embedder = embedder
        self.on_progress = on_progress
        self.embedded = 0
        self.chunks: int | None = None
        self._is_left = is_left
        self._batch_size = batch_size
        self._queue = PostgresEmbeddingQueue(
            database.connection, schema=database.install.schema, worker=_WORKER
        )
        database.execute(statements.FORGET_LAST_RUN, {"worker": _WORKER, "model": embedder.model})

    def embed_batch(self) -> int:
        """Embed the next texts and all chunks that have them; 0 if there was nothing to do."""
        claimed = self._queue.claim(self.embedder.model, self._batch_size)
        if not claimed:
            return 0
        vectors = unit_vectors(
            self.embedder.embed([one.content for one in claimed]),
            len(claimed),
            self.embedder.dimensions,
            self.embedder.model,
        )
        results = [
            EmbeddingResult(one.content_hash, embedding=vector_literal(vector))
            for one, vector in zip(claimed, vectors, strict=True)
        ]
        counts = self._queue.store(self.embedder.model, results)
        self.embedded += counts.chunks
        return counts.chunks + counts.failed + counts.outdated + counts.repeated

    def embed_all(self) -> None:
        """Embed until no chunk is left; wait for rows that are locked or claimed by workers."""
        begun = time.monotonic()
        while True:
            check_session(self.database)
            while self.embed_batch():
                begun = time.monotonic()
                self._report()
            if not self.left(1):
                return
            if time.monotonic() - begun > LOCK_PATIENCE:
                raise ConflictError(
                    "chunks stayed locked by other transactions, or claimed by workers",
                    remedy="End long transactions, then run it again.",
                )
            self._report()
            pause(0.2)

    def embed_late(self) -> None:
        """Embed what was written since the last round, in the transaction that locks the table.

        Raises _LateChunksError if this is more than a batch.
        """
        if self.left(self._batch_size + 1) > self._batch_size:
            raise _LateChunksError
        self.database.execute(statements.TAKE_OVER, [self.embedder.model])
        while self.left(1):
            if not self.embed_batch():
                raise _LateChunksError

    def left(self, limit: int) -> int:
        """Count the chunks that are left to embed, up to `limit`."""
        arguments = {"model": self.embedder.model, "limit": limit}
        return len(self.database.execute(self._is_left, arguments).fetchall())

    def _report(self) -> None:
        share = min(self.embedded / self.chunks, 1) if self.chunks else None
        self.on_progress(Progress(f"embedding: {self.embedded:,} chunks", share))

    def failed(self) -> int:
        """Count the texts that have no embedding because they could not be embedded."""
        (texts,) = self.database.execute(statements.FAILED, [self.embedder.model]).fetchone() or (
            0,
        )
        return int(texts)

    def set_model(self) -> None:
        """Store the model as the one of all collections that have a setting, and of all others."""
        for statement in statements.SET_MODEL:
            self.database.execute(statement, {"model": self.embedder.model})


def _add_columns(database: Database, embedder: Embedder) -> None:
    dimensions = sql.Literal(embedder.dimensions)
    database.execute(statements.ADD_COLUMNS, dimensions=dimensions)
    for (statement,) in database.execute(statements.LIKE_CURRENT, [list(statements.COLUMNS)]):
        database.connection.execute(statement)
    _mark(database, "embedding_next", embedder.model)
    for follow in statements.FOLLOW:
        database.execute(follow)


def _mark(database: Database, column: str, model: str) -> None:
    comment = sql.Literal(statements.MARK + json.dumps({"model": model}))
    database.execute(statements.MARK_COLUMN, column=sql.Identifier(column), comment=comment)


def _make_indexes(
    database: Database, dsn: str, settings: vector_index.IndexSettings, on_progress: OnProgress
) -> None:
    # After the embedding, because updates of columns without an index can be HOT updates.
    for name, definition in statements.QUEUE_INDEXES.items():
        if database.execute(statements.IS_VALID, [name]).fetchone() != (True,):
            _drop_index(database, name)
            statement = database.install.statement(definition)
            build_index(database, dsn, statement, "indexing the queue", on_progress)
    present = [one for one in vector_index.show(database) if one.name == statements.NEXT_INDEX]
    if not present or not vector_index.has_settings(present[0], settings):
        _drop_index(database, statements.NEXT_INDEX)
        statement = vector_index.definition(
            database, settings, name=statements.NEXT_INDEX, column="embedding_next"
        )
        build_index(database, dsn, statement, "building the vector index", on_progress)


class _LateChunksError(Exception):
    """Chunks were written since the last round."""


def _switch(run: _Run, kind: vector_index.Kind) -> None:
    tries = 0
    while True:
        run.embed_all()
        run.on_progress(Progress("switching to the new embeddings"))
        may_embed = tries >= _TRIES_OUTSIDE
        try:
            in_short_transaction(
                run.database, partial(_swap, run, kind, may_embed), on_progress=run.on_progress
            )
        except _LateChunksError:
            tries += 1
        else:
            return


def _swap(run: _Run, kind: vector_index.Kind, may_embed: bool) -> None:
    database = run.database
    for statement in statements.LOCK:
        database.execute(statement)
    if run.left(1):
        if not may_embed:
            raise _LateChunksError
        run.embed_late()
    comments = database.execute(statements.COMMENTS, [list(statements.COLUMNS)]).fetchall()
    for statement in statements.SWAP:
        database.execute(statement)
    for (comment,) in comments:
        database.connection.execute(comment)
    run.set_model()
    _mark(database, "embedding_old", run.embedder.model)
    database.execute(statements.USE, [kind])


def _drop_index(database: Database, name: str) -> None:
    database.execute(vector_index.DROP_INDEX, index=sql.Identifier(name))


def _drop_old(database: Database, on_progress: OnProgress) -> None:
    check_session(database)
    on_progress(Progress("dropping the old index"))
    _drop_index(database, statements.OLD_INDEX)
    on_progress(Progress("dropping the old columns"))
    in_short_transaction(
        database, lambda: _drop_columns(database, (statements.DROP_OLD,)), on_progress=on_progress
    )


def _drop_columns(database: Database, drops: Sequence[LiteralString]) -> None:
    kind = vector_index.kind_in_use(database)
    try:
        # The view depends on these columns: drop it first, use_vector_index creates it again.
        for statement in (*statements.LOCK, *drops):
            database.execute(statement)
    except psycopg.errors.DependentObjectsStillExist as error:
        raise ConfigurationError(
            f"{error.diag.message_primary}: {error.diag.message_detail}",
            code=error.sqlstate,
            remedy="Change or drop the objects that depend on the column, then run it again.",
        ) from error
    database.execute(statements.USE, [kind])
