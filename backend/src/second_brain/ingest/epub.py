"""E-books: the chapters of an EPUB in their reading order."""

import posixpath
import re
import zlib
from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import unquote
from zipfile import BadZipFile, ZipFile

from second_brain.ingest.archive import open_archive, parse_xml
from second_brain.ingest.document import (
    LoadedDocument,
    UnreadableDocumentError,
    day,
    note,
    one_line,
)
from second_brain.ingest.html import html_text, markdown_of
from second_brain.ingest.markdown import headings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from xml.etree.ElementTree import Element

_MAX_CHAPTER_BYTES = 20_000_000
_DAMAGED = (UnreadableDocumentError, BadZipFile, OSError, ValueError, zlib.error)
_LINK = re.compile(
    r"<a\b[^<>]*?\shref\s*=\s*[\"'](?P<page>[^\"'<>]*)[\"'][^<>]*>(?P<title>.{0,2000}?)</a>"
    r"|<text\b[^<>]*>(?P<label>[^<>]*)</text>[^<>]*</navLabel>\s*"
    r"<content\b[^<>]*?\ssrc\s*=\s*[\"'](?P<place>[^\"'<>]*)",
    re.IGNORECASE | re.DOTALL,
)
_PAGES = ("application/xhtml+xml", "text/html")


def load_epub(data: bytes, name: str) -> LoadedDocument:
    """Read a book; a chapter without a heading gets the one of the table of contents."""
    with open_archive(data) as archive:
        container = parse_xml(_read(archive, "META-INF/container.xml"))
        root = _only(container, "rootfile").get("full-path", "")
        package = parse_xml(_read(archive, root))
        folder = posixpath.dirname(root)
        items = {item.get("id"): item for item in _all(package, "item")}
        try:
            titles = _contents(archive, folder, items.values())
        except _DAMAGED as exc:
            note(f"its table of contents is left out: {exc}")
            titles = {}
        chapters = []
        for reference in _all(package, "itemref"):
            item = items.get(reference.get("idref"))
            if item is None or item.get("media-type") not in _PAGES or _is_navigation(item):
                continue
            path = _path(folder, item.get("href", ""))
            try:
                text = markdown_of(html_text(_read(archive, path)))
            except _DAMAGED as exc:
                note(f"its chapter {path} is left out: {exc}")
                continue
            if text and path in titles and not headings(text):
                text = f"# {titles[path]}\n\n{text}"
            chapters.append(text)
    return LoadedDocument(
        title=_about(package, "title") or name,
        text="\n\n".join(filter(None, chapters)),
        author=_about(package, "creator"),
        document_date=day(_about(package, "date")),
    )


def _contents(archive: ZipFile, folder: str, items: "Iterable[Element]") -> dict[str, str]:
    """Return the title of each file in the table of contents, of EPUB 3 or else of EPUB 2."""
    titles: dict[str, str] = {}
    for item in sorted(items, key=_is_navigation, reverse=True):
        path = _path(folder, item.get("href", ""))
        if not _is_navigation(item) and item.get("media-type") != "application/x-dtbncx+xml":
            continue
        for found in _LINK.finditer(html_text(_read(archive, path))):
            title = one_line(unescape(re.sub("<[^<>]*>", "", found["title"] or found["label"])))
            if title:
                place = unescape(found["page"] or found["place"])
                titles.setdefault(_path(posixpath.dirname(path), place), title)
    return titles


def _read(archive: ZipFile, path: str) -> bytes:
    try:
        member = archive.getinfo(path)
    except KeyError as exc:
        raise UnreadableDocumentError(f"has no {path}") from exc
    if member.file_size > _MAX_CHAPTER_BYTES:
        raise UnreadableDocumentError(
            f"has more than {_MAX_CHAPTER_BYTES // 1_000_000} MB in {path}"
        )
    return archive.read(member)


def _path(folder: str, address: str) -> str:
    return posixpath.normpath(posixpath.join(folder, unquote(address.partition("#")[0])))


def _is_navigation(item: "Element") -> bool:
    return "nav" in item.get("properties", "").split()


def _all(element: "Element", tag: str) -> "Iterator[Element]":
    return (found for found in element.iter() if found.tag.rpartition("}")[2] == tag)


def _only(element: "Element", tag: str) -> "Element":
    found = next(_all(element, tag), None)
    if found is None:
        raise UnreadableDocumentError(f"has no {tag}")
    return found


def _about(package: "Element", tag: str) -> str | None:
    return next((text for found in _all(package, tag) if (text := one_line(found.text))), None)
