"""Office files, e-books, tables and records: text, headings, tables, pages, and bad files."""

import io
import json
import struct
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path

import openpyxl
import pptx
import pytest
from ingested import outcomes, pdf, read, sections, store, unreadable, write
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

from conftest import Connection
from second_brain.ingest import find_files, split, stale_keys

PACKAGE = "http://schemas.openxmlformats.org/package/2006"
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
CORE = (
    f'<cp:coreProperties xmlns:cp="{PACKAGE}/metadata/core-properties" '
    'xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:dcterms="http://purl.org/dc/terms/">'
    "<dc:title>{title}</dc:title><dc:creator>Ada</dc:creator>"
    "<dcterms:modified>2024-02-29T12:00:00Z</dcterms:modified></cp:coreProperties>"
)


def archive(members: Mapping[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return data.getvalue()


def relations(**targets: str) -> str:
    found = "".join(
        f'<Relationship Id="{kind}" Type="{RELATIONS}/{kind}" Target="{target}"/>'
        for kind, target in targets.items()
    )
    return f'<Relationships xmlns="{PACKAGE}/relationships">{found}</Relationships>'


def word(body: str, title: str = "", more: Mapping[str, str | bytes] | None = None) -> bytes:
    """Write a docx with two heading styles, and more members."""
    types = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    styles = "".join(
        f'<w:style w:type="paragraph" w:styleId="H{depth}"><w:name w:val="heading {depth}"/>'
        "</w:style>"
        for depth in (1, 2)
    )
    return archive(
        {
            "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types"><Override '
            f'PartName="/word/document.xml" ContentType="{types}"/></Types>',
            "_rels/.rels": relations(officeDocument="word/document.xml"),
            "word/_rels/document.xml.rels": relations(styles="styles.xml"),
            "word/styles.xml": f'<w:styles xmlns:w="{WORD}">{styles}</w:styles>',
            "word/document.xml": f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body>'
            "</w:document>",
            "docProps/core.xml": CORE.format(title=title),
            **(more or {}),
        }
    )


def paragraph(text: str, style: str = "") -> str:
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


def row(*cells: str) -> str:
    return f"<w:tr>{''.join(f'<w:tc>{paragraph(cell)}</w:tc>' for cell in cells)}</w:tr>"


def slides() -> bytes:
    """Write a deck: a list with notes, a slide with a text, a table and a chart, an empty one."""
    deck = pptx.Presentation()
    deck.core_properties.title = "Plan"
    first = deck.slides.add_slide(deck.slide_layouts[1])
    first.shapes.title.text = "Why now"
    first.placeholders[1].text = "Costs rise\nDemand falls"
    first.notes_slide.notes_text_frame.text = "Pause here."
    shapes = deck.slides.add_slide(deck.slide_layouts[6]).shapes
    profit = CategoryChartData()  # type: ignore[no-untyped-call]
    profit.categories = ["Q1", "Q2"]
    profit.add_series("Profit", (1.5, 2))  # type: ignore[no-untyped-call]
    half, four = Inches(0.5), Inches(4)
    shapes.add_chart(XL_CHART_TYPE.PIE, half, Inches(5), four, half, profit)
    table = shapes.add_table(2, 2, half, Inches(3), four, half).table
    for at, text in enumerate(("Year", "Sales", "2024", "7|8")):
        table.cell(at // 2, at % 2).text = text
    shapes.add_textbox(half, half, four, half).text_frame.text = "Above"
    deck.slides.add_slide(deck.slide_layouts[6])
    data = io.BytesIO()
    deck.save(data)
    return data.getvalue()


def workbook(sheets: Mapping[str, Sequence[Sequence[object]]]) -> bytes:
    book = openpyxl.Workbook()
    book.remove(book.worksheets[0])
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for cells in rows:
            sheet.append(cells)
    data = io.BytesIO()
    book.save(data)
    return data.getvalue()


def book(chapter: str = "<p>It began.</p>") -> bytes:
    """Write an EPUB with a chapter that only the contents name, and one with headings."""
    items = '<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>' + "".join(
        f'<item id="{name}" href="{name}.xhtml" media-type="application/xhtml+xml"{more}/>'
        for name, more in (("c2", ""), ("c1", ""), ("nav", ' properties="nav"'))
    )
    return archive(
        {
            "META-INF/container.xml": "<container><rootfiles>"
            '<rootfile full-path="OPS/p.opf"/></rootfiles></container>',
            "OPS/p.opf": '<package xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata>'
            "<dc:title>The  Book</dc:title><dc:creator>Ada</dc:creator>"
            f"<dc:date>2024-02-29</dc:date></metadata><manifest>{items}</manifest><spine>"
            '<itemref idref="c1"/><itemref idref="c2"/></spine></package>',
            "OPS/nav.xhtml": '<nav><ol><li><a href="c1.xhtml#x">Setting out</a></li></ol></nav>',
            "OPS/toc.ncx": "<ncx><navMap><navPoint><navLabel><text>Of EPUB 2</text></navLabel>"
            '<content src="c1.xhtml"/></navPoint></navMap></ncx>',
            "OPS/c1.xhtml": f"<!DOCTYPE html><html><body>{chapter}</body></html>",
            "OPS/c2.xhtml": "<html><body><h1>Coming home</h1><h2>Late</h2><p>It ended.",
        }
    )


def test_a_word_file_keeps_headings_lists_and_tables() -> None:
    body = (
        paragraph("Keys", "H1")
        + paragraph("Rotate them.")
        + paragraph("Costs", "H2")
        + f"<w:tbl>{row('Part', 'Price')}{row('lock', '3 | 4')}</w:tbl>"
    )
    document = read("a.docx", word(body, title="Manual"))
    assert (document.title, document.author) == ("Manual", "Ada")
    assert document.document_date == date(2024, 2, 29)
    assert sections(document) == [
        ("Manual > Keys", "Rotate them."),
        ("Manual > Keys > Costs", "| Part | Price |\n| --- | --- |\n| lock | 3 \\| 4 |"),
    ]
    assert read("b.docx", word(body)).title == "Keys"


def test_a_chunk_of_a_presentation_has_the_number_of_its_slide() -> None:
    document = read("a.pptx", slides())
    assert document.title == "Plan"
    assert [(chunk.heading, chunk.metadata["page"]) for chunk in split(document)] == [
        ("Plan > Why now", 1),
        ("Plan > Slide 2", 2),
        ("Plan > Slide 3", 3),
    ]
    first, second, _ = [chunk.content for chunk in split(document)]
    assert first == "- Costs rise\n- Demand falls\n\nPause here."
    assert second == (
        "Above\n\n| Year | Sales |\n| --- | --- |\n| 2024 | 7\\|8 |"
        "\n\n|  | Profit |\n| --- | --- |\n| Q1 | 1.5 |\n| Q2 | 2 |"
    )


def test_the_sheets_of_a_workbook_are_sections() -> None:
    rows: list[list[object]] = [["Prices of 2024"], [], [None, "Part", "From", "Price"]]
    rows += [[None, f"part {number}", datetime(2024, 2, 29), 0.1 + 0.2] for number in range(99)]
    data = workbook({"Parts": rows, "Empty": [], "Notes": [["only words"]]})
    chunks = split(read("figures.xlsx", data))
    assert {chunk.heading for chunk in chunks} == {"figures > Parts", "figures > Notes"}
    header = "| Part | From | Price |\n| --- | --- | --- |\n| part "
    assert chunks[0].content.startswith(f"Prices of 2024\n\n{header}")
    assert len(chunks) > 3
    assert all(chunk.content.startswith(header) for chunk in chunks[1:-1])
    assert "| part 98 | 2024-02-29 | 0.3 |" in chunks[-2].content
    assert chunks[-1].content == "only words"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("semicolons.csv", 'name;price\n"a; b";1,5\n\nc|d;2'),
        ("commas.csv", 'name,price\n"a; b","1,5"\nc|d,2\n'),
        ("tabs.tsv", "name\tprice\na; b\t1,5\nc|d\t2"),
    ],
)
def test_a_csv_file_is_a_table(name: str, text: str) -> None:
    assert read(name, text).text == "| name | price |\n| --- | --- |\n| a; b | 1,5 |\n| c\\|d | 2 |"


def test_the_chapters_of_a_book_are_sections() -> None:
    document = read("a.epub", book())
    assert (document.title, document.author) == ("The Book", "Ada")
    assert document.document_date == date(2024, 2, 29)
    assert sections(document) == [
        ("The Book > Setting out", "It began."),
        ("The Book > Coming home > Late", "It ended."),
    ]


def test_each_line_of_json_is_a_document(tmp_path: Path) -> None:
    url = "https://example.org/k"
    lines = [
        {"id": "keys/1", "title": "Keys", "text": "Rotate.", "url": url, "n": 1},
        {"content": "No id", "metadata": {"tags": ["a"]}, "date": "2024-02-29"},
        {"id": 7, "title": "without text"},
        {"id": "keys/1", "text": "again"},
    ]
    text = "\n".join(map(json.dumps, lines)) + "\n\nnot json\n"
    found = find_files([write(tmp_path / "faq.jsonl", text)], source="s").documents
    by_id = {one.external_key.removeprefix("s:faq.jsonl/"): one for one in found}
    assert list(by_id) == ["2", "4", "6", "7", "keys/1"]
    first, second = by_id["keys/1"].load(), by_id["2"].load()
    assert (first.title, first.text, first.source_url) == ("Keys", "Rotate.", url)
    path = {"path": "faq.jsonl/keys/1", "document_type": "jsonl", "source_file": "faq.jsonl"}
    assert first.metadata == {"n": 1, **path}
    assert (second.title, second.document_date) == ("faq 2", date(2024, 2, 29))
    assert second.metadata["tags"] == ["a"]
    for name, message in (("4", "has the id of an earlier"), ("6", "not JSON"), ("7", "no text")):
        with unreadable(message):
            by_id[name].load()


def test_lines_that_are_gone_are_stale(tmp_path: Path, database: Connection) -> None:
    path = write(tmp_path / "a.jsonl", '{"id": 1, "text": "one"}\n{"id": 2, "text": "two"}')
    store(database, find_files([path], source="s"))
    write(path, '{"id": 2, "text": "two"}')
    found = find_files([path], source="s")
    reports = outcomes(store(database, found))
    assert reports == {"s:a.jsonl/2": "unchanged"}
    assert stale_keys(database, found.folders, list(reports)) == ["s:a.jsonl/1"]


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("MAX_UNPACKED_BYTES", 20_000_000, "larger than 20 MB unpacked"),
        ("MAX_XML_BYTES", 20_000_000, "more than 20 MB of XML"),
        ("MAX_XML_TAGS", 9_000_000, "more than 9,000,000 XML tags"),
        ("MAX_MEMBERS", 3, "more than 3 parts"),
    ],
)
def test_an_archive_is_measured_before_it_is_unpacked(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, message: str
) -> None:
    data = word("", more={"word/media/a.xml": b"<a>" * 10_000_000})
    assert len(data) < 100_000
    monkeypatch.setattr(f"second_brain.ingest.archive.{limit}", value)
    with unreadable(message):
        read("a.docx", data)


