"""Loading, splitting and storing documents, on files made here and a real database."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from ingested import OF_A, CountingEmbedder, write

from conftest import Connection
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
from second_brain.models import Embedder
from second_brain.services.write import KnowledgeWriter
from support.emptied import dsn as dsn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "a.md", "# Apples\n\nred and round")
    write(tmp_path / "b.md", "# Bananas\n\nyellow and long")
    write(tmp_path / "c.md", "# Cherries\n\nred and small")
    return tmp_path


NO_LABELS = Labels()
Ingest = Callable[..., list[DocumentReport]]


@pytest.fixture
def run(database: Connection) -> Ingest:
    def ingest_folder(
        folder: Path, embedder: Embedder, labels: Labels = NO_LABELS, *, dry_run: bool = False
    ) -> list[DocumentReport]:
        found = find_files([folder], source="s").documents
        return list(ingest(found, database, embedder, labels, dry_run=dry_run))

    return ingest_folder


def contents(database: Connection, status: str = "active") -> dict[str, list[str]]:
    rows = database.execute(
        """
        select document.external_key, array_agg(chunk.content order by chunk.chunk_index)
        from public.knowledge_chunks as chunk
        join public.knowledge_documents as document on document.id = chunk.document_id
        where chunk.status = %s
        group by document.external_key
        """,
        [status],
    )
    return dict(rows.fetchall())


def test_documents_are_stored_with_heading_embedding_and_model(
    database: Connection, folder: Path, run: Ingest
) -> None:
    reports = run(folder, CountingEmbedder())
    assert [(report.external_key, report.outcome) for report in reports] == [
        ("s:a.md", "stored"),
        ("s:b.md", "stored"),
        ("s:c.md", "stored"),
    ]
    stored = database.execute(
        "select heading, content, embedding_model, embedding is null, metadata"
        " from public.knowledge_chunks order by heading"
    ).fetchall()
    metadata = {**OF_A, "token_count": 5}
    assert stored[0] == ("Apples", "red and round", "digest-3", False, metadata)


def test_a_second_run_embeds_nothing_and_changes_nothing(
    database: Connection, folder: Path, run: Ingest
) -> None:
    run(folder, CountingEmbedder())
    query = "select chunk::text from public.knowledge_chunks as chunk order by id"
    before = database.execute(query).fetchall()
    embedder = CountingEmbedder()
    assert {report.outcome for report in run(folder, embedder)} == {"unchanged"}
    assert embedder.embedded == []
    assert database.execute(query).fetchall() == before


def test_a_changed_file_supersedes_its_old_text_and_embeds_only_the_new(
    database: Connection, folder: Path, run: Ingest
) -> None:
    run(folder, CountingEmbedder())
    write(folder / "b.md", "# Bananas\n\nbrown by now")
    embedder = CountingEmbedder()
    outcomes = [report.outcome for report in run(folder, embedder)]
    assert outcomes == ["unchanged", "stored", "unchanged"]
    assert embedder.embedded == ["Bananas\nbrown by now"]
    assert contents(database)["s:b.md"] == ["brown by now"]
    assert contents(database, "superseded") == {"s:b.md": ["yellow and long"]}


def test_a_file_that_turns_bad_keeps_what_was_stored(
    database: Connection, folder: Path, run: Ingest
) -> None:
    run(folder, CountingEmbedder())
    write(folder / "b.md", b"\0\0")
    run(folder, CountingEmbedder())
    assert contents(database)["s:b.md"] == ["yellow and long"]


def test_an_emptied_file_is_removed(database: Connection, folder: Path, run: Ingest) -> None:
    run(folder, CountingEmbedder())
    write(folder / "b.md", "")
    reports = run(folder, CountingEmbedder())
    assert (reports[1].outcome, reports[1].removed) == ("empty", 1)
    assert set(contents(database)) == {"s:a.md", "s:c.md"}


def test_a_text_that_the_model_does_not_know_is_stored_without_an_embedding(
    database: Connection, tmp_path: Path, run: Ingest
) -> None:
    write(tmp_path / "a.md", "???")
    (report,) = run(tmp_path, CountingEmbedder())
    assert (report.outcome, report.embedded, report.text_only) == ("stored", 0, 1)
    assert database.execute(
        "select content, embedding from public.knowledge_chunks"
    ).fetchall() == [("???", None)]


def test_the_same_text_in_two_files_is_embedded_once(tmp_path: Path, run: Ingest) -> None:
    write(tmp_path / "a.md", "# Same\n\ntext")
    write(tmp_path / "b.md", "# Same\n\ntext")
    embedder = CountingEmbedder()
    assert [report.embedded for report in run(tmp_path, embedder)] == [1, 0]
    assert len(embedder.embedded) == 1


FIELDS = """
    select document.collection, document.visibility, document.owner_id::text, document.language,
      document.metadata
    from public.knowledge_documents as document
    where document.external_key = 's:a.md'
