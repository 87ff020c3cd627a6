"""Zip archives of XML, as Office files and e-books are, opened only within bounds.

The limits are checked before a converter gets the file: `zipfile` reads no more of a member than
the size that the archive declares for it.
"""

import io
import zipfile
from typing import TYPE_CHECKING

from second_brain.errors import MissingExtraError
from second_brain.ingest.document import UnreadableDocumentError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MAX_MEMBERS = 20_000
MAX_UNPACKED_BYTES = 500_000_000
MAX_XML_BYTES = 200_000_000
MAX_XML_TAGS = 2_000_000
"""A converter that builds a tree needs about 1 KB of memory for each."""

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_XML = (".xml", ".rels", ".vml", ".opf", ".ncx")
_MB = 1_000_000


def open_archive(data: bytes, *, is_tree: bool = True) -> zipfile.ZipFile:
    """Open an archive; raise UnreadableDocumentError if it is none, encrypted, or too large.

    XML with a document type is refused, because entities are declared there. With `is_tree` the
    number of tags is limited too.
    """
    if data.startswith(_OLE):
        raise UnreadableDocumentError(
            "is encrypted, or in the format of Office before 2007",
            remedy="Remove its password, or save it in the current format.",
        )
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile as exc:
        raise UnreadableDocumentError(f"is not a zip archive: {exc}") from exc
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise UnreadableDocumentError(f"has more than {MAX_MEMBERS:,} parts")
    if any(member.flag_bits & 1 for member in members):
        raise UnreadableDocumentError("is encrypted", remedy="Remove its password first.")
    if sum(member.file_size for member in members) > MAX_UNPACKED_BYTES:
        raise UnreadableDocumentError(f"is larger than {MAX_UNPACKED_BYTES // _MB} MB unpacked")
    xml = [member for member in members if member.filename.lower().endswith(_XML)]
    if sum(member.file_size for member in xml) > MAX_XML_BYTES:
        raise UnreadableDocumentError(f"has more than {MAX_XML_BYTES // _MB} MB of XML unpacked")
    tags = 0
    for member in xml:
        # Without the zeros of UTF-16.
        text = archive.read(member).replace(b"\0", b"")
        tags += text.count(b"<") if is_tree else 0
        is_book = member.filename.lower().endswith(".ncx")
        if b"<!ENTITY" in text or (b"<!DOCTYPE" in text and not is_book):
            raise UnreadableDocumentError(f"declares a document type in {member.filename}")
    if tags > MAX_XML_TAGS:
        raise UnreadableDocumentError(f"has more than {MAX_XML_TAGS:,} XML tags")
    return archive


def parse_xml(data: bytes) -> "Element":
    """Parse XML without entities, external files or a limit on depth."""
    try:
        from defusedxml.ElementTree import fromstring
    except ImportError as exc:
        raise MissingExtraError("defusedxml", "ingest") from exc
    element: Element = fromstring(data)
    return element
