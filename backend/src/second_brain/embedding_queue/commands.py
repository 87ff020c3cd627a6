"""The commands embed and reembed: arguments, signals and output."""

import json
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from types import FrameType
from typing import Annotated

import typer

from second_brain.cli.corpus import configured_embedder
from second_brain.cli.options import (
    CollectionsOption,
    DsnOption,
    EmbedderOption,
    JsonOption,
    MemoryOption,
    SchemaOption,
    WorkersOption,
    new_group,
)
from second_brain.cli.output import print_json, show, showing_progress
from second_brain.cli.tables import number, printable
from second_brain.cli.target import is_rest_configured, opened, resolve_dsn
from second_brain.embedding_queue import reembedding
from second_brain.embedding_queue.queue import (
    LEASE,
    EmbeddingQueue,
    PostgresEmbeddingQueue,
    SupabaseEmbeddingQueue,
)
from second_brain.embedding_queue.worker import BATCH_SIZE, POLL, Batch, EmbeddingWorker
from second_brain.models import EMBEDDER_NAMES, RateLimit
from second_brain.services.install import SCHEMA

_EXAMPLES = """\b
Examples:
  second-brain corpus embed --embedder openai:text-embedding-3-small --requests-per-minute 500
  second-brain corpus embed --once --json
  second-brain corpus embed --status
  second-brain corpus embed --collection tickets --retry-failed
"""

app = typer.Typer(rich_markup_mode=None)
reembed = new_group(
    app,
    "reembed",
    """\b
Examples:
  second-brain corpus reembed start --embedder voyage:voyage-4-large --memory 4GB
  second-brain corpus reembed status
  second-brain corpus reembed cancel
""",
)


