"""Zip archives of XML, as Office files and e-books are, opened only within bounds.

The limits are checked before a converter gets the file, and each member is unpacked in pieces
first: `zipfile` cuts a member to the size that the archive declares only after unpacking it.
"""

import io
import zipfile
from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING

from second_brain.extras import needed
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
_PIECE_BYTES = 65_536
# All that Office and e-books use. zipfile unpacks the others without a limit, 3 GB from 1 KB.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def open_archive(data: bytes, *, is_tree: bool = True) -> zipfile.ZipFile:
    """Open an archive; raise UnreadableDocumentError if it is none, encrypted, or too large.

    XML that declares entities is refused. With `is_tree` the number of tags is limited too.
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
    if any(member.compress_type not in _METHODS for member in members):
        raise UnreadableDocumentError("is packed in a way that is not supported")
    if sum(member.file_size for member in members) > MAX_UNPACKED_BYTES:
        raise UnreadableDocumentError(f"is larger than {MAX_UNPACKED_BYTES // _MB} MB unpacked")
    xml = [member for member in members if _is_xml(member)]
    if sum(member.file_size for member in xml) > MAX_XML_BYTES:
        raise UnreadableDocumentError(f"has more than {MAX_XML_BYTES // _MB} MB of XML unpacked")
    tags = 0
    for member in members:
        pieces = _pieces(archive, member)
        if not _is_xml(member):
            for _ in pieces:
                pass
            continue
        # Without the zeros of UTF-16.
        text = b"".join(pieces).replace(b"\0", b"")
        tags += text.count(b"<") if is_tree else 0
        if b"<!ENTITY" in text:
            raise UnreadableDocumentError(f"declares entities in {member.filename}")
    if tags > MAX_XML_TAGS:
        raise UnreadableDocumentError(f"has more than {MAX_XML_TAGS:,} XML tags")
    return archive


def _is_xml(member: zipfile.ZipInfo) -> bool:
    return member.filename.lower().endswith(_XML)


def _pieces(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the content of a member; refuse one that is larger than the archive declares."""
    longer = copy(member)
    longer.file_size += 1
    # The checksum is that of the declared size; who reads the member next compares it.
    longer.CRC = None  # type: ignore[assignment]
    size = 0
    with archive.open(longer) as file:
        while piece := file.read(_PIECE_BYTES):
            size += len(piece)
            if size > member.file_size:
                raise UnreadableDocumentError(f"declares a wrong size of {member.filename}")
            yield piece


def parse_xml(data: bytes) -> "Element":
    """Parse XML without entities, external files or a limit on depth."""
    with needed("defusedxml", "ingest"):
        from defusedxml.ElementTree import fromstring
    element: Element = fromstring(data)
    return element
