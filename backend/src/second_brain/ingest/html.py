"""HTML to Markdown: the main content of a page, with its headings, lists, tables and code.

markdownify converts what is left after navigation is taken out. Text has no Markdown escapes: it
is stored for search, not for a renderer. Lines that a whole site repeats: see `repeated_lines`.
"""

import codecs
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from second_brain.extras import needed
from second_brain.ingest.document import (
    BinaryFileError,
    LoadedDocument,
    UnreadableDocumentError,
    clean,
    day,
    is_web_address,
    one_line,
)
from second_brain.ingest.markdown import top_heading

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag
    from markdownify import MarkdownConverter

MAX_TAGS = 1_000_000
"""A parsed page needs about 1 KB of memory for each."""

# What is no text, what leads to other pages or to parts of this one, and numbers of lines.
_LEFT_OUT = """
    script, style, noscript, template, head, title, svg, iframe, button, select,
    nav, [role=navigation], [role=search], [role=banner], [role=contentinfo], body > footer,
    #footer, #toc, #sidebar, #breadcrumbs, #nav-path, .navheader, .navfooter, .navbar, .navigation,
    .toc, .table-of-contents, .breadcrumb, .breadcrumbs, .pagination, .skip-link,
    a.headerlink, a.hash-link, .lineno, .linenos, .line-numbers
"""
_SIGNS_OF_LINKS = {"", "¶", "#", "§", "🔗"}
# A place that any site may call its content must hold this share of the page's text.
_MAIN = ("main, [role=main]", "article, #main-content, #page-content, #content, .main-content")
_LEAST_SHARE = 0.25
_HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
_LISTS = ["li", "ul", "ol", "dl", "dt", "dd", "blockquote"]
_PARTS_OF_TABLES = ["thead", "tbody", "tfoot", "tr", "td", "th", "caption"]
_BETWEEN_TITLES = re.compile(r"\s+[|·»:\u2013\u2014-]+\s+|:\s+")
# Where a long word may be broken: zero width space and soft hyphen.
_BREAKS = re.compile("[\u200b\u00ad]")


def parse_html(data: bytes | str) -> "BeautifulSoup":
    """Parse a page; the parser reads no entities but characters, and repairs what is broken."""
    with needed("beautifulsoup4", "ingest"):
        from bs4 import BeautifulSoup
    tags = data.count("<") if isinstance(data, str) else data.count(b"<")
    if tags > MAX_TAGS:
        raise UnreadableDocumentError(f"has more than {MAX_TAGS:,} tags")
    return BeautifulSoup(data, "html.parser")


def load_html(data: bytes, name: str) -> LoadedDocument:
    """Read a page with its title, author, date and canonical address."""
    if b"\0" in data and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise BinaryFileError("is binary, not HTML")
    return from_html(parse_html(data), name, is_page=True)


def from_html(page: "BeautifulSoup", name: str, *, is_page: bool = False) -> LoadedDocument:
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
    heading = top_heading(text)
    if title and heading in _BETWEEN_TITLES.split(title):
        # The rest is the name of the site.
        title = heading
    return LoadedDocument(
        title=title or heading or name,
        text=text,
        author=author,
        document_date=day(published),
        source_url=address if is_web_address(address) else None,
        is_page=is_page,
    )


def markdown_of(page: "BeautifulSoup") -> str:
    """Return the text of a page, or of its main part, as Markdown."""
    from bs4.element import PreformattedString

    # Comments, XML declarations and the type of the document.
    for string in page.find_all(string=lambda text: isinstance(text, PreformattedString)):
        string.extract()
    for tag in page.select(_LEFT_OUT):
        # Pages whose navigation holds their content exist.
        if not tag.decomposed and not tag.select_one("main, [role=main], article"):
            tag.decompose()
    for link in page.find_all("a"):
        if link.get_text().strip() in _SIGNS_OF_LINKS:
            link.decompose()
    main = _main_part(page)
    _repair_code(main)
    _repair_layout(main)
    text = _BREAKS.sub("", clean(_converter().convert_soup(main)))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _main_part(page: "BeautifulSoup") -> "Tag":
    if named := page.select_one(_MAIN[0]):
        return named
    least = _LEAST_SHARE * len(page.get_text())
    found = page.select(_MAIN[1])
    # Two articles on one page are a list of them; a title outside has the page's first lines.
    if len(found) == 1 and len(found[0].get_text()) >= least:
        return found[0] if found[0].h1 or not page.h1 else page
    return page


def _repair_code(main: "Tag") -> None:
    """Make one block of each piece of code: doxygen writes lines, others a table of numbers."""
    for block in main.select("div.fragment"):
        if lines := block.find_all("div", class_="line"):
            block.string = "\n".join(line.get_text() for line in lines)
            block.name = "pre"
    for code in main.find_all("pre"):
        cell = code.find_parent(["td", "th"])
        if code.find_parent("pre"):
            code.unwrap()
        elif cell is not None and re.fullmatch(r"[\d\s]+", code.get_text()):
            cell.decompose()
    for code in main.select("table pre"):
        table = code.find_parent("table")
        if table is not None and len(table.find_all(["td", "th"])) == 1:
            _as_blocks(table)
        else:
            # A cell is one line.
            code.name = "code"


def _repair_layout(main: "Tag") -> None:
    """Take lists and tables from around headings and tables, where Markdown can have none."""
    for inner in main.select("table table, table :is(h1, h2, h3, h4, h5, h6)"):
        for table in inner.find_parents("table"):
            _as_blocks(table)
    for heading in main.find_all(_HEADINGS):
        for parent in heading.find_parents(_LISTS):
            parent.name = "div"


def _as_blocks(table: "Tag") -> None:
    for part in table.find_all(_PARTS_OF_TABLES):
        if part.find_parent("table") is table:
            part.name = "div"
    table.name = "div"


@cache
def _converter() -> "MarkdownConverter":
    with needed("markdownify", "ingest"):
        from markdownify import MarkdownConverter

    class Converter(MarkdownConverter):
        def convert_pre(self, el: Any, text: str, parent_tags: set[str]) -> str:
            if not text.strip():
                return ""
            longest = max((len(run) for run in re.findall("`{3,}", text)), default=2)
            fence = "`" * (longest + 1)
            return f"\n\n{fence}\n{text.strip(chr(10))}\n{fence}\n\n"

        def convert_br(self, el: Any, text: str, parent_tags: set[str]) -> str:
            return " " if "_inline" in parent_tags else "\n"

        def convert_dt(self, el: Any, text: str, parent_tags: set[str]) -> str:
            return f" {text} " if "_inline" in parent_tags else f"\n\n{' '.join(text.split())}\n"

        def convert_dd(self, el: Any, text: str, parent_tags: set[str]) -> str:
            # Not indented, which would make code of its second paragraph.
            return f" {text} " if "_inline" in parent_tags else f"{text.strip()}\n\n"

    # Addresses are no words of the text, and an image inside the page is a very long one.
    return Converter(
        heading_style="ATX",
        strip=["a", "img"],
        table_infer_header=True,
        escape_asterisks=False,
        escape_underscores=False,
        wrap=True,
        wrap_width=None,
    )
