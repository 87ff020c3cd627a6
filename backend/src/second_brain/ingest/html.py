"""HTML to Markdown: the main content of a page, with its headings, lists, tables and code.

html-to-markdown parses and converts. What it would read otherwise than a browser shows it is
written anew before. Lines that a whole site repeats: see `repeated_lines`.
"""

import re
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from html import unescape
from typing import TYPE_CHECKING, Any

from second_brain.extras import needed
from second_brain.ingest.document import (
    SPLIT_REMEDY,
    LoadedDocument,
    UnreadableDocumentError,
    clean,
    day,
    expect,
    is_web_address,
    note,
    one_line,
)
from second_brain.ingest.encoding import codec, decode
from second_brain.ingest.markdown import (
    BLOCKS,
    COMMENT,
    INLINE,
    LONGEST_REPEATED,
    MOST_REPEATED,
    top_heading,
)

if TYPE_CHECKING:
    from html_to_markdown import ConversionOptions, ConversionResult

MAX_TAGS = 1_000_000
main_content_only: ContextVar[bool] = ContextVar("read only the article of a page", default=False)

# What is no text, what leads to other pages or to parts of this one, and numbers of lines.
_TAGS = "head|title|svg|iframe|button|select|colgroup|nav|rt|rp|annotation|annotation-xml"
_ROLES = "navigation|search|banner|contentinfo"
_IDS = "footer|toc|sidebar|breadcrumbs|nav-path"
_CLASSES = (
    "navheader|navfooter|navbar|navigation|toc|table-of-contents|breadcrumb|breadcrumbs|pagination"
    "|skip-link|headerlink|hash-link|lineno|linenos|line-numbers"
)
_LEFT_OUT = [
    *_TAGS.split("|"),
    *(f"[role={role}]" for role in _ROLES.split("|")),
    *(f"#{name}" for name in _IDS.split("|")),
    *(f".{name}" for name in _CLASSES.split("|")),
    "[aria-hidden=true]",
]


def _start_tags(tags: str, names: str, more: str = "") -> re.Pattern[str]:
    """Match the start of these elements, and of others with such a role, id or class."""
    return re.compile(
        rf"<(?:(?P<tag>{tags})(?=[\s/>])|(?!(?:br|hr|img|input|link|meta)\b)"
        rf"(?P<other>[a-z][\w-]*+)(?=[^<>]*?\s(?:{more}(?:role|id|class)\s*=\s*[\"']?"
        rf"(?:[^\"'<>]{{0,200}}\s)?(?:{names})[\s\"'>])))[^<>]*>",
        re.IGNORECASE,
    )


