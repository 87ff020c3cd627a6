"""What a server answers: where it leads, of which type it is, and what a sitemap lists.

The requests are sent in `web`.
"""

import gzip
import io
import posixpath
import re
import zlib
from dataclasses import dataclass
from html import unescape
from urllib.parse import unquote

import httpx

from second_brain.ingest.archive import MAX_XML_TAGS, parse_xml
from second_brain.ingest.document import UnreadableDocumentError
from second_brain.ingest.loading import SUPPORTED
from second_brain.models.hosted import retry_after

MAX_PAGE_BYTES = 50_000_000

_REDIRECTS = (301, 302, 303, 307, 308)
# An international name that is wrong raises a ValueError.
INVALID = (httpx.InvalidURL, ValueError)
BUSY = (429, 503)
HEAD_BYTES = 8_192
NO_INDEX = re.compile(
    rb"<meta\s(?=[^>]*\bname\s*=\s*[\"']?(?:robots|second-brain)\b)"
    rb"[^>]*\bcontent\s*=\s*[\"']?[^\"'>]*\b(?:noindex|none)\b",
    re.IGNORECASE,
)
_REFRESH = re.compile(
    rb"<meta\s(?=[^>]*http-equiv\s*=\s*[\"']?refresh)"
    rb"[^>]*content\s*=\s*[\"']?\s*[0-5](?:\.\d*)?\s*[;,]\s*url\s*=\s*[\"']?([^\"'>]+)",
    re.IGNORECASE,
)
_LOGIN = re.compile(
    r"^(?:login|signin|accounts?|auth|sso|idp)\."
    r"|[/.](?:(?:wp-)?(?:log|sign)[-_]?in|sso|oauth2?|saml2?|auth(?:orize)?|session/new)(?:[/.]|$)",
    re.IGNORECASE,
)
_SUFFIXES = {
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "text/markdown": ".md",
    "text/plain": ".txt",
    "text/csv": ".csv",
    "application/pdf": ".pdf",
    "application/epub+zip": ".epub",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
}


