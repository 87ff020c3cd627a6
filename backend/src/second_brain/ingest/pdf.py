"""PDF files by pypdfium2: the text of each page, and headings from bookmarks or font sizes."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import islice
from typing import TYPE_CHECKING

from second_brain.extras import needed
from second_brain.ingest.columns import Part, in_columns
from second_brain.ingest.document import (
    MAX_CHARACTERS,
    MAX_HEADING,
    Heading,
    LoadedDocument,
    UnreadableDocumentError,
    clean,
    expect,
    note,
    one_line,
)

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfTextPage  # type: ignore[import-untyped]

_MAX_BOOKMARKS = 10_000
_MAX_DEPTH = 6
# Without bookmarks, a line of this size against the usual one is a heading,
_HEADING_SIZE = 1.15
_HEADING_DEPTHS = 3
_HEADING_CHARACTERS = 120
# unless so many lines are.
_HEADING_SHARE = 0.3
# What PDFium gives for the hyphen of a word that continues on the next line.
_LINE_HYPHEN = "\ufffe"
# Shares of the height of the letters: between two words, and between two columns.
_WORD_GAP = 0.1
_COLUMN_GAP = 1.0
# What fonts without Unicode give: private, unassigned and control characters.
_NO_LETTER = re.compile(r"[\ue000-\uf8ff\ufffd\x00-\x08\x0b\x0c\x0e-\x1f]")
_UNKNOWN_SHARE = 0.1


def load_pdf(data: bytes, name: str) -> LoadedDocument:
    """Read the text of all pages; a section begins at each heading."""
    with needed("pypdfium2", "ingest"):
        import pypdfium2
        from pypdfium2.raw import (  # type: ignore[import-untyped]
            FORMTYPE_ACRO_FORM,
            FORMTYPE_XFA_FULL,
        )
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as exc:
        if "password" in str(exc).lower():
            raise UnreadableDocumentError(
                "is encrypted", remedy="Remove its password first."
            ) from exc
        raise
    with contextlib.closing(document):
        form = document.get_formtype()
        if form == FORMTYPE_XFA_FULL:
            raise UnreadableDocumentError(
                "is an XFA form, whose pages are drawn by Adobe's programs",
                remedy="Open it in Adobe Reader and print it to a new PDF first.",
            )
        if form == FORMTYPE_ACRO_FORM:
            document.init_forms()
        text, starts = "", []
        lines: list[tuple[int, int, float]] = []
        for number in range(len(document)):
            starts.append(len(text))
            for line, size in _page_lines(document, number):
                lines.append((len(text), len(text) + len(line), size))
                text += f"{line}\n"
            text += "\n"
            if len(text) > MAX_CHARACTERS:
                break
        if not text.strip():
            raise UnreadableDocumentError(
                "is a PDF without text", remedy="Scanned pages need text recognition (OCR) first."
            )
        headings = _bookmarks(document, text, starts) or _large_lines(text, lines)
        about = document.get_metadata_dict()
    return LoadedDocument(
        title=_said(about.get("Title")) or name,
        text=text,
        is_markdown=False,
        page_starts=tuple(starts),
        headings=tuple(headings),
        author=_said(about.get("Author")),
        document_date=_date(about.get("CreationDate")),
    )


def _page_lines(document: "PdfDocument", number: int) -> Iterator[tuple[str, float]]:
    """Yield the lines of a page with their font sizes; 0 where the size is not known."""
    from pypdfium2.raw import FPDFPage_Flatten, FPDFPage_GetAnnotCount

    page = document[number]
    if FPDFPage_GetAnnotCount(page.raw):
        # Writes the values of forms into the page, where its text is read.
        FPDFPage_Flatten(page.raw, 0)
        page.close()
        page = document[number]
    with contextlib.closing(page), contextlib.closing(page.get_textpage()) as textpage:
        raw = textpage.get_text_range()
        # Characters outside the basic plane are counted otherwise.
        if len(raw) == textpage.count_chars():
            lines = in_columns(_parts(textpage, raw))
        else:
            lines = [(line[0], 0.0) for line in re.finditer(r"[^\r\n]+", raw)]
    lost = Counter(raw) - Counter("".join(line for line, _ in lines))
    if any(letter.isalnum() for letter in lost):
        # Words are cut otherwise than PDFium does: only letters are compared.
        expect(raw)
    unknown = len(_NO_LETTER.findall(raw))
    if unknown > _UNKNOWN_SHARE * len(raw):
        note(f"page {number + 1} has letters that its fonts do not name: {unknown} of {len(raw)}")
    for line, size in lines:
        if text := clean(line.replace(_LINE_HYPHEN, "")).strip():
            yield text, size


def _parts(textpage: "PdfTextPage", raw: str) -> Iterator[list[Part]]:
    """Yield the parts of each line, cut at gaps as wide as those between columns.

    A smaller gap without a character in it is the space between two words.
    """
    from pypdfium2.raw import FS_RECTF, FPDFText_GetLooseCharBox

    box = FS_RECTF()
    for line in re.finditer(r"[^\r\n]+", raw):
        parts: list[Part] = []
        right = None
        for index in range(*line.span()):
            letter = raw[index]
            if letter == " " or not FPDFText_GetLooseCharBox(textpage.raw, index, box):
                if parts:
                    parts[-1].text += letter
                elif letter != " ":
                    parts.append(Part(letter, 0.0, 0.0, 0.0))
                continue
            height = box.top - box.bottom
            gap = box.left - right if right is not None else 0.0
            if not parts or gap > height * _COLUMN_GAP > 0:
                parts.append(Part("", box.left, box.right, _size(textpage, index)))
            elif gap > height * _WORD_GAP > 0 and not parts[-1].text.endswith((" ", _LINE_HYPHEN)):
                parts[-1].text += " "
            parts[-1].text += letter
            parts[-1].right = right = box.right
        yield parts


def _size(textpage: "PdfTextPage", index: int) -> float:
    from pypdfium2.raw import FPDFText_GetFontSize

    return round(float(FPDFText_GetFontSize(textpage.raw, index)), 1)


def _bookmarks(document: "PdfDocument", text: str, starts: Sequence[int]) -> list[Heading]:
    """Return the bookmarks in the order of the text, each at the line that has its words."""
    found: list[Heading] = []
    ends = [*starts[1:], len(text)]
    rest = 0
    for bookmark in islice(document.get_toc(max_depth=_MAX_DEPTH), _MAX_BOOKMARKS):
        title, target = one_line(bookmark.get_title()), bookmark.get_dest()
        page = target.get_index() if target else None
        if not title or len(title) > MAX_HEADING or page is None or not 0 <= page < len(starts):
            continue
        start = max(rest, starts[page])
        if start > ends[page]:
            # It leads back to a page that is over: the order is not that of the text.
            continue
        # Numbers of chapters are often in the line or in the bookmark only.
        words = r"\s+".join(map(re.escape, title.split()))
        line = re.compile(rf"^[^\w\n]*(?:[\w.]+\s+)?{words}[^\w\n]*$", re.MULTILINE | re.IGNORECASE)
        match = line.search(text, start, ends[page])
        span = match.span() if match else (start, start)
        found.append(Heading(bookmark.level + 1, title, *span))
        rest = span[1]
    return found


def _large_lines(text: str, lines: Sequence[tuple[int, int, float]]) -> list[Heading]:
    """Return the lines whose letters are larger than those of most of the text."""
    usual = Counter[float]()
    for start, end, size in lines:
        usual[size] += end - start
    body = usual.most_common(1)[0][0]
    large = [
        (start, end, size)
        for start, end, size in lines
        if size >= body * _HEADING_SIZE
        and end - start <= _HEADING_CHARACTERS
        and any(letter.isalpha() for letter in text[start:end])
    ]
    if not body or len(large) > _HEADING_SHARE * len(lines):
        return []
    sizes = sorted({size for _, _, size in large}, reverse=True)
    found: list[Heading] = []
    for start, end, size in large:
        depth = min(sizes.index(size) + 1, _HEADING_DEPTHS)
        before = found[-1] if found else None
        if before and before.end + 1 == start and before.depth == depth:
            # A heading of two lines.
            found[-1] = Heading(depth, f"{before.text} {text[start:end]}", before.start, end)
        else:
            found.append(Heading(depth, text[start:end], start, end))
    return found


def _said(value: str | None) -> str | None:
    text = one_line(value)
    # What programs write when nobody has said it.
    return None if text and text.lower() in ("untitled", "anonymous") else text


def _date(value: str | None) -> date | None:
    """Return the date of a PDF's `D:20240229120000Z`."""
    found = re.match(r"(?:D:)?(\d{4})(\d\d)(\d\d)", value or "")
    try:
        return date(*map(int, found.groups())) if found else None
    except ValueError:
        return None