"""


def test_what_was_set_elsewhere_stays(database: Connection, folder: Path, run: Ingest) -> None:
    owner = UUID(int=1)
    run(folder, CountingEmbedder())
    KnowledgeWriter(database).upsert_document(
        {
            **{"external_key": "s:a.md", "collection": "vault", "visibility": "public"},
            **{"owner_id": owner, "language": "german", "metadata": {"team": "x"}},
        },
        [{"content": "red and round", "heading": "Apples", "metadata": {"reviewed": True}}],
    )
    run(folder, CountingEmbedder())
    unchanged = run(folder, CountingEmbedder())
    assert {report.outcome for report in unchanged} == {"unchanged"}
    write(folder / "a.md", "# Apples\n\nred and round\n\n## Green\n\nsour")
    run(folder, CountingEmbedder())
    stored = ("vault", "public", str(owner), "german", {"team": "x", **OF_A})
    assert database.execute(FIELDS).fetchone() == stored
    assert database.execute(
        "select metadata from public.knowledge_chunks where content = 'red and round'"
    ).fetchall() == [({"team": "x", **OF_A, "reviewed": True, "token_count": 5},)]


def test_a_dry_run_foresees_the_run_and_only_reads(
    database: Connection, folder: Path, run: Ingest
) -> None:
    run(folder, CountingEmbedder())
    write(folder / "a.md", "# Apples\n\nred and round\n\n## Green\n\nsour")
    write(folder / "b.md", "# Bananas\n\nbrown by now")
    write(folder / "c.md", "")
    write(folder / "d.md", "# Dates\n\nsweet")
    embedder = CountingEmbedder()
    database.execute("set default_transaction_read_only = on")
    foreseen = run(folder, embedder, Labels(visibility="public"), dry_run=True)
    database.execute("set default_transaction_read_only = off")
    assert embedder.embedded == []
    done = run(folder, embedder, Labels(visibility="public"))
    for before, after in zip(foreseen, done, strict=True):
        assert before.counts is None or after.counts is not None
        assert comparable(before) == comparable(after)


def comparable(report: DocumentReport) -> DocumentReport:
    """Return the report without what only a run knows."""
    counts = report.counts and replace(
        report.counts, document_id=UUID(int=0), embeddings_reused=0, embeddings_missing=0
    )
    return replace(report, counts=counts)


def test_stored_documents_belong_to_their_source(
    database: Connection, folder: Path, run: Ingest
) -> None:
    run(folder, CountingEmbedder())
    assert database.execute(
        "select source.name, source.config, count(*)"
        "  from public.knowledge_chunks as chunk"
        "  join public.knowledge_sources as source on source.id = chunk.source_id"
        " group by source.id"
    ).fetchall() == [("s", {"location": folder.as_posix()}, 3)]


def test_stale_documents_are_those_of_the_source_and_folder_that_are_gone(
    database: Connection, tmp_path: Path
) -> None:
    for name in ("docs/a.md", "docs/b.md", "documents/c.md", "docs/locked/d.md"):
        write(tmp_path / "one" / name, f"text of {name}")
        write(tmp_path / "two" / name, f"text of {name}")
    for name in ("one", "two"):
        found = find_files([tmp_path / name])
        assert len(list(ingest(found.documents, database, CountingEmbedder()))) == 4
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
    list(ingest(found.documents, database, CountingEmbedder()))
    check_source(database, found.sources[0])
    (other,) = find_files([second]).sources
    with pytest.raises(ConfigurationError, match=r"has a source docs of .*first/docs") as refused:
        check_source(database, other)
    assert "--source docs" in refused.value.remedy
    check_source(database, other, is_named=True)
    (inner,) = find_files([first.parent], source="docs").sources
    with pytest.raises(ConfigurationError, match=r"relative to .*first/docs"):
        check_source(database, inner, is_named=True)
