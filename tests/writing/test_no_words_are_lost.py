"""What a reader leaves out is named in the report, and what stands apart is not glued together."""

import io
import json
import re
import shutil
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pptx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ingested import contents, outcomes, pdf, read, sections, store, unreadable, write
from pptx.util import Inches
from test_formats import RELATIONS, archive, paragraph, relations, word, workbook

from conftest import Connection
from second_brain.ingest import find_files, split
from second_brain.ingest.html import main_content_only, markdown_of
from second_brain.ingest.markdown import headings, without_markup
from support.emptied import dsn as dsn

DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
WORD_DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing"
DIAGRAM = "http://schemas.openxmlformats.org/drawingml/2006/diagram"
STEPS = "".join(f"<a:p><a:r><a:t>{one}</a:t></a:r></a:p>" for one in ("Intake", "Filtering"))
SMART_ART = f'<dgm:dataModel xmlns:dgm="{DIAGRAM}" xmlns:a="{DRAWING}">{STEPS}</dgm:dataModel>'
IDS = f'<dgm:relIds xmlns:dgm="{DIAGRAM}" xmlns:r="{RELATIONS}" r:dm="data"/>'


def run(inner: str) -> str:
    return f"<w:p><w:r>{inner}</w:r></w:p>"


def graphic(uri: str, inner: str = "") -> str:
    return f'<a:graphicData xmlns:a="{DRAWING}" uri="{uri}">{inner}</a:graphicData>'


def drawing(uri: str, inner: str = "") -> str:
    inline = f'<wp:inline xmlns:wp="{WORD_DRAWING}"><a:graphic xmlns:a="{DRAWING}">{{}}'
    frame = inline.format(graphic(uri, inner))
    return run(f"<w:drawing>{frame}</a:graphic></wp:inline></w:drawing>")


def related(body: str, name: str, content: str | bytes) -> bytes:
    """Write a docx that gives another part of it the id `data`."""
    relation = relations(data=name)
    return word(body, more={f"word/{name}": content, "word/_rels/document.xml.rels": relation})


def slide(of_the_frame: str) -> bytes:
    """Write a slide with a frame, and a part of the slide with the id `data`."""
    deck, data = pptx.Presentation(), io.BytesIO()
    shapes = deck.slides.add_slide(deck.slide_layouts[6]).shapes
    shapes.add_table(1, 1, 0, 0, Inches(1), Inches(1))
    deck.save(data)
    with zipfile.ZipFile(data) as file:
        members = {name: file.read(name).decode("latin-1") for name in file.namelist()}
    page, names = "ppt/slides/slide1.xml", "ppt/slides/_rels/slide1.xml.rels"
    frame = re.compile(r"<a:graphicData.*</a:graphicData>", re.DOTALL)
    members[page] = frame.sub(of_the_frame, members[page])
    inner = relations(data="../diagrams/data1.xml").partition("<Relationship ")[2]
    members[names] = members[names].replace("</R", f"<Relationship {inner[:-16]}</R")
    packed = {name: text.encode("latin-1") for name, text in members.items()}
    return archive({**packed, "ppt/diagrams/data1.xml": SMART_ART})


RUBY = (
    "<w:ruby><w:rt><w:r><w:t>x</w:t></w:r></w:rt>"
    "<w:rubyBase><w:r><w:t>kanji</w:t></w:r></w:rubyBase></w:ruby><w:t>desk</w:t>"
)
BUTTON = (
    '<w:fldChar w:fldCharType="begin"/><w:instrText> MACROBUTTON NoMacro Press here</w:instrText>'
    '<w:fldChar w:fldCharType="end"/>'
)
CHOICE = (
    '<w:fldChar w:fldCharType="begin"><w:ffData><w:ddList><w:result w:val="1"/>'
    '<w:listEntry w:val="Red"/><w:listEntry w:val="Blue"/></w:ddList></w:ffData></w:fldChar>'
    '<w:instrText> FORMDROPDOWN </w:instrText><w:fldChar w:fldCharType="end"/>'
)
BOX = f"<w:txbxContent>{paragraph('In a box.')}</w:txbxContent>"
SHOWN = {
    run(RUBY): "kanjidesk",
    run("<w:t>next</w:t><w:cr/><w:t>last</w:t>"): "next\nlast",
    "<w:p><w:dir><w:bdo><w:r><w:t>right</w:t></w:r></w:bdo></w:dir></w:p>": "right",
    run(BUTTON): "Press here",
    run(CHOICE): "Blue",
    drawing(f"{DRAWING}/wordprocessingShape", BOX): "In a box.",
}


