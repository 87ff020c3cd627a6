"""Markdown as text: its headings, its tables, and tables written as Markdown."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from itertools import accumulate, pairwise

from second_brain.ingest.document import MAX_HEADING, Heading

_DELIMITER_ROW = re.compile(r"^ {0,3}\|?(?: *:?-+:? *\|)+(?: *:?-+:? *)?$", re.MULTILINE)
_STRUCTURE = re.compile(r"^( {0,3})(?=#{1,6}(?:\s|$)|```|~~~|=+\s*$|-+\s*$)", re.MULTILINE)
_BLANK_LINE = re.compile(r"\n[ \t]*(?:\n|\Z)")
_CODE = ("fence", "code_block")
LONGEST_REPEATED, MOST_REPEATED = 500, 50_000
"""Characters of a merged cell that is repeated, and repeated cells of a table."""


@dataclass(frozen=True, slots=True)
class Table:
    """The offsets of a Markdown table: its two lines of header, and the end of its last row."""

    start: int
    rows: int
    end: int


# Code is read first, so that what stands in it stays: fences, lines that are indented, and spans.
_CODE_OR = (
    r"(?P<code>^[ >]*(?P<fence>`{3,}|~{3,})[^\n]*\n(?:.*\n)*?(?:[ >]*(?P=fence)|\Z)"
    r"|^(?: {4}|\t)[^\n]*|(?<!`)(?P<span>`+)(?!`)[^\n]{1,500}?(?<!`)(?P=span)(?!`))"
)
COMMENT = re.compile(
    r"<!--(?:(?!<!--)[\s\S])*?-->"
    r"|<(?P<program>script|style)\b[^<>]*>(?:(?!<(?P=program)\b)[\s\S])*?</(?P=program)\s*>",
    re.IGNORECASE,
)
"""A comment, a script or a style sheet of HTML."""
INLINE = (
    "a|abbr|acronym|b|big|bdi|bdo|cite|code|del|em|font|i|ins|kbd|mark|q|s|samp|small|span|strike|strong|sub"
    "|sup|tt|u|var|wbr"
)
"""The elements of HTML that stand inside a line, and do not divide words."""
BLOCKS = (
    "address|article|aside|blockquote|br|caption|center|dd|details|dialog|dir|div|dl|dt|fieldset"
    "|figcaption|figure|footer|form|h[1-6]|header|hgroup|hr|iframe|img|legend|li|main|menu|nav|ol"
    "|optgroup|option|p|picture|pre|progress|meter|output|search|section|source|summary|svg|table"
    "|tbody|td|textarea|tfoot|th|thead|title|tr|ul|video"
)
"""Those that stand on lines of their own."""
# Comments of Obsidian: not %%time, and not 5%%.
_PRIVATE = r"(?<![\w%\\])%%(?!%)(?:(?!%%)[\s\S])*?%%(?![\w%])"
_MARKUP = re.compile(
    rf"{_CODE_OR}|(?P<power><sup\b[^<>]*>(?=(?:&minus;|[+\u2212-])?\d))|{COMMENT.pattern}|{_PRIVATE}"
    rf"|(?P<tags>(?:</?(?:{INLINE}|{BLOCKS})(?:\s[^<>]*)?/?>)+)|(?P<letter>&#?\w{{2,31}};)",
    re.MULTILINE | re.IGNORECASE,
)
_BLOCK = re.compile(rf"</?(?:{BLOCKS})\b", re.IGNORECASE)
# Components, fragments and expressions of MDX.
_COMPONENTS = re.compile(
    rf"{_CODE_OR}|\{{/\*(?:(?!\{{/\*)[\s\S])*?\*/\}}|</?[A-Z][\w.]*(?:\s(?:[^<>{{}}]|\{{[^{{}}]*\}})*)?/?>|</?>",
    re.MULTILINE,
)
# A definition, a picture, and any other long address with data in it.
_DATA = re.compile(
    r"^ {0,3}\[[^\]\n]+\]:[ \t]*<?data:[^\s>]*>?[^\n]*\n?"
    r"|!\[(?P<alt>[^\]\n]{0,1000})\]\(\s*<?data:[^()\s]*(?:\s[^()\n]*)?\)"
    r"|data:[\w.+-]+/[\w.+-]+(?:;[\w=-]+)*;base64,[\w+/=%-]{40,}",
    re.MULTILINE | re.IGNORECASE,
)


def without_markup(markdown: str, *, with_components: bool = False) -> str:
    """Leave out comments and tags of HTML, and components and expressions of MDX; code stays."""
    if with_components:
        markdown = _COMPONENTS.sub(lambda found: found["code"] or _between(found), markdown)
    return _MARKUP.sub(_without, markdown)


def _without(found: re.Match[str]) -> str:
    if found["power"]:
        return "^"
    if found["letter"]:
        letter = unescape(found["letter"])
        # What would begin a heading, code or a cell stays as it is written.
        return found["letter"] if letter in "#`~=|<>\n" or len(letter) > 2 else letter
    if found["tags"] and _BLOCK.search(found["tags"]):
        return _between(found)
    return found["code"] or ""


def _between(found: re.Match[str]) -> str:
    """Return what divides the words beside a tag; a row of a table stays one line."""
    text, (start, end) = found.string, found.span()
    beside = f"{text[max(start - 1, 0) : start] or ' '}{text[end : end + 1] or ' '}"
    return "" if re.search(r"\s", beside) else " "


def without_pictures(text: str) -> str:
    """Leave out pictures and other files that are written into a text as `data:` addresses."""
    return _DATA.sub(lambda found: found["alt"] or "", text) if "data:" in text.lower() else text


def escaped(text: str) -> str:
    """Return a text no line of which begins a heading or code."""
    return _STRUCTURE.sub(r"\1\\", text)


def fenced(code: str, language: str = "") -> str:
    """Return code as a block of Markdown; an empty text for none."""
    if not code.strip():
        return ""
    longest = max((len(run) for run in re.findall("`{3,}", code)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{code.strip(chr(10))}\n{fence}"


def outline(markdown: str) -> tuple[list[Heading], list[Table]]:
    """Find the headings and the tables of a Markdown text, in order; those in code are none.

    A heading of more than MAX_HEADING characters is text.
    """
    from markdown_it import MarkdownIt

    # What begins with the sign of a tag is text here: it would hold all that follows.
    parser = MarkdownIt("commonmark").disable(["inline", "html_block"])
    inline = MarkdownIt("commonmark")
    lines = [0, *accumulate(len(line) + 1 for line in markdown.split("\n"))]
    headings, code = [], []
    tokens = parser.parse(markdown)
    for token, content in pairwise([*tokens, *tokens[-1:]]):
        if not token.map or token.level:
            continue
        first, after = token.map
        end = min(lines[after], len(markdown))
        if token.type in _CODE:
            code.append((lines[first], end))
        if token.type == "heading_open":
            start = end - len(markdown[lines[first] : end].lstrip())
            children = inline.parseInline(content.content)[0].children or []
            words = [child.content or " " * child.type.endswith("break") for child in children]
            text = " ".join("".join(words).replace("\u200b", "").split())
            # An anchor of Docusaurus, kramdown or pandoc.
            text = re.sub(r"\s*\{:?\s*#[^{}]*\}$", "", text)
            if len(text) <= MAX_HEADING:
                headings.append(Heading(int(token.tag[1:]), text, start, end))
    return headings, list(_tables(markdown, code))


def headings(markdown: str) -> list[Heading]:
    """Find the headings of a Markdown text, in order; a `#` in a code block is none."""
    return outline(markdown)[0]


def top_heading(markdown: str) -> str | None:
    """Return the first heading, unless there is another one of its depth or above it."""
    found = [heading for heading in headings(markdown) if heading.text]
    if not found or any(other.depth <= found[0].depth for other in found[1:]):
        return None
    return found[0].text


def table(rows: Iterable[Sequence[str]]) -> str:
    """Write rows as a Markdown table, the first one as its header; all get the same length."""
    cells = [[_cell(value) for value in row] for row in rows]
    columns = max(map(len, cells), default=0)
    lines = ["| " + " | ".join(row + [""] * (columns - len(row))) + " |" for row in cells]
    return "\n".join([*lines[:1], "|" + " --- |" * columns, *lines[1:]]) if columns else ""


def repeat_below(
    rows: Mapping[int, dict[int, str]], merged: Iterable[tuple[int, int, int]]
) -> None:
    """Write a cell of several rows into each of them that has other cells.

    `merged` are its column, its first and its last row.
    """
    repeated = 0
    for column, first, last in merged:
        value = rows[first].get(column, "") if first in rows else ""
        if not value or len(value) > LONGEST_REPEATED:
            continue
        for row in range(first + 1, last + 1):
            repeated += 1
            if repeated > MOST_REPEATED:
                return
            if row in rows:
                rows[row].setdefault(column, value)


def _cell(value: str) -> str:
    return " ".join(value.split()).replace("|", "\\|")


def _tables(markdown: str, code: Sequence[tuple[int, int]]) -> Iterator[Table]:
    end = 0
    for row in _DELIMITER_ROW.finditer(markdown):
        start = markdown.rfind("\n", 0, max(row.start() - 1, 0)) + 1
        inside = bisect_right(code, (row.start(), len(markdown))) - 1
        is_code = inside >= 0 and row.start() < code[inside][1]
        # A second row of dashes is one of the table's rows.
        if is_code or start < end or "|" not in markdown[start : row.start()]:
            continue
        blank = _BLANK_LINE.search(markdown, row.end())
        end = blank.start() + 1 if blank else len(markdown)
        yield Table(start, min(row.end() + 1, end), end)
