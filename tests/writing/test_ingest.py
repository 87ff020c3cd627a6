"""Loading, splitting and storing documents, on files made here and a real database."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
import pytest
from ingested import CountingEmbedder, load, pdf, write
from numpy.typing import NDArray

from second_brain.errors import ConfigurationError, DimensionMismatchError
from second_brain.ingest import (
    Change,
    DocumentReport,
    KnowledgeSource,
    Labels,
    UnreadableDocumentError,
    UnreadDocument,
    check_source,
    find_files,
    ingest,
    split,
    stale_keys,
    standard_library,
)
from second_brain.ingest.markdown import headings
from second_brain.models import Embedder
from second_brain.services.write import KnowledgeWriter

Database = psycopg.Connection[tuple[Any, ...]]

OF_A = {"path": "a.md", "document_type": "md", "source_file": "a.md"}


def test_markdown_takes_title_date_and_tags_from_its_front_matter(tmp_path: Path) -> None:
    document = load(
        write(
            tmp_path / "a.md",
            "---\ntitle: Keys\ndate: 2024-02-29\nauthor: Ada\ntags: [ops, keys]\n---\n"
            "# Other\nText",
        )
    )
    assert (document.title, document.author) == ("Keys", "Ada")
    assert document.document_date == date(2024, 2, 29)
    assert document.metadata == {"tags": ["ops", "keys"], **OF_A}
    assert document.text == "# Other\nText"


@pytest.mark.parametrize(
    "block",
    ["a: [", "a: &x [1]\nb: *x", "date: 2024-99-99"],
    ids=["broken", "alias", "impossible date"],
)
def test_front_matter_that_cannot_be_used_stays_text(tmp_path: Path, block: str) -> None:
    document = load(write(tmp_path / "a.md", f"---\n{block}\n---\n# Title\n"))
    assert document.text == f"```\n{block}\n```\n# Title\n"
    assert document.title == "Title"


def test_a_rule_at_the_top_begins_no_front_matter(tmp_path: Path) -> None:
    text = "---\nBetween rules\n---\nText"
    document = load(write(tmp_path / "a.md", text))
    assert document.text == text
    assert document.title == "Between rules"


def test_a_markdown_title_is_the_first_heading_and_else_the_file_name(tmp_path: Path) -> None:
    code = "```\n# a comment\n```\n\nThe `real` *one*\n====\n"
    assert load(write(tmp_path / "a.md", code)).title == "The real one"
    assert load(write(tmp_path / "plain words.md", "nothing else")).title == "plain words"


@pytest.mark.parametrize(
    "data",
    [
        b"caf\xc3\xa9 \xe2\x80\xa6 x",
        b"\xef\xbb\xbfcaf\xc3\xa9 \xe2\x80\xa6 x",
        "café … x".encode("utf-16"),
        b"caf\xe9 \x85 x",
    ],
    ids=["utf-8", "utf-8 with mark", "utf-16", "windows-1252"],
)
def test_text_is_read_in_the_encoding_it_has(tmp_path: Path, data: bytes) -> None:
    assert load(write(tmp_path / "a.txt", data)).text == "café … x"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.md", b"\x89PNG\0\0", "binary"),
        ("a.html", b"<p>\0</p>", "binary"),
        ("a.txt", b"\x81\x8d\xff", "neither UTF-8"),
        ("a.txt", b"\xff\xfea", "cannot be read"),
        ("a.pdf", b"%PDF-1.4 cut off", "cannot be read"),
        ("a.pdf", b"", "cannot be read"),
        ("scan.pdf", pdf(""), "without text"),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    with pytest.raises(UnreadableDocumentError, match=message):
        load(write(tmp_path / name, data))


def test_a_file_past_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.truncate(200_000_000)
    with pytest.raises(UnreadableDocumentError, match="larger than 80 MB"):
        load(path)


def test_html_becomes_markdown_without_scripts_and_navigation(tmp_path: Path) -> None:
    page = """<!doctype html><html><head><title>The  page</title>
        <meta name="author" content="Ada"><meta property="article:published_time"
        content="2024-02-29T10:00:00Z"><link rel="canonical" href="https://example.org/p">
        <style>p {}</style></head><body><nav>Home</nav><h1>Top</h1><p>One <b>bold</b> word.
        <script>steal()</script><h2>Under</h2><ul><li>item</li></ul>
        <pre><code># code</code></pre></body></html>"""
    document = load(write(tmp_path / "a.html", page))
    assert (document.title, document.author) == ("The page", "Ada")
    assert document.document_date == date(2024, 2, 29)
    assert document.source_url == "https://example.org/p"
    assert [heading.text for heading in headings(document.text)] == ["Top", "Under"]
    assert "One **bold** word." in document.text
    assert not any(word in document.text for word in ("steal", "Home", "p {}"))


