"""Files of each type as documents; of pages of HTML the text that their site does not repeat."""

import sys
from datetime import date
from pathlib import Path

import pytest
from ingested import contents, outcomes, pdf, read, sections, store, unreadable, write

from conftest import Connection
from second_brain.demo import standard_library
from second_brain.ingest import DocumentReport, UnreadDocument, find_files, split
from second_brain.ingest.markdown import headings
from support.emptied import dsn as dsn


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


NAMES = ("apples", "bananas", "cherries", "dates", "elderberries", "figs")


def text_of(html: str) -> str:
    return read("page.html", html).text


def test_declarations_comments_and_escapes_are_no_text() -> None:
    page = """<?xml version="1.0" encoding="UTF-8"?>
        <!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN" "x.dtd">
        <html><body><!-- hidden --><p>Run <b>pg_dump</b> on a_b_c * 2 with 50\u200b000 [rows].</p>
        <table><tr><th>operator</th></tr><tr><td>a || b</td></tr></table></body></html>"""
    assert text_of(page) == (
        "Run **pg_dump** on a_b_c * 2 with 50000 [rows].\n\n| operator |\n| --- |\n| a \\|\\| b |"
    )


def test_navigation_is_left_out_of_the_main_content() -> None:
    around = """<div role="navigation">Up</div><div class="navheader">Prev</div>
        <div class="toc"><a href="#x">One</a></div><div id="footer">Made by</div>"""
    body = "<h1>Keys</h1><p>Rotate them.<a href='#keys'>\u00b6</a></p>"
    wanted = "# Keys\n\nRotate them."
    assert text_of(f"{around}{body}") == wanted
    assert text_of(f"<div>Other</div><main>{body}{around}</main>") == wanted
    assert text_of(f"<div>Other</div><div id='content'>{body}</div>") == wanted


def test_a_place_without_the_top_heading_is_not_the_main_content() -> None:
    page = "<div><h1>Keys</h1><p>What they are.</p></div><div id='content'>Rotate them all.</div>"
    assert text_of(page) == "# Keys\n\nWhat they are.\n\nRotate them all."
    articles = "<article>The first of two.</article><article>The second.</article>"
    assert text_of(articles) == "The first of two.\n\nThe second."


def test_headings_in_lists_and_tables_open_sections() -> None:
    page = """<h1>Class</h1><ul><li><h2>Fields</h2><p>none</p></li></ul>
        <table><tr><td><h2>Methods</h2></td></tr><tr><td>run()</td></tr></table>
        <dl><dt>-f</dt><dd><p>force</p><p>Always.</p></dd></dl><h3>More</h3>"""
    text = text_of(page)
    found = [(heading.depth, heading.text) for heading in headings(text)]
    assert found == [(1, "Class"), (2, "Fields"), (2, "Methods"), (3, "More")]
    assert "-f\n\nforce\n\nAlways." in text


@pytest.mark.parametrize(
    "html",
    [
        "<pre><pre><code>a_b\n# c</code></pre></pre>",
        "<table><tr><td><pre>1\n2</pre></td><td><pre>a_b\n# c</pre></td></tr></table>",
        "<div class='fragment'><div class='line'><span class='lineno'>1</span>a_b</div>"
        "<div class='line'><span class='lineno'>2</span># c</div></div>",
    ],
    ids=["nested", "beside the numbers of its lines", "line by line"],
)
def test_code_is_one_block(html: str) -> None:
    text = text_of(f"<p>Code:</p>{html}<h2>Next</h2>")
    assert text == "Code:\n\n```\na_b\n# c\n```\n\n## Next"


def test_the_name_of_the_site_is_not_in_the_title() -> None:
    page = "<title>Keys and locks \u2014 The manual</title><h1>Keys and locks</h1><p>text"
    assert sections(read("a.html", page)) == [("Keys and locks", "text")]
    other = read("b.html", "<title>New keys</title><h1>keys</h1><p>text")
    assert other.title == "New keys"


def page_of(name: str) -> str:
    labels = "".join(f"<h3>{name} {part}</h3><p>Size:</p><p>{name} {part}." for part in "abc")
    return f"""<title>{name}</title><p>Fruit shop 2024</p><table><tr><td>Prev</td></tr></table>
        <h1>{name}</h1><h2>Description</h2><p>About {name}.</p>
        <h2>Parts</h2>{labels}<h2>See also</h2><p>All our fruit</p>
        <pre>buy()</pre><p>Impressum</p>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name in NAMES:
        write(tmp_path / "docs" / name[0] / f"{name}.html", page_of(name))
    return tmp_path


def stored(database: Connection, *paths: Path, dry_run: bool = False) -> dict[str, DocumentReport]:
    base = paths[0].parent if paths[0].is_dir() else paths[0].parents[2]
    return store(database, find_files(paths, source="s", base=base), dry_run=dry_run)


def test_lines_that_a_site_repeats_are_left_out_and_counted(
    site: Path, database: Connection
) -> None:
    reports = stored(database, site / "docs")
    # A heading with text below it stays, and a label that a page has thrice.
    assert contents(database)["s:docs/f/figs.html"] == [
        "About figs.",
        *(f"Size:\n\nfigs {part}." for part in "abc"),
    ]
    # The first line, the table, "See also", its line, the code and the last line.
    assert {report.repeated_lines for report in reports.values()} == {6}


def test_a_page_that_is_read_alone_loses_the_lines_of_its_site(
    site: Path, database: Connection
) -> None:
    stored(database, site / "docs")
    page, key = site / "docs" / "f" / "figs.html", "s:docs/f/figs.html"
    assert outcomes(stored(database, page)) == {key: "unchanged"}
    write(page, page_of("figs").replace("About figs", "On figs"))
    assert stored(database, page)[key].repeated_lines == 6
    alone = contents(database)
    assert alone[key][0] == "On figs."
    # A folder inside of the site has too few pages of its own.
    inner = find_files([site / "docs" / "f"], source="s", base=site)
    assert outcomes(store(database, inner)) == {key: "unchanged"}
    assert {*outcomes(stored(database, site / "docs")).values()} == {"unchanged"}
    assert contents(database) == alone


def test_a_few_pages_and_other_files_keep_their_lines(site: Path, database: Connection) -> None:
    for name in NAMES:
        write(site / "docs" / f"{name}.md", f"# {name}\n\nAll our fruit\n\n{name}")
    for name in NAMES[4:]:
        (site / "docs" / name[0] / f"{name}.html").unlink()
    assert {report.repeated_lines for report in stored(database, site / "docs").values()} == {0}


def test_pages_of_nothing_else_keep_their_lines(tmp_path: Path, database: Connection) -> None:
    for name in NAMES:
        write(tmp_path / "docs" / f"{name}.html", "<p>The same everywhere")
    assert {*outcomes(stored(database, tmp_path / "docs")).values()} == {"stored"}


def test_a_dry_run_counts_the_lines_and_stores_none(site: Path, database: Connection) -> None:
    stored(database, site / "docs" / "f" / "figs.html")
    reports = stored(database, site / "docs", dry_run=True)
    assert {report.repeated_lines for report in reports.values()} == {6}
    config = "select config ? 'repeated_lines' from public.knowledge_sources where name = 's'"
    assert database.execute(config).fetchone() == (False,)
