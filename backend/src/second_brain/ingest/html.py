"""HTML to Markdown: the text of a page without its navigation, with headings, lists and tables."""

import codecs
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from second_brain.errors import MissingExtraError
from second_brain.ingest.document import (
    BinaryFileError,
    LoadedDocument,
    UnreadableDocumentError,
    clean,
    day,
    one_line,
)
from second_brain.ingest.markdown import top_heading

if TYPE_CHECKING:
    from bs4 import BeautifulSoup

MAX_TAGS = 1_000_000
"""A parsed page needs about 1 KB of memory for each."""

# The last ones are the signs beside headings that link to them.
_NO_TEXT = (
    "script, style, noscript, template, nav, head, svg, iframe, button, body > footer, "
    "a.headerlink, a.hash-link"
)


def parse_html(data: bytes | str) -> "BeautifulSoup":
    """Parse a page; the parser reads no entities but characters, and repairs what is broken."""
    try:
        from bs4 import BeautifulSoup
    except ImportError as exc:
        raise MissingExtraError("beautifulsoup4", "ingest") from exc
    tags = data.count("<") if isinstance(data, str) else data.count(b"<")
    if tags > MAX_TAGS:
        raise UnreadableDocumentError(f"has more than {MAX_TAGS:,} tags")
    return BeautifulSoup(data, "html.parser")


def load_html(data: bytes, name: str) -> LoadedDocument:
    """Read a page with its title, author, date and canonical address."""
    if b"\0" in data and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise BinaryFileError("is binary, not HTML")
    return from_html(parse_html(data), name)


def from_html(page: "BeautifulSoup", name: str) -> LoadedDocument:
    """Return a page as a document; `name` is its title if it has none."""

    def about(*names: str) -> str | None:
        for wanted in names:
            tag = page.find("meta", attrs={"name": wanted}) or page.find(
                "meta", attrs={"property": wanted}
            )
            if tag is not None and (value := one_line(tag.get("content"))):
                return value
        return None

    title = one_line(page.title.get_text()) if page.title else None
    link = page.find("link", rel="canonical")
    # Read before the head goes: a tag that was taken out has nothing left.
    address = one_line(link.get("href")) if link else None
    author, published = about("author"), about("article:published_time", "date")
    text = markdown_of(page)
    return LoadedDocument(
        title=title or top_heading(text) or name,
        text=text,
        author=author,
        document_date=day(published),
        source_url=address if is_web_address(address) else None,
    )


def markdown_of(page: "BeautifulSoup") -> str:
    """Return the text of a page, or of its main part, as Markdown."""
    try:
        from markdownify import MarkdownConverter
    except ImportError as exc:
        raise MissingExtraError("markdownify", "ingest") from exc

    for tag in page.select(_NO_TEXT):
        tag.decompose()
    for pipe in page.find_all(string=re.compile(r"\|")):
        if pipe.find_parent(["td", "th"]):
            pipe.replace_with(pipe.replace("|", "\\|"))
    # Addresses are no words of the text, and an image inside the page is a very long one.
    converter = MarkdownConverter(heading_style="ATX", strip=["a", "img"], table_infer_header=True)
    return clean(converter.convert_soup(page.find("main") or page)).strip()


def is_web_address(address: str | None) -> bool:
    """Return whether this is an absolute address of http or https."""
    try:
        parts = urlsplit(address or "")
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
