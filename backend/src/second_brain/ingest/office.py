"""Word, PowerPoint and Excel files, by mammoth, python-pptx and calamine.

Slides and sheets become sections; tables keep their first row as the header of each chunk.
"""

import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time
from html import unescape
from typing import TYPE_CHECKING, Any

from second_brain.extras import needed
from second_brain.ingest.archive import open_archive, parse_xml
from second_brain.ingest.document import (
    LoadedDocument,
    UnreadableDocumentError,
    clean,
    day,
    expect,
    note,
    one_line,
    unforeseen,
)
from second_brain.ingest.html import markdown_of
from second_brain.ingest.markdown import escaped, repeat_below, table, top_heading
from second_brain.ingest.word import (
    DIAGRAM,
    RELATION,
    drawn_text,
    heading_styles,
    readable,
    xml_text,
)

if TYPE_CHECKING:
    from pptx.shapes.base import BaseShape
    from pptx.slide import Slide

# Of Word's built-in styles, mammoth maps only the headings.
_STYLES = """
p[style-name='Title'] => h1.title:fresh
"""

_TITLE = re.compile(r'<h1 class="title">(?:<a id=[^<>]*></a>)?([^<>]*)</h1>')
_ARROW = re.compile(r'<a href="#(?:foot|end)note-ref-[^<>]*>[^<>]*</a>')

# A sheet can have one cell at the end of each of a million rows; calamine keeps all places between.
_MAX_PLACES = 50_000_000
_FILLED_CELL = re.compile(
    rb"""<(?:\w+:)?c\s(?:[^<>]{0,200}?\s)?r=["']([A-Z]{1,3})([0-9]{1,7})["'][^<>]*[^/<>]>"""
)
_NO_CELLS = b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"/>'


def load_word(data: bytes, name: str) -> LoadedDocument:
    """Read a docx: headings, lists, tables and notes, without headers, footers and comments."""
    with needed("mammoth", "documents"):
        import mammoth  # type: ignore[import-untyped]
    with open_archive(data) as archive:
        about = _properties(archive)
        styles = f"{_STYLES}{heading_styles(archive)}"
        file, pages = readable(archive)
    read = mammoth.convert_to_html(
        io.BytesIO(file), style_map=styles, convert_image=lambda _image: []
    )
    unread = {
        found[1].rpartition("}")[2]
        for message in read.messages
        if (found := re.match("An unrecognised element was ignored: (.*)", message.message))
    }
    if unread:
        note(f"elements that are not known are left out: {', '.join(sorted(unread))}")
    html = _ARROW.sub("", read.value)
    top = _TITLE.search(html)
    title = about.pop("title") or (one_line(unescape(top[1])) if top else None)
    for paragraph, page in pages.items():
        html = html.replace(paragraph, page)
    text = markdown_of(html)
    return LoadedDocument(title=title or top_heading(text) or name, text=text, **about)


def load_slides(data: bytes, name: str) -> LoadedDocument:
    """Read a pptx: a section and a page for each slide, with its title, text, tables and notes."""
    with needed("python-pptx", "documents"):
        from pptx import Presentation
    with open_archive(data) as archive:
        about = _properties(archive)
        _expect(archive, r"ppt/(?:slides/slide|notesSlides/notesSlide)\d+\.xml")
    text, starts = "", []
    for number, slide in enumerate(Presentation(io.BytesIO(data)).slides, start=1):
        starts.append(len(text))
        blocks = [clean(block).strip() for block in _slide_blocks(slide, number)]
        title = slide.shapes.title
        heading = one_line(title.text_frame.text) if title is not None else None
        parts = [f"## {heading or f'Slide {number}'}", *filter(None, blocks)]
        text += "\n\n".join(parts) + "\n\n"
    return LoadedDocument(
        title=about.pop("title") or name, text=text, page_starts=tuple(starts), **about
    )


