"""What an adoption adds to the writes of a table (docs/adopt.md): medians in milliseconds.

Four tables have the same rows: nobody adopts the first; the others are adopted as they are, with
contents that are split, and with `--later`. A body has about 300 words. Each statement is one
transaction. It runs on the tables in turns, so that other load of the machine meets all of them.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.bench_report import table
from benchmarks.corpus import Library
from benchmarks.scratch import database
from second_brain.cli import main
from second_brain.errors import SecondBrainError

OPTIONS = {"bare": None, "adopted": (), "split": ("--split",), "later": ("--later",)}
CREATE = """
create table public.{table} (
  id uuid primary key default gen_random_uuid(),
  title text,
  body text,
  metadata jsonb,
  updated_at timestamptz not null default now(),
  views integer not null default 0
)
"""
INSERT = (
    "insert into public.{table} (title, body, metadata)"
    " select * from unnest(%s::text[], %s::text[], %s::jsonb[])"
)
UPDATE = "update public.{table} set {changes} where id = any (%s)"
UPDATES = {
    "update, no mapped column": "views = views + 1",
    "update, nothing changes": "title = title, body = body",
    "update of the body": "body = body || ' more'",
}
BATCH = 100
"""Rows of a large statement."""


class Writes:
    """Statements with their arguments, the same for all tables but for the keys of the rows."""

    def __init__(self, keys: dict[str, list[Any]]) -> None:
        self._library = Library.read()
        self._random = Random(1)
        self._keys = keys

    def rows(self, count: int) -> tuple[list[str], list[str], list[str]]:
        """Return titles, bodies and metadata of new rows."""
        topics = [self._random.randrange(500) for _ in range(count)]
        return (
            [self._library.about(topic)[0] for topic in topics],
            [
                " ".join(self._library.passage(self._random, topic) for _ in range(3))
                for topic in topics
            ],
            [f'{{"team": "team {topic % 9}", "page": {topic}}}' for topic in topics],
        )

    def round(self, rows: int) -> Iterator[tuple[str, str, dict[str, Sequence[Any]]]]:
        """Yield each statement: its name, its text, and its arguments by table."""
        new = self.rows(rows)
        yield "insert", INSERT, dict.fromkeys(OPTIONS, new)
        places = self._random.sample(range(min(map(len, self._keys.values()))), rows)
        chosen = {name: [[keys[place] for place in places]] for name, keys in self._keys.items()}
        for name, changes in UPDATES.items():
            yield name, UPDATE.replace("{changes}", changes), chosen
        yield "delete", "delete from public.{table} where id = any (%s)", chosen
        for name, keys in self._keys.items():
            gone = set(chosen[name][0])
            keys[:] = [key for key in keys if key not in gone]


def executed(connection: "psycopg.Connection[Any]", text: str, name: str, given: Any) -> float:
    """Return the milliseconds of a statement on a table."""
    statement = sql.SQL(text).format(table=sql.Identifier(name))  # type: ignore[arg-type]
    begin = time.perf_counter()
    connection.execute(statement, given)
    return 1000 * (time.perf_counter() - begin)


def measure(
    connection: "psycopg.Connection[Any]", names: Sequence[str], stored: int, rounds: int
) -> dict[tuple[int, str, str], float]:
    """Return the medians by rows of the statement, statement and table."""
    keys: dict[str, list[Any]] = {name: [] for name in names}
    writes = Writes(keys)
    for _ in range(stored // BATCH):
        new = writes.rows(BATCH)
        for name in names:
            executed(connection, INSERT, name, new)
    for name in names:
        connection.execute(sql.SQL("analyze {}").format(sql.Identifier("public", name)))
        found = connection.execute(
            sql.SQL("select id from {} order by id").format(sql.Identifier("public", name))
        )
        keys[name] += [key for (key,) in found]
    connection.execute("analyze public.knowledge_chunks, public.knowledge_documents")
    times: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    for number in range(rounds):
        for rows in (1, BATCH) if number % 10 == 0 else (1,):
            for statement, text, given in writes.round(rows):
                for name in names:
                    taken = executed(connection, text, name, given[name])
                    times[rows, statement, name].append(taken)
    return {key: statistics.median(values) for key, values in times.items()}


def adopt(dsn: str, name: str, options: Sequence[str]) -> None:
    """Adopt a table as the command does."""
    import subprocess
    import sys

    subprocess.run(
        [sys.executable, "-c", "import sys; from second_brain.cli import main; sys.exit(main())",
         "adopt", f"public.{name}", *options, "--apply", "--dsn", dsn],
        check=True, capture_output=True,
    )


def main_() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with database(3, keep=options.keep) as connection:
        for name in options.only:
            connection.execute(f"drop table if exists public.{name} cascade".encode())
            connection.execute(sql.SQL(CREATE).format(table=sql.Identifier(name)))
            if OPTIONS[name] is not None:
                dsn = connection.info.dsn + f" password={connection.info.password or 'x'}"
                adopt(dsn, name, OPTIONS[name])
        found = measure(connection, options.only, options.rows, options.rounds)
    statements = list(dict.fromkeys((rows, statement) for rows, statement, _ in found))
    for rows, statement in statements:
        print(f"{rows:4} {statement:26}", *(f"{found[rows, statement, n]:9.3f}" for n in options.only))


if __name__ == "__main__":
    main_()
