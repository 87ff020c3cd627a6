"""What mammoth leaves out of a docx, written so that it reads it: equations, fields, text boxes."""

import io
import posixpath
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email import message_from_bytes, policy
from html import unescape
from xml.etree.ElementTree import Element, tostring

from second_brain.ingest.archive import parse_xml
from second_brain.ingest.document import expect, note
from second_brain.ingest.html import html_text

_OFFICE = "http://schemas.openxmlformats.org"
_WORD = f"{{{_OFFICE}/wordprocessingml/2006/main}}"
_MATH = f"{{{_OFFICE}/officeDocument/2006/math}}"
RELATION = f"{{{_OFFICE}/officeDocument/2006/relationships}}"
_DRAWING = f"{{{_OFFICE}/drawingml/2006/main}}"
DIAGRAM = f"{{{_OFFICE}/drawingml/2006/diagram}}"
_COMPATIBLE = f"{{{_OFFICE}/markup-compatibility/2006}}"
_FOLLOWING = {f"{_MATH}den": "/", f"{_MATH}sup": "^"}
# mammoth leaves these out with what they hold.
_TRANSPARENT = {f"{_WORD}{name}" for name in ("fldSimple", "dir", "bdo")}
_BUTTON = re.compile(r"\s*(?:MACRO|GOTO)BUTTON\s+\S+\s+(.*)", re.DOTALL)
_PARTS = re.compile(r"word/(document\d*|footnotes|endnotes)\.xml")
# Hidden and moved text, and the same text for older programs.
_HIDDEN = re.compile(
    r"<w:r[\s>](?:(?!</w:r>|<w:t[\s>])[\s\S])*?<w:vanish\s*/>[\s\S]*?</w:r>"
    r"|<w:moveFrom\s[\s\S]*?</w:moveFrom>|<mc:Fallback>[\s\S]*?</mc:Fallback>"
    r"|<w:rt>[\s\S]*?</w:rt>|<rPh[\s>][\s\S]*?</rPh>"
)
_TEXT = re.compile(
    r"<(?:\w+:)?t(?:\s[^<>]*)?>([^<]*)<|(<(?:\w+:)?(?:p|br|cr|tab|si|noBreakHyphen|sym|ptab)[\s/>])",
    re.IGNORECASE,
)
_MAX_LEVEL = 6
_MAX_BASES = 20


def readable(archive: zipfile.ZipFile) -> tuple[bytes, dict[str, str]]:
    """Return a docx whose text mammoth reads whole, and without what Word hides.

    Pages of HTML that are parts of it are returned by the paragraph that stands in their place.
    """
    written = io.BytesIO()
    pages: dict[str, str] = {}
    with zipfile.ZipFile(written, "w") as copy:
        for member in archive.infolist():
            data = archive.read(member)
            if _PARTS.fullmatch(member.filename):
                expect(xml_text(data))
                tree = parse_xml(data)
                _Part(archive, _related(archive, member.filename), pages).repair(tree)
                data = tostring(tree)
            copy.writestr(member.filename, data)
    return written.getvalue(), pages


def xml_text(data: bytes) -> str:
    """Return the words that a part of an Office file shows, without a parser."""
    parts = _TEXT.findall(_HIDDEN.sub("", data.decode("utf-8", "replace")))
    return unescape("".join(text or " " * bool(edge) for text, edge in parts))


def drawn_text(data: bytes) -> list[str]:
    """Return the paragraphs of a drawing, such as those of SmartArt."""
    paragraphs = parse_xml(data).iter(f"{_DRAWING}p")
    texts = ("".join(text.text or "" for text in one.iter(f"{_DRAWING}t")) for one in paragraphs)
    return [text for text in texts if text.strip()]


def _related(archive: zipfile.ZipFile, part: str) -> dict[str | None, str]:
    """Return the paths of the parts that a part names, by the ids that it gives them."""
    folder, name = posixpath.split(part)
    relations = f"{folder}/_rels/{name}.rels"
    if relations not in archive.namelist():
        return {}
    return {
        one.get("Id"): posixpath.normpath(posixpath.join("/", folder, one.get("Target", "")))[1:]
        for one in parse_xml(archive.read(relations))
    }


def heading_styles(archive: zipfile.ZipFile) -> str:
    """Return mammoth's rules for styles that are headings by their level or by their base."""
    if "word/styles.xml" not in archive.namelist():
        return ""
    styles = {
        style.get(f"{_WORD}styleId"): style
        for style in parse_xml(archive.read("word/styles.xml")).iter(f"{_WORD}style")
        if style.get(f"{_WORD}type") == "paragraph"
    }
    rules = []
    for name in styles:
        level, base = None, styles.get(name)
        for _ in range(_MAX_BASES):
            if base is None or level is not None:
                break
            level, base = _level(base), styles.get(_value(base, f"{_WORD}basedOn"))
        if name and level is not None and level < _MAX_LEVEL and re.fullmatch(r"[\w-]+", name):
            rules.append(f"p.{name} => h{level + 1}:fresh")
    return "\n".join(rules)


