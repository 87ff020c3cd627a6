"""What mammoth leaves out of a docx, written so that it reads it: equations, fields, text boxes."""

import io
import re
import zipfile
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, tostring

from second_brain.ingest.archive import parse_xml

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_COMPATIBLE = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_FOLLOWING = {f"{_MATH}den": "/", f"{_MATH}sup": "^"}
_PARTS = re.compile(r"word/(document\d*|footnotes|endnotes)\.xml")
_MAX_LEVEL = 6
_MAX_BASES = 20


def readable(archive: zipfile.ZipFile) -> bytes:
    """Return a docx whose text mammoth reads whole, and without what Word hides."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as copy:
        for member in archive.infolist():
            data = archive.read(member)
            if _PARTS.fullmatch(member.filename):
                tree = parse_xml(data)
                _repair(tree)
                data = tostring(tree)
            copy.writestr(member.filename, data)
    return written.getvalue()


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


def _repair(parent: Element) -> None:
    children: list[Element] = []
    for child in parent:
        children += _repaired(child)
    parent[:] = children


def _repaired(element: Element) -> "list[Element]":
    if element.tag in (f"{_MATH}oMath", f"{_MATH}oMathPara"):
        return [_run("".join(_equation(element)))]
    if element.tag == f"{_WORD}r" and _is_hidden(element):
        return []
    if element.tag == f"{_COMPATIBLE}AlternateContent":
        has_fallback = element.find(f"{_COMPATIBLE}Fallback") is not None
        boxes = [] if has_fallback else list(element.iter(f"{_WORD}txbxContent"))
        if boxes:
            element = Element(f"{_WORD}pict")
            element.extend(boxes)
    _repair(element)
    return list(element) if element.tag == f"{_WORD}fldSimple" else [element]


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
    SubElement(run, f"{_WORD}t").text = text
    return run