def test_broken_html_keeps_its_words(tmp_path: Path) -> None:
    document = load(write(tmp_path / "a.html", b"<p>caf\xe9 <b>unclosed <i>deep</p></div>"))
    assert " ".join(document.text.replace("*", "").split()) == "café unclosed deep"


def test_restructured_text_with_errors_keeps_its_words(tmp_path: Path) -> None:
    text = """
Title
=====

Short
-------
See :func:`~os.walk` and :ref:`the guide <guide>` and `undefined`_.

.. function:: walk(top)

   Walk a *tree*.

   Twice if asked.

.. include:: /etc/passwd

Under
-----
Last words.
"""
    document = load(write(tmp_path / "a.rst", text))
    assert document.title == "Title"
    assert [heading.text for heading in headings(document.text)] == ["Title", "Short", "Under"]
    for words in ("See os.walk and the guide and", "walk(top)", "Twice if asked.", "Last words."):
        assert words in document.text
    assert "Unknown" not in document.text
    assert "root:" not in document.text


def test_a_pdf_has_pages_a_title_and_a_date(tmp_path: Path) -> None:
    document = load(write(tmp_path / "a.pdf", pdf("First page", "Second page", title="A report")))
    assert document.title == "A report"
    assert document.document_date == date(2024, 2, 29)
    assert document.text.split("\n\n") == ["First page", "Second page", ""]
    assert document.page_starts == (0, document.text.index("Second"))


def test_a_chunk_of_a_pdf_knows_its_pages(tmp_path: Path) -> None:
    long = "word " * 400
    chunks = split(load(write(tmp_path / "a.pdf", pdf(long, long, long))))
    assert [chunk.metadata for chunk in chunks] == [
        {"page": 1, "pages": [1]},
        {"page": 2, "pages": [2]},
        {"page": 3, "pages": [3]},
    ]


def test_a_chunk_over_several_pages_has_them_all(tmp_path: Path) -> None:
    (chunk,) = split(load(write(tmp_path / "a.pdf", pdf("One", "Two", "Three", "Four"))))
    assert chunk.metadata == {"page": 1, "pages": [1, 2, 3, 4]}


def test_the_bookmarks_of_a_pdf_are_its_headings(tmp_path: Path) -> None:
    lines = [(12, "Before."), (12, "1 Setup"), (12, "Install it."), (12, "2 Use"), (12, "Run it.")]
    marks = [("Setup", 1), ("Use", 1), ("Not in the text", 2)]
    data = pdf(lines, [(12, "The rest.")], bookmarks=marks)
    found = split(load(write(tmp_path / "a.pdf", data)))
    assert [(chunk.heading, chunk.content, chunk.metadata["page"]) for chunk in found] == [
        ("a", "Before.", 1),
        ("a > Setup", "Install it.", 1),
        ("a > Use", "Run it.", 1),
        ("a > Not in the text", "The rest.", 2),
    ]


def test_large_lines_are_the_headings_of_a_pdf_without_bookmarks(tmp_path: Path) -> None:
    text = [(12, f"Line number {number} of the text.") for number in range(9)]
    data = pdf([(24, "The"), (24, "title"), *text], [(16, "Part"), *text])
    found = split(load(write(tmp_path / "a.pdf", data)))
    assert [(chunk.heading, chunk.metadata["page"]) for chunk in found] == [
        ("a > The title", 1),
        ("a > The title > Part", 2),
    ]
    # With as many large lines as others, size says nothing.
    data = pdf([(24, "One"), (12, "one"), (24, "Two"), (12, "two")])
    assert load(write(tmp_path / "b.pdf", data)).headings == ()


def test_a_file_of_an_unsupported_type_is_named_with_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(UnreadableDocumentError, match=r"unsupported type, \.zip") as refused:
        load(write(tmp_path / "a.zip", b"PK\x03\x04\0\0"))
    assert ".md" in refused.value.remedy
    assert ".pdf" in refused.value.remedy


