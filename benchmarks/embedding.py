"""The speed of embed-workers: chunks a second with one process and with several.

The model is a stub of each process that takes 20 ms for a batch. All indexes are in place, so the
figures contain the insertion of each embedding into the vector index. `kills` processes are killed
with SIGKILL at random moments of another run; afterwards every chunk is compared with its text.

    python -m benchmarks.embedding --chunks 10000 --processes 1 4 --kills 20
"""

import argparse
import hashlib
import json
import multiprocessing
import random
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from benchmarks.scratch import database
from second_brain.ingest.embedding_worker import Batch, EmbeddingWorker
from second_brain.services.embedding_queue import PostgresEmbeddingQueue

DIMENSIONS = 384
MODEL_SECONDS = 0.02
FILL = """
insert into public.knowledge_chunks (content)
select (
         select string_agg('w' || floor(2000 * random() ^ 3), ' ')
           from generate_series(1, 60)
       ) || ' ' || number
  from generate_series(1, %s) as number
"""
FORGET = """
update public.knowledge_chunks set embedding = null, embedding_model = null
"""
LEFT = """
select count(*) from public.knowledge_chunks where status = 'active' and embedding is null
"""
SIZES = """
select pg_relation_size('public.knowledge_chunks_unembedded'),
       pg_relation_size('public.knowledge_chunks_embedding_model'),
       pg_total_relation_size('public.knowledge_embedding_claims')
"""


class Stub:
    """Stands for a model behind an API: a pause, and vectors that follow from the texts."""

    model = "stub"
    dimensions = DIMENSIONS

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed a batch."""
        time.sleep(MODEL_SECONDS)
        return np.stack([vector(text) for text in texts])


def vector(text: str) -> NDArray[np.float32]:
    """Return the vector of a text."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    return np.random.default_rng(seed).standard_normal(DIMENSIONS).astype(np.float32)


def work(dsn: str, lease: float, pipe: Pipe) -> None:
    """Work until nothing waits, and send the texts embedded after each batch, then the totals."""
    queue = PostgresEmbeddingQueue(dsn)
    queue.pending()
    pipe.send("ready")
    pipe.recv()
    worker = EmbeddingWorker(
        queue,
        Stub(),
        once=True,
        lease=timedelta(seconds=lease),
        on_batch=lambda batch: pipe.send(batch.texts_embedded),
    )
    pipe.send(worker.run())


class Workers:
    """Processes that work, and the number of texts that they embedded."""

    def __init__(self, dsn: str, lease: float) -> None:
        self._dsn, self._lease = dsn, lease
        self._context = multiprocessing.get_context("spawn")
        self.running: list[tuple[Any, Pipe]] = []

    def start(self, count: int) -> None:
        """Start processes; they begin together."""
        started = []
        for _ in range(count):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=work, args=(self._dsn, self._lease, theirs))
            process.start()
            theirs.close()
            started.append((process, ours))
        for _, pipe in started:
            assert pipe.recv() == "ready"
        for _, pipe in started:
            pipe.send("go")
        self.running += started

    def join(self) -> Batch:
        """Return the totals of all processes when they have ended."""
        total = Batch()
        for process, pipe in self.running:
            while not isinstance(reported := pipe.recv(), Batch):
                pass
            total += reported
            process.join()
        self.running.clear()
        return total


def measure(connection: "psycopg.Connection[Any]", dsn: str, processes: int) -> dict[str, float]:
    """Embed everything again with so many processes."""
    connection.execute(
        "update public.knowledge_chunks set embedding = null, embedding_model = null"
    )
    connection.execute("vacuum analyze public.knowledge_chunks")
    workers = Workers(dsn, 300)
    (chunks,) = connection.execute(LEFT).fetchone() or (0,)
    workers.start(processes)
    begun = time.perf_counter()
    total = workers.join()
    seconds = time.perf_counter() - begun
    assert total.chunks == chunks
    assert total.texts_embedded == total.stored
    return {
        "processes": processes,
        "chunks": chunks,
        "seconds": round(seconds, 2),
        "chunks_per_second": round(chunks / seconds),
        "model_calls": total.model_calls,
        "model_seconds_per_process": round(MODEL_SECONDS * total.model_calls / processes, 2),
    }


def kill(connection: "psycopg.Connection[Any]", dsn: str, kills: int) -> dict[str, int]:
    """Kill processes at random moments, let others finish, and compare every chunk."""
    connection.execute(
        "update public.knowledge_chunks set embedding = null, embedding_model = null"
    )
    workers = Workers(dsn, 1)
    draw = random.Random(kills)
    killed = 0
    workers.start(2)
    while killed < kills and (connection.execute(LEFT).fetchone() or (0,))[0]:
        time.sleep(draw.uniform(0.05, 0.4))
        process, _ = workers.running.pop(draw.randrange(len(workers.running)))
        process.kill()
        process.join()
        killed += 1
        workers.start(1)
    while (connection.execute(LEFT).fetchone() or (0,))[0]:
        if not any(process.is_alive() for process, _ in workers.running):
            workers.start(1)
        time.sleep(0.2)
    wrong = 0
    rows = connection.execute(
        "select content, embedding::text from public.knowledge_chunks where status = 'active'"
    ).fetchall()
    for content, embedding in rows:
        expected = vector(content)
        expected /= np.linalg.norm(expected)
        wrong += not np.allclose(json.loads(embedding), expected, atol=1e-6)
    for process, _ in workers.running:
        process.join()
    return {"kills": killed, "chunks": len(rows), "wrong": wrong}


def main() -> None:
    """Print the figures as JSON, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--kills", type=int, default=0)
    given = parser.parse_args()
    with database(DIMENSIONS) as connection:
        connection.execute(FILL, [given.chunks])
        info = connection.info
        dsn = psycopg.conninfo.make_conninfo(
            host=info.host,
            port=info.port,
            user=info.user,
            password=info.password,
            dbname=info.dbname,
        )
        for processes in given.processes:
            print(json.dumps(measure(connection, dsn, processes)), flush=True)
        names = ("unembedded_bytes", "embedding_model_bytes", "claims_bytes")
        sizes = connection.execute(SIZES).fetchone() or ()
        print(json.dumps(dict(zip(names, sizes, strict=True))), flush=True)
        if given.kills:
            print(json.dumps(kill(connection, dsn, given.kills)), flush=True)


if __name__ == "__main__":
    main()
