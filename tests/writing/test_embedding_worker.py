"""Workers of the queue: batches, refusals, stops, lost connections, kills; and over PostgREST."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import jwt
import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray
from postgrest import SyncPostgrestClient
from reembedded import DIMENSIONS, MODEL, Hashed, Start, Traced, lines_of, processes
from typer.testing import CliRunner

from conftest import Connection, Server, copy_of
from postgrest_server import JWT_SECRET, served
from second_brain import errors
from second_brain.cli.commands import app
from second_brain.embedding_queue import reembedding
from second_brain.embedding_queue.queue import (
    EmbeddingQueue,
    EmbeddingResult,
    PostgresEmbeddingQueue,
    SupabaseEmbeddingQueue,
)
from second_brain.embedding_queue.worker import Batch, EmbeddingWorker
from second_brain.models import RateLimit, TextTooLongError
from second_brain.services.install import Database
from waiting import until

pytestmark = pytest.mark.module("embedding_queue")

LEFT = "select count(*) from public.knowledge_chunks where status = 'active' and embedding is null"


def add(connection: Connection, *texts: str) -> None:
    statement = "insert into public.knowledge_chunks (content) select unnest(%s::text[])"
    connection.execute(statement, [list(texts)])


def left(connection: Connection) -> int:
    (count,) = connection.execute(LEFT.encode()).fetchone() or (0,)
    return int(count)


def assert_all_are_right(connection: Connection) -> None:
    """Each active chunk has the embedding of its current text, computed again."""
    texts, embeddings, models = zip(
        *connection.execute(
            "select concat_ws(E'\\n', heading, content), embedding::text, embedding_model"
            "  from public.knowledge_chunks where status = 'active'"
        ),
        strict=True,
    )
    assert set(models) == {MODEL}
    stored = np.array([json.loads(embedding) for embedding in embeddings], np.float32)
    # The worker normalises again, which can change the last bit.
    np.testing.assert_allclose(stored, Hashed(MODEL, DIMENSIONS).embed(texts), atol=1e-6)


class Picky(Hashed):
    """Refuses batches that have one of these texts, with the error of the text."""

    def __init__(self, **errors: Exception) -> None:
        super().__init__(MODEL, DIMENSIONS)
        self.errors = errors
        self.calls = 0

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls += 1
        for text in texts:
            if text in self.errors:
                raise self.errors[text]
        return super().embed(texts)


def run(dsn: str, embedder: Hashed | None = None, **options: Any) -> Batch:
    with contextlib.closing(PostgresEmbeddingQueue(dsn)) as queue:
        embedder = embedder or Hashed(MODEL, DIMENSIONS)
        return EmbeddingWorker(queue, embedder, once=True, **options).run()


def test_a_worker_embeds_what_waits_and_counts_it(dsn: str, database: Connection) -> None:
    add(database, *(f"text {number}" for number in range(20)), "text 1")
    batches: list[Batch] = []
    total = run(dsn, batch_size=8, on_batch=batches.append)
    assert (total.claimed, total.stored, total.chunks, total.texts_embedded) == (20, 20, 21, 20)
    assert total.model_calls == len(batches) == 3
    assert_all_are_right(database)


def test_one_bad_text_fails_alone_and_names_its_reason(dsn: str, database: Connection) -> None:
    add(database, *(f"text {number}" for number in range(15)), "long")
    embedder = Picky(long=TextTooLongError("it has 9000 tokens"))
    total = run(dsn, embedder)
    assert (total.stored, total.failed) == (15, 1)
    assert total.model_calls == embedder.calls == 1 + 2 * 4
    (failed,) = PostgresEmbeddingQueue(database).failed()
    assert failed.reason == "it has 9000 tokens"
    assert left(database) == 1


def test_any_error_of_a_models_library_is_an_attempt_of_its_text(
    dsn: str, database: Connection
) -> None:
    add(database, "one", "two")
    assert run(dsn, Picky(two=RuntimeError("out of memory"))).retried == 1
    reason = database.execute("select reason from public.knowledge_embedding_claims").fetchone()
    assert reason == ("RuntimeError: out of memory",)


def test_a_model_that_refuses_every_text_stops_the_worker_and_fails_no_text(
    dsn: str, database: Connection
) -> None:
    add(database, "one", "two", "three", "four")
    error = errors.InvalidInputError("the model accepts no dimensions")
    with pytest.raises(errors.SecondBrainError, match=r"refused each of 4 texts.*no dimensions"):
        run(dsn, Picky(one=error, two=error, three=error, four=error))
    assert run(dsn).stored == 4


@pytest.mark.parametrize(
    ("embedder", "message"),
    [
        (Picky(one=errors.AuthenticationError("rejected")), "rejected"),
        (Hashed("wide", 4), "3 dimensions, but wide has 4"),
    ],
)
def test_a_worker_that_cannot_go_on_frees_its_texts(
    dsn: str, database: Connection, embedder: Hashed, message: str
) -> None:
    add(database, "one")
    kinds = (errors.AuthenticationError, errors.DimensionMismatchError)
    with pytest.raises(kinds, match=message):
        run(dsn, embedder)
    assert run(dsn).stored == 1


def test_a_model_that_is_away_is_waited_for_and_no_attempt_is_counted(
    dsn: str, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(database, "one")
    embedder = Picky(one=errors.UnavailableError("the model is away"))
    pauses: list[float] = []
    worker = EmbeddingWorker(PostgresEmbeddingQueue(database), embedder, once=True)

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 7:
            embedder.errors.clear()
        return False

    monkeypatch.setattr(worker._stopping, "wait", wait)
    total = worker.run()
    assert (total.released, total.stored) == (7, 1)
    for attempt, pause in enumerate(pauses):
        longest = min(2**attempt, 60)
        assert longest / 2 <= pause <= longest


def test_the_rate_limit_is_kept(dsn: str, database: Connection) -> None:
    add(database, "one", "two", "three")
    waits: list[float] = []

    class Limit(RateLimit):
        def reserve(self, tokens: int = 0) -> float:
            waits.append(super().reserve(tokens))
            return 0.0

    limit = Limit(requests_per_minute=1, clock=lambda: 0.0)
    assert run(dsn, batch_size=1, rate_limit=limit).stored == 3
    assert waits == [0, 60, 120]


def test_a_lost_connection_is_opened_again(dsn: str, database: Connection) -> None:
    add(database, *(f"text {number}" for number in range(6)))

    class Cutting(Hashed):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            database.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
                "   and backend_type = 'client backend'"
            )
            return super().embed(texts)

    assert run(dsn, Cutting(MODEL, DIMENSIONS), batch_size=4).stored == 6
    assert_all_are_right(database)


def test_a_worker_helps_a_reembedding(dsn: str, database: Connection) -> None:
    add(database, *(f"text {number}" for number in range(10)))
    run(dsn)
    helped: list[Batch] = []

    class Helped(Hashed):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if not helped:
                helped.append(run(dsn, Hashed("new", 4), batch_size=3))
            return super().embed(texts)

    report = reembedding.start(dsn, Helped("new", 4), batch_size=4)
    assert (report.embedded, helped[0].chunks) == (4, 6)
    assert reembedding.state(Database(database)).dimensions == 4
    assert run(dsn, Hashed("new", 4)).claimed == 0
    with pytest.raises(errors.InvalidInputError, match="are of new"):
        run(dsn)


def test_the_command_embeds_and_prints_its_figures(server: Server) -> None:
    def embed(*arguments: str) -> str:
        line = ["corpus", "embed", "--once", "--dsn", dsn, *arguments]
        result = CliRunner().invoke(app, line, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    for dsn in copy_of(server, server.template(256)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            add(connection, "a key", "a door", "a house")
            first, _, last = map(json.loads, embed("--json", "--batch-size", "2").splitlines())
            assert (first["stored"], last["total"]["stored"]) == (2, 3)
            assert left(connection) == 0
            assert "In all: nothing to do" not in embed()


CHILD = """
import sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from reembedded import Traced
from second_brain.embedding_queue import commands as embedding
embedding.configured_embedder = lambda name: Traced(Path(sys.argv[1]), pause=0.5)
from second_brain.cli.commands import app
app(["corpus", "embed", "--json", "--batch-size", "2", "--poll", "0.1"])
"""


def test_sigterm_ends_after_the_batch_and_leaves_no_claim(
    dsn: str, database: Connection, tmp_path: Path
) -> None:
    add(database, *(f"text {number}" for number in range(40)))
    log = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(log), *map(str, Path(__file__).parents[:2])],
        env={**os.environ, "SECOND_BRAIN_DSN": dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        until(lambda: bool(lines_of(log)))
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    total = json.loads(output.splitlines()[-1])["total"]
    assert 2 <= total["stored"] == 40 - left(database) < 40
    claims = database.execute("select count(*) from public.knowledge_embedding_claims")
    assert claims.fetchone() == (0,)


def work(dsn: str, log: Path) -> None:
    embedder, lease = Traced(log, pause=0.01), timedelta(seconds=3)
    worker = EmbeddingWorker(
        PostgresEmbeddingQueue(dsn), embedder, batch_size=8, lease=lease, poll=0.05
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    Path(f"{log}-{os.getpid()}").touch()
    worker.run()


@pytest.fixture
def start(dsn: str, tmp_path: Path) -> Iterator[Start]:
    yield from processes(work, dsn, tmp_path / "log")


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_after_kills_at_any_point_each_chunk_has_one_embedding_of_its_text(
    dsn: str, database: Connection, tmp_path: Path, start: Start, kills: int
) -> None:
    log = tmp_path / "log"
    count = 60 * kills
    add(database, *(f"text {number % (count - 10)}" for number in range(count)))
    draw = random.Random(kills)
    workers = [start() for _ in range(3)]
    for _ in range(kills):
        seen = len(lines_of(log))
        until(lambda seen=seen: len(lines_of(log)) > seen or not left(database))  # type: ignore[misc]
        database.execute(
            "update public.knowledge_chunks set content = content || '.'"
            " where id in (select id from public.knowledge_chunks order by random() limit 3)"
        )
        time.sleep(draw.uniform(0, 0.05))
        place = draw.randrange(len(workers))
        workers[place].kill()
        workers[place].join()
        workers[place] = start()
    pending = "select from public.pending_knowledge_embeddings()"
    until(lambda: not left(database) and not database.execute(pending).fetchall())
    for worker in workers:
        # A worker that has just begun cannot be told to stop yet.
        until(Path(f"{log}-{worker.pid}").exists)
        worker.terminate()
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert_all_are_right(database)
    embedded = Counter(lines_of(log))
    # A kill costs at most the batch of the killed worker.
    assert embedded.total() - len(embedded) <= kills * 8


QueueOf = Callable[[str | None], SupabaseEmbeddingQueue]
CALLS: dict[str, Callable[[EmbeddingQueue], object]] = {
    "claim": lambda queue: queue.claim(MODEL, 10),
    "store": lambda queue: queue.store(MODEL, [EmbeddingResult("0" * 64)]),
    "pending": lambda queue: queue.pending(),
    "failed": lambda queue: queue.failed(),
    "retry": lambda queue: queue.retry(),
}


@pytest.fixture
def queue_of(dsn: str, server: Server, tmp_path: Path) -> Iterator[QueueOf]:
    """Make queues over a real PostgREST with the key of a role, or without one."""
    with contextlib.ExitStack() as stack:
        rest = stack.enter_context(served(server.admin_dsn(), dsn, tmp_path))

        def make(role: str | None) -> SupabaseEmbeddingQueue:
            claims = {"role": role, "sub": "00000000-0000-0000-0000-000000000001"}
            token = jwt.encode(claims, JWT_SECRET, algorithm="HS256")
            headers = {"Authorization": f"Bearer {token}"} if role else {}
            client = SyncPostgrestClient(f"http://127.0.0.1:{rest.port}", headers=headers)
            stack.callback(client.session.close)
            return SupabaseEmbeddingQueue(client=client)

        yield make


@pytest.mark.parametrize("call", CALLS)
def test_only_the_services_key_may_use_the_queue(queue_of: QueueOf, call: str) -> None:
    for role in (None, "authenticated"):
        with pytest.raises(errors.PermissionDeniedError):
            CALLS[call](queue_of(role))
    CALLS[call](queue_of("service_role"))


def test_a_worker_over_rest_embeds_what_waits(queue_of: QueueOf, database: Connection) -> None:
    add(database, *(f"text {number}" for number in range(20)), "long")
    queue = queue_of("service_role")
    (waiting,) = queue.pending()
    assert (waiting.collection, waiting.model, waiting.pending) == ("knowledge", None, 21)
    embedder = Picky(long=TextTooLongError("it has 9000 tokens"))
    total = EmbeddingWorker(queue, embedder, batch_size=8, once=True).run()
    assert (total.stored, total.failed, left(database)) == (20, 1, 1)
    (failed,) = queue.failed()
    assert (failed.reason, failed.attempts) == ("it has 9000 tokens", 1)
    assert queue.retry(MODEL) == 1
    assert EmbeddingWorker(queue, Hashed(MODEL, 3), once=True).run().stored == 1
    assert_all_are_right(database)


def test_a_claim_of_a_thousand_texts_is_complete(queue_of: QueueOf, database: Connection) -> None:
    add(database, *map(str, range(1100)))
    queue = queue_of("service_role")
    assert len(queue.claim(MODEL, 1000)) == 1000
    assert len(queue.claim(MODEL, 1000)) == 100


def test_without_credentials_or_a_server_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUPABASE_URL", "SUPABASE_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(errors.ClientUnavailableError):
        SupabaseEmbeddingQueue().pending()
    away = {"supabase_url": "http://127.0.0.1:9", "supabase_key": "k"}
    queue = SupabaseEmbeddingQueue(away)
    with pytest.raises((errors.UnavailableError, errors.ConfigurationError)):
        queue.pending()
    queue.close()