def test_the_first_of_several_top_headings_is_no_title(tmp_path: Path) -> None:
    text = "# Keys\n\nAbout keys.\n\n# Backups\n\nAbout backups.\n"
    document = load(write(tmp_path / "manual.md", text))
    assert document.title == "manual"
    assert [(chunk.heading, chunk.content) for chunk in split(document)] == [
        ("manual > Keys", "About keys."),
        ("manual > Backups", "About backups."),
    ]


@pytest.fixture(scope="module")
def library() -> dict[str, UnreadDocument]:
    return {source.external_key: source for source in standard_library()}


def test_the_standard_library_is_documented_by_module(library: dict[str, UnreadDocument]) -> None:
    assert {"python-stdlib:json.decoder", "python-stdlib:math", "python-stdlib:os"} <= set(library)
    assert not {"python-stdlib:this", "python-stdlib:antigravity"} & set(library)
    assert not [key for key in library if ".test" in key or ":_" in key]


def test_private_names_are_not_documented(library: dict[str, UnreadDocument]) -> None:
    for module in ("functools", "threading", "sys"):
        names = [
            heading.text for heading in headings(library[f"python-stdlib:{module}"].load().text)
        ]
        assert names
        assert not [name for name in names if "._" in name]


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("heapq", "heapq.merge", "merge(*iterables, key=None, reverse=False)"),
        ("json.decoder", "json.decoder.JSONDecoder.raw_decode", "raw_decode(self, s, idx=0)"),
        ("collections", "collections.deque", "optimized for data accesses"),
        ("builtins", "builtins.str.split", "str.split(sep=None, maxsplit=-1)"),
        ("math", "math.hypot", "Euclidean"),
    ],
    ids=["function", "method", "name from an extension", "built-in method", "extension"],
)
def test_functions_classes_and_methods_have_signature_and_text(
    library: dict[str, UnreadDocument], module: str, name: str, words: str
) -> None:
    document = library[f"python-stdlib:{module}"].load()
    section = document.text.partition(f"# {name}\n")[2]
    assert words in section


def test_the_standard_library_reads_the_same_whatever_the_program_has_changed(
    library: dict[str, UnreadDocument], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(*arguments: object) -> None:
        """Something else."""

    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    before = library["python-stdlib:sys"].load()
    assert "sys.excepthook" in before.text
    monkeypatch.setattr(sys, "excepthook", hook)
    assert library["python-stdlib:sys"].load() == before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "a.md", "# Apples\n\nred and round")
    write(tmp_path / "b.md", "# Bananas\n\nyellow and long")
    write(tmp_path / "c.md", "# Cherries\n\nred and small")
    return tmp_path


NO_LABELS = Labels()
Ingest = Callable[..., list[DocumentReport]]


@pytest.fixture
def run(database: Database) -> Ingest:
    def ingest_folder(
        folder: Path, embedder: Embedder, labels: Labels = NO_LABELS, *, dry_run: bool = False
    ) -> list[DocumentReport]:
        found = find_files([folder], source="s").documents
        return list(ingest(found, database, embedder, labels, dry_run=dry_run))

    return ingest_folder


def contents(database: Database, status: str = "active") -> dict[str, list[str]]:
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
    database: Database, folder: Path, run: Ingest
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
    database: Database, folder: Path, run: Ingest
) -> None:
    run(folder, CountingEmbedder())
    query = "select chunk::text from public.knowledge_chunks as chunk order by id"
    before = database.execute(query).fetchall()
    embedder = CountingEmbedder()
    assert {report.outcome for report in run(folder, embedder)} == {"unchanged"}
    assert embedder.embedded == []
    assert database.execute(query).fetchall() == before


def test_a_changed_file_supersedes_its_old_text_and_embeds_only_the_new(
    database: Database, folder: Path, run: Ingest
) -> None:
    run(folder, CountingEmbedder())
    write(folder / "b.md", "# Bananas\n\nbrown by now")
    embedder = CountingEmbedder()
    outcomes = [report.outcome for report in run(folder, embedder)]
    assert outcomes == ["unchanged", "stored", "unchanged"]
    assert embedder.embedded == ["Bananas\nbrown by now"]
    assert contents(database)["s:b.md"] == ["brown by now"]
    assert contents(database, "superseded") == {"s:b.md": ["yellow and long"]}


