"""HTML to Markdown: the main content of a page, with its headings, lists, tables and code.

markdownify converts what is left after navigation is taken out. Text has no Markdown escapes: it
is stored for search, not for a renderer. Lines that a whole site repeats: see `repeated_lines`.
"""

import re
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Any

from second_brain.extras import needed
from second_brain.ingest.document import (
    MAX_HEADING,
    SPLIT_REMEDY,
    LoadedDocument,
    UnreadableDocumentError,
    clean,
    day,
    is_web_address,
    note,
    one_line,
)
from second_brain.ingest.encoding import codec, decode
from second_brain.ingest.markdown import (
    LONGEST_REPEATED,
    MOST_REPEATED,
    fenced,
    top_heading,
)

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, PageElement, Tag
    from markdownify import MarkdownConverter

MAX_TAGS = 1_000_000
"""A parsed page needs about 1 KB of memory for each."""

# What is no text, what leads to other pages or to parts of this one, and numbers of lines.
_LEFT_OUT = """
    script, style, noscript, template, head, title, svg, iframe, button, select, colgroup,
    nav, [role=navigation], [role=search], [role=banner], [role=contentinfo], body > footer,
    #footer, #toc, #sidebar, #breadcrumbs, #nav-path, .navheader, .navfooter, .navbar, .navigation,
    .toc, .table-of-contents, .breadcrumb, .breadcrumbs, .pagination, .skip-link,
    a.headerlink, a.hash-link, .lineno, .linenos, .line-numbers,
    rt, rp, annotation, annotation-xml, [aria-hidden=true]
"""
_INLINE = "b, strong, i, em, code, kbd, samp, var, del, s, u, mark, q"
_IN_A_WORD = {*_INLINE.split(", "), "a", "span", "font", "small", "sub", "ins", "abbr"}
_INLINE_LEVELS = 20
_BLOCKS = ["p", "div", "li", "dt", "dd", "tr", "pre", "br", "h1", "h2", "h3", "h4", "h5", "h6"]
_SIGNS_OF_LINKS = {"", "¶", "#", "§", "🔗"}
# A place that any site may call its content must hold this share of the page's text.
_MAIN = ("main, [role=main]", "article, #main-content, #page-content, #content, .main-content")
_LEAST_SHARE = 0.25
_HEAD_BYTES = 4_096
# With the marks of its links, which are left out of it.
_LONGEST_HEADING = 2 * MAX_HEADING
_HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
_LISTS = ["li", "ul", "ol", "dl", "dt", "dd", "blockquote"]
_GROUPS_OF_ROWS = ["thead", "tbody", "tfoot"]
_PARTS_OF_TABLES = [*_GROUPS_OF_ROWS, "tr", "td", "th", "caption"]
_BETWEEN_TITLES = re.compile(r"\s+[|·»:\u2013\u2014-]+\s+|:\s+")
# What browsers set as a block, and markdownify as a part of its line.
_UNKNOWN_BLOCKS = [
    *("address", "aside", "center", "details", "dialog", "dir", "fieldset", "figure", "footer"),
    *("form", "header", "hgroup", "legend", "main", "menu", "nav", "search", "summary"),
]
# In XML any element can be closed at once; in HTML such a title or script holds the whole page.
_XHTML = re.compile(r"\s*<\?xml\b|[^<]*(?:<[!?][^<]*)*<html\b[^>]*http://www\.w3\.org/1999/xhtml")
_CLOSED_AT_ONCE = re.compile(
    r"""<(?!(?:br|hr|img|input|col|meta|link|area|base|wbr)\b)([A-Za-z][\w.-]*)"""
    r"""((?:\s+[^\s<>=/"']+\s*=\s*(?:"[^"<]*"|'[^'<]*'))*)\s*/>"""
)
# The parser compares each attribute of a tag with all others.
_ATTRIBUTE = r"""[\s/]++[^\s>/=]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+))?+"""
_MANY_ATTRIBUTES = re.compile(rf"(<[A-Za-z][^\s/>]*+(?:{_ATTRIBUTE}){{1000}})(?:{_ATTRIBUTE})+")
# Where a long word may be broken: zero width space and soft hyphen.
_BREAKS = re.compile("[\u200b\u00ad]")