def _level(style: Element) -> int | None:
    """Return the outline level of a style, from 0; None for text."""
    found = style.find(f"{_WORD}pPr/{_WORD}outlineLvl")
    level = found.get(f"{_WORD}val", "") if found is not None else ""
    if level.isdecimal():
        return int(level)
    heading = re.fullmatch(r"heading ([1-9])", _value(style, f"{_WORD}name") or "", re.IGNORECASE)
    return int(heading[1]) - 1 if heading else None


def _value(element: Element, tag: str) -> str | None:
    found = element.find(tag)
    return found.get(f"{_WORD}val") if found is not None else None


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a docx, the paths of its related parts, and the pages that were found in it."""

    archive: zipfile.ZipFile
    related: dict[str | None, str]
    pages: dict[str, str]

    def repair(self, parent: Element) -> None:
        children: list[Element] = []
        for child in parent:
            children += self._repaired(child)
        parent[:] = children

    def _repaired(self, element: Element) -> list[Element]:
        tag = element.tag
        if tag in (f"{_MATH}oMath", f"{_MATH}oMathPara"):
            return [_run("".join(_equation(element)))]
        if tag == f"{_WORD}r" and _is_hidden(element):
            return []
        if tag == f"{_WORD}altChunk":
            return self._page(self.related.get(element.get(f"{RELATION}id"), ""))
        if tag == f"{_WORD}drawing":
            return [element, *self._drawn(element)]
        if tag == f"{_COMPATIBLE}AlternateContent":
            has_fallback = element.find(f"{_COMPATIBLE}Fallback") is not None
            if not has_fallback:
                element = _boxes(element)
        if tag == f"{_WORD}ruby":
            element = element.find(f"{_WORD}rubyBase") or element
            tag = f"{_WORD}bdo"
        if tag == f"{_WORD}cr":
            element.tag = f"{_WORD}br"
        if choices := element.findall(f"{_WORD}ffData/{_WORD}ddList/{_WORD}listEntry"):
            chosen = _value(element, f"{_WORD}ffData/{_WORD}ddList/{_WORD}result") or "0"
            text = choices[int(chosen) % len(choices)].get(f"{_WORD}val", "")
            return [element, _text(text)]
        if tag == f"{_WORD}instrText" and (found := _BUTTON.match(element.text or "")):
            element.tag, element.text = f"{_WORD}t", found[1]
        self.repair(element)
        return list(element) if tag in _TRANSPARENT else [element]

    def _drawn(self, drawing: Element) -> list[Element]:
        """Return what mammoth does not read in a drawing: text boxes and SmartArt."""
        found: list[Element] = []
        for graphic in drawing.iter(f"{_DRAWING}graphicData"):
            kind = graphic.get("uri", "").rpartition("/")[2]
            diagram = graphic.find(f"{DIAGRAM}relIds")
            if diagram is not None:
                path = self.related.get(diagram.get(f"{RELATION}dm"), "")
                data = _member(self.archive, path, "SmartArt")
                for text in drawn_text(data) if data else ():
                    found += [Element(f"{_WORD}br"), _text(text)]
                expect(xml_text(data))
            elif not kind.startswith(("picture", "wordprocessing")):
                note(f"a {kind} is left out")
        boxes = _boxes(drawing)
        self.repair(boxes)
        return [*found, *([boxes] * (len(boxes) > 0))]

    def _page(self, path: str) -> list[Element]:
        """Return the paragraph that stands for a page of HTML, or of a mail, inside of a docx."""
        data = _member(self.archive, path, "document inside of it")
        if data[:200].lstrip().startswith((b"MIME-", b"From:")):
            body = message_from_bytes(data, policy=policy.default).get_body(("html",))
            html = body.get_content() if body else ""
        else:
            html = html_text(data) if b"<" in data[:200] and not data.startswith(b"PK") else ""
        if not html:
            note(f"the document inside of it, {path}, is left out")
            return []
        mark = f"\ue000{len(self.pages)}\ue001"
        self.pages[f"<p>{mark}</p>"] = html
        paragraph = Element(f"{_WORD}p")
        paragraph.append(_run(mark))
        return [paragraph]


def _member(archive: zipfile.ZipFile, path: str, kind: str) -> bytes:
    if path in archive.namelist():
        return archive.read(path)
    note(f"a {kind} is left out: the file has no {path}")
    return b""


def _boxes(element: Element) -> Element:
    """Return the text boxes of an element as mammoth reads them."""
    boxes = Element(f"{_WORD}pict")
    boxes.extend(element.iter(f"{_WORD}txbxContent"))
    return boxes


def _is_hidden(run: Element) -> bool:
    found = run.find(f"{_WORD}rPr/{_WORD}vanish")
    return found is not None and found.get(f"{_WORD}val", "1") not in ("0", "false", "off")


def _equation(element: Element) -> "Iterator[str]":
    yield _FOLLOWING.get(element.tag, "")
    if element.tag == f"{_MATH}t":
        yield element.text or ""
    for child in element:
        yield from _equation(child)


def _run(text: str) -> Element:
    run = Element(f"{_WORD}r")
    run.append(_text(text))
    return run


def _text(text: str) -> Element:
    element = Element(f"{_WORD}t")
    element.text = text
    return element