_LEFT_OUT_TAG = _start_tags(
    f"{_TAGS}|noscript|template|math",
    f"{_ROLES}|{_IDS}|{_CLASSES}",
    r"aria-hidden\s*=\s*[\"']?true|",
)
# A place that any site may call its content must hold this share of the page's text.
_MAIN = _start_tags("main", "main")
_CONTENT = _start_tags("article", "main-content|page-content|content")
_LEAST_SHARE = 0.25
_MOST_PLACES = 100
_HEAD_BYTES = 4_096
_LABEL = re.compile(
    rb"<meta\b[^>]*?charset\s*=\s*[\"']?\s*([^\s\"'/>;]+)|^\s*<\?xml[^>]*?encoding=[\"']([^\"']+)",
    re.IGNORECASE,
)
_BETWEEN_TITLES = re.compile(r"\s+[|·»:\u2013\u2014-]+\s+|:\s+")
# In XML any element can be closed at once; in HTML such a title or script holds the whole page.
_XHTML = re.compile(r"\s*<\?xml\b|[^<]*(?:<[!?][^<]*)*<html\b[^>]*http://www\.w3\.org/1999/xhtml")
_CLOSED_AT_ONCE = re.compile(
    r"""<(?!(?:br|hr|img|input|col|meta|link|area|base|wbr)\b)([A-Za-z][\w.-]*)"""
    r"""((?:\s+[^\s<>=/"']+\s*=\s*(?:"[^"<]*"|'[^'<]*'))*)\s*/>"""
)
# The parser compares each attribute of a tag with all others.
_ATTRIBUTE = r"""[\s/]++[^\s>/=]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+))?+"""
_MANY_ATTRIBUTES = re.compile(rf"(<[A-Za-z][^\s/>]*+(?:{_ATTRIBUTE}){{1000}})(?:{_ATTRIBUTE})+")
# So few cells of so many rows or columns as documents have; many more would fill the memory.
_LONG_SPANS = re.compile(r"\b(?:row|col)span\s*=\s*[\"']?\d{3,}", re.IGNORECASE)
_MOST_LONG_SPANS = 100
_MARK = (
    r"(?P<mark>b|strong|i|em|code|kbd|samp|tt|var|del|s|u|q)\b[^<>]*>(?P<word>[^<>]*)</(?P=mark)>"
)
_IN_A_WORD = rf"(?:</?(?:{INLINE})\b[^<>]*>){{0,9}}"
_HEADING = r"<h[1-6]\b[^<>]*>(?:(?!</?(?:h[1-6]|t[rdh]|table)\b)[\s\S]){0,500}</h[1-6]\s*>"
_ENDS = "p|div|li|ul|ol|dl|dt|dd|h[1-6]|table|tr|td|th|pre|blockquote|section"
_PRE = r"\s*(?:<div\b[^<>]*>\s*)?<pre\b[^<>]*>"
_REPAIRS = [
    (re.compile(pattern, re.IGNORECASE), new)
    for pattern, new in (
        # A shadow root that the page itself declares is shown in place of its host.
        (r"<template(?=[^<>]*\sshadowrootmode\b)", "<div"),
        (
            r"<footer\b(?:(?!<footer\b)[\s\S])*?</footer>"
            r"(?=\s*(?:<script\b[^<>]*>[^<]*</script>\s*)*</body>)",
            "",
        ),
        (r"<(/?)summary\b", r"<\1div"),
        # Below a line of text, three dashes make a heading of it.
        (r"<hr\b[^<>]*>", "<p></p>"),
        # Links of headings to themselves.
        (r"<a\b[^<>]*>\s*(?:[¶#§🔗]|&para;|&#182;|&sect;|&#167;)?\s*</a>", ""),
        # What is not closed in its block would make code of all that follows.
        (
            rf"<(code|kbd|samp|tt)\b[^<>]*>((?:(?!</?\1\b|</?(?:{_ENDS})\b)[\s\S])*+)"
            rf"(?=</?(?:{_ENDS})\b)",
            r"<\1>\2</\1>",
        ),
        # 10^6 for a power.
        (r"(<sup\b[^<>]*>)(?=\s*(?:<[^<>]*>\s*){0,5}(?:&minus;|[+\u2212-])?\d)", r"\1^"),
        # No marks inside a word.
        *([(rf"(?<=\w)(?P<before>{_IN_A_WORD})<{_MARK}", r"\g<before>\g<word>")] * 2),
        *([(rf"<{_MARK}(?={_IN_A_WORD}\w)", r"\g<word>")] * 2),
        # Doxygen writes code line by line; others a table with the numbers of the lines.
        (r"<div class=[\"']?fragment\b[^<>]*>(?=\s*<div class=[\"']?line\b)", "<pre>"),
        (r"<div class=[\"']?line\b[^<>]*>((?:[^<>]|</?(?:a|span)\b[^<>]*>)*+)</div>\n?", "\\1\n"),
        (r"(<pre>(?:[^<>]|</?(?:a|span)\b[^<>]*>)*+)</div>", r"\1</pre>"),
        (r"<pre\b[^<>]*>\s*(?=<pre\b)", ""),
        (
            rf"<td\b[^<>]*>{_PRE}(?:[\d\s]|</?(?:a|span)\b[^<>]*>)*+</pre>\s*(?:</div>\s*)?</td>"
            rf"(?=\s*<td\b[^<>]*>{_PRE})",
            "",
        ),
        (
            rf"<table\b[^<>]*>\s*(?:<tbody>\s*)?<tr\b[^<>]*>\s*<td\b[^<>]*>(?={_PRE})"
            r"((?:(?!</?(?:td|table)\b)[\s\S])*)</td>\s*</tr>\s*(?:</tbody>\s*)?</table>",
            r"\1",
        ),
        # A row, or an item of a list, that is a heading opens a section.
        (
            rf"<tr\b[^<>]*>\s*<t[dh]\b[^<>]*>(\s*(?:<a\b[^<>]*>\s*</a>)*{_HEADING})\s*"
            r"</t[dh]>\s*(?:</tr>|(?=<tr\b|</table))",
            r"</table>\1<table>",
        ),
        (r"<li\b[^<>]*>(?=\s*<h[1-6]\b)", "<div>"),
        (r"(?<=rowspan=)([\"']?)0(?=[\s\"'>])", r"\g<1>99"),
    )
]
_ONLY_HEADING = re.compile(rf"<t[dh]\b[^<>]*>\s*(?P<heading>{_HEADING})\s*</?t", re.IGNORECASE)
_TABLE_TAG = re.compile(
    r"<(?P<end>/?)(?P<name>table|thead|tbody|tfoot|tr|t[dh]|caption|h[1-6])\b[^<>]*>", re.I
)
# Where a long word may be broken: zero width space and soft hyphen.
_BREAKS = re.compile("[\u200b\u00ad]")
# Two spaces are a line feed of Markdown.
_LINE_ENDS = re.compile(r"(?<! ) +\n")
_TABLE_ROW = re.compile(r"^\|", re.MULTILINE)


