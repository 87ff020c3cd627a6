"""The report of an evaluation: one HTML file without scripts or external resources.

The template `report.html` draws; this module computes what it draws, and explains the queries that
lose most by searching for them again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from second_brain.evaluation.collection import Query
from second_brain.evaluation.comparison import LEGS, RERANK, Comparison, Mode, Source
from second_brain.evaluation.metrics import NDCG, TEST
from second_brain.evaluation.pages import environment
from second_brain.evaluation.runs import RERANKED, Searcher

# Units of the width of a plot. The browser stretches its shapes, but not the labels.
_WIDTH = 1000
_MOST_BARS = 400
_BINS = 45
_MOST_TICKS = 6
_MOST_RELEVANT = 8
_LONGEST = 140
_EXPLAINED = 8
_SHOWN_HITS = 5

_TITLES = """
    select document.external_key, coalesce(document.title, first_chunk.content)
    from public.knowledge_documents as document
    left join lateral (
      select chunk.content
      from knowledge_internal.chunk_rows as chunk
      where chunk.document_id = document.id
      order by chunk.chunk_index, chunk.id
      limit 1
    ) as first_chunk on true
    where document.external_key = any (%(documents)s::text[])
"""


@dataclass(frozen=True, slots=True)
class Relevant:
    """A relevant document: its grade, its rank in each search, and the scores of both legs."""

    title: str
    grade: int
    ranks: tuple[int | None, ...]
    similarity: float | None
    text_score: float | None
    matched_terms: Sequence[str]


@dataclass(frozen=True, slots=True)
class Explanation:
    """One query: nDCG@10 by mode, the first hits of the reference, and the relevant documents.

    A hit is its title, its grade and its metadata.
    """

    query: Query
    values: dict[str, float]
    hits: tuple[tuple[str, int, Mapping[str, Any]], ...]
    relevant: tuple[Relevant, ...]


def render(found: Comparison, source: Source, searcher: Searcher) -> str:
    """Return the report as a complete HTML document."""
    rivals = _rivals(found)
    losing, failing = _worst(found, rivals)
    depths = (10, found.collection.depth)
    found_by = {depth: counts for depth in depths if (counts := found.found_by(depth))}
    templates = environment()
    templates.filters.update(short=_short, signed=_signed)
    return templates.get_template("report.html").render(
        comparison=found,
        source=source,
        **_gains(found),
        found=found_by,
        times=_times(found),
        rivals=rivals,
        ranked_heads=[f"{name} rank" for name in _ranked_modes(found)],
        losses=[_explain(searcher, found, rivals, query) for query in losing],
        failures=[_explain(searcher, found, rivals, query) for query in failing],
        width=_WIDTH,
        most_relevant=_MOST_RELEVANT,
        reranked=RERANKED,
        test=TEST,
        version=version("second-brain"),
    )


def _gains(found: Comparison) -> dict[str, Any]:
    """Return a figure for each verdict, and one scale, so that readers can compare them."""
    texts = {query.id: query.text for query in found.collection.queries}
    figures: list[dict[str, Any]] = []
    every = [0.0]
    for ours, theirs, _ in found.verdicts():
        own, other = found.values[ours][NDCG], found.values[theirs][NDCG]
        differences = {query: own[query] - other[query] for query in texts}
        every += differences.values()
        ordered = sorted(differences, key=lambda query: -differences[query])
        better = sum(difference > 0 for difference in differences.values())
        worse = sum(difference < 0 for difference in differences.values())
        size = math.ceil(len(ordered) / _MOST_BARS)
        bars = [
            (
                differences[query],
                f"{query}: {_signed(differences[query])} ({theirs} {other[query]:.3f}, {ours} "
                f"{own[query]:.3f})\n{_short(texts[query])}",
            )
            for query in ordered
        ]
        if size > 1:
            groups = [bars[begin : begin + size] for begin in range(0, len(bars), size)]
            bars = [
                (sum(value for value, _ in group) / len(group), f"{len(group)} queries")
                for group in groups
            ]
        figures.append(
            {
                "ours": ours,
                "theirs": theirs,
                "better": better,
                "worse": worse,
                "equal": len(ordered) - better - worse,
                "size": size,
                "bars": bars,
            }
        )
    above, below = _tenths(max(every)), _tenths(-min(every))
    tenth = min(20.0, 230 / (above + below))
    # A label for each tenth, or fewer if there are many; always one for zero.
    apart = math.ceil((above + below) / 8)
    shown = [tenths for tenths in range(-below, above + 1) if tenths % apart == 0]
    scale = {
        "unit": 10 * tenth,
        "middle": above * tenth,
        "height": round((above + below) * tenth),
        "lines": [(f"{(above - tenths) * tenth:.1f}", tenths / 10) for tenths in shown],
    }
    return {"gains": figures, "scale": scale}


def _tenths(value: float) -> int:
    """Return how many tenths an axis needs for a value, at least 1."""
    return max(1, math.ceil(value * 10 - 1e-9))


def _times(found: Comparison) -> dict[str, Any]:
    """Return a histogram of the latency of each mode, on one logarithmic axis."""
    times = {mode: [max(time, 0.01) for time in found.milliseconds(mode)] for mode in found.modes}
    everything = [time for own in times.values() for time in own] or [1.0]
    ticks = _ticks(min(everything), max(everything))
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])

    def x(time: float) -> float:
        return (math.log10(max(time, 0.01)) - low) / (high - low) * _WIDTH

    bars = {}
    for mode, own in times.items():
        counts = [0] * _BINS
        for time in own:
            counts[min(int(x(time) / _WIDTH * _BINS), _BINS - 1)] += 1
        bars[mode] = [
            (place, count, count / max(counts)) for place, count in enumerate(counts) if count
        ]
    return {
        "ticks": [(x(tick), f"{tick:,g}") for tick in ticks],
        "step": _WIDTH / _BINS,
        "bars": bars,
        "marks": {
            mode: [x(found.latency(mode, share)) for share in (50, 95)] if own else []
            for mode, own in times.items()
        },
    }


def _ticks(low: float, high: float) -> list[float]:
    """Return ticks of a logarithmic axis, from the first one below `low` to the first above."""
    for digits in ((1, 2, 5), (1,)):
        every = [digit * 10.0**power for power in range(-3, 7) for digit in digits]
        first = max(tick for tick in every if tick <= low)
        last = min(tick for tick in every if tick >= high and tick > first)
        ticks = [tick for tick in every if first <= tick <= last]
        if len(ticks) <= _MOST_TICKS:
            break
    return ticks


def _rivals(found: Comparison) -> list[str]:
    """Name what the reference should not lose against: the legs alone, else the other modes."""
    others = [name for name in found.modes if name not in (found.reference, RERANK)]
    return [name for name in others if found.modes[name].leg != "hybrid"] or others


def _worst(found: Comparison, rivals: Sequence[str]) -> tuple[list[Query], list[Query]]:
    """Return the queries with the largest loss to the best rival, and with the lowest nDCG@10."""
    own = found.values[found.reference][NDCG]

    def gain(query: Query) -> float:
        theirs = (found.values[name][NDCG][query.id] for name in rivals)
        return own[query.id] - max(theirs, default=0.0)

    queries = found.collection.queries
    losing = sorted((query for query in queries if gain(query) < 0), key=gain)[:_EXPLAINED]
    failing = sorted(
        (query for query in queries if query not in losing), key=lambda query: own[query.id]
    )
    return losing, [query for query in failing[:_EXPLAINED] if own[query.id] < 1]


def _ranked_modes(found: Comparison) -> dict[str, Mode]:
    """Return the legs alone and the reference."""
    own = found.modes[found.reference]
    return {mode.name: found.modes.get(mode.name, mode) for mode in (*LEGS, own)}


def _explain(
    searcher: Searcher, found: Comparison, rivals: Sequence[str], query: Query
) -> Explanation:
    hits = {
        name: searcher.hits(query, mode.leg, mode.settings, found.collection.depth)
        for name, mode in _ranked_modes(found).items()
    }
    own = hits[found.reference]
    grades = found.collection.relevant(query.id)
    named = searcher.database.execute(_TITLES, {"documents": [*own, *grades]})
    titles = {
        document: hit.metadata.get("title") or hit.content
        for ranked in hits.values()
        for document, hit in ranked.items()
    } | {document: title for document, title in named if title}
    relevant = []
    for document, grade in grades.items():
        vector, text = hits["vector"].get(document), hits["text"].get(document)
        relevant.append(
            Relevant(
                title=titles.get(document, "(not in the corpus)"),
                grade=grade,
                ranks=tuple(
                    [*ranked].index(document) + 1 if document in ranked else None
                    for ranked in hits.values()
                ),
                similarity=vector.metadata["similarity"] if vector else None,
                text_score=text.metadata["text_score"] if text else None,
                matched_terms=text.metadata["matched_terms"] if text else (),
            )
        )
    return Explanation(
        query=query,
        values={name: found.values[name][NDCG][query.id] for name in (*rivals, found.reference)},
        hits=tuple(
            (titles[document], grades.get(document, 0), hit.metadata)
            for document, hit in list(own.items())[:_SHOWN_HITS]
        ),
        relevant=tuple(relevant),
    )


def _signed(value: float, digits: int = 3) -> str:
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else ("+" if value > 0 else "\N{MINUS SIGN}") + text


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