@app.command("embed", epilog=_EXAMPLES)
def _embed_worker(
    embedder_name: EmbedderOption = "wordllama",
    batch_size: Annotated[
        int, typer.Option(help="Texts that are claimed and embedded at once.", min=1, max=1000)
    ] = BATCH_SIZE,
    requests_per_minute: Annotated[
        int | None, typer.Option(help="Calls of the model in a minute, of this process.", min=1)
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(help="Estimated tokens in a minute, of this process.", min=1)
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when nothing waits, instead of polling.")
    ] = False,
    poll: Annotated[
        float, typer.Option(help="Seconds between two looks while nothing waits.", min=0.01)
    ] = POLL,
    lease: Annotated[
        float,
        typer.Option(
            help="Seconds until the texts of a worker that ended are handed out again; longer "
            "than a batch takes.",
            min=1,
            max=86400,
        ),
    ] = LEASE.total_seconds(),
    collections: CollectionsOption = None,
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", help="First give texts that failed for good new attempts."),
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show pending and failed chunks, and embed nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each batch, and the totals.")
    ] = False,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Embed chunks that have no embedding, or one of another model than their collection's.

    Run as many as you like, on any machines: no text is given to two of them. Ctrl-C or SIGTERM
    ends after the running batch, a second one at once. The database is chosen as in the other
    commands; without one, the Supabase project of SUPABASE_URL and SUPABASE_KEY is used.
    """
    if status:
        _print_status(dsn, schema, as_json=as_json)
        return
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")
    logging.getLogger("second_brain").setLevel(logging.INFO)
    rate_limit = None
    if requests_per_minute or tokens_per_minute:
        rate_limit = RateLimit(
            requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute
        )
    embedder = configured_embedder(embedder_name)
    done = 0

    def on_batch(batch: Batch) -> None:
        nonlocal done
        done += batch.chunks
        if as_json:
            typer.echo(json.dumps(_rounded(batch)))
        else:
            typer.echo(f"{done:,} chunks embedded; {_described(batch)}", err=True)

    queue = _queue(dsn, schema)
    try:
        if retry_failed:
            retried = queue.retry(embedder.model)
            typer.echo(f"{number(retried, 'text')} that failed will be tried again.", err=True)
        worker = EmbeddingWorker(
            queue,
            embedder,
            batch_size=batch_size,
            lease=timedelta(seconds=lease),
            collections=collections,
            once=once,
            poll=poll,
            rate_limit=rate_limit,
            on_batch=on_batch,
        )
        with _stopped_by_signals(worker):
            total = worker.run()
    finally:
        queue.close()
    if as_json:
        typer.echo(json.dumps({"total": _rounded(total)}))
    else:
        typer.echo(f"In all: {_described(total)}", err=True)


def _print_status(dsn: str | None, schema: str, *, as_json: bool) -> None:
    queue = _queue(dsn, schema)
    try:
        pending, failed = queue.pending(), queue.failed()
    finally:
        queue.close()
    if as_json:
        print_json({"pending": pending, "failed": failed})
        return
    for one in pending:
        since = f", the oldest since {one.oldest:%Y-%m-%d %H:%M}" if one.oldest else ""
        typer.echo(
            f"{printable(one.collection)}: {number(one.pending, 'chunk')} without the embedding "
            f"of {printable(one.model or 'any model')}; {one.claimed} with a worker, "
            f"{one.failed} failed{since}"
        )
    for lost in failed:
        typer.echo(printable(f"failed: {lost.document_key or lost.chunk_id}: {lost.reason}"))
    if not pending:
        typer.echo("Nothing waits for an embedding.")


def _queue(dsn: str | None, schema: str) -> EmbeddingQueue:
    if is_rest_configured(dsn):
        typer.echo("Database: the Supabase project of $SUPABASE_URL", err=True)
        return SupabaseEmbeddingQueue(schema=schema)
    return PostgresEmbeddingQueue(resolve_dsn(dsn), schema=schema)


@contextmanager
def _stopped_by_signals(worker: EmbeddingWorker) -> Iterator[None]:
    """Stop the worker at the first signal; at the second one raise KeyboardInterrupt."""
    is_stopping = False

    def handle(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping:
            raise KeyboardInterrupt
        is_stopping = True
        worker.stop()
        typer.echo("Stopping after this batch; once more to stop at once.", err=True)

    before = {one: signal.signal(one, handle) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _rounded(batch: Batch) -> dict[str, float]:
    return {**asdict(batch), "seconds": round(batch.seconds, 3)}


def _described(batch: Batch) -> str:
    counts = asdict(batch)
    named = {
        name.replace("_", " "): count
        for name, count in counts.items()
        if count and name not in ("seconds", "chunks")
    }
    texts = ", ".join(f"{count:,} {name}" for name, count in named.items()) or "nothing to do"
    return f"{texts}; {batch.seconds:.2f} s"


@reembed.command("start")
def start_reembedding(
    embedder: Annotated[str, typer.Option(help=f"The new model: {', '.join(EMBEDDER_NAMES)}.")],
    keep_old: Annotated[
        bool,
        typer.Option("--keep-old", help="Keep the old embeddings until `corpus reembed finish`."),
    ] = False,
    batch_size: Annotated[
        int, typer.Option(help="Texts per call of the embedder.", min=1, max=2000)
    ] = reembedding.BATCH_SIZE,
    memory: MemoryOption = None,
    workers: WorkersOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Embed all chunks with another model into new columns, then switch to them.

    Searches and writes continue. After an interruption, run the command again: it continues from
    where it stopped. Connect directly or through a session pooler.
    """
    target = resolve_dsn(dsn)
    model = configured_embedder(embedder)
    with showing_progress() as on_progress:
        report = reembedding.start(
            target,
            model,
            memory=memory,
            workers=workers,
            keep_old=keep_old,
            batch_size=batch_size,
            schema=schema,
            on_progress=on_progress,
        )
    if as_json:
        print_json(report)
        return
    typer.echo(f"{report.embedded:,} chunks embedded; {model.model} is now in use.")
    if report.without_direction:
        typer.echo(
            f"{report.without_direction:,} texts have no embedding, only the text leg finds them; "
            "`second-brain doctor` lists the reasons.",
            err=True,
        )
    if report.old_is_kept:
        typer.echo("Drop the old embeddings with: second-brain corpus reembed finish", err=True)


@reembed.command("status")
def show_reembedding(
    dsn: DsnOption = None, schema: SchemaOption = SCHEMA, as_json: JsonOption = False
) -> None:
    """Show the progress of a model change."""
    with opened(dsn, schema) as database:
        now = reembedding.state(database)
        is_running = now.stage not in ("none", "switched")
        done, chunks = reembedding.count(database) if is_running else (None, None)
    if now.stage == "none":
        said = f"No model change is running; {now.dimensions} dimensions are in use."
    elif now.stage == "switched":
        said = f"{now.model} is in use; the old embeddings still exist."
    else:
        said = f"{done:,} of {chunks:,} chunks are embedded with {now.model}."
    show({**asdict(now), "embedded": done, "chunks": chunks}, said, as_json=as_json)


@reembed.command("finish")
def finish_reembedding(dsn: DsnOption = None, schema: SchemaOption = SCHEMA) -> None:
    """Drop the old embeddings after the switch."""
    with showing_progress() as on_progress:
        done = reembedding.finish(resolve_dsn(dsn), schema=schema, on_progress=on_progress)
    typer.echo("Dropped the old embeddings." if done else "There are no old embeddings.")


@reembed.command("cancel")
def cancel_reembedding(dsn: DsnOption = None, schema: SchemaOption = SCHEMA) -> None:
    """Drop the new embeddings before the switch; the old model stays in use."""
    with showing_progress() as on_progress:
        done = reembedding.cancel(resolve_dsn(dsn), schema=schema, on_progress=on_progress)
    typer.echo("Dropped the new embeddings." if done else "There is nothing to cancel.")