@dataclass
class _Table:
    """A table: the offsets of its own tags, and whether it is only there for the layout."""

    tags: list[tuple[int, int]] = field(default_factory=list)
    is_layout: bool = False


def html_text(data: bytes | str) -> str:
    """Return the source of a page in the encoding that it names, within bounds."""
    if isinstance(data, bytes):
        found = _LABEL.search(data[:_HEAD_BYTES])
        label = (found[1] or found[2]).decode("ascii", "replace") if found else None
        # A page whose label can be read is not in UTF-16.
        is_wrong = label and (codec(label) or "").startswith("utf-16")
        data = decode(data, "utf-8" if is_wrong else label)
    if data.count("<") > MAX_TAGS:
        raise UnreadableDocumentError(f"has more than {MAX_TAGS:,} tags", remedy=SPLIT_REMEDY)
    if _XHTML.match(data[:_HEAD_BYTES]):
        data = _CLOSED_AT_ONCE.sub(r"<\1\2></\1>", data)
    if len(_LONG_SPANS.findall(data)) > _MOST_LONG_SPANS:
        data = _LONG_SPANS.sub("", data)
    return _MANY_ATTRIBUTES.sub(r"\1", data)


def load_html(data: bytes, name: str) -> LoadedDocument:
    """Read a page with its title, author, date and canonical address."""
    return from_html(html_text(data), name, is_page=True)


def from_html(html: str, name: str, *, is_page: bool = False) -> LoadedDocument:
    """Return a page as a document; `name` is its title if it has none."""
    start, end = _main_part(html)
    about = _convert(html[: start or end], is_about=True).metadata.document
    news = _news(html) if is_page and main_content_only.get() else None
    text = markdown_of(news or html[start:end])
    title, heading = one_line(about.title), top_heading(text)
    if title and heading in _BETWEEN_TITLES.split(title):
        # The rest is the name of the site.
        title = heading
    address = one_line(about.canonical_url)
    return LoadedDocument(
        title=title or heading or name,
        text=text,
        author=one_line(about.author),
        document_date=day(
            about.meta_tags.get("article-published_time") or about.meta_tags.get("date")
        ),
        source_url=address if is_web_address(address) else None,
        is_page=is_page,
    )


def _news(html: str) -> str | None:
    """Return the article of a page as trafilatura finds it, as HTML; None without one."""
    with needed("trafilatura", "news"):
        from trafilatura import extract
    found: str | None = extract(
        html, output_format="html", favor_recall=True, include_comments=False
    )
    if found is None:
        note("it has no article, and is read whole")
    return found


def markdown_of(html: str) -> str:
    """Return the text of a page, or of a part of it, as Markdown."""
    for pattern, new in _REPAIRS:
        html = pattern.sub(new, html)
    html = _without_layout(html)
    words = simple_text(html)
    expect(words, of="page")
    result = _convert(html)
    text = result.content or ""
    if any("depth limit" in warning.message for warning in result.warnings):
        note("its elements are nested too deeply: headings, lists and tables are read as text")
        text = words
    elif "rowspan" in html.lower():
        text = _repeat_merged_cells(text, result.tables)
    text = _LINE_ENDS.sub("\n", _BREAKS.sub("", clean(text)))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _without_layout(html: str) -> str:
    """Take tables from around headings, but those whose cell is a heading and nothing else."""
    alone = {found.start("heading") for found in _ONLY_HEADING.finditer(html)}
    tables: list[_Table] = []
    tags: list[tuple[int, int]] = []
    for tag in _TABLE_TAG.finditer(html):
        name = tag["name"].lower()
        if name == "table" and not tag["end"]:
            tables.append(_Table())
        if tables and name[0] != "h":
            tables[-1].tags.append(tag.span())
        elif tables and not tag["end"]:
            around = tables[:-1] if tag.start() in alone else tables
            for table in reversed(around):
                if table.is_layout:
                    break
                table.is_layout = True
        if tables and name == "table" and tag["end"]:
            closed = tables.pop()
            tags += closed.tags if closed.is_layout else []
    at, pieces = 0, []
    for start, end in sorted(
        [*tags, *(tag for one in tables if one.is_layout for tag in one.tags)]
    ):
        pieces += [html[at:start], "<p>"]
        at = end
    return "".join([*pieces, html[at:]])


