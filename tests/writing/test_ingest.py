"""Files are loaded, split and stored, by one process or by several at the same time."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from ingested import OF_A, CountingEmbedder, contents, outcomes, store, write
from reembedded import Start, Traced, lines_of, processes

from conftest import Connect, Connection
from second_brain.errors import ConfigurationError
from second_brain.ingest import (
    DocumentReport,
    KnowledgeSource,
    Labels,
    check_source,
    find_files,
    ingest,
    stale_keys,
)
from second_brain.services.write import KnowledgeWriter
from support.emptied import dsn as dsn
from waiting import until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "a.md", "# Apples\n\nred and round")
    write(tmp_path / "b.md", "# Bananas\n\nyellow and long")
    write(tmp_path / "c.md", "# Cherries\n\nred and small")
    return tmp_path


def run(
    database: Connection, folder: Path, embedder: CountingEmbedder | None = None, **options: object
) -> dict[str, DocumentReport]:
    return store(database, find_files([folder], source="s"), embedder, **options)


@pytest.fixture
def ingested(database: Connection, folder: Path) -> Path:
    stored = dict.fromkeys(["s:a.md", "s:b.md", "s:c.md"], "stored")
    assert outcomes(run(database, folder)) == stored
    return folder


def test_documents_are_stored_with_heading_embedding_and_model(
    database: Connection, ingested: Path
) -> None:
    stored = database.execute(
        "select heading, content, embedding_model, embedding is null, metadata"
        " from public.knowledge_chunks order by heading"
    ).fetchall()
    metadata = {**OF_A, "token_count": 5}
    assert stored[0] == ("Apples", "red and round", "digest-3", False, metadata)


def test_a_second_run_embeds_nothing_and_changes_nothing(
    database: Connection, ingested: Path
) -> None:
    query = "select chunk::text from public.knowledge_chunks as chunk order by id"
    before = database.execute(query).fetchall()
    embedder = CountingEmbedder()
    assert {*outcomes(run(database, ingested, embedder)).values()} == {"unchanged"}
    assert embedder.embedded == []
    assert database.execute(query).fetchall() == before


def test_a_changed_file_supersedes_its_old_text_and_embeds_only_the_new(
    database: Connection, ingested: Path
) -> None:
    write(ingested / "b.md", "# Bananas\n\nbrown by now")
    embedder = CountingEmbedder()
    done = outcomes(run(database, ingested, embedder))
    assert [*done.values()] == ["unchanged", "stored", "unchanged"]
    assert embedder.embedded == ["Bananas\nbrown by now"]
    assert contents(database)["s:b.md"] == ["brown by now"]
    assert contents(database, "superseded") == {"s:b.md": ["yellow and long"]}


def test_a_file_that_turns_bad_keeps_what_was_stored(database: Connection, ingested: Path) -> None:
    write(ingested / "b.md", b"\0\0")
    run(database, ingested)
    assert contents(database)["s:b.md"] == ["yellow and long"]


def test_an_emptied_file_is_removed(database: Connection, ingested: Path) -> None:
    write(ingested / "b.md", "")
    report = run(database, ingested)["s:b.md"]
    assert (report.outcome, report.removed) == ("empty", 1)
    assert set(contents(database)) == {"s:a.md", "s:c.md"}


def test_a_text_that_the_model_does_not_know_is_stored_without_an_embedding(
    database: Connection, tmp_path: Path
) -> None:
    write(tmp_path / "a.md", "???")
    report = run(database, tmp_path)["s:a.md"]
    assert (report.outcome, report.embedded, report.text_only) == ("stored", 0, 1)
    stored = database.execute("select content, embedding from public.knowledge_chunks")
    assert stored.fetchall() == [("???", None)]


def test_the_same_text_in_two_files_is_embedded_once(database: Connection, tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.md", "# Same\n\ntext")
    embedder = CountingEmbedder()
    assert [one.embedded for one in run(database, tmp_path, embedder).values()] == [1, 0]
    assert len(embedder.embedded) == 1


FIELDS = """
    select collection, visibility, owner_id::text, language, metadata
      from public.knowledge_documents where external_key = 's:a.md'
