"""Loading, splitting and storing documents, on files made here and a real database."""

import hashlib
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from semantic_text_splitter import TextSplitter

from second_brain.errors import DimensionMismatchError
from second_brain.ingest import (
    DocumentReport,
    LoadedDocument,
    Source,
    UnreadableDocumentError,
    find_files,
    folder_prefixes,
    ingest,
    split,
    stale_keys,
    standard_library,
)
from second_brain.ingest.loading import headings
from second_brain.models import Embedder
from second_brain.services.write import KnowledgeWriter

Database = psycopg.Connection[tuple[Any, ...]]


def load(path: Path) -> LoadedDocument:
    (source,) = find_files([path], path.parent)
    return source.load()


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def pdf(*pages: str, title: str | None = None) -> bytes:
    """Write a PDF with one line of text on each page."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        drawing = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET" if text else ""
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * number} 0 R >>",
            f"<< /Length {len(drawing)} >>\nstream\n{drawing}\nendstream",
        ]
    objects.append(f"<< /Title ({title or ''}) /CreationDate (D:20240229120000Z) >>")
    data, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    return (
        data
        + (
            f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n"
            f"<< /Size {size} /Root 1 0 R /Info {size - 1} 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
        ).encode()
    )


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
    assert document.metadata == {"tags": ["ops", "keys"], "path": "a.md"}
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


def test_a_chunk_of_a_pdf_knows_its_page(tmp_path: Path) -> None:
    long = "word " * 400
    chunks = split(load(write(tmp_path / "a.pdf", pdf(long, long, long))))
    assert [chunk.metadata["page"] for chunk in chunks] == [1, 2, 3]


def test_folders_give_known_files_once_and_nothing_hidden(tmp_path: Path) -> None:
    for name in ("b.md", "a.TXT", "sub/c.rst", ".git/d.md", ".e.md", "node_modules/f.md", "g.py"):
        write(tmp_path / name, "text")
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    sources = find_files([tmp_path, tmp_path / "b.md"], tmp_path)
    assert [source.external_key for source in sources] == ["a.TXT", "b.md", "sub/c.rst"]


def test_a_key_is_the_same_whichever_way_the_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "docs" / "a.md", "text")
    monkeypatch.chdir(tmp_path)
    named = [Path("docs"), Path("docs/a.md"), Path(), tmp_path / "docs" / ".." / "docs"]
    keys = {find_files([path], Path())[0].external_key for path in named}
    assert keys == {"docs/a.md"}


def test_a_file_outside_the_base_has_its_absolute_path_as_key(tmp_path: Path) -> None:
    outside = write(tmp_path / "x" / "a.md", "text")
    (source,) = find_files([outside], tmp_path / "base")
    assert source.external_key == outside.as_posix()


def test_a_named_file_of_unknown_kind_is_read_as_text(tmp_path: Path) -> None:
    assert load(write(tmp_path / "LICENSE", "# Permission")).text == "# Permission"


def test_a_dead_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").symlink_to(tmp_path / "gone.md")
    (source,) = find_files([tmp_path], tmp_path)
    with pytest.raises(UnreadableDocumentError, match="is not there"):
        source.load()


def tokens_fit(text: str, tokens: int) -> bool:
    return len(TextSplitter.from_tiktoken_model("gpt-3.5-turbo", tokens).chunks(text)) <= 1


words = st.text("abcdefgh éß日本\U0001f600\"'.,:;()[]`*_#-=>|\n\t", min_size=1, max_size=300)
blocks = st.one_of(
    words,
    words.map(lambda text: f"\n\n{text * 12}\n\n"),
    st.builds(
        lambda depth, text: f"\n\n{'#' * depth} {text}\n\n",
        st.integers(1, 6),
        st.text("abc xyz", min_size=1, max_size=20),
    ),
    words.map(lambda text: f"\n\n```\n{text}\n```\n\n"),
    words.map(lambda text: f"\n\n| a | b |\n|---|---|\n| {text} | x |\n\n"),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(blocks, min_size=1, max_size=25).map("".join), st.booleans())
def test_chunks_are_within_bounds_and_lose_no_text(text: str, is_markdown: bool) -> None:
    chunks = split(LoadedDocument("Title", text, is_markdown))
    rest = "".join(text.split())
    for chunk in chunks:
        assert chunk.content.strip()
        assert chunk.heading.startswith("Title")
        assert tokens_fit(chunk.content, 500)
        # What stands between two chunks is white space or headings, and the path says these.
        before, found, rest = rest.partition("".join(chunk.content.split()))
        assert found or chunk.content in chunk.heading
        if not is_markdown:
            assert not before
    if not is_markdown:
        assert not rest
        small = [tokens_fit(chunk.content, 199) for chunk in chunks]
        for index in range(len(chunks) - 1):
            joined = chunks[index].content + chunks[index + 1].content
            assert not (small[index] or small[index + 1]) or not tokens_fit(joined, 450)


def test_a_heading_path_leads_to_each_section() -> None:
    long = "Some words of text to fill this section. " * 30
    text = f"# Guide\n\n{long}\n\n## Setup\n\n{long}\n\n### Keys\n\n{long}\n\n## Use\n\n{long}"
    chunks = split(LoadedDocument("Guide", text))
    assert [chunk.heading for chunk in chunks] == [
        "Guide",
        "Guide > Setup",
        "Guide > Setup > Keys",
        "Guide > Use",
    ]
    assert {chunk.content for chunk in chunks} == {long.strip()}
    assert chunks[2].metadata == {"section": "Setup > Keys"}


def test_small_sections_share_a_chunk_and_keep_their_headings() -> None:
    (chunk,) = split(LoadedDocument("Guide", "# Guide\n\n## One\n\nfirst\n\n## Two\n\nsecond"))
    assert chunk.heading == "Guide"
    assert chunk.content == "## One\n\nfirst\n\n## Two\n\nsecond"


def test_a_document_of_headings_alone_is_not_lost() -> None:
    (chunk,) = split(LoadedDocument("file", "# Only this"))
    assert chunk.heading == "file > Only this"


def test_white_space_alone_gives_no_chunk() -> None:
    assert split(LoadedDocument("Title", " \n\n\t ")) == []


@pytest.fixture(scope="module")
def library() -> dict[str, Source]:
    return {source.external_key: source for source in standard_library()}


def test_the_standard_library_is_documented_by_module(library: dict[str, Source]) -> None:
    assert {"python-stdlib:json.decoder", "python-stdlib:math", "python-stdlib:os"} <= set(library)
    assert not {"python-stdlib:this", "python-stdlib:antigravity"} & set(library)
    assert not [key for key in library if ".test" in key or ":_" in key]


def test_private_names_are_not_documented(library: dict[str, Source]) -> None:
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
    library: dict[str, Source], module: str, name: str, words: str
) -> None:
    document = library[f"python-stdlib:{module}"].load()
    section = document.text.partition(f"# {name}\n")[2]
    assert words in section


def test_the_standard_library_reads_the_same_whatever_the_program_has_changed(
    library: dict[str, Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(*arguments: object) -> None:
        """Something else."""

    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    before = library["python-stdlib:sys"].load()
    assert "sys.excepthook" in before.text
    monkeypatch.setattr(sys, "excepthook", hook)
    assert library["python-stdlib:sys"].load() == before


class CountingEmbedder:
    """Three numbers from a text's digest; keeps what it embedded, and knows nothing of `???`."""

    dimensions = 3

    def __init__(self, model: str = "digest-3") -> None:
        self.model = model
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed as an Embedder does."""
        self.embedded += texts
        digests = [hashlib.sha256(text.encode()).digest()[:3] for text in texts]
        vectors = np.array([list(digest) for digest in digests], np.float32).reshape(-1, 3) + 1
        vectors[["???" in text for text in texts]] = 0
        norms: NDArray[np.float32] = np.linalg.norm(vectors, axis=1, keepdims=True)
        norms[norms == 0] = 1
        return vectors / norms


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "a.md", "# Apples\n\nred and round")
    write(tmp_path / "b.md", "# Bananas\n\nyellow and long")
    write(tmp_path / "c.md", "# Cherries\n\nred and small")
    return tmp_path


Ingest = Callable[[Path, Embedder], list[DocumentReport]]


@pytest.fixture
def run(database: Database) -> Ingest:
    def ingest_folder(folder: Path, embedder: Embedder) -> list[DocumentReport]:
        return list(ingest(find_files([folder], folder), KnowledgeWriter(database), embedder))

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
        ("a.md", "stored"),
        ("b.md", "stored"),
        ("c.md", "stored"),
    ]
    stored = database.execute(
        "select heading, content, embedding_model, embedding is null, metadata"
        " from public.knowledge_chunks order by heading"
    ).fetchall()
    assert stored[0] == ("Apples", "red and round", "digest-3", False, {"path": "a.md"})


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
    assert contents(database)["b.md"] == ["brown by now"]
    assert contents(database, "superseded") == {"b.md": ["yellow and long"]}


def test_a_bad_file_is_reported_and_the_others_are_stored(
    database: Database, folder: Path, run: Ingest
) -> None:
    write(folder / "b.md", b"\0\0")
    bad = [report for report in run(folder, CountingEmbedder()) if report.outcome == "failed"]
    assert [report.external_key for report in bad] == ["b.md"]
    assert "binary" in (bad[0].error or "")
    assert set(contents(database)) == {"a.md", "c.md"}


def test_a_file_that_turns_bad_keeps_what_was_stored(
    database: Database, folder: Path, run: Ingest
) -> None:
    run(folder, CountingEmbedder())
    write(folder / "b.md", b"\0\0")
    run(folder, CountingEmbedder())
    assert contents(database)["b.md"] == ["yellow and long"]


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
    assert set(contents(database)) == {"a.md"}
    embedder = CountingEmbedder()
    assert [report.outcome for report in run(folder, embedder)] == ["unchanged", "stored", "stored"]
    assert len(embedder.embedded) == 2


def test_an_emptied_file_is_removed(database: Database, folder: Path, run: Ingest) -> None:
    run(folder, CountingEmbedder())
    write(folder / "b.md", "")
    reports = run(folder, CountingEmbedder())
    assert (reports[1].outcome, reports[1].removed) == ("empty", 1)
    assert set(contents(database)) == {"a.md", "c.md"}


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


def test_stale_documents_are_those_of_the_folder_that_were_not_found(
    database: Database, tmp_path: Path, run: Ingest
) -> None:
    for name in ("docs/a.md", "docs/b.md", "documents/c.md"):
        write(tmp_path / name, f"text of {name}")
    run(tmp_path, CountingEmbedder())
    KnowledgeWriter(database).upsert_document({"external_key": "docs/api"}, [{"content": "x"}])
    (tmp_path / "docs" / "b.md").unlink()
    folders = folder_prefixes([tmp_path / "docs"], tmp_path)
    assert stale_keys(database, folders, ["docs/a.md"]) == ["docs/b.md"]
    everything = folder_prefixes([tmp_path], tmp_path)
    assert stale_keys(database, everything, []) == ["docs/a.md", "docs/b.md", "documents/c.md"]