@pytest.mark.parametrize("name", ["word/media/a.xml", "word/media/a.png"])
def test_a_member_that_is_larger_than_declared_is_refused(name: str) -> None:
    data = bytearray(word("", more={name: b" " * 1_000}))
    entry = data.rfind(b"PK\x01\x02", 0, data.rfind(name.encode()))
    # In the directory, after the checksum and the packed size.
    struct.pack_into("<I", data, entry + 16, zlib.crc32(b" " * 10))
    struct.pack_into("<I", data, entry + 24, 10)
    with unreadable(f"declares a wrong size of {name}"):
        read("a.docx", bytes(data))


FOR_PROGRAMS, RTF = ("a.eml", "a.mhtml", "noend"), b"{\\rtf1\\ansi text}"
ENTITIES = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.docx", b"PK\x03\x04 cut off", "not a zip archive"),
        ("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "encrypted, or in the format"),
        ("a.docx", archive({"a.txt": "no Word file"}), "cannot be read"),
        ("a.docx", archive({"a.xml": "<a/>"}, zipfile.ZIP_BZIP2), "packed in a way"),
        ("a.docx", word("", more={"word/x.xml": ENTITIES}), "entities in word/x.xml"),
        ("a.docx", word("", more={"word/x.xml": ENTITIES.encode("utf-16")}), "entities"),
        ("a.pptx", word(""), "cannot be read"),
        ("a.xlsx", archive({}), "cannot be read"),
        ("a.epub", archive({"mimetype": "application/epub+zip"}), "has no META-INF/container.xml"),
        ("a.epub", archive({"META-INF/container.xml": ENTITIES + "<a/>"}), "entities"),
        ("a.csv", b"\0\0", "binary"),
        ("a.txt", b"%PDF-1.4\0", "unsupported type|binary"),
        *((name, RTF, "unsupported type|binary") for name in FOR_PROGRAMS),
        ("a.html", b"<p>\0</p>", "binary"),
        ("a.pdf", b"%PDF-1.4 cut off", "cannot be read"),
        ("a.pdf", b"", "cannot be read"),
        ("scan.pdf", pdf(""), "without text"),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(name: str, data: bytes, message: str) -> None:
    with unreadable(message):
        read(name, data)


def test_a_mixed_folder_is_stored_and_bad_files_affect_only_themselves(
    tmp_path: Path, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: dict[str, str | bytes] = {
        "a.docx": word(paragraph("Keys", "H1") + paragraph("Rotate.")),
        "b.docx": b"PK damaged",
        "c.csv": "name,price\nlock,3",
        "d.epub": book(),
        "e.html": "<h1>Page</h1><p>Words",
        "f.jsonl": '{"text": "one"}\n{"text": "two"}',
        "g.pdf": pdf("First", "Second"),
        "h.pptx": slides(),
        "i.xlsx": workbook({"Parts": [["a", "b"], [1, 2]]}),
        "j.md": "# Title\n\nText",
        "k.zip": b"PK",
    }
    for name, content in files.items():
        write(tmp_path / name, content)
    # Its extra is not installed: only these files fail.
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    found = find_files([tmp_path], source="s")
    assert found.skipped == {".zip": 1}
    reports = store(database, found)
    assert {key for key, one in outcomes(reports).items() if one == "failed"} == {
        "s:b.docx",
        "s:i.xlsx",
    }
    assert "second-brain[documents]" in (reports["s:i.xlsx"].error or "")
    stored = database.execute(
        "select external_key, string_agg(chunk.metadata ->> 'page', ' ' order by chunk_index)"
        "  from public.knowledge_chunks as chunk"
        "  join public.knowledge_documents as document on document.id = document_id"
        " group by external_key"
    ).fetchall()
    pages = {"s:g.pdf": "1", "s:h.pptx": "1 2 3"}
    without = "s:a.docx s:c.csv s:d.epub s:e.html s:f.jsonl/1 s:f.jsonl/2 s:j.md"
    assert dict(stored) == dict.fromkeys(without.split()) | pages