def test_what_word_shows_in_other_ways_is_read() -> None:
    found = {body: read("a.docx", word(body)) for body in SHOWN}
    assert {body: document.text for body, document in found.items()} == SHOWN
    assert not any(document.notes for document in found.values())


def test_smart_art_is_text() -> None:
    document = read("a.docx", related(drawing(DIAGRAM, IDS), "diagrams/data1.xml", SMART_ART))
    assert (document.text, document.notes) == ("Intake\nFiltering", ())
    deck = read("a.pptx", slide(graphic(DIAGRAM, IDS)))
    assert "- Intake\n- Filtering" in deck.text
    assert deck.notes == ()


@pytest.mark.parametrize("kind", ["chart", "chartex", "unknown"])
def test_a_drawing_that_is_not_read_is_named(kind: str) -> None:
    data = word(paragraph("Text") + drawing(f"{DRAWING}/{kind}"))
    assert read("a.docx", data).notes == (f"a {kind} is left out",)
    (told,) = read("a.pptx", slide(graphic(f"{DRAWING}/{kind}"))).notes
    assert re.match("a (chart|shape) of slide 1 is left out", told)


INNER = "<html><title>T</title><h1>Lease</h1><p>Nine years.</p></html>"
MAIL = f"MIME-Version: 1.0\nContent-Type: text/html; charset=utf-8\n\n{INNER}"


@pytest.mark.parametrize(("name", "content"), [("c.html", INNER), ("c.mht", MAIL)])
def test_a_page_inside_of_a_word_file_stands_in_its_place(name: str, content: str) -> None:
    inside = f'<w:altChunk xmlns:r="{RELATIONS}" r:id="data"/>'
    data = related(paragraph("Cover") + inside + paragraph("End"), name, content)
    document = read("a.docx", data)
    assert document.text == "Cover\n\n# Lease\n\nNine years.\n\nEnd"


def test_a_document_that_cannot_be_read_any_more_keeps_what_is_stored(
    tmp_path: Path, database: Connection
) -> None:
    path = write(tmp_path / "a.docx", word(paragraph("Text")))
    store(database, find_files([path], source="s"))
    inside = f'<w:altChunk xmlns:r="{RELATIONS}" r:id="data"/>'
    write(path, related(inside, "c.docx", b"PK no page"))
    report = store(database, find_files([path], source="s"))["s:a.docx"]
    assert report.outcome == "failed"
    assert "c.docx, is left out" in str(report.error)
    assert contents(database) == {"s:a.docx": ["Text"]}


MARKDOWN = {
    "| a | open valve<br>start motor<br/>wait |": "| a | open valve start motor wait |",
    "<table><tr><td>seal</td><td>ring</td></tr></table>": "seal ring",
    "<ul><li>alpha</li><li>beta</li></ul><p>one</p>": "alpha beta one",
    "10<sup>6</sup>, m<sup>-2</sup>, 1<sup>st</sup>, H<sub>2</sub>O": "10^6, m^-2, 1st, H2O",
    "un<b>believ</b>able <b><i>W</i></b>ord": "unbelievable Word",
    "M&uuml;ller&nbsp;&amp; S&#246;hne, a &lt; b, &bogus; R&D;": (
        "Müller\xa0& Söhne, a &lt; b, &bogus; R&D;"
    ),
    "`M&uuml;ller<br>x`": "`M&uuml;ller<br>x`",
    "Kept %%private remark%% here": "Kept  here",
    "%%\nprivate\n\nremark\n%%\nKept": "\nKept",
    "%%time or %%bash, `%%a%%`": "%%time or %%bash, `%%a%%`",
    "5%% of 7%%": "5%% of 7%%",
}


def test_markup_of_markdown_divides_words_where_it_divides_lines() -> None:
    assert {one: read("a.md", one).text for one in MARKDOWN} == MARKDOWN


def test_components_of_mdx_divide_words() -> None:
    tabs = "<Tabs><Tab>one</Tab><Tab a={1}>two</Tab></Tabs>"
    assert read("a.mdx", tabs).text.split() == ["one", "two"]


WORDS = st.text("abcdef", min_size=1, max_size=5)
TAGS = st.sampled_from(["p", "div", "li", "br", "h2", "blockquote", "dd", "section"])


@given(st.lists(st.tuples(WORDS, TAGS), min_size=1, max_size=6))
def test_words_of_two_blocks_are_two_words(parts: list[tuple[str, str]]) -> None:
    source = "".join(f"<{tag}>{text}</{tag}>" for text, tag in parts)
    words = [text for text, _ in parts]
    assert re.findall(r"\w+", without_markup(source)) == words
    assert sorted(re.findall(r"[a-f]+", markdown_of(source).replace("---", ""))) == sorted(words)