def parse_html(data: bytes | str) -> "BeautifulSoup":
    """Parse a page as browsers do; the parser reads no entities but characters."""
    with needed("beautifulsoup4", "ingest"):
        from bs4 import BeautifulSoup
        from bs4.dammit import EncodingDetector
    with needed("selectolax", "ingest"):
        from selectolax.lexbor import LexborHTMLParser
    if isinstance(data, bytes):
        label = EncodingDetector.find_declared_encoding(data[:_HEAD_BYTES], is_html=True)
        # A page whose label can be read is not in UTF-16.
        is_wrong = label and (codec(label) or "").startswith("utf-16")
        data = decode(data, "utf-8" if is_wrong else label)
    if data.count("<") > MAX_TAGS:
        raise UnreadableDocumentError(f"has more than {MAX_TAGS:,} tags", remedy=SPLIT_REMEDY)
    if _XHTML.match(data[:_HEAD_BYTES]):
        data = _CLOSED_AT_ONCE.sub(r"<\1\2></\1>", data)
    data = _MANY_ATTRIBUTES.sub(r"\1", data)
    # Lexbor writes each tag that the standard lets a page leave out.
    return BeautifulSoup(LexborHTMLParser(data).html or "", "html.parser")


def load_html(data: bytes, name: str) -> LoadedDocument:
    """Read a page with its title, author, date and canonical address."""
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

    titled = page.select_one("title:not(svg title)")
    title = one_line(titled.get_text()) if titled else None
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
    # Pages whose navigation holds their content exist.
    around: set[int] = set()
    for content in page.select("main, [role=main], article"):
        for parent in content.parents:
            if id(parent) in around:
                break
            around.add(id(parent))
    for tag in page.select(_LEFT_OUT):
        if not tag.decomposed and id(tag) not in around:
            tag.decompose()
    for link in page.find_all("a"):
        if link.get_text().strip() in _SIGNS_OF_LINKS:
            link.decompose()
    main = _main_part(page)
    _repair_words(main)
    _repair_code(main)
    _repair_layout(main)
    for table in main.find_all("table"):
        _join_groups(table)
        _repeat_merged_cells(table)
    for pipe in main.find_all(string=re.compile(r"\|")):
        if pipe.find_parent(["td", "th"]):
            pipe.replace_with(pipe.replace("|", "\\|"))
    try:
        text = _converter().convert_soup(main)
    except RecursionError:
        note("its elements are nested too deeply: headings, lists and tables are read as text")
        text = _lines(main)
    return re.sub(r"\n{3,}", "\n\n", _BREAKS.sub("", clean(text))).strip()


def _lines(main: "Tag") -> str:
    """Return the text with each block on a line of its own, however deep it is."""
    parts: list[str] = []
    left: list[Tag | str] = [main]
    while left:
        part = left.pop()
        if isinstance(part, str):
            parts.append(part)
        else:
            edge = ["\n"] * (part.name in _BLOCKS)
            left += [*edge, *reversed(part.contents), *edge]  # type: ignore[list-item]
    return "".join(parts)


def _main_part(page: "BeautifulSoup") -> "Tag":
    least = _LEAST_SHARE * len(page.get_text(strip=True))
    named = [tag for tag in page.select(_MAIN[0]) if not tag.has_attr("hidden")]
    longest = max(named, key=lambda tag: len(tag.get_text(strip=True)), default=None)
    if longest is not None and (length := len(longest.get_text(strip=True))) and length >= least:
        return longest
    found = page.select(_MAIN[1])
    # Two articles on one page are a list of them; a title outside has the page's first lines.
    if len(found) == 1 and len(found[0].get_text(strip=True)) >= max(least, 1):
        return found[0] if found[0].h1 or not page.h1 else page
    return page


def _repair_words(main: "Tag") -> None:
    """Keep words and numbers as they are read: no marks inside a word, 10^6 for a power."""
    for tag in main.select(_INLINE):
        before, after = _beside(tag, "previous_sibling"), _beside(tag, "next_sibling")
        if before[-1:].isalnum() or after[:1].isalnum():
            # Taken out, each would move those after it.
            tag.name = "span"
    for power in main.select("sup, msup > :nth-child(2)"):
        if re.match(r"[+\u2212-]?\d", power.get_text().strip()):
            power.insert(0, "^")
    for below in main.select("mfrac > :nth-child(2)"):
        below.insert(0, "/")