def test_a_bad_file_is_reported_and_the_others_are_stored(
    database: Database, folder: Path, run: Ingest
) -> None:
    write(folder / "b.md", b"\0\0")
    bad = [report for report in run(folder, CountingEmbedder()) if report.outcome == "failed"]
    assert [report.external_key for report in bad] == ["s:b.md"]
    assert "binary" in (bad[0].error or "")
    assert set(contents(database)) == {"s:a.md", "s:c.md"}


def test_a_file_that_turns_bad_keeps_what_was_stored(
    database: Database, folder: Path, run: Ingest
) -> None:
    run(folder, CountingEmbedder())
    write(folder / "b.md", b"\0\0")
    run(folder, CountingEmbedder())
    assert contents(database)["s:b.md"] == ["yellow and long"]


def test_an_interrupted_run_goes_on_where_it_stopped(
    database: Database, folder: Path, run: Ingest
) -> None:
    class FailingEmbedder(CountingEmbedder):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if "Bananas" in texts[0]:
                raise ConnectionError("the model is away")
            return super().embed(texts)

    with pytest.raises(ConnectionError):
        run(folder, FailingEmbedder())
    assert set(contents(database)) == {"s:a.md"}
    embedder = CountingEmbedder()
    assert [report.outcome for report in run(folder, embedder)] == ["unchanged", "stored", "stored"]
    assert len(embedder.embedded) == 2


def test_an_emptied_file_is_removed(database: Database, folder: Path, run: Ingest) -> None:
    run(folder, CountingEmbedder())
    write(folder / "b.md", "")
    reports = run(folder, CountingEmbedder())
    assert (reports[1].outcome, reports[1].removed) == ("empty", 1)
    assert set(contents(database)) == {"s:a.md", "s:c.md"}


def test_a_text_that_the_model_does_not_know_is_stored_without_an_embedding(
    database: Database, tmp_path: Path, run: Ingest
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


def test_another_model_embeds_everything_again(
    database: Database, folder: Path, run: Ingest
) -> None:
    run(folder, CountingEmbedder())
    reports = run(folder, CountingEmbedder("other-3"))
    assert {(report.outcome, report.embedded) for report in reports} == {("stored", 1)}
    assert database.execute(
        "select distinct embedding_model from public.knowledge_chunks"
    ).fetchall() == [("other-3",)]


@pytest.mark.parametrize("dimensions", [4])
def test_an_embedder_of_another_size_ends_the_run(folder: Path, run: Ingest) -> None:
    with pytest.raises(DimensionMismatchError, match="3"):
        run(folder, CountingEmbedder())


FIELDS = """
    select document.collection, document.visibility, document.owner_id::text, document.language,
      document.metadata
    from public.knowledge_documents as document
    where document.external_key = 's:a.md'
"""


def test_what_was_set_elsewhere_stays(database: Database, folder: Path, run: Ingest) -> None:
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


def test_labels_change_stored_documents_and_the_report_says_what(
    database: Database, folder: Path, run: Ingest
) -> None:
    run(folder, CountingEmbedder(), Labels(collection="vault", metadata={"team": "x"}))
    labels = Labels(visibility="public", owner_id=UUID(int=1), metadata={"team": "y"})
    reports = run(folder, CountingEmbedder(), labels)
    assert {report.outcome for report in reports} == {"stored"}
    assert reports[0].changes == (
        Change("visibility", "private", "public"),
        Change("owner_id", None, str(UUID(int=1))),
        Change("metadata.team", "x", "y"),
    )
    assert reports[0].embedded == 0
    stored = ("vault", "public", str(UUID(int=1)), "english", {"team": "y", **OF_A})
    assert database.execute(FIELDS).fetchone() == stored


def test_a_dry_run_foresees_the_run_and_only_reads(
    database: Database, folder: Path, run: Ingest
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
    database: Database, folder: Path, run: Ingest
) -> None:
    run(folder, CountingEmbedder())
    assert database.execute(
        "select source.name, source.config, count(*)"
        "  from public.knowledge_chunks as chunk"
        "  join public.knowledge_sources as source on source.id = chunk.source_id"
        " group by source.id"
    ).fetchall() == [("s", {"location": folder.as_posix()}, 3)]


def test_stale_documents_are_those_of_the_source_and_folder_that_are_gone(
    database: Database, tmp_path: Path
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


def test_a_source_of_the_same_name_elsewhere_is_refused(database: Database, tmp_path: Path) -> None:
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
