"""Backfill and repair while the table is written, killed and run again."""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg
import pytest
from adopted import GUIDE, adopt, backfill, compare, contents

from conftest import Connect, Connection
from waiting import await_lock_of, until

pytestmark = pytest.mark.module("adoption")

ROWS = 120


@pytest.fixture
def source(database: Connection) -> Connection:
    """A database with an adopted table of many rows, not carried over yet."""
    database.execute(GUIDE)
    database.execute(
        "insert into public.documents (content, embedding)"
        " select 'Row ' || n, '[1,0,0]' from generate_series(1, %s) as n",
        [ROWS],
    )
    adopt(database)
    return database


def write_at_random(dsn: str, seed: int, ended: threading.Event, failures: list[str]) -> None:
    """Write rows until the end, some in transactions of several statements, some rolled back."""
    draw = random.Random(seed)
    with psycopg.connect(dsn) as connection:
        while not ended.is_set():
            try:
                for _ in range(draw.randint(1, 3)):
                    key, text = draw.randint(1, ROWS), f"Changed {draw.random()}"
                    connection.execute(
                        draw.choice(
                            (
                                b"update public.documents set content = %(text)s where id = %(id)s",
                                b"delete from public.documents where id = %(id)s",
                                b"insert into public.documents (id, content) overriding system"
                                b" value values (%(id)s, %(text)s) on conflict (id) do update"
                                b" set content = excluded.content, embedding = '[0,1,0]'",
                            )
                        ),
                        {"id": key, "text": text},
                    )
                if draw.random() < 0.2:
                    connection.rollback()
                connection.commit()
            except psycopg.errors.DeadlockDetected:
                # Two writers that took two rows in opposite orders, as without an adoption.
                connection.rollback()
            except psycopg.Error as error:
                failures.append(str(error))
                return


@pytest.mark.parametrize("seed", [1, 2])
def test_a_backfill_during_writes_is_complete(source: Connection, dsn: str, seed: int) -> None:
    ended, failures = threading.Event(), list[str]()
    writers = [
        threading.Thread(target=write_at_random, args=(dsn, seed * 10 + one, ended, failures))
        for one in range(3)
    ]
    for writer in writers:
        writer.start()
    try:
        backfill(source, batch_size=7)
        compare(source, repair=True)
        backfill(source, batch_size=7)
    finally:
        ended.set()
        for writer in writers:
            writer.join()
    assert failures == []
    found = compare(source)
    assert (found.differences, found.problems) == (0, [])
    assert contents(source).keys() == {
        f"documents/{key}"
        for (key,) in source.execute("select id from public.documents").fetchall()
    }


def test_a_row_that_a_writer_holds_is_waited_for(source: Connection, connect: Connect) -> None:
    writer = connect()
    writer.autocommit = False
    writer.execute("alter table public.documents disable trigger user")
    writer.commit()
    writer.execute("update public.documents set content = 'Newest.' where id = 5")
    done: list[int] = []
    waiting = threading.Thread(target=lambda: done.append(backfill(source, batch_size=50)))
    waiting.start()
    watcher = connect()
    until(lambda: len(contents(watcher)) >= ROWS - 50)
    assert not done
    writer.commit()
    waiting.join()
    assert done == [ROWS - 1]
    assert contents(source)["documents/5"] == ["Newest."]
    assert compare(source).differences == 0


def test_a_killed_backfill_is_continued(source: Connection, dsn: str, connect: Connect) -> None:
    program = str(Path(sys.executable).with_name("second-brain"))
    command = [program, "adopt", "--backfill", "--batch-size", "2", "--dsn", dsn]
    writer = connect()
    with writer.transaction():
        # So that it cannot end before it is killed.
        writer.execute("select from public.documents where id = %s for update", [ROWS])
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as killed:
            while not contents(source):
                assert killed.poll() is None
                time.sleep(0.01)
            killed.kill()
        before = contents(source)
    assert 0 < len(before) < ROWS
    rest = backfill(source)
    assert rest <= ROWS - len(before)
    assert compare(source).differences == 0


def test_a_document_inserted_again_survives_a_repair(source: Connection, connect: Connect) -> None:
    backfill(source)
    source.execute("alter table public.documents disable trigger user")
    source.execute("delete from public.documents where id = 5")
    source.execute("alter table public.documents enable trigger user")
    writer = connect()
    writer.autocommit = False
    writer.execute(
        "insert into public.documents (id, content) overriding system value values (5, 'Again.')"
    )
    repairing = threading.Thread(target=lambda: compare(source, repair=True))
    repairing.start()
    # The repair waits for the document, which the writer's trigger has locked.
    await_lock_of(connect(), source)
    writer.commit()
    repairing.join()
    assert contents(source)["documents/5"] == ["Again."]
    assert compare(source).differences == 0
