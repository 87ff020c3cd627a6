"""Files of each type as documents: title, date, text and headings."""

import sys
from datetime import date

import pytest
from ingested import OF_A, pdf, read, sections, unreadable

from second_brain.ingest import UnreadDocument, split, standard_library
from second_brain.ingest.markdown import headings


def test_markdown_takes_title_date_and_tags_from_its_front_matter() -> None:
    front = "title: Keys\ndate: 2024-02-29\nauthor: Ada\ntags: [ops, keys]"
    document = read("a.md", f"---\n{front}\n---\n# Other\nText")
    assert (document.title, document.author) == ("Keys", "Ada")
    assert document.document_date == date(2024, 2, 29)
    assert document.metadata == {"tags": ["ops", "keys"], **OF_A}
    assert document.text == "# Other\nText"


@pytest.mark.parametrize(
    "block",
    ["a: [", "a: &x [1]\n" + "b: *x\n" * 21, "a: &x [*x]", "a: 2024-99-99"],
    ids=["broken", "many aliases", "an alias of itself", "impossible date"],
)
def test_front_matter_that_cannot_be_used_stays_text(block: str) -> None:
    document = read("a.md", f"---\n{block}\n---\n# Title\n")
    assert document.text == f"```\n{block}\n```\n# Title\n"
    assert document.title == "Title"


def test_a_rule_at_the_top_begins_no_front_matter() -> None:
    text = "---\nBetween rules\n---\nText"
    document = read("a.md", text)
    assert (document.text, document.title) == (text, "Between rules")


def test_a_markdown_title_is_the_first_heading_and_else_the_file_name() -> None:
    code = "```\n# a comment\n```\n\n"
    assert read("a.md", f"{code}The `real` *one*\n====\n").title == "The real one"
    assert read("plain words.md", "nothing else").title == "plain words"


def test_a_file_past_the_limit_is_refused() -> None:
    with unreadable("larger than 80 MB"):
        read("a.txt", bytes(80_000_001))


def test_html_becomes_markdown_without_scripts_and_navigation() -> None:
    page = """<!doctype html><html><head><title>The  page</title>
        <meta name="author" content="Ada"><meta property="article:published_time"
        content="2024-02-29T10:00:00Z"><link rel="canonical" href="https://example.org/p">
        <style>p {}</style></head><body><nav>Home</nav><h1>Top</h1><p>One <b>bold</b> word.
        <script>steal()</script><h2>Under</h2><ul><li>item</li></ul>
        <pre><code># code</code></pre></body></html>"""
    document = read("a.html", page)
    assert (document.title, document.author) == ("The page", "Ada")
    assert document.document_date == date(2024, 2, 29)
    assert document.source_url == "https://example.org/p"
    assert [heading.text for heading in headings(document.text)] == ["Top", "Under"]
    assert "One **bold** word." in document.text
    assert not any(word in document.text for word in ("steal", "Home", "p {}"))


RST = """
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


def test_restructured_text_with_errors_keeps_its_words() -> None:
    document = read("a.rst", RST)
    assert document.title == "Title"
    assert [heading.text for heading in headings(document.text)] == ["Title", "Short", "Under"]
    kept = ("See os.walk and the guide and", "walk(top)", "Twice if asked.", "Last words.")
    assert [words for words in (*kept, "Unknown", "root:") if words in document.text] == [*kept]


def test_a_pdf_has_pages_a_title_and_a_date() -> None:
    document = read("a.pdf", pdf("First page", "Second page", title="A report"))
    assert document.title == "A report"
    assert document.document_date == date(2024, 2, 29)
    assert document.text.split("\n\n") == ["First page", "Second page", ""]
    assert document.page_starts == (0, document.text.index("Second"))


def test_a_chunk_of_a_pdf_knows_its_pages() -> None:
    long = "word " * 400
    chunks = split(read("a.pdf", pdf(long, long, "One", "Two")))
    assert [chunk.metadata for chunk in chunks] == [
        {"page": 1, "pages": [1]},
        {"page": 2, "pages": [2, 3, 4]},
    ]


def test_the_bookmarks_of_a_pdf_are_its_headings() -> None:
    lines = [(12, "Before."), (12, "1 Setup"), (12, "Install it."), (12, "2 Use"), (12, "Run it.")]
    marks = [("Setup", 1), ("Use", 1), ("Not in the text", 2)]
    data = pdf(lines, [(12, "The rest.")], bookmarks=marks)
    found = split(read("a.pdf", data))
    assert [(chunk.heading, chunk.content, chunk.metadata["page"]) for chunk in found] == [
        ("a", "Before.", 1),
        ("a > Setup", "Install it.", 1),
        ("a > Use", "Run it.", 1),
        ("a > Not in the text", "The rest.", 2),
    ]


def test_large_lines_are_the_headings_of_a_pdf_without_bookmarks() -> None:
    text = [(12, f"Line number {number} of the text.") for number in range(9)]
    data = pdf([(24, "The"), (24, "title"), *text], [(16, "Part"), *text])
    found = split(read("a.pdf", data))
    assert [(chunk.heading, chunk.metadata["page"]) for chunk in found] == [
        ("a > The title", 1),
        ("a > The title > Part", 2),
    ]
    # With as many large lines as others, size says nothing.
    data = pdf([(24, "One"), (12, "one"), (24, "Two"), (12, "two")])
    assert read("b.pdf", data).headings == ()


def test_a_file_of_an_unsupported_type_is_named_with_the_supported_ones() -> None:
    with unreadable(r"unsupported type, \.zip") as refused:
        read("a.zip", b"PK\x03\x04\0\0")
    assert ".md" in refused.value.remedy
    assert ".pdf" in refused.value.remedy


def test_the_first_of_several_top_headings_is_no_title() -> None:
    document = read("manual.md", "# Keys\n\nAbout keys.\n\n# Backups\n\nAbout backups.\n")
    assert document.title == "manual"
    assert sections(document) == [
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


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("json.decoder", "JSONDecoder.raw_decode", "raw_decode(self, s, idx=0)"),
        ("collections", "deque", "optimized for data accesses"),  # a name from an extension
        ("builtins", "str.split", "str.split(sep=None, maxsplit=-1)"),
    ],
)
def test_functions_classes_and_methods_have_signature_and_text(
    library: dict[str, UnreadDocument], module: str, name: str, words: str
) -> None:
    text = library[f"python-stdlib:{module}"].load().text
    assert words in text.partition(f"# {module}.{name}\n")[2]


def test_the_standard_library_reads_the_same_whatever_the_program_has_changed(
    library: dict[str, UnreadDocument], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    before = library["python-stdlib:sys"].load()
    assert "sys.excepthook" in before.text
    monkeypatch.setattr(sys, "excepthook", print)
    assert library["python-stdlib:sys"].load() == before
