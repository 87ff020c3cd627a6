"""What an adoption adds to the writes of a table (docs/adopt.md): medians in milliseconds.

Two tables have the same rows; one is adopted. A body has about 300 words. Each statement is a
transaction, and runs on the tables in turns, so that other load of the machine meets both. With
other load, judge the second table: the CPU time of the server's process for the connection.

The database has core and the modules of `--modules`: words, whose lists follow each stored text,
adds as much to each write again.
"""

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from random import Random
from statistics import median
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg import sql

from benchmarks.bench_report import table
from benchmarks.corpus import Library
from benchmarks.memory import process_cpu
from benchmarks.scratch import database

TABLES = ("bare", "adopted")
BATCH = 100
"""Rows of a large statement; one in ten rounds has it."""
CREATE: LiteralString = """
create table public.{table} (
  id uuid primary key,
  title text,
  body text,
  metadata jsonb,
  updated_at timestamptz not null default now(),
  views integer not null default 0
)
"""
INSERT: LiteralString = """
insert into public.{table} (id, title, body, metadata)
select * from unnest(%s::uuid[], %s::text[], %s::text[], %s::jsonb[])
"""
ON_ROWS: dict[str, LiteralString] = {
    "update, no mapped column": "update public.{table} set views = views + 1 where id = any (%s)",
    "update, nothing changes": "update public.{table} set title = title where id = any (%s)",
    "update of the body": "update public.{table} set body = body || ' x' where id = any (%s)",
    "delete": "delete from public.{table} where id = any (%s)",
}
COMMAND = "import sys; from second_brain.cli import main; sys.exit(main())"

Connection = psycopg.Connection[Any]
Times = tuple[float, float]
Figures = dict[tuple[int, str, str], list[Times]]


class Writes:
    """Statements and their arguments, the same for all tables."""

    def __init__(self) -> None:
        self._library = Library.read()
        self._random = Random(1)
        self._keys: list[UUID] = []

    def insert(self, rows: int) -> tuple[list[Any], ...]:
        """Return keys, titles, bodies and metadata of new rows."""
        topics = [self._random.randrange(500) for _ in range(rows)]
        keys = [UUID(int=self._random.getrandbits(128)) for _ in topics]
        self._keys += keys
        bodies = [
            " ".join(self._library.passage(self._random, topic) for _ in range(3))
            for topic in topics
        ]
        metadata = [f'{{"team": "team {topic % 9}", "page": {topic}}}' for topic in topics]
        return keys, [self._library.about(topic)[0] for topic in topics], bodies, metadata

    def of_a_round(self, rows: int) -> Iterator[tuple[str, LiteralString, tuple[Any, ...]]]:
        """Yield the name of each statement, its text and its arguments."""
        yield "insert", INSERT, self.insert(rows)
        self._random.shuffle(self._keys)
        chosen = [self._keys.pop() for _ in range(rows)]
        for name, statement in ON_ROWS.items():
            yield name, statement, (chosen,)


def milliseconds(connection: Connection, statement: sql.Composed, given: Sequence[Any]) -> Times:
    """Return how long a statement takes, and the CPU time of the server for it."""
    process = connection.info.backend_pid
    cpu = process_cpu(process) or 0.0
    begin = time.perf_counter()
    connection.execute(statement, given)
    return 1000 * (time.perf_counter() - begin), (process_cpu(process) or 0.0) - cpu


def measure(connection: Connection, names: Sequence[str], stored: int, rounds: int) -> Figures:
    """Return the times of each number of rows, statement and table."""
    on_tables = [(name, sql.Identifier(name)) for name in names]
    writes = Writes()
    for _ in range(stored // BATCH):
        given = writes.insert(BATCH)
        for _, identifier in on_tables:
            connection.execute(sql.SQL(INSERT).format(table=identifier), given)
    connection.execute("analyze")
    times: Figures = defaultdict(list)
    for number in range(rounds):
        for rows in (1, BATCH) if number % 10 == 0 else (1,):
            for name, statement, given in writes.of_a_round(rows):
                for on, identifier in on_tables:
                    composed = sql.SQL(statement).format(table=identifier)
                    times[rows, name, on].append(milliseconds(connection, composed, given))
    return times


def adopt(connection: Connection, name: str) -> None:
    """Adopt a table with the command."""
    dsn = f"{connection.info.dsn} password={connection.info.password or 'none'}"
    arguments = ("adopt", f"public.{name}", "--apply", "--dsn", dsn)
    subprocess.run([sys.executable, "-c", COMMAND, *arguments], check=True, capture_output=True)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2000, help="rows of each table")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--modules", nargs="+", default=["adoption"])
    options = parser.parse_args()
    with database(3, modules=options.modules) as connection:
        for name in options.tables:
            connection.execute(sql.SQL(CREATE).format(table=sql.Identifier(name)))
            if name != "bare":
                adopt(connection, name)
        found = measure(connection, options.tables, options.rows, options.rounds)
    statements = list(dict.fromkeys((rows, statement) for rows, statement, _ in found))
    for place, what in enumerate(("ms, median", "ms of CPU, median")):
        lines = [
            [
                f"{statement}, {rows} row{'s'[: rows > 1]}",
                *(
                    f"{median(times[place] for times in found[rows, statement, name]):.2f}"
                    if (rows, statement, name) in found
                    else ""
                    for name in options.tables
                ),
            ]
            for rows, statement in sorted(statements, key=lambda one: one[0])
        ]
        print(table([what, *options.tables], lines) + "\n")


if __name__ == "__main__":
    main()
