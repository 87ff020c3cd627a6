"""The output of hits and explanations on the terminal."""

import html
import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Column, Table
from rich.text import Text

from second_brain.cli.corpus import schema_option
from second_brain.retrieval.answer import SearchResult
from second_brain.services.results import REMEDIES, FacetCount

# Width of tables when the output is a file or a pipe.
_PIPED_WIDTH = 100


def new_console(*, stderr: bool = False) -> Console:
    """Return a console that is wide enough for a table when the output is not a terminal."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(width=_PIPED_WIDTH, stderr=stderr)


def new_table(*columns: str | Column, right: Iterable[str] = ()) -> Table:
    """Return a table without lines; the columns of `right` come last and have numbers."""
    plain = (Column(one, overflow="fold") if isinstance(one, str) else one for one in columns)
    numbers = (Column(one, justify="right") for one in right)
    return Table(*plain, *numbers, box=None, pad_edge=False, header_style="bold")


def print_explanation(explained: dict[str, Any], first: int) -> None:
    """Print the result of explain_hybrid_search: legs, lexemes, fusion and hits."""
    console = new_console()
    text, fusion, lists = explained["text"], explained["fusion"], explained["lists"]
    legs = Table.grid(padding=(0, 2))
    for leg in ("vector", "text"):
        legs.add_row(Text(f"{leg} leg", style="bold"), _leg_summary(explained, leg))
    # None if the query has no searchable word.
    if text["mean_length"] is not None:
        legs.add_row(
            "",
            f"{number(text['candidates'], 'candidate')} of {number(text['chunks'], 'chunk')}, "
            f"{text['mean_length']:.0f} words on average",
        )
    said = fusion["policy"]
    if weights := fusion["weights"]:
        said += f", weights: vector {weights['vector'] or 0:.3f}, text {weights['text'] or 0:.3f}"
    legs.add_row(Text("fusion", style="bold"), said)
    legs.add_row(Text("whole call", style="bold"), f"{explained['milliseconds']['hybrid']:.1f} ms")
    console.print(legs, highlight=False)
    tables = (
        _lists_table(lists) if len(lists) > 1 else None,
        _lexeme_table(text["lexemes"]) if text["lexemes"] else None,
        _explained_hits_table(explained["hits"], first)
        if explained["hits"]
        else Text(printable(f"Nothing found. {(explained.get('empty') or {}).get('message', '')}")),
    )
    for table in tables:
        if table is not None:
            console.print()
            console.print(table)


def estimate_text(estimated: dict[str, Any]) -> str:
    """Return the result of estimate_hybrid_search in a line for each fact."""
    matching, chunks = round(estimated["matching"]), round(estimated["chunks"])
    lines = [
        f"about {estimated['milliseconds']:.1f} ms in the database",
        f"about {matching:,} of {number(chunks, 'chunk')} pass the filters",
    ]
    for leg in ("vector", "text"):
        cost = estimated[leg]
        if cost["milliseconds"] is None:
            lines.append(f"{leg} leg: {cost['strategy']}")
        else:
            rows = f"about {number(round(cost['rows']), 'row')}, {cost['milliseconds']:.1f} ms"
            lines.append(f"{leg} leg: {cost['strategy']}, {rows}")
    return "\n".join(lines)


def why_not_text(explained: dict[str, Any]) -> str:
    """Return the result of explain_missing_knowledge_chunk in a line for each fact."""
    document, chunk = explained["document"], explained["chunk"]
    lines = []
    if document is not None or chunk is not None:
        key = chunk["id"] if document is None else document["external_key"]
        title = document and document["title"]
        index = chunk and chunk["chunk_index"]
        name = f"{title} ({key})" if title and title != key else key
        place = "" if index is None else f", chunk {index}"
        lines.append(f"{name}{place}: {'found' if explained['is_found'] else 'not found'}")
        if explained["place"] is not None:
            lines.append(f"place {explained['place']}")
    for leg, score in (("vector", "similarity"), ("text", "score")):
        standing = explained[leg]
        if not standing["is_run"]:
            lines.append(f"{leg} leg: not run")
        elif standing["rank"] is not None:
            lines.append(
                f"{leg} leg: rank {standing['rank']} (pool {explained['pool']}), "
                f"{score} {standing[score]:.3f}"
            )
    for cause in explained["causes"]:
        where = cause.get("argument") or cause.get("leg")
        name = cause["cause"].replace("_", " ")
        lines.append(f"{name}{f' ({where})' if where else ''}: {cause['reason']}")
        if remedy := REMEDIES.get(cause["cause"]):
            lines.append(f"  {remedy}")
    return "\n".join(map(printable, lines))


def _leg_summary(explained: dict[str, Any], name: str) -> str:
    leg, milliseconds = explained[name], explained["milliseconds"][name]
    # A query of only stop words has a time although the leg did not run.
    if milliseconds is None or leg["strategy"] == "not run":
        return "not run"
    each = " in each list" if len(explained["lists"]) > 1 else ""
    rows = f"{number(leg['rows'], 'row')} for a pool of {explained['pool']}{each}"
    shortfall = f"\nfewer rows than the pool: {leg['ran_dry']}" if leg["ran_dry"] else ""
    return f"{leg['strategy']}; {rows}, {milliseconds:.1f} ms{shortfall}"


def _lists_table(lists: Sequence[dict[str, Any]]) -> Table:
    """Return the table of the fused lists, one for each collection."""
    names = (Column(name, max_width=36) for name in ("collection", "vector leg", "text leg"))
    table = new_table(*names, right=("vector weight", "text weight"))
    for one in lists:
        vector, text = (f"{one[leg]['rows']}, {one[leg]['strategy']}" for leg in ("vector", "text"))
        table.add_row(
            Text(printable(one["collection"] or "all others")),
            vector,
            text,
            *(f"{one['weights'][leg] or 0:.3f}" for leg in ("vector", "text")),
        )
    return table


def facets_table(counts: Sequence[FacetCount]) -> Table:
    """Return the table of counts, facet by facet."""
    value = Column("value", max_width=40, no_wrap=True, overflow="ellipsis")
    table = new_table(Column("facet", max_width=40), value, right=("count",))
    for one in counts:
        table.add_row(Text(printable(one.facet)), Text(printable(str(one.value))), f"{one.count:,}")
    return table


def _lexeme_table(lexemes: Sequence[dict[str, Any]]) -> Table:
    lexeme = Column("lexeme", max_width=40, no_wrap=True, overflow="ellipsis")
    table = new_table(lexeme, right=("documents", "weight"))
    table.add_column("candidates")
    for one in lexemes:
        table.add_row(
            Text(printable(one["lexeme"])),
            f"{one['document_frequency']:,.0f}",
            f"{one['weight']:.3f}",
            "left out, only scored" if one["left_out"] else "used",
        )
    return table


def _explained_hits_table(hits: Sequence[dict[str, Any]], first: int) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right", min_width=len(str(first + len(hits))))
    table.add_column("title and chunk", ratio=1, no_wrap=True, overflow="ellipsis")
    for name in ("vector", "cosine", "text", "BM25", "score"):
        table.add_column(name, justify="right", min_width=6)
    table.add_column("matched", width=14, no_wrap=True, overflow="ellipsis")
    for rank, hit in enumerate(hits, start=first):
        chunk = "" if hit["chunk_index"] is None else f", chunk {hit['chunk_index']}"
        table.add_row(
            str(rank),
            Text(printable(f"{hit['title'] or hit['id']}{chunk}")),
            str(hit["vector_rank"] or "-"),
            "-" if hit["similarity"] is None else f"{hit['similarity']:.3f}",
            str(hit["text_rank"] or "-"),
            "-" if hit["text_score"] is None else f"{hit['text_score']:.3f}",
            f"{hit['rrf_score']:.4f}",
            Text(printable(" ".join(hit["matched_terms"] or ())), style="green"),
        )
    return table


def results_table(results: Sequence[SearchResult], *, is_whole: bool) -> Table:
    """Return the table of hits.

    With `is_whole` the snippet takes as many lines as it needs, else one.
    """
    table = Table(box=None, expand=True, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right", min_width=len(str(results[-1].rank + 1)))
    table.add_column("title and excerpt", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("vector", justify="right", min_width=6)
    table.add_column("text", justify="right", min_width=4)
    table.add_column("score", justify="right", min_width=6)
    table.add_column("matched", width=14, no_wrap=True, overflow="ellipsis")
    for hit in results:
        table.add_row(
            str(hit.rank),
            Group(
                Text(_title(hit), style="bold"),
                _whole(hit) if is_whole else _Excerpt(hit),
                *_neighbors(hit),
            ),
            str(hit.vector_rank or "-"),
            str(hit.text_rank or "-"),
            f"{hit.rrf_score:.4f}",
            Text("\n".join(printable(term) for term in hit.matched_terms[:2]), style="green"),
        )
    return table


def show_command(hit: SearchResult, schema: str) -> str:
    """Return the command that shows the document of a hit, for people to copy."""
    key = hit.external_key
    # A key that this terminal cannot show is not for copying.
    name = shlex.quote(key) if key and key.isprintable() else hit.document_id or hit.id
    return f"second-brain corpus show {name}{schema_option(schema)}"


def cell(hit: SearchResult) -> Group:
    """Return a hit in two lines, for a column beside others."""
    legs = (("v", hit.vector_rank), ("t", hit.text_rank))
    ranks = [f"{leg}{rank}" for leg, rank in legs if rank]
    return Group(Text(_title(hit), style="bold"), _Excerpt(hit, f"{' '.join(ranks)}  "))


def _title(hit: SearchResult) -> str:
    parts = (hit.title, hit.metadata.get("section"))
    title = " > ".join(str(part) for part in parts if part) or "untitled"
    return printable(title + _cited_pages(hit.metadata.get("pages")))


def _cited_pages(pages: object) -> str:
    """Return the first and last page of a hit for a citation; `pages` may be any JSON value."""
    if not isinstance(pages, list) or not pages:
        return ""
    return f", page {pages[0]}" if len(pages) == 1 else f", pages {pages[0]}-{pages[-1]}"


class _Excerpt:
    """One line of a hit that fits the column: the part of its snippet with the most marks."""

    def __init__(self, hit: SearchResult, prefix: str = "") -> None:
        self._snippet = _snippet(hit)
        self._prefix = prefix

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - len(self._prefix)
        line = self._snippet
        if line.cell_len > room:
            # A wide character takes two cells.
            size = room * len(line) // line.cell_len - 2
            start = _best_start([(span.start, span.end) for span in line.spans], size)
            if start:
                line = Text("… ", style="dim") + line[start:]
        yield Text.assemble((self._prefix, "dim"), line, no_wrap=True, overflow="ellipsis")


def _best_start(marks: Sequence[tuple[int, int]], size: int) -> int:
    """Return the start of the part of `size` characters that contains the most marks."""
    best, most = 0, 0
    for first, _ in [(0, 0), *marks]:
        # Keep some words before the first mark if there is room.
        start = max(0, first - size // 5)
        whole = sum(start <= begin and end <= start + size for begin, end in marks)
        if whole > most:
            best, most = start, whole
    return best


def _whole(hit: SearchResult) -> Text:
    text = _snippet(hit)
    text.no_wrap, text.overflow = False, "fold"
    return text


def _neighbors(hit: SearchResult) -> list[Text]:
    chunks = [] if hit.context is None else hit.context.split("\n[CHUNK BOUNDARY]\n")
    return [Text(f"| {printable(chunk)}", style="dim") for chunk in chunks]


def _snippet(hit: SearchResult) -> Text:
    """Return the snippet with its `<mark>` words emphasised and its HTML unescaped.

    Without a mark, return the first line of the content that is not blank.
    """
    snippet = hit.snippet
    if snippet is None or "<mark>" not in snippet:
        lines = (line.strip(" #`>*-|") for line in hit.content.splitlines())
        return Text(printable(next(filter(None, lines), "")), style="dim")
    text = Text(style="dim")
    for place, part in enumerate(re.split("</?mark>", snippet)):
        text.append(printable(html.unescape(part)), "bold green" if place % 2 else None)
    return text


def printable(text: str) -> str:
    """Return the text with control characters replaced, which could change the terminal."""
    return "".join(
        character if character.isprintable() else " " for character in text.replace("\n", " ")
    )


def visible(text: str) -> str:
    """Return the text with control characters as codes; line breaks and tabs stay."""
    return "".join(
        character
        if character.isprintable() or character in "\n\t"
        else " "
        if unicodedata.category(character) == "Zs"
        else character.encode("unicode_escape").decode()
        for character in text
    )


def number(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun, in the plural unless it is 1."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def size_of(value: int) -> str:
    """Return a number of bytes as people say it."""
    size, units = float(value), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if size >= 10 or units[0] == "B" else f"{size:.1f} {units[0]}"
