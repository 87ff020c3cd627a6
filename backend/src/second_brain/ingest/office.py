"""Word, PowerPoint and Excel files, by mammoth, python-pptx and openpyxl.

Slides and sheets become sections; tables keep their first row as the header of each chunk.
"""

import contextlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

from second_brain.extras import needed
from second_brain.ingest.archive import open_archive, parse_xml
from second_brain.ingest.document import (
    LoadedDocument,
    UnreadableDocumentError,
    clean,
    day,
    one_line,
)
from second_brain.ingest.html import markdown_of, parse_html
from second_brain.ingest.markdown import table, top_heading

if TYPE_CHECKING:
    from pptx.shapes.base import BaseShape
    from pptx.slide import Slide

# Of Word's built-in styles, mammoth maps only the headings.
_STYLES = """
p[style-name='Title'] => h1.title:fresh
"""

# A sheet can have one cell at the end of each of a million rows.
_MAX_PLACES = 200_000_000


def load_word(data: bytes, name: str) -> LoadedDocument:
    """Read a docx: headings, lists, tables and notes, without headers, footers and comments."""
    with needed("mammoth", "documents"):
        import mammoth  # type: ignore[import-untyped]
    about = _properties(open_archive(data))
    html = mammoth.convert_to_html(
        io.BytesIO(data), style_map=_STYLES, convert_image=lambda _image: []
    ).value
    page = parse_html(html)
    for arrow in page.select('a[href^="#footnote-ref"], a[href^="#endnote-ref"]'):
        arrow.decompose()
    top = page.select_one("h1.title")
    title = about.pop("title") or (one_line(top.get_text()) if top else None)
    # As in the tables of other office files.
    for pipe in page.find_all(string=re.compile(r"\|")):
        if pipe.find_parent(["td", "th"]):
            pipe.replace_with(pipe.replace("|", "\\|"))
    text = markdown_of(page)
    return LoadedDocument(title=title or top_heading(text) or name, text=text, **about)


def load_slides(data: bytes, name: str) -> LoadedDocument:
    """Read a pptx: a section and a page for each slide, with its title, text, tables and notes."""
    with needed("python-pptx", "documents"):
        from pptx import Presentation
    about = _properties(open_archive(data))
    text, starts = "", []
    for number, slide in enumerate(Presentation(io.BytesIO(data)).slides, start=1):
        starts.append(len(text))
        blocks = [clean(block).strip() for block in _slide_blocks(slide)]
        title = slide.shapes.title
        heading = one_line(title.text_frame.text) if title is not None else None
        parts = [f"## {heading or f'Slide {number}'}", *filter(None, blocks)]
        text += "\n\n".join(parts) + "\n\n"
    return LoadedDocument(
        title=about.pop("title") or name, text=text, page_starts=tuple(starts), **about
    )


def load_workbook(data: bytes, name: str) -> LoadedDocument:
    """Read an xlsx: a section with a table for each sheet, with values in place of formulas."""
    with needed("openpyxl", "documents"):
        import openpyxl
    about = _properties(open_archive(data, is_tree=False))
    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    sections = []
    with contextlib.closing(book):
        for sheet in book.worksheets:
            # What a file says of a sheet's size can be wrong.
            sheet.reset_dimensions()
            if block := sheet_text(sheet.iter_rows(values_only=True)):
                sections.append(f"## {one_line(sheet.title)}\n\n{block}")
    return LoadedDocument(title=about.pop("title") or name, text="\n\n".join(sections), **about)


def sheet_text(rows: Iterable[Sequence[object]]) -> str:
    """Return the rows of a sheet as Markdown, without empty rows and columns.

    Rows of one cell above a table are paragraphs; the next row is the table's header.
    """
    found, places = [], 0
    for row in rows:
        places += len(row)
        if places > _MAX_PLACES:
            raise UnreadableDocumentError(f"has a sheet of more than {_MAX_PLACES:,} places")
        texts = ((at, _cell(value)) for at, value in enumerate(row) if value is not None)
        if cells := {at: text for at, text in texts if text}:
            found.append(cells)
    first = next((at for at, cells in enumerate(found) if len(cells) > 1), len(found))
    columns = sorted(set().union(*found[first:]))
    return "\n\n".join(
        [
            *(text for cells in found[:first] for text in cells.values()),
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


def _slide_blocks(slide: "Slide") -> Iterator[str]:
    title = slide.shapes.title
    for shape in _in_reading_order(slide.shapes):
        if title is None or shape.shape_id != title.shape_id:
            yield from _shape_blocks(shape)
    if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
        yield notes.text


def _in_reading_order(shapes: Iterable["BaseShape"]) -> list["BaseShape"]:
    # A placeholder has no place of its own until it is moved: it stays first.
    return sorted(shapes, key=lambda shape: (shape.top or 0, shape.left or 0))


def _shape_blocks(shape: Any) -> Iterator[str]:
    if hasattr(shape, "shapes"):
        for inner in _in_reading_order(shape.shapes):
            yield from _shape_blocks(inner)
    elif getattr(shape, "has_table", False):
        yield table([cell.text for cell in row.cells] for row in shape.table.rows)
    elif getattr(shape, "has_chart", False):
        yield from _chart_blocks(shape.chart)
    elif shape.has_text_frame:
        lines = [
            f"{'  ' * paragraph.level}- {one_line(paragraph.text)}"
            for paragraph in shape.text_frame.paragraphs
            if one_line(paragraph.text)
        ]
        # One paragraph is a text, several are a list.
        yield lines[0].lstrip(" -") if len(lines) == 1 else "\n".join(lines)


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


def _properties(archive: Any) -> dict[str, Any]:
    """Return the title, author and date of an Office file."""
    with archive:
        if "docProps/core.xml" not in archive.namelist():
            return {"title": None}
        core = parse_xml(archive.read("docProps/core.xml"))
    found = {element.tag.rpartition("}")[2]: element.text for element in core}
    return {
        "title": one_line(found.get("title")),
        "author": one_line(found.get("creator")),
        "document_date": day(found.get("modified") or found.get("created")),
    }