"""


def test_what_was_set_elsewhere_stays(database: Connection, ingested: Path) -> None:
    owner = str(UUID(int=1))
    KnowledgeWriter(database).upsert_document(
        {
            **{"external_key": "s:a.md", "collection": "vault", "visibility": "public"},
            **{"owner_id": owner, "language": "german", "metadata": {"team": "x"}},
        },
        [{"content": "red and round", "heading": "Apples", "metadata": {"reviewed": True}}],
    )
    run(database, ingested)
    assert {*outcomes(run(database, ingested)).values()} == {"unchanged"}
    write(ingested / "a.md", "# Apples\n\nred and round\n\n## Green\n\nsour")
    run(database, ingested)
    stored = ("vault", "public", owner, "german", {"team": "x", **OF_A})
    assert database.execute(FIELDS).fetchone() == stored
    assert database.execute(
        "select metadata from public.knowledge_chunks where content = 'red and round'"
    ).fetchall() == [({"team": "x", **OF_A, "reviewed": True, "token_count": 5},)]


def test_a_dry_run_foresees_the_run_and_only_reads(database: Connection, ingested: Path) -> None:
    write(ingested / "a.md", "# Apples\n\nred and round\n\n## Green\n\nsour")
    write(ingested / "b.md", "# Bananas\n\nbrown by now")
    write(ingested / "c.md", "")
    write(ingested / "d.md", "# Dates\n\nsweet")
    embedder, labels = CountingEmbedder(), Labels(visibility="public")
    database.execute("set default_transaction_read_only = on")
    foreseen = run(database, ingested, embedder, labels=labels, dry_run=True).values()
    database.execute("set default_transaction_read_only = off")
    assert embedder.embedded == []
    done = run(database, ingested, embedder, labels=labels).values()
    assert [*map(comparable, foreseen)] == [*map(comparable, done)]


def comparable(report: DocumentReport) -> DocumentReport:
    """Return the report without what only a run knows."""
    counts = report.counts and replace(
        report.counts, document_id=UUID(int=0), embeddings_reused=0, embeddings_missing=0
    )
    return replace(report, counts=counts)


def test_stored_documents_belong_to_their_source(database: Connection, ingested: Path) -> None:
    assert database.execute(
        "select name, config, count(*) from public.knowledge_chunks as chunk"
        "  join public.knowledge_sources as source on source.id = source_id group by source.id"
    ).fetchall() == [("s", {"location": ingested.as_posix()}, 3)]


def test_stale_documents_are_those_of_the_source_and_folder_that_are_gone(
    database: Connection, tmp_path: Path
) -> None:
    for source in ("one", "two"):
        for name in ("docs/a.md", "docs/b.md", "documents/c.md", "docs/locked/d.md"):
            write(tmp_path / source / name, f"text of {name}")
        assert len(store(database, find_files([tmp_path / source]))) == 4
    KnowledgeWriter(database).upsert_document({"external_key": "one:docs/x"}, [{"content": "x"}])
    (one,) = found_source = find_files([tmp_path / "one"]).sources
    assert found_source == [KnowledgeSource("one", str(tmp_path / "one"))]
    kept, unread = ["one:docs/a.md", "one:documents"], ["one:docs/locked"]
    assert stale_keys(database, [(one, "one:docs/")], kept, unread) == ["one:docs/b.md"]
    # The page https://example.org/documents can have other pages below it.
    stale = stale_keys(database, [(one, "one:")], kept, unread)
    assert stale == ["one:docs/b.md", "one:documents/c.md"]


def test_a_source_of_the_same_name_elsewhere_is_refused(
    database: Connection, tmp_path: Path
) -> None:
    first, second = tmp_path / "first" / "docs", tmp_path / "second" / "docs"
    for folder in (first, second):
        write(folder / "a.md", f"text of {folder}")
    found = find_files([first])
    store(database, found)
    check_source(database, found.sources[0])
    (other,) = find_files([second]).sources
    with pytest.raises(ConfigurationError, match=r"has a source docs of .*first/docs") as refused:
        check_source(database, other)
    assert "--source docs" in refused.value.remedy
    check_source(database, other, is_named=True)
    (inner,) = find_files([first.parent], source="docs").sources
    with pytest.raises(ConfigurationError, match=r"relative to .*first/docs"):
        check_source(database, inner, is_named=True)


# Several processes ingest a folder: no text is embedded twice, and a kill loses nothing.

DOCUMENTS = 60
LOCK = """
    select pg_advisory_xact_lock(
      hashtextextended('s:0.md', 'public.knowledge_documents'::regclass::oid::bigint)
    )
"""


def reports(dsn: str, many: Path, log: Path, **options: float) -> list[DocumentReport]:
    documents = find_files([many], source="s").documents
    with psycopg.connect(dsn, autocommit=True) as connection:
        return list(ingest(documents, connection, Traced(log, pause=0.02), **options))  # type: ignore[arg-type]


def work(dsn: str, many: Path, log: Path) -> None:
    """Ingest in a process of its own; its exit code is that of a command."""
    if any(report.outcome == "failed" for report in reports(dsn, many, log)):
        raise SystemExit(1)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    documents = tmp_path / "documents"
    for number in range(DOCUMENTS):
        write(documents / f"{number}.md", f"# Number {number}\n\nThe text of {number}.")
    return documents


@pytest.fixture
def start(dsn: str, many: Path, tmp_path: Path) -> Iterator[Start]:
    yield from processes(work, dsn, many, tmp_path / "log")


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
    connect: Connect, dsn: str, many: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with connect().transaction() as transaction:
        transaction.connection.execute(LOCK)
        done = reports(dsn, many, log, lock_wait=0.2)
    assert [done[-1].external_key, done[-1].outcome] == ["s:0.md", "failed"]
    assert "another process has been storing it for 0.2 s" in str(done[-1].error)
    assert {report.outcome for report in done[:-1]} == {"stored"}
    again = reports(dsn, many, log)
    assert Counter(report.outcome for report in again) == {"stored": 1, "unchanged": DOCUMENTS - 1}
    assert len(lines_of(log)) == DOCUMENTS
