"""How hits and explanations are printed."""

import html
import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from second_brain.services.results import MemorySearchResult

# Enough for the table when the output goes into a file or a pipe.
_PIPED_WIDTH = 100


def new_console() -> Console:
    """Return a console that is wide enough for a table when the output is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPED_WIDTH)


def print_explanation(explained: dict[str, Any], first: int) -> None:
    """Print what explain_hybrid_search told: the legs, the lexemes, the fusion, the hits."""
    console = new_console()
    text, fusion, lists = explained["text"], explained["fusion"], explained["lists"]
    legs = Table.grid(padding=(0, 2))
    for leg in ("vector", "text"):
        legs.add_row(Text(f"{leg} leg", style="bold"), _leg_summary(explained, leg))
    # Not there without a word to search for.
    if text["mean_length"] is not None:
        legs.add_row(
            "",
            f"{number(text['candidates'], 'candidate')} of {number(text['chunks'], 'chunk')}, "
            f"{text['mean_length']:.0f} words on average",
        )
    weights = f", {_weights(fusion['weights'])}" if fusion["weights"] else ""
    legs.add_row(Text("fusion", style="bold"), f"{fusion['policy']}{weights}")
    legs.add_row(Text("whole call", style="bold"), f"{explained['milliseconds']['hybrid']:.1f} ms")
    console.print(legs, highlight=False)
    tables = (
        _lists_table(lists) if len(lists) > 1 else None,
        _lexeme_table(text["lexemes"]) if text["lexemes"] else None,
        _explained_hits_table(explained["hits"], first) if explained["hits"] else "Nothing found.",
    )
    for table in tables:
        if table is not None:
            console.print()
            console.print(table)


def _leg_summary(explained: dict[str, Any], name: str) -> str:
    leg, milliseconds = explained[name], explained["milliseconds"][name]
    # A query of nothing but stop words is timed too.
    if milliseconds is None or leg["strategy"] == "not run":
        return "not run"
    each = " in each list" if len(explained["lists"]) > 1 else ""
    rows = f"{number(leg['rows'], 'row')} for a pool of {explained['pool']}{each}"
    dry = f"\nran dry: {leg['ran_dry']}" if leg["ran_dry"] else ""
    return f"{leg['strategy']}; {rows}, {milliseconds:.1f} ms{dry}"


def _weights(weights: dict[str, float]) -> str:
    return f"weights: vector {weights['vector'] or 0:.3f}, text {weights['text'] or 0:.3f}"


def _lists_table(lists: Sequence[dict[str, Any]]) -> Table:
    """Show the lists that were fused, one for each collection."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("collection", "vector leg", "text leg"):
        table.add_column(name, max_width=36)
    table.add_column("vector weight", justify="right")
    table.add_column("text weight", justify="right")
    for one in lists:
        vector, text = (f"{one[leg]['rows']}, {one[leg]['strategy']}" for leg in ("vector", "text"))
        table.add_row(
            Text(printable(one["collection"])),
            vector,
            text,
            *(f"{one['weights'][leg] or 0:.3f}" for leg in ("vector", "text")),
        )
    return table


def _lexeme_table(lexemes: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("lexeme", max_width=40, no_wrap=True, overflow="ellipsis")
    table.add_column("documents", justify="right")
    table.add_column("weight", justify="right")
    table.add_column("candidates")
    for one in lexemes:
        table.add_row(
            Text(printable(one["lexeme"])),
            f"{one['document_frequency']:,.0f}",
            f"{one['weight']:.3f}",
            "left out, still scored" if one["left_out"] else "drawn",
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


def results_table(results: Sequence[MemorySearchResult], first: int) -> Table:
    """Return the table of hits; `first` is the rank of the first one."""
    table = Table(box=None, expand=True, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right", min_width=len(str(first + len(results))))
    table.add_column("title and best line", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("vector", justify="right", min_width=6)
    table.add_column("text", justify="right", min_width=4)
    table.add_column("score", justify="right", min_width=6)
    table.add_column("matched", width=14, no_wrap=True, overflow="ellipsis")
    for rank, hit in enumerate(results, start=first):
        terms = hit.metadata["matched_terms"]
        table.add_row(
            str(rank),
            Text("\n").join([Text(_title(hit), style="bold"), *_lines(hit)]),
            str(hit.metadata["vector_rank"] or "-"),
            str(hit.metadata["text_rank"] or "-"),
            f"{hit.metadata['rrf_score']:.4f}",
            Text("\n".join(printable(term) for term in terms[:2]), style="green"),
        )
    return table


def cell(hit: MemorySearchResult) -> Text:
    """Return a hit in two lines, for a column beside others."""
    ranks = [
        f"{leg}{rank}"
        for leg, rank in (
            ("v", hit.metadata["vector_rank"]),
            ("t", hit.metadata["text_rank"]),
        )
        if rank
    ]
    text = Text(_title(hit), style="bold")
    return text + Text(f"\n{' '.join(ranks)}  {_best_line(hit)}", style="dim")


def _title(hit: MemorySearchResult) -> str:
    parts = (hit.metadata.get("title"), hit.metadata.get("section"))
    return printable(" > ".join(str(part) for part in parts if part) or "untitled")


def _lines(hit: MemorySearchResult) -> list[Text]:
    """Return what stands under the hit's title: the excerpt or best line, and its neighbours."""
    snippet, context = hit.metadata["snippet"], hit.metadata["context"]
    lines = [_highlighted(snippet) if snippet else Text(_best_line(hit), style="dim")]
    if context is not None:
        chunks = context.split("\n[CHUNK BOUNDARY]\n")
        lines += [Text(f"| {printable(chunk)}", style="dim") for chunk in chunks]
    return lines


def _highlighted(snippet: str) -> Text:
    """Return the excerpt with its `<mark>` words emphasised and its HTML unescaped."""
    text = Text(style="dim")
    for place, part in enumerate(re.split("</?mark>", snippet)):
        text.append(printable(html.unescape(part)), "bold green" if place % 2 else None)
    return text


def _best_line(hit: MemorySearchResult) -> str:
    """Return the line of the hit that has the most of the query's words, the first of these."""
    terms = [term.casefold() for term in hit.metadata["matched_terms"]]
    lines = [line.strip(" #`>*-|") for line in hit.content.splitlines()]
    best = max(
        (line for line in lines if line),
        key=lambda line: sum(term in line.casefold() for term in terms),
        default="",
    )
    return printable(best)


def printable(text: str) -> str:
    """Return the text without what would steer the terminal."""
    return "".join(
        character if character.isprintable() else " " for character in text.replace("\n", " ")
    )


def number(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is 1."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
