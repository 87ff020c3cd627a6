"""The report of an evaluation: one HTML file without scripts or external resources.

This module only draws; the evaluation contains all figures.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.metadata import version

from second_brain.evaluation.metrics import MEASURES, TEST, Difference
from second_brain.evaluation.runs import DEPTH, LEGS, RERANKED, Evaluation, Explanation, Judged
from second_brain.services.arguments import Leg

# Units of the width of a plot. The browser stretches its shapes, but not the labels.
_WIDTH = 1000
_MOST_BARS = 400
_BINS = 45
_MOST_TICKS = 6
_MOST_RELEVANT = 8
_LONGEST = 140

_STYLE = """
:root {
  color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --ink: #1d2126; --soft: #5c6670; --line: #dfe3e7;
  --vector: #2f6fb7; --text: #a85f08; --hybrid: #6a45b0; --both: #1f7a63; --neither: #6b757e;
  --rerank: #a8326e;
  --gain: #23856d; --loss: #bf3d3a; --mark: #e3f3ee;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --card: #1c2024; --ink: #e6e9ec; --soft: #9aa5af; --line: #333a41;
    --vector: #6ea8e6; --text: #e0a04a; --hybrid: #ad90ea; --both: #52b79b; --neither: #66707a;
    --rerank: #e07fb0;
    --gain: #52b79b; --loss: #e5726e; --mark: #1d3a33;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 62rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif;
}
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 .35rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .4rem; }
p { margin: .4rem 0; max-width: 48rem; }
.soft, figcaption, footer { color: var(--soft); font-size: .9rem; }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1rem 1.2rem; margin: .9rem 0;
}
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { font-weight: 600; color: var(--soft); font-size: .85rem; text-align: left; }
th, td { padding: .38rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
.number { text-align: right; }
td.number { white-space: nowrap; }
.best { font-weight: 700; }
.vector { color: var(--vector); } .text { color: var(--text); } .hybrid { color: var(--hybrid); }
.rerank { color: var(--rerank); }
.gain { color: var(--gain); } .loss { color: var(--loss); }
.relevant td { background: var(--mark); }
details table { font-size: .9rem; }
details td.title { width: 60%; min-width: 15rem; overflow-wrap: anywhere; }
.terms { display: block; color: var(--soft); font-size: .85rem; }
figure { margin: .9rem 0; }
.plot { position: relative; margin: .8rem 0; }
.plot svg { display: block; width: 100%; height: 100%; }
.plot line { stroke: var(--line); vector-effect: non-scaling-stroke; }
.plot .mark { stroke: var(--ink); stroke-dasharray: 3 3; }
.plot span {
  position: absolute; color: var(--soft); font-size: .78rem; line-height: 1; white-space: nowrap;
}
.plot .y { right: calc(100% + .5rem); transform: translateY(-50%); }
.plot .x { top: calc(100% + .4rem); transform: translateX(-50%); }
.plot .x.first { transform: none; } .plot .x.last { transform: translateX(-100%); }
.row { display: flex; flex-wrap: wrap; gap: 0 1rem; font-size: .9rem; }
.stack {
  display: flex; height: 2rem; border-radius: 6px; overflow: hidden; margin: .15rem 0 .8rem;
}
.stack span {
  color: #fff; font-size: .85rem; line-height: 2rem; text-align: center; white-space: nowrap;
  overflow: hidden; min-width: 0;
}
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .9rem; }
.legend i {
  display: inline-block; width: .8rem; height: .8rem; border-radius: 3px; margin-right: .4rem;
}
details { border-bottom: 1px solid var(--line); padding: .55rem 0; }
details:last-of-type { border-bottom: 0; }
summary { cursor: pointer; }
summary b { overflow-wrap: anywhere; font-weight: 600; }
.values {
  display: flex; flex-wrap: wrap; gap: 0 1rem; padding-left: 1.05rem; font-size: .88rem;
  color: var(--soft);
}
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; }
@media (prefers-color-scheme: dark) { .stack span { color: #101316; } }
@media (max-width: 34rem) {
  body { padding: 1.5rem .75rem 3rem; }
  .card { padding: .75rem .8rem; }
  th, td { padding: .35rem .3rem; font-size: .82rem; }
  th { font-size: .75rem; }
}
@media print { details > * { display: block; } }
"""

_FOUND = (
    ("both", "both legs", "both"),
    ("vector", "vector only", "vector"),
    ("text", "text only", "text"),
    ("neither", "neither", "neither"),
)


def render(evaluation: Evaluation) -> str:
    """Return the report as a complete HTML document."""
    collection = evaluation.collection
    name = escape(collection.name)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}: search evaluation</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{name}</h1>
<p class="soft">{len(collection.documents):,} documents, {len(collection.queries):,} queries,
embeddings {escape(evaluation.embedding_model)} ({evaluation.dimensions} dimensions),
PostgreSQL {escape(evaluation.server)}, {_settings(evaluation)}</p>
{"".join(f'<p class="soft">{escape(remark)}.</p>' for remark in collection.remarks)}
{_summary(evaluation)}
<h2>Gains and losses, query by query</h2>
<p class="soft">The difference in nDCG@10 between hybrid search and one leg alone, for each query:
gains up, losses down. Hover over a bar to see its query.</p>
{_gains(evaluation)}
<h2>Which leg found the relevant documents</h2>
<p class="soft">All pairs of a query and a relevant document, counted by the legs that have the
document in their first 10 or {DEPTH}. Fusion can gain from documents that only one leg finds.</p>
{_found(evaluation)}
<h2>Latency</h2>
<p class="soft">Milliseconds of one call through the provider with {DEPTH} hits requested, one call
at a time, without the time to embed the query.</p>
{_latency(evaluation)}
<h2>Where hybrid loses most</h2>
<p class="soft">Queries where hybrid has a lower nDCG@10 than the better leg alone, the largest loss
first.</p>
{_explanations(evaluation.losses, "Hybrid is at least as good as the better leg for all queries.")}
<h2>Lowest nDCG@10</h2>
<p class="soft">The other queries with the lowest nDCG@10 of hybrid.</p>
{_explanations(evaluation.failures, "All other queries have an nDCG@10 of 1.")}
<footer>
<p>nDCG@10 (linear gains), Recall@{DEPTH} and MRR@10 are means over the queries, computed by
ir-measures; a document with a score of 1 or more is relevant. Significance of differences
in nDCG@10: {escape(TEST)}; a difference is significant if p is below 0.05.</p>
<p>Made by second-brain {escape(version("second-brain"))}.</p>
</footer>
</body>
</html>
"""


def _settings(evaluation: Evaluation) -> str:
    given = evaluation.settings.arguments()
    if not given:
        return "default arguments"
    return "arguments " + escape(", ".join(f"{name} {value}" for name, value in given.items()))


def _summary(evaluation: Evaluation) -> str:
    rows = []
    searches = evaluation.searches
    best = {name: max(evaluation.mean(one, name) for one in searches) for name in MEASURES}
    for search in searches:
        cells = []
        for name in MEASURES:
            value = evaluation.mean(search, name)
            style = " best" if value == best[name] else ""
            cells.append(f'<td class="number{style}">{value:.3f}</td>')
        rows.append(
            f'<tr><td><b class="{search}">{search}</b></td>{"".join(cells)}'
            f'<td class="number">{evaluation.latency(search, 50):.1f}</td>'
            f'<td class="number">{evaluation.latency(search, 95):.1f}</td>'
            f'<td class="number">{evaluation.empty(search):,}</td></tr>'
        )
    heads = "".join(
        f'<th class="number">{head.replace("@", "&#8203;@")}</th>'
        for head in (*MEASURES, "p50 ms", "p95 ms", "empty answers")
    )
    verdicts = "".join(
        _verdict("Hybrid", f'<b class="{leg}">{leg}</b> alone', found)
        for leg, found in evaluation.gains.items()
    )
    if evaluation.rerank_gain is not None:
        reranked = (
            f"Hybrid, its first {RERANKED} hits reranked by {escape(str(evaluation.reranker))},"
        )
        verdicts += _verdict(reranked, '<b class="hybrid">hybrid</b>', evaluation.rerank_gain)
    return (
        f'<div class="card wide"><table><thead><tr><th>search</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{verdicts}"
    )


def _verdict(ours: str, theirs: str, gain: Difference) -> str:
    kind = "gain" if gain.mean > 0 else "loss"
    verdict = f"a significant {kind}" if gain.significant else "not significant"
    colour = kind if gain.significant else "soft"
    how = f"all {gain.permutations:,}" if gain.exact else f"{gain.permutations:,} random"
    return (
        f"<p>{ours} against {theirs}: "
        f'<b class="{colour}">{_signed(gain.mean)}</b> nDCG@10, {verdict} '
        f'<span class="soft">(p = {gain.p_value:.4f}, {how} permutations)</span></p>'
    )


def _gains(evaluation: Evaluation) -> str:
    ndcg = {leg: evaluation.values[leg][MEASURES[0]] for leg in LEGS}
    queries = [query.id for query in evaluation.collection.queries]
    against = {
        leg: {query: ndcg["hybrid"][query] - ndcg[leg][query] for query in queries}
        for leg in evaluation.gains
    }
    # Both figures have the same scale, so that readers can compare them.
    every = [value for values in against.values() for value in values.values()]
    scale = _tenths(max(every)), _tenths(-min(every))
    return "".join(
        _gain_figure(evaluation, leg, differences, scale) for leg, differences in against.items()
    )


def _tenths(value: float) -> int:
    """Return how many tenths an axis needs for a value, at least 1."""
    return max(1, math.ceil(value * 10 - 1e-9))


def _gain_figure(
    evaluation: Evaluation, leg: Leg, differences: Mapping[str, float], scale: tuple[int, int]
) -> str:
    hybrid, other = (evaluation.values[one][MEASURES[0]] for one in ("hybrid", leg))
    texts = {query.id: query.text for query in evaluation.collection.queries}
    ordered = sorted(differences, key=lambda query: -differences[query])
    better = sum(difference > 0 for difference in differences.values())
    worse = sum(difference < 0 for difference in differences.values())
    size = math.ceil(len(ordered) / _MOST_BARS)
    if size == 1:
        bars = [
            (
                differences[query],
                f"{query}: {_signed(differences[query])} ({leg} {other[query]:.3f}, hybrid "
                f"{hybrid[query]:.3f})\n{_short(texts[query])}",
            )
            for query in ordered
        ]
    else:
        groups = [ordered[begin : begin + size] for begin in range(0, len(ordered), size)]
        bars = [
            (sum(differences[query] for query in group) / len(group), f"{len(group)} queries")
            for group in groups
        ]
    grouped = "" if size == 1 else f" Each bar is the mean of {size} queries."
    return (
        f'<figure class="card"><figcaption><b>Against <span class="{leg}">{leg}</span> alone:</b> '
        f'<span class="gain">{better:,} better</span>, {len(ordered) - better - worse:,} equal, '
        f'<span class="loss">{worse:,} worse</span>.{grouped}</figcaption>'
        f"{_bars(bars, scale)}</figure>"
    )


def _bars(bars: Sequence[tuple[float, str]], scale: tuple[int, int]) -> str:
    """Draw a bar for each value; `scale` is the tenths above and below zero."""
    above, below = scale
    tenth = min(20.0, 230 / (above + below))
    middle, height = above * tenth, (above + below) * tenth
    step = _WIDTH / len(bars)
    gap = min(1.5, step * 0.2)
    parts, labels = [], []
    # A label for each tenth, or fewer if there are many; always one for zero.
    apart = math.ceil((above + below) / 8)
    for tenths in range(-below, above + 1):
        if tenths % apart == 0:
            y = middle - tenths * tenth
            parts.append(f'<line x1="0" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
            label = _signed(tenths / 10, 1)
            labels.append(f'<span class="y" style="top: {y:.1f}px">{label}</span>')
    for place, (value, label) in enumerate(bars):
        length = abs(value) * 10 * tenth
        y = middle - length if value > 0 else middle
        kind = "gain" if value > 0 else "loss"
        # A transparent bar of full height shows the title also for very short bars.
        x = place * step
        parts.append(
            f'<g><title>{escape(label)}</title><rect x="{x:.2f}" y="0" width="{step:.2f}" '
            f'height="{height:.1f}" fill="transparent"/><rect x="{x:.2f}" y="{y:.2f}" '
            f'width="{step - gap:.2f}" height="{length:.2f}" fill="var(--{kind})"/></g>'
        )
    return _plot(height, "Differences in nDCG@10, sorted", parts, labels, "margin-left: 2.2rem")


def _found(evaluation: Evaluation) -> str:
    parts = []
    for depth in (10, DEPTH):
        counts = evaluation.found_by(depth)
        total = sum(counts.values())
        spans = "".join(
            f'<span style="flex: {counts[key]} 0 0; background: var(--{colour})" '
            f'title="{label}: {counts[key]:,} of {total:,}">{_share(counts[key], total)}</span>'
            for key, label, colour in _FOUND
            if counts[key]
        )
        parts.append(
            f'<div>Among the first {depth} <span class="soft">({total:,} relevant)</span></div>'
            f'<div class="stack">{spans}</div>'
        )
    legend = "".join(
        f'<span><i style="background: var(--{colour})"></i>{label}</span>'
        for _, label, colour in _FOUND
    )
    return f'<figure class="card">{"".join(parts)}<div class="legend">{legend}</div></figure>'


def _share(count: int, total: int) -> str:
    share = 100 * count / total
    return f"{share:.0f} %" if share >= 8 else ""


def _latency(evaluation: Evaluation) -> str:
    searches = evaluation.searches
    times = {one: [max(time, 0.01) for time in evaluation.milliseconds(one)] for one in searches}
    everything = [time for one in searches for time in times[one]]
    ticks = _ticks(min(everything), max(everything))
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])
    height = 56

    def x(time: float) -> float:
        return (math.log10(max(time, 0.01)) - low) / (high - low) * _WIDTH

    grid = [f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="0" y2="{height}"/>' for tick in ticks]
    rows = []
    for search in searches:
        counts = [0] * _BINS
        for time in times[search]:
            counts[min(int(x(time) / _WIDTH * _BINS), _BINS - 1)] += 1
        step = _WIDTH / _BINS
        bars = [
            f'<rect x="{place * step:.1f}" y="{height * (1 - count / max(counts)):.1f}" '
            f'width="{step - 2:.1f}" height="{height * count / max(counts):.1f}" '
            f'fill="var(--{search})"><title>{count} queries</title></rect>'
            for place, count in enumerate(counts)
            if count
        ]
        named = []
        for share in (50, 95):
            time = evaluation.latency(search, share)
            bars.append(
                f'<line class="mark" x1="{x(time):.1f}" x2="{x(time):.1f}" y1="0" y2="{height}"/>'
            )
            named.append(f"<span>p{share} {time:.1f} ms</span>")
        label = f"Latency of {search} in milliseconds"
        rows.append(
            f'<div class="row"><b class="{search}">{search}</b>{"".join(named)}</div>'
            f"{_plot(height, label, [*grid, *bars], _tick_labels(ticks, x), 'margin-bottom: 2rem')}"
        )
    return (
        f'<figure class="card">{"".join(rows)}<figcaption>Queries by time, on a logarithmic axis. '
        "Dashed: p50 and p95.</figcaption></figure>"
    )


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


def _tick_labels(ticks: Sequence[float], x: Callable[[float], float]) -> list[str]:
    # Labels at the ends stay inside the plot, and only the last one has the unit.
    ends = {0: " first", len(ticks) - 1: " last"}
    return [
        f'<span class="x{ends.get(place, "")}" style="left: {x(tick) * 100 / _WIDTH:.1f}%">'
        f"{tick:,g}{' ms' if place == len(ticks) - 1 else ''}</span>"
        for place, tick in enumerate(ticks)
    ]


def _explanations(explanations: Sequence[Explanation], nothing: str) -> str:
    if not explanations:
        return f"<p>{nothing}</p>"
    return f'<div class="card">{"".join(map(_explanation, explanations))}</div>'


def _explanation(explanation: Explanation) -> str:
    values = "".join(
        f'<span><b class="{leg}">{leg}</b> {explanation.values[leg]:.3f}</span>' for leg in LEGS
    )
    relevant = explanation.relevant[:_MOST_RELEVANT]
    more = len(explanation.relevant) - len(relevant)
    return (
        f"<details><summary><b>{escape(explanation.query.text)}</b>"
        f'<span class="values"><span>query {escape(explanation.query.id)}</span>{values}</span>'
        f'</summary><h3>First hits of hybrid</h3><div class="wide">'
        f"{_hits_table(explanation)}</div><h3>Ranks of the relevant documents</h3>"
        f'<div class="wide">{_relevant_table(relevant)}</div>'
        f"{f'<p class=soft>and {more} more</p>' if more else ''}</details>"
    )


def _hits_table(explanation: Explanation) -> str:
    rows = "".join(
        f'<tr{_relevance(grade)}><td class="number">{rank}</td>{_named(title, hit.matched_terms)}'
        f"{_numbers(grade or None, hit.vector_rank, hit.text_rank)}"
        f"{_scores(hit.similarity, hit.text_score)}"
        f'<td class="number">{hit.score:.4f}</td></tr>'
        for rank, (hit, title, grade) in enumerate(explanation.hits, start=1)
    )
    if not rows:
        return "<p>Nothing was found.</p>"
    heads = ("judged", "vector rank", "text rank", "similarity", "text score", "fused score")
    return _table('<th class="number">#</th><th>document, matched words</th>', heads, rows)


def _relevant_table(relevant: Sequence[Judged]) -> str:
    rows = "".join(
        f"<tr>{_named(one.title, one.matched_terms)}"
        f"{_numbers(one.grade, *(one.ranks[leg] for leg in LEGS))}"
        f"{_scores(one.similarity, one.text_score)}</tr>"
        for one in relevant
    )
    heads = ("judged", *(f"{leg} rank" for leg in LEGS), "similarity", "text score")
    return _table("<th>document, matched words</th>", heads, rows)


def _table(first: str, numbers: Iterable[str], rows: str) -> str:
    heads = "".join(f'<th class="number">{name}</th>' for name in numbers)
    return f"<table><thead><tr>{first}{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _named(title: str, terms: Sequence[str]) -> str:
    matched = f'<span class="terms">{escape(_short(", ".join(terms)))}</span>' if terms else ""
    return f'<td class="title">{escape(_short(title))}{matched}</td>'


def _numbers(*values: int | None) -> str:
    return "".join(f'<td class="number">{_or_dash(value)}</td>' for value in values)


def _scores(similarity: float | None, text_score: float | None) -> str:
    return (
        f'<td class="number">{_or_dash(similarity, ".3f")}</td>'
        f'<td class="number">{_or_dash(text_score, ".2f")}</td>'
    )


def _relevance(grade: int) -> str:
    return " class=relevant" if grade else ""


def _or_dash(value: float | None, form: str = "d") -> str:
    return "\N{EN DASH}" if value is None else format(value, form)


def _signed(value: float, digits: int = 3) -> str:
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else ("+" if value > 0 else "\N{MINUS SIGN}") + text


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _plot(
    height: float, label: str, shapes: Iterable[str], labels: Iterable[str], margins: str
) -> str:
    """Return a plot: shapes that the browser stretches to its width, and labels of one size."""
    return (
        f'<div class="plot" style="height: {height:.0f}px; {margins}"><svg role="img" '
        f'aria-label="{label}" viewBox="0 0 {_WIDTH} {height:.1f}" preserveAspectRatio="none">'
        f"{''.join(shapes)}</svg>{''.join(labels)}</div>"
    )