def simple_text(html: str) -> str:
    """Return the text as a reader without a parser finds it, with each block on its own line."""
    html = COMMENT.sub("", html)
    at, parts = 0, []
    for start, end in _elements(html, _LEFT_OUT_TAG):
        parts.append(html[at:start])
        at = end
    text = re.sub(rf"</?(?:{BLOCKS})\b[^<>]*>", "\n", "".join([*parts, html[at:]]), flags=re.I)
    return _BREAKS.sub("", unescape(re.sub(r"<[/!?a-zA-Z][^<>]*>", "", text)))


@cache
def _options(*, is_about: bool) -> "ConversionOptions":
    with needed("html-to-markdown", "ingest"):
        from html_to_markdown import ConversionOptions, PreprocessingOptions
    # Addresses are no words of the text, and an image inside the page is a very long one.
    return ConversionOptions(
        bullets="*",
        compact_tables=True,
        autolinks=False,
        expand_abbreviations=False,
        extract_metadata=is_about,
        include_blockquote_citations=False,
        include_document_structure=True,
        highlight_style="none",
        hidden_content="reachable",
        skip_images=True,
        strip_tags=["a"],
        exclude_selectors=_LEFT_OUT,
        preprocessing=PreprocessingOptions(enabled=False),
    )


def _convert(html: str, *, is_about: bool = False) -> "ConversionResult":
    with needed("html-to-markdown", "ingest"):
        from html_to_markdown import convert
    return convert(html, _options(is_about=is_about))


def _blank(html: str) -> str:
    """Return the page with spaces in place of comments and scripts."""
    return COMMENT.sub(lambda found: " " * len(found[0]), html)


def _elements(html: str, start_tag: re.Pattern[str]) -> list[tuple[int, int]]:
    """Return the offsets of the outermost of these elements."""
    spans: list[tuple[int, int]] = []
    while found := start_tag.search(html, spans[-1][1] if spans else 0):
        depth, end = 1, len(html)
        name = found["tag"] or found["other"]
        for tag in re.compile(rf"<(/?){name}\b[^<>]*>", re.I).finditer(html, found.end()):
            depth += -1 if tag[1] else 1
            if not depth:
                end = tag.end()
                break
        spans.append((found.start(), end))
    return spans


def _main_part(html: str) -> tuple[int, int]:
    plain = _blank(html)

    def length(start: int, end: int) -> int:
        return len(re.sub(r"<[^<>]*>|\s", "", plain[start:end]))

    least = max(_LEAST_SHARE * length(0, len(plain)), 1)
    main = [
        span
        for span in _elements(plain, _MAIN)[:_MOST_PLACES]
        if not re.match(r"<[^<>]*\shidden\b", plain[span[0] :])
    ]
    longest = max(main, key=lambda span: length(*span), default=(0, 0))
    if length(*longest) >= least:
        return longest
    found = _elements(plain, _CONTENT)
    # Two articles on one page are a list of them; a title outside has the page's first lines.
    if len(found) == 1 and length(*found[0]) >= least:
        start, end = found[0]
        if "<h1" in plain[start:end].lower() or "<h1" not in plain.lower():
            return start, end
    return 0, len(html)


def _repeat_merged_cells(text: str, tables: Iterable[Any]) -> str:
    """Write a cell of several rows into each of them, in its columns."""
    parts, at, repeated, missed = [], 0, 0, 0
    for one in tables:
        cells = one.grid.cells
        if missed > _MOST_PLACES or all(cell.row_span < 2 for cell in cells):
            continue
        start = text.find(one.markdown, at)
        if start < 0:
            # Its lines are indented in a list.
            missed += 1
            continue
        rows: list[dict[int, str]] = [{} for _ in range(one.grid.rows)]
        for cell in cells:
            content = "" if len(cell.content) > LONGEST_REPEATED else cell.content
            column = next(at for at in range(len(rows[cell.row]) + 1) if at not in rows[cell.row])
            for row in range(cell.row, min(cell.row + cell.row_span, len(rows))):
                repeated += cell.col_span if row > cell.row else 0
                for more in range(cell.col_span if repeated < MOST_REPEATED else 0):
                    rows[row][column + more] = "" if more else content
            rows[cell.row][column] = cell.content
        lines = [
            "|" + "".join(f" {row[at]} |" if row[at] else " |" for at in sorted(row))
            for row in rows
            if row
        ]
        first = _TABLE_ROW.search(one.markdown)
        lines.insert(1, "|" + " --- |" * max(map(len, rows)))
        parts += [text[at:start], one.markdown[: first.start() if first else 0], "\n".join(lines)]
        at = start + len(one.markdown)
    return "".join([*parts, text[at:]])