def _beside(tag: "Tag", side: str) -> str:
    """Return the text before or after a tag, which can be outside of the tags around it."""
    for _ in range(_INLINE_LEVELS):
        sibling: PageElement | None = getattr(tag, side)
        if isinstance(sibling, str):
            return sibling
        if sibling is not None:
            return sibling.get_text() if getattr(sibling, "name", None) in _IN_A_WORD else ""
        if tag.parent is None or tag.parent.name not in _IN_A_WORD:
            break
        tag = tag.parent
    return ""


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
        if table is not None and len(table.find_all(["td", "th"], limit=2)) == 1:
            _as_blocks(table, {id(table): table})
        else:
            # A cell is one line.
            code.name = "code"


def _repair_layout(main: "Tag") -> None:
    """Take lists and tables from around headings and tables, where Markdown can have none."""
    for block in main.find_all(_UNKNOWN_BLOCKS):
        block.name = "div"
    outer: dict[int, Tag] = {}
    for inner in main.find_all(["table", *_HEADINGS]):
        for parent in inner.parents:
            if id(parent) in outer:
                break
            if parent.name == "table":
                outer[id(parent)] = parent
    _as_blocks(main, outer)
    for heading in main.find_all(_HEADINGS):
        if len(heading.get_text()) > _LONGEST_HEADING:
            # Its end tag is missing, or it is one only in its looks.
            heading.name = "div"
            continue
        for parent in heading.find_parents(_LISTS):
            parent.name = "div"


def _join_groups(table: "Tag") -> None:
    """Make one group of the rows, the foot last: each group would begin with a header."""
    groups = table.find_all(_GROUPS_OF_ROWS)
    names = [group.name for group in groups]
    if "tfoot" in names or names.count("tbody") > 1:
        rows = table.find_all("tr")
        rows.sort(key=lambda row: row.parent is not None and row.parent.name == "tfoot")
        groups[0].name = "tbody"
        for row in rows:
            groups[0].append(row)


def _repeat_merged_cells(table: "Tag") -> None:
    """Write a cell of several rows into each of them, in its columns."""
    below: dict[int, tuple[int, Tag]] = {}
    repeated = 0
    for row in table.find_all("tr"):
        above, below, column = below, {}, 0
        cells = row.find_all(["td", "th"], recursive=False)
        while cells or column in above:
            if column in above:
                rows, merged = above[column]
                cell = copy(merged)
                if cells:
                    cells[0].insert_before(cell)
                else:
                    row.append(cell)
            else:
                cell = cells.pop(0)
                rows = _span(cell, "rowspan")
            repeated += _span(cell, "colspan") if rows > 1 else 0
            if rows > 1 and len(cell.get_text()) <= LONGEST_REPEATED and repeated < MOST_REPEATED:
                below[column] = (rows - 1, cell)
            column += _span(cell, "colspan")
        # Columns that a shorter row does not reach.
        below |= {
            at: (rows - 1, cell) for at, (rows, cell) in above.items() if at > column and rows > 1
        }


def _span(cell: "Tag", name: str) -> int:
    text = str(cell.get(name, ""))
    # rowspan=0 reaches the end of the table.
    return min(int(text) or 65_534, 65_534) if re.fullmatch("[0-9]{1,5}", text) else 1


def _as_blocks(main: "Tag", tables: "dict[int, Tag]") -> None:
    """Make blocks of these tables, by their identity, and of their parts."""
    if tables:
        parts = [
            part
            for part in main.find_all(_PARTS_OF_TABLES)
            if id(part.find_parent("table")) in tables
        ]
        for block in [*parts, *tables.values()]:
            block.name = "div"


@cache
def _converter() -> "MarkdownConverter":
    with needed("markdownify", "ingest"):
        from markdownify import MarkdownConverter

    class Converter(MarkdownConverter):
        def convert_pre(self, el: Any, text: str, parent_tags: set[str]) -> str:
            return f"\n\n{fenced(text)}\n\n"

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