INLINE = st.sampled_from(["b", "i", "code", "span", "a", "em", "sub", "kbd", "font"])


@given(st.lists(st.tuples(WORDS, INLINE), min_size=2, max_size=4))
def test_a_word_with_tags_inside_is_one_word(parts: list[tuple[str, str]]) -> None:
    source = "".join(f"<{tag}>{text}</{tag}>{text}" for text, tag in parts)
    word = "".join(2 * text for text, _ in parts)
    assert without_markup(source) == word
    assert markdown_of(f"<p>{source}</p>") == word


LINES = ["# reload", "```", "~~~", "===", "---", "<!-- a", "<script>", "<pre>", "## x", "#"]


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_text_is_neither_a_heading_nor_code(line: str) -> None:
    shown = line.replace("<", "&lt;")
    page = f"<h1>A</h1><p>Text<br>{shown}</p><p>{shown}</p><h2>Next</h2>"
    deck, data = pptx.Presentation(), io.BytesIO()
    for text in (f"Text\v{line}", line, "End"):
        slide = deck.slides.add_slide(deck.slide_layouts[6])
        slide.shapes.add_textbox(0, 0, 1, 1).text_frame.text = text
        slide.notes_slide.notes_text_frame.text = line
    deck.save(data)
    slides = [f"Slide {number}" for number in (1, 2, 3)]
    for name, content, expected in (
        ("a.html", page, ["A", "Next"]),
        ("a.docx", word(paragraph("A", "H1") + paragraph(shown) + paragraph("Next", "H2")), None),
        ("a.pptx", data.getvalue(), slides),
        ("a.xlsx", workbook({"A": [["Text"], [f" {line}"], ["x", "y"]], "Next": [["a"]]}), None),
        ("a.csv", f"Of,2024\n{line}\n\nA,B,C\n1,2,3\n", []),
    ):
        text = read(name, content).text
        assert [one.text for one in headings(text)] == (
            expected or ["A", "Next"] * (expected is None)
        )


RST = {
    ".. py:function:: f(x)\n\n   :param x: y": "f(x) param x y",
    ".. class:: Box(width)\n\n   Holds things.": "Box width Holds things",
    ".. deprecated:: 3.9\n   :class:`dict` now does it.": "3.9 dict now does it",
    ".. productionlist:: grammar\n   stmt: expr\n   expr: name": "stmt expr expr name",
    ".. note-of-tomorrow::\n\n   Inner\n   -----\n   Words.": "Inner Words",
    ".. class:: special\n\nShown.": "Shown",
}


def test_a_directive_keeps_its_words_and_those_before_it() -> None:
    found = {one: read("a.rst", f"Title\n=====\n\nBefore.\n\n{one}\n") for one in RST}
    words = {
        one: " ".join(re.findall(r"[\w.]+\b|f\(x\)", text.text)) for one, text in found.items()
    }
    expected = {one: re.findall(r"[\w.]+", text) for one, text in RST.items()}
    for one, text in words.items():
        assert re.findall(r"[\w.]+", text)[:2] == ["Title", "Before"], one
        assert [word for word in expected[one] if word not in text] == []
    assert {one for one in found if found[one].notes} == set()


PAGES = {
    "<x-card><template shadowrootmode=open><p>Shadow</p></template><p>Light</p></x-card>": (
        "Shadow\n\nLight"
    ),
    "<template><p>Never</p></template>Shown": "Shown",
    "<table><tr><th>No<th>Screen<tr><td><h2>1</h2><td>Start</table>": (
        "| No | Screen |\n| --- | --- |\n| 1 | Start |"
    ),
    "<table><tr><td>Menu<td><h1>A</h1><p>Text<h2>B</h2>More</table>": (
        "Menu\n\n# A\n\nText\n\n## B\n\nMore"
    ),
    "Text<hr>More<hr>": "Text\n\nMore",
    "W<!-- no -->ord<footer>Imprint</footer></body>": "Word",
    "<div hidden>In another tab</div><p>Here": "In another tab\n\nHere",
    "<p>in /<code>/x.</p><h2>Next</h2><p>Text": "in /`/x.`\n\n## Next\n\nText",
}


def test_what_a_page_shows_is_read() -> None:
    assert {page: read("a.html", page).text for page in PAGES} == PAGES


