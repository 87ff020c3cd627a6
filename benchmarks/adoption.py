"""A table in the layout of Supabase's guide, adopted: the commands, their seconds, the comparison.

The rows have passages of real sentences and random unit vectors. After the backfill, random writes
of the table run while a client searches, and the comparison runs again. Then the cost of the
triggers: the same writes, alternately on the adopted table and on one without triggers.
"""

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]
import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks import scratch
from benchmarks.corpus import EmbeddingSpace, documentation, passages
from second_brain.services.connections import connect

DIMENSIONS = 384
MODEL = "benchmark"
BATCH = 100
_TABLE = """
create table public.{name} (
  id bigint primary key generated always as identity,
  content text,
  embedding extensions.vector(384)
)
"""
_INDEX = "create index on public.{name} using hnsw (embedding extensions.vector_cosine_ops)"
_SEARCH = """
select count(*)
  from public.hybrid_search_knowledge_chunks(query_embedding => %s::text::extensions.vector,
                                             query_text => %s)
"""
_WRITES = {
    "insert 1": (1, "insert into public.{name} (content, embedding) values (%(content)s, %(e)s)"),
    "update text 1": (1, "update public.{name} set content = %(content)s where id = %(id)s"),
    "update embedding 1": (1, "update public.{name} set embedding = %(e)s where id = %(id)s"),
    "delete 1": (1, "delete from public.{name} where id = %(id)s"),
    "insert 100": (
        BATCH,
        "insert into public.{name} (content, embedding)"
        " select unnest(%(contents)s::text[]), unnest(%(es)s::text[])::extensions.vector",
    ),
    "update text 100": (
        BATCH,
        "update public.{name} set content = given.content"
        " from unnest(%(ids)s::bigint[], %(contents)s::text[]) as given (id, content)"
        " where {name}.id = given.id",
    ),
    "delete 100": (BATCH, "delete from public.{name} where id = any (%(ids)s)"),
}


class Rows:
    """Passages and vectors, drawn again and again from fixed ones."""

    def __init__(self, count: int) -> None:
        texts = list(documentation().values())
        self.passages = passages(texts, min(count, 20_000), seed=1)
        self.embeddings = EmbeddingSpace(DIMENSIONS, seed=1).draw_anywhere(min(count, 20_000), 2)
        self.random = Random(3)

    def content(self) -> str:
        """Return a text that no other row has."""
        return f"{self.random.choice(self.passages)} {self.random.getrandbits(40):x}"

    def embedding(self) -> str:
        """Return a vector as text."""
        vector = self.embeddings[self.random.randrange(len(self.embeddings))]
        return "[" + ",".join(f"{value:.6g}" for value in vector) + "]"


def load(connection: psycopg.Connection[Any], rows: Rows, count: int) -> None:
    """Create the table with its rows and its index."""
    connection.execute(_TABLE.format(name="documents").encode())
    with (
        connection.cursor() as cursor,
        cursor.copy(b"copy public.documents (content, embedding) from stdin") as copy,
    ):
        for _ in range(count):
            copy.write_row((rows.content(), rows.embedding()))
    connection.execute(_INDEX.format(name="documents").encode())
    connection.execute("analyze")


