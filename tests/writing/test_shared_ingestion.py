"""Several processes ingest the same folder: no text is embedded twice, and a kill loses nothing."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from killed import Start, Traced, lines_of, processes

from conftest import Connect, Connection
from second_brain.ingest import DocumentReport, find_files, ingest
from waiting import until

DOCUMENTS = 60
LOCK = """
    select pg_advisory_xact_lock(
      hashtextextended('s:0.md', 'public.knowledge_documents'::regclass::oid::bigint)
    )
"""


def reports(dsn: str, folder: Path, log: Path, **options: float) -> list[DocumentReport]:
    documents = find_files([folder], source="s").documents
    with psycopg.connect(dsn, autocommit=True) as connection:
        return list(ingest(documents, connection, Traced(log, pause=0.02), **options))  # type: ignore[arg-type]


def work(dsn: str, folder: Path, log: Path) -> None:
    """Ingest in a process of its own; its exit code is that of a command."""
    if any(report.outcome == "failed" for report in reports(dsn, folder, log)):
        raise SystemExit(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(DOCUMENTS):
        (folder / f"{number}.md").write_text(f"# Number {number}\n\nThe text of {number}.")
    return folder


@pytest.fixture
def start(dsn: str, folder: Path, tmp_path: Path) -> Iterator[Start]:
    """Start processes that ingest the folder."""
    yield from processes(work, dsn, folder, tmp_path / "log")


def test_two_processes_share_a_folder_and_a_kill_repeats_one_document_at_most(
    database: Connection, tmp_path: Path, start: Start
) -> None:
    log = tmp_path / "log"
    killed, other = start(), start()
    until(lambda: len(lines_of(log)) >= DOCUMENTS // 3)
    killed.kill()
    killed.join()
    other.join(120)
    assert other.exitcode == 0
    embedded = Counter(lines_of(log))
    assert len(embedded) == DOCUMENTS
    # Of the killed process: the document that it had embedded and not yet stored.
    assert embedded.total() - DOCUMENTS <= 1
    stored = database.execute(
        "select count(*), count(distinct document_id), count(embedding), count(distinct content)"
        "  from public.knowledge_chunks"
    ).fetchone()
    assert stored == (DOCUMENTS,) * 4


def test_a_document_that_another_process_stores_comes_last(
    connect: Connect, dsn: str, folder: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with connect().transaction() as transaction:
        transaction.connection.execute(LOCK)
        done = reports(dsn, folder, log, lock_wait=0.2)
    assert [done[-1].external_key, done[-1].outcome] == ["s:0.md", "failed"]
    assert "another process has been storing it for 0.2 s" in str(done[-1].error)
    assert {report.outcome for report in done[:-1]} == {"stored"}
    again = reports(dsn, folder, log)
    assert Counter(report.outcome for report in again) == {"stored": 1, "unchanged": DOCUMENTS - 1}
    assert len(lines_of(log)) == DOCUMENTS