def test_a_record_that_has_changed_since_it_was_listed_is_not_read(tmp_path: Path) -> None:
    lines = [json.dumps({"id": name, "text": f"of {name}"}) for name in "abc"]
    lines += [json.dumps({"text": f"of {number}"}) for number in (4, 5)]
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    found = {one.external_key: one for one in find_files([path], source="s").documents}
    write(path, "\n".join([lines[1], lines[0], lines[2], lines[4], lines[3]]))
    assert found.pop("s:a.jsonl/c").load().text == "of c"
    for document in found.values():
        with unreadable("another line than when the file was listed"):
            document.load()
    again = find_files([path], source="s").documents
    assert sorted(one.load().text for one in again) == ["of 4", "of 5", "of a", "of b", "of c"]


def test_each_chunk_of_a_wide_table_has_words() -> None:
    names, values = ("".join(f",{word}{at}" for at in range(300)) for word in ("name", "v"))
    chunks = split(read("a.csv", f"{names[1:]}\n{values[1:]}\n{values[1:]}\n"))
    assert all(re.search(r"\w", chunk.content) for chunk in chunks)
    text = " ".join(chunk.content for chunk in chunks)
    assert {"name0", "name299", "v0", "v299"} <= set(text.split())


def test_a_form_that_adobe_draws_is_refused() -> None:
    form = b"/Catalog /NeedsRendering true /AcroForm << /Fields [] /XFA [(template) 3 0 R] >>"
    data = pdf("Please wait...")
    with unreadable("is an XFA form"):
        read("a.pdf", data.replace(b"/Catalog", form))
    # Its pages have their text.
    static = read("b.pdf", data.replace(b"/Catalog", form.replace(b"/NeedsRendering true", b"")))
    assert "Please wait" in static.text


PANDOC = """#!/bin/sh
case "$*" in *"--sandbox"*"-M"*) ;; *) exit 3 ;; esac
cat > /dev/null
case "$2" in rtf) echo 'broken' >&2; exit 64 ;; esac
echo "<html><title>-</title><h1>Plan</h1><table><tr><td>a<td>$2</table></html>"
"""


def test_documents_of_other_programs_are_read_with_pandoc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program stands for pandoc, which few machines have."""
    monkeypatch.setenv("PATH", "")
    with unreadable("read only with pandoc, which is not installed") as refused:
        read("a.odt", archive({"content.xml": "<a/>"}))
    assert "Install pandoc" in refused.value.remedy
    plain = read("a.org", "* Head\n\ntext")
    assert (plain.text, plain.is_markdown) == ("* Head\n\ntext", False)
    assert "is not installed" in plain.notes[0]
    write(tmp_path / "pandoc", PANDOC).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    document = read("a.odt", archive({"content.xml": "<a/>"}))
    assert sections(document) == [("Plan", "| a | odt |\n| --- | --- |")]
    with unreadable("cannot be read by pandoc: broken"):
        read("a.rtf", b"{\\rtf1 text}")
    with unreadable("has more than|not a zip"):
        read("a.odt", b"PK\x03\x04 cut off")


@pytest.mark.skipif(shutil.which("pandoc") is None, reason="pandoc is not installed")
def test_pandoc_reads_a_document() -> None:
    document = read("a.org", "#+TITLE: Plan\n\n* Keys\n\nRotate /them/.")
    assert sections(document) == [("Plan > Keys", "Rotate *them*.")]


def test_the_article_of_a_page_is_found_by_trafilatura(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module stands for trafilatura, which the tests do not need beside."""
    news = ModuleType("trafilatura")
    found = iter(["<html><body><h1>A</h1><p>News.</p></body></html>", None])
    vars(news)["extract"] = lambda html, **_: next(found)
    monkeypatch.setitem(sys.modules, "trafilatura", news)
    page = "<title>T</title><h1>A</h1><p>News.</p><p>Also read this."
    main_content_only.set(True)
    try:
        assert read("a.html", page).text == "# A\n\nNews."
        whole = read("a.html", page)
    finally:
        main_content_only.set(False)
    assert whole.notes == ("it has no article, and is read whole",)
    assert "Also read this." in whole.text
    assert "Also read this." in read("a.html", page).text


def test_a_report_tells_what_is_left_out(tmp_path: Path, database: Connection) -> None:
    body = paragraph("one two three") + f"<w:new>{paragraph('gone')}</w:new>"
    path = write(tmp_path / "a.docx", word(body))
    reports = store(database, find_files([path], source="s"))
    assert outcomes(reports) == {"s:a.docx": "stored"}
    told = "1 of its 4 words are left out, such as: gone"
    assert told in reports["s:a.docx"].notes
    assert read("a.md", "%%private%% two words").notes == (
        "1 of its 3 words are left out, such as: private",
    )