def load_workbook(data: bytes, name: str) -> LoadedDocument:
    """Read an xlsx: a section with a table for each sheet, with values in place of formulas."""
    with needed("python-calamine", "documents"):
        import python_calamine
    with open_archive(data, is_tree=False) as archive:
        about = _properties(archive)
        _expect(archive, r"xl/sharedStrings\.xml")
        file = _without_large_sheets(archive)
    book = python_calamine.load_workbook(file or io.BytesIO(data))
    sections = []
    for title in book.sheet_names:
        try:
            sheet = book.get_sheet_by_name(title)
            # calamine leaves out the columns before the first filled one, but not the rows.
            left = sheet.start[1] if sheet.start else 0
            merged = [
                (column - left, first, last)
                for (first, column), (last, _) in sheet.merged_cell_ranges or ()
                if first < last
            ]
            if block := sheet_text(sheet.iter_rows(), merged):
                sections.append(f"## {one_line(title)}\n\n{block}")
        except (python_calamine.CalamineError, UnreadableDocumentError) as exc:
            note(f"its sheet {one_line(title)} is left out: {exc}")
    return LoadedDocument(title=about.pop("title") or name, text="\n\n".join(sections), **about)


def _without_large_sheets(archive: zipfile.ZipFile) -> io.BytesIO | None:
    """Return the file without the cells of sheets that do not fit into memory; None without any.

    calamine ends the process where its memory does not suffice.
    """
    large = [
        name
        for name in archive.namelist()
        if name.lower().endswith(".xml") and _places(archive.read(name)) > _MAX_PLACES
    ]
    if not large:
        return None
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as copy:
        for name in archive.namelist():
            if name in large:
                note(f"its part {name} is left out: it has more than {_MAX_PLACES:,} places")
            copy.writestr(name, _NO_CELLS if name in large else archive.read(name))
    written.seek(0)
    return written


def _places(xml: bytes) -> int:
    """Return the places between the outermost filled cells of a sheet."""
    rows: set[int] = set()
    names: set[bytes] = set()
    for cell in _FILLED_CELL.finditer(xml):
        names.add(cell[1])
        rows.add(int(cell[2]))
    if not rows:
        return 0
    columns = [_column(name) for name in names]
    return (max(rows) - min(rows) + 1) * (max(columns) - min(columns) + 1)


def _column(name: bytes) -> int:
    number = 0
    for letter in name:
        number = 26 * number + letter - ord("A") + 1
    return number


