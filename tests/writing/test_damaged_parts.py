"""Office files and books with a part that cannot be read: the rest is, and the part is named."""

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pptx
import pytest
from ingested import load, read
from pptx.util import Inches
from test_formats import CORE, WORD, archive, book, paragraph, slides, word, workbook

MATH = "http://schemas.openxmlformats.org/officeDocument/2006/math"
COMPATIBLE = "http://schemas.openxmlformats.org/markup-compatibility/2006"
SHAPE = "http://schemas.microsoft.com/office/word/2010/wordprocessingShape"
DOCTYPE = '<!DOCTYPE package SYSTEM "a.dtd">'


def changed(data: bytes, name: str, change: Callable[[str], str | None]) -> bytes:
    """Return an archive with another text in the members of this name; None leaves them out."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = {one: file.read(one) for one in file.namelist()}
    for one in [one for one in members if re.search(name, one)]:
        text = change(members[one].decode())
        if text is None:
            del members[one]
        else:
            members[one] = text.encode()
    return archive(members)


def _formula(inner: str) -> str:
    return f'<m:oMath xmlns:m="{MATH}">{inner}</m:oMath>'


def _symbol(text: str) -> str:
    return f"<m:r><m:t>{text}</m:t></m:r>"


def _run(text: str, properties: str = "") -> str:
    return f"<w:r><w:rPr>{properties}</w:rPr><w:t>{text}</w:t></w:r>"


_FRACTION = f"<m:f><m:num>{_symbol('1')}</m:num><m:den>{_symbol('3')}</m:den></m:f>"
_POWER = f"<m:sSup><m:e>{_symbol('x')}</m:e><m:sup>{_symbol('2')}</m:sup></m:sSup>"
SHOWN = {
    _formula(_symbol("E=mc")): "E=mc",
    f'<m:oMathPara xmlns:m="{MATH}">{_formula(_FRACTION)}</m:oMathPara>': "1/3",
    _formula(_POWER): "x^2",
    f'{_run("Figure ")}<w:fldSimple w:instr="SEQ">{_run("1")}</w:fldSimple>': "Figure 1",
    f'<w:r><mc:AlternateContent xmlns:mc="{COMPATIBLE}"><mc:Choice Requires="wps">'
    f'<wps:wsp xmlns:wps="{SHAPE}"><wps:txbx><w:txbxContent>{paragraph("In a box.")}'
    "</w:txbxContent></wps:txbx></wps:wsp></mc:Choice></mc:AlternateContent></w:r>": "In a box.",
    _run("seen") + _run(" hidden", "<w:vanish/>"): "seen",
    _run("shown", '<w:vanish w:val="0"/>'): "shown",
}


def test_what_word_shows_is_read() -> None:
    found = {body: read("a.docx", word(f"<w:p>{body}</w:p>")).text for body in SHOWN}
    assert found == SHOWN


@pytest.mark.parametrize(
    ("style", "heading"),
    [
        ('<w:name w:val="Chapter"/><w:basedOn w:val="H1"/>', "# Keys"),
        ('<w:name w:val="Chapter"/><w:basedOn w:val="Other"/>', "# Keys"),
        ('<w:name w:val="Kapitel"/><w:pPr><w:outlineLvl w:val="0"/></w:pPr>', "# Keys"),
        ('<w:name w:val="HEADING 1"/>', "# Keys"),
        ('<w:basedOn w:val="X"/><w:pPr><w:outlineLvl w:val="0"/></w:pPr>', "# Keys"),
        ('<w:pPr><w:outlineLvl w:val="5"/></w:pPr>', "###### Keys"),
        ('<w:pPr><w:outlineLvl w:val="6"/></w:pPr>', "Keys"),
    ],
)
def test_a_style_is_a_heading_by_its_level_or_its_base(style: str, heading: str) -> None:
    styles = (
        '<w:style w:type="paragraph" w:styleId="Other"><w:basedOn w:val="H1"/></w:style>'
        '<w:style w:type="paragraph" w:styleId="H1"><w:name w:val="heading 1"/></w:style>'
        f'<w:style w:type="paragraph" w:styleId="X">{style}</w:style>'
    )
    more = {"word/styles.xml": f'<w:styles xmlns:w="{WORD}">{styles}</w:styles>'}
    data = word(paragraph("Keys", "X") + paragraph("Text"), more=more)
    assert read("a.docx", data).text == f"{heading}\n\nText"


def test_merged_cells_of_slides_and_sheets_are_repeated(tmp_path: Path) -> None:
    deck, book = pptx.Presentation(), openpyxl.Workbook()
    shapes = deck.slides.add_slide(deck.slide_layouts[6]).shapes
    table = shapes.add_table(4, 2, 0, 0, Inches(4), Inches(4)).table
    sheet = book.worksheets[0]
    for at, text in enumerate(("Region", "City", "North", "Kiel", "", "Emden", "", "")):
        table.cell(at // 2, at % 2).text = text
        sheet.cell(5 + at // 2, 2 + at % 2, text or None)
    table.cell(1, 0).merge(table.cell(3, 0))
    # A title of several rows is one.
    sheet["B2"] = "Report"
    for merged in ("B6:B8", "B2:C3"):
        sheet.merge_cells(merged)
    for name, file in (("a.pptx", deck), ("a.xlsx", book)):
        file.save(str(tmp_path / name))
        document = load(tmp_path / name)
        assert "| North | Kiel |\n| North | Emden |" in document.text
        assert document.text.count("North") == 2
        assert document.text.count("Report") == (name == "a.xlsx")


def test_merged_cells_of_a_word_table_are_repeated() -> None:
    def cell(text: str, merge: str = "") -> str:
        return f"<w:tc><w:tcPr>{merge}</w:tcPr>{paragraph(text)}</w:tc>"

    first = [cell("North", '<w:vMerge w:val="restart"/>'), cell("", "<w:vMerge/>")]
    cities = [cell("Kiel"), cell("Emden")]
    rows = [cell("Region") + cell("City"), *map("".join, zip(first, cities, strict=True))]
    table = "".join(f"<w:tr>{row}</w:tr>" for row in rows)
    document = read("a.docx", word(f"<w:tbl>{table}</w:tbl>"))
    assert document.text.endswith("| North | Kiel |\n| North | Emden |")


@pytest.mark.parametrize(
    ("member", "change"),
    [
        (r"styles\.xml", lambda text: text.replace("none", "diagonalStripe9")),
        (r"core\.xml", lambda _: CORE.format(title="").replace("2024-02-29T12", "99-99")),
        (r"core\.xml", lambda _: "<not closed"),
        (r"sheet1\.xml", lambda text: text.replace("<v>2</v>", "<v>99999999999</v>")),
        (r"sheet1\.xml", lambda text: text.replace(' t="n"', ' t="d"')),
        (r"sheet2\.xml", lambda text: text.replace('"B2"', '"XFD1048576"')),
        (r"app\.xml", lambda text: f"{DOCTYPE}{text.partition('?>')[2]}"),
    ],
)
def test_a_workbook_is_read_without_its_damaged_part(
    member: str, change: Callable[[str], str]
) -> None:
    data = workbook({"Parts": [["a", "b"], ["x", 2]], "Far": [["a"], [None, 2]]})
    assert "| x |" in read("a.xlsx", changed(data, member, change)).text


@pytest.mark.parametrize(
    ("old", "new"),
    [("pieChart", "bar3DChart"), ("<c:v>2</c:v>", "<c:v>#N/A</c:v>"), ("pieChart", "surfaceChart")],
)
def test_a_presentation_is_read_without_its_damaged_chart(old: str, new: str) -> None:
    data = changed(slides(), r"charts/chart\d+\.xml", lambda text: text.replace(old, new))
    document = read("a.pptx", data)
    assert "Costs rise" in document.text
    assert "Above" in document.text
    assert any("a chart of slide 2 is left out" in note for note in document.notes)


@pytest.mark.parametrize(
    ("member", "change", "named"),
    [
        (r"c1\.xhtml", lambda _: None, "chapter OPS/c1.xhtml"),
        (r"nav\.xhtml", lambda _: None, "table of contents"),
        (r"p\.opf", lambda text: f'<?xml version="1.0"?>{DOCTYPE}{text}', None),
        (r"p\.opf", lambda text: text.replace("c1.xhtml", "c9.xhtml"), "chapter OPS/c9.xhtml"),
    ],
)
def test_a_book_is_read_without_its_damaged_part(
    member: str, change: Callable[[str], str | None], named: str | None
) -> None:
    document = read("a.epub", changed(book(), member, change))
    assert "It ended." in document.text
    assert [named in note for note in document.notes if named] == [True] * bool(named)