def is_address(path: str) -> bool:
    """Return whether an argument is an address of the web, not a file."""
    return bool(re.match(r"https?://", path, re.IGNORECASE))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server sent for an address, after redirects."""

    url: httpx.URL
    data: bytes
    content_type: str
    charset: str | None
    is_private: bool


class RefusedError(UnreadableDocumentError):
    """A request that a server answers with an error of this status.

    `wait` are the seconds after which it wants to be asked again.
    """

    def __init__(self, status: int, wait: float | None = None) -> None:
        remedy = "Open the address in a browser; leave it out if it is gone."
        if status in BUSY:
            remedy = "The server is busy or limits requests: run the command again later."
        super().__init__(f"the server answers {status}", remedy=remedy)
        self.status, self.wait = status, wait


def answer_of(url: httpx.URL, response: httpx.Response) -> Answer | httpx.URL:
    """Read an answer; return it, or where it redirects to."""
    if response.status_code in _REDIRECTS and (target := response.headers.get("Location")):
        try:
            return checked(url.join(target))
        except INVALID as exc:
            raise UnreadableDocumentError(f"is redirected to an invalid address: {exc}") from exc
    if response.status_code != 200:
        raise RefusedError(response.status_code, retry_after(response.headers.get("Retry-After")))
    encoding = response.headers.get("Content-Encoding", "identity").lower()
    # Two encodings, one in the other, can unpack a million times.
    if encoding not in ("identity", "gzip", "x-gzip", ""):
        raise UnreadableDocumentError(f"is sent in the encoding {encoding}")
    gzip_file = _Gzip() if "gzip" in encoding else None
    unpack = gzip_file.unpack if gzip_file else bytes
    data = bytearray()
    for part in response.iter_raw():
        try:
            data += unpack(part)
        except zlib.error as exc:
            raise UnreadableDocumentError(f"is damaged: {exc}") from exc
        if len(data) > MAX_PAGE_BYTES:
            raise UnreadableDocumentError(f"is larger than {MAX_PAGE_BYTES // 1_000_000} MB")
    if gzip_file and not gzip_file.is_whole:
        raise UnreadableDocumentError("is cut off")
    content_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    rules = ",".join(response.headers.get_list("X-Robots-Tag")).lower()
    is_private = bool(re.search(r"(^|,)\s*(second-brain\s*:\s*)?(noindex|none)\b", rules))
    return Answer(url, bytes(data), content_type, response.charset_encoding, is_private)


class _Gzip:
    """Unpacks what is packed in one part or in several, one after the other."""

    def __init__(self) -> None:
        self._part = zlib.decompressobj(31)

    @property
    def is_whole(self) -> bool:
        return self._part.eof

    def unpack(self, data: bytes) -> bytes:
        unpacked = self._part.decompress(data)
        while self._part.eof and (rest := self._part.unused_data):
            self._part = zlib.decompressobj(31)
            unpacked += self._part.decompress(rest)
            if len(unpacked) > MAX_PAGE_BYTES:
                break
        return unpacked


def suffix_of(answer: Answer) -> str | None:
    """Return the ending of the type of an answer; HTML is known by its beginning, too."""
    ending = posixpath.splitext(answer.url.path)[1].lower()
    if answer.content_type in ("", "text/plain", "application/octet-stream"):
        beginning = answer.data[:HEAD_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
        if beginning.startswith((b"<!doctype html", b"<html")):
            return ".html"
        if beginning.startswith(b"%pdf-"):
            return ".pdf"
    return _SUFFIXES.get(answer.content_type) or (ending if ending in SUPPORTED else None)


def refresh_of(answer: Answer) -> httpx.URL | None:
    """Return the address to which a page sends its readers at once."""
    found = _REFRESH.search(answer.data[:HEAD_BYTES])
    if found is None:
        return None
    try:
        target = checked(answer.url.join(unescape(found[1].decode("utf-8", "replace")).strip()))
    except INVALID:
        return None
    return target if target != answer.url else None


def is_login(asked: httpx.URL, answered: httpx.URL) -> bool:
    """Whether a page leads to another one that asks for an account first."""
    if (asked.netloc, asked.path) == (answered.netloc, answered.path):
        return False
    way_back = asked.path.strip("/")
    query = unquote(answered.query.decode("ascii", "replace"))
    is_named = _LOGIN.search(f"{answered.host}{answered.path}")
    return bool((is_named and not _LOGIN.search(asked.path)) or (way_back and way_back in query))


def read_sitemap(answer: Answer) -> tuple[str, list[str]]:
    """Return the kind of a sitemap, `urlset` or `sitemapindex`, and the addresses in it."""
    data = answer.data
    try:
        if data.startswith(b"\x1f\x8b"):
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(MAX_PAGE_BYTES)
        if data.count(b"<") > MAX_XML_TAGS:
            raise UnreadableDocumentError(f"has more than {MAX_XML_TAGS:,} XML tags")
        if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
            lines = data.decode("utf-8-sig", "replace").split()
            return "urlset", [line for line in lines if is_address(line)]
        root = parse_xml(data.strip())
    except (OSError, EOFError, SyntaxError, ValueError) as exc:
        raise UnreadableDocumentError(f"is no sitemap: {exc}") from exc
    kind = root.tag.rpartition("}")[2]
    if kind not in ("urlset", "sitemapindex"):
        raise UnreadableDocumentError(f"is no sitemap, but XML with the root {kind}")
    texts = (
        (element.text or "").strip()
        for entry in root
        for element in entry
        if element.tag.rpartition("}")[2] == "loc"
    )
    return kind, [text for text in texts if is_address(text)]


def checked(url: httpx.URL) -> httpx.URL:
    """Return an address without its fragment, or raise one of INVALID."""
    # The host is decoded only when it is read: that of http://xn--/ cannot be.
    _ = url.host
    return url.copy_with(fragment=None)