def command(dsn: str, *arguments: str) -> None:
    """Run a command as typed; print it with its seconds and its output."""
    begin = time.perf_counter()
    done = subprocess.run(
        [Path(sys.executable).with_name("second-brain"), *arguments, "--dsn", dsn],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begin
    print(f"{seconds:9.1f} s  second-brain {' '.join(arguments)}")
    for line in (done.stdout if done.returncode == 0 else done.stdout + done.stderr).splitlines():
        print(f"{'':13}{line}")


@contextmanager
def searching(dsn: str, rows: Rows) -> Iterator[list[float]]:
    """Search without a pause in another thread; yield the list of the milliseconds."""
    times: list[float] = []
    ended = threading.Event()
    random = Random(4)
    embeddings = [rows.embedding() for _ in range(50)]

    def search() -> None:
        with connect(dsn, autocommit=True) as connection:
            while not ended.is_set():
                words = " ".join(random.choice(rows.passages).split()[:4])
                begin = time.perf_counter()
                connection.execute(_SEARCH, [random.choice(embeddings), words])
                times.append(1000 * (time.perf_counter() - begin))

    thread = threading.Thread(target=search)
    thread.start()
    try:
        yield times
    finally:
        ended.set()
        thread.join()


def change(connection: psycopg.Connection[Any], rows: Rows, count: int) -> None:
    """Write the table at random: inserts, updates of text, embedding or both, deletes."""
    random = rows.random
    ids = [key for (key,) in connection.execute("select id from public.documents").fetchall()]
    for _ in range(count):
        kind = random.choice(("insert", "text", "embedding", "both", "null", "delete"))
        key = random.choice(ids)
        given = {"id": key, "content": rows.content(), "e": rows.embedding()}
        if kind == "insert":
            connection.execute(_WRITES["insert 1"][1].format(name="documents").encode(), given)
        elif kind == "delete":
            connection.execute("delete from public.documents where id = %s", [key])
        else:
            connection.execute(
                "update public.documents set"
                " content = case when %(kind)s in ('text', 'both') then %(content)s"
                "   else content end,"
                " embedding = case %(kind)s when 'null' then null when 'text' then embedding"
                "   else %(e)s::extensions.vector end where id = %(id)s",
                {**given, "kind": kind},
            )


def cost(connection: psycopg.Connection[Any], rows: Rows, rounds: int) -> None:
    """Print the milliseconds of each kind of write, with and without triggers, by turns."""
    process = psutil.Process(connection.info.backend_pid)

    def measured(run: Callable[[], object]) -> tuple[float, float]:
        before, begin = process.cpu_times(), time.perf_counter()
        run()
        wall = time.perf_counter() - begin
        after = process.cpu_times()
        return 1000 * wall, 1000 * (after.user + after.system - before.user - before.system)

    connection.execute(_TABLE.format(name="twin").encode())
    connection.execute(
        "insert into public.twin (content, embedding)"
        " select content, embedding from public.documents"
    )
    connection.execute(_INDEX.format(name="twin").encode())
    connection.execute("analyze public.twin")
    print(f"{'write':20} {'wall ms':>9} {'adopted':>9} {'CPU ms':>9} {'adopted':>9}  per row")
    for label, (size, statement) in _WRITES.items():
        found: dict[str, list[tuple[float, float]]] = {"twin": [], "documents": []}
        for _ in range(rounds):
            contents = [rows.content() for _ in range(size)]
            embeddings = [rows.embedding() for _ in range(size)]
            for name, times in found.items():
                ids = _some_ids(connection, name, size)
                given = {
                    "id": ids[0],
                    "ids": ids,
                    "content": contents[0],
                    "contents": contents,
                    "e": embeddings[0],
                    "es": embeddings,
                }
                text = statement.format(name=name).encode()
                times.append(measured(partial(connection.execute, text, given)))
        # The clock of CPU time ticks in hundredths of a second: the mean, not the median.
        figures = [
            value / size
            for place, middle in ((0, statistics.median), (1, statistics.mean))
            for times in found.values()
            for value in [middle([one[place] for one in times])]
        ]
        print(f"{label:20} " + " ".join(f"{value:9.2f}" for value in figures))


def _some_ids(connection: psycopg.Connection[Any], name: str, count: int) -> Sequence[int]:
    rows = connection.execute(
        f"select id from public.{name} where id >= (select random() * max(id) * 0.9"
        f" from public.{name}) order by id limit %s".encode(),
        [count],
    ).fetchall()
    return [key for (key,) in rows]


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--changes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--without-index", action="store_true")
    options = parser.parse_args()
    rows = Rows(options.rows)
    with scratch.database(DIMENSIONS) as connection:
        dsn = make_conninfo(connection.info.dsn, password=connection.info.password)
        load(connection, rows, options.rows)
        print(f"{options.rows:,} rows of {DIMENSIONS} dimensions")
        command(dsn, "adopt", "public.documents", "--model", MODEL, "--apply")
        if options.without_index:
            command(dsn, "index", "drop")
        command(dsn, "adopt", "--backfill", "documents")
        if options.without_index:
            command(dsn, "index", "build")
        command(dsn, "adopt", "--check", "documents")
        connection.execute("analyze")
        with searching(dsn, rows) as times:
            begin = time.perf_counter()
            change(connection, rows, options.changes)
            seconds = time.perf_counter() - begin
        print(
            f"{seconds:9.1f} s  {options.changes:,} changes, during {len(times):,} searches"
            f" (median {statistics.median(times):.1f} ms)"
        )
        command(dsn, "adopt", "--check", "documents")
        if options.rounds:
            cost(connection, rows, options.rounds)
            command(dsn, "adopt", "--check", "documents")


if __name__ == "__main__":
    main()