def sheet_text(
    rows: Iterable[Sequence[object]], merged: Sequence[tuple[int, int, int]] = ()
) -> str:
    """Return the rows of a sheet as Markdown, without empty rows and columns.

    Rows of one cell above a table are paragraphs; the next row is the table's header. `merged` as
    in `repeat_below`.
    """
    by_row: dict[int, dict[int, str]] = {}
    places = 0
    for number, row in enumerate(rows):
        places += len(row)
        if places > _MAX_PLACES:
            raise UnreadableDocumentError(f"has a sheet of more than {_MAX_PLACES:,} places")
        texts = ((at, _cell(value)) for at, value in enumerate(row) if value is not None)
        if cells := {at: text for at, text in texts if text}:
            by_row[number] = cells
    repeat_below(by_row, merged)
    found = list(by_row.values())
    first = next((at for at, cells in enumerate(found) if len(cells) > 1), len(found))
    columns = sorted(set().union(*found[first:]))
    return "\n\n".join(
        [
            *(escaped(text) for cells in found[:first] for text in cells.values()),
            *(
                [table([cells.get(at, "") for at in columns] for cells in found[first:])]
                * bool(columns)
            ),
        ]
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        # 0.1 + 0.2 as Excel shows it.
        return f"{value:.15g}"
    if isinstance(value, datetime) and value.time() == time.min:
        value = value.date()
    if isinstance(value, date | time):
        return value.isoformat()
    return "" if value is None else clean(str(value)).strip()


def _slide_blocks(slide: "Slide", number: int) -> Iterator[str]:
    title = slide.shapes.title
    for shape in _in_reading_order(slide.shapes):
        if title is None or shape.shape_id != title.shape_id:
            try:
                yield from list(_shape_blocks(shape))
            except Exception as exc:  # noqa: BLE001 - python-pptx raises anything for its charts
                note(f"a {_kind(shape)} of slide {number} is left out: {unforeseen(exc)}")
    if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
        yield escaped(notes.text)


def _kind(shape: Any) -> str:
    kinds = ("chart", "table")
    return next((kind for kind in kinds if getattr(shape, f"has_{kind}", False)), "shape")


def _in_reading_order(shapes: Iterable["BaseShape"]) -> list["BaseShape"]:
    # A placeholder has no place of its own until it is moved: it stays first.
    return sorted(shapes, key=lambda shape: (shape.top or 0, shape.left or 0))


def _shape_blocks(shape: Any) -> Iterator[str]:
    if hasattr(shape, "shapes"):
        for inner in _in_reading_order(shape.shapes):
            yield from _shape_blocks(inner)
    elif getattr(shape, "has_table", False):
        cells = [list(row.cells) for row in shape.table.rows]
        merged = [
            (column, row, row + cell.span_height - 1)
            for row, line in enumerate(cells)
            for column, cell in enumerate(line)
            if cell.is_merge_origin
        ]
        texts = [
            {at: cell.text for at, cell in enumerate(line) if cell.text.strip()} for line in cells
        ]
        repeat_below({row: line for row, line in enumerate(texts) if line}, merged)
        yield table(
            [text.get(at, "") for at in range(len(line))]
            for text, line in zip(texts, cells, strict=True)
        )
    elif getattr(shape, "has_chart", False):
        yield from _chart_blocks(shape.chart)
    elif shape.has_text_frame:
        lines = [
            f"{'  ' * paragraph.level}- {one_line(paragraph.text)}"
            for paragraph in shape.text_frame.paragraphs
            if one_line(paragraph.text)
        ]
        # One paragraph is a text, several are a list.
        yield escaped(lines[0].lstrip(" -")) if len(lines) == 1 else "\n".join(lines)
    elif shape.element.tag.endswith("}graphicFrame"):
        for diagram in shape.element.iter(f"{DIAGRAM}relIds"):
            data = shape.part.related_part(diagram.get(f"{RELATION}dm")).blob
            expect(xml_text(data))
            yield "\n".join(f"- {one_line(text)}" for text in drawn_text(data))
            return
        raise UnreadableDocumentError("it is no text, table, picture or chart")


def _chart_blocks(chart: Any) -> Iterator[str]:
    if chart.has_title and chart.chart_title.has_text_frame:
        yield chart.chart_title.text_frame.text
    for plot in chart.plots:
        names = [str(category) for category in plot.categories]
        if names:
            yield table(
                [
                    ["", *(series.name for series in plot.series)],
                    *(
                        [name, *(_cell(value) for value in values)]
                        for name, *values in zip(
                            names, *(series.values for series in plot.series), strict=False
                        )
                    ),
                ]
            )


def _expect(archive: zipfile.ZipFile, parts: str) -> None:
    for name in archive.namelist():
        if re.fullmatch(parts, name):
            expect(xml_text(archive.read(name)))


def _properties(archive: Any) -> dict[str, Any]:
    """Return the title, author and date of an Office file."""
    found: dict[str, str | None] = {}
    if "docProps/core.xml" in archive.namelist():
        try:
            core = parse_xml(archive.read("docProps/core.xml"))
            found = {element.tag.rpartition("}")[2]: element.text for element in core}
        except (SyntaxError, ValueError) as exc:
            note(f"its properties are left out: {exc}")
    return {
        "title": one_line(found.get("title")),
        "author": one_line(found.get("creator")),
        "document_date": day(found.get("modified") or found.get("created")),
    }
