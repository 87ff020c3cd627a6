"""Pages of HTML: their main content, without what a whole site repeats."""

from pathlib import Path

import pytest
from ingested import contents, outcomes, read, sections, store, write

from conftest import Connection
from second_brain.ingest import DocumentReport, find_files
from second_brain.ingest.markdown import headings
from support.emptied import dsn as dsn

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
    assert "-f\nforce\n\nAlways." in text


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
