"""Tables of what benchmarks.bench measured, and parts of Markdown tables.

It computes ratios of the figures and measures nothing itself. A ratio to a peer is of figures that
were measured in turns.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.ours import Hybrid

OURS = Hybrid.name

Results = dict[str, Any]
"""The content of a results.json."""


def line(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join([line(header), line(["---"] * len(header)), *map(line, rows)])


def megabytes(count: int) -> str:
    """Return a size in megabytes."""
    return f"{count / 2**20:,.0f}"


def number(found: float | None, digits: int = 1, unknown: str = "unknown") -> str:
    """Return a number, or the text for an unknown one."""
    return unknown if found is None else f"{found:,.{digits}f}"


def kind_tables(size: Results) -> Iterator[str]:
    """Yield a table of times and exactness for each kind of query."""
    kinds: dict[str, Any] = max((search["kinds"] for search in size["searches"]), key=len)
    for kind in kinds:
        rows = []
        for search in size["searches"]:
            figures = search["kinds"].get(kind)
            if figures is None:
                continue
            words = kind == "phrase" and "phrase" in search["cannot"]
            rows.append(
                [
                    search["client"] + (" (words, not a phrase)" if words else ""),
                    *(f"{figures[name]:.1f}" for name in ("p50", "p95", "p99")),
                    *(number(figures.get(f"cpu_{name}"), unknown="-") for name in ("p50", "p95")),
                    f"{figures['rows']:.1f}",
                    *(number(figures.get(name), 3, "-") for name in ("recall", "overlap")),
                    str(figures["queries"]),
                ]
            )
        header = (
            *(kind, "p50 ms", "p95 ms", "p99 ms", "cpu p50 ms", "cpu p95 ms"),
            *("rows", "recall", "overlap", "queries"),
        )
        yield table(header, rows)


def in_turns_tables(size: Results) -> Iterator[str]:
    """Yield the tables of the project's p50, p95 and p50 of CPU time over each peer's."""
    peers = [search for search in size["searches"] if "in_turns" in search]
    if not peers:
        return
    kinds: dict[str, Any] = max((peer["kinds"] for peer in peers), key=len)
    for percentile in ("p50", "p95", "cpu_p50"):
        rows = []
        for peer in peers:
            cells = []
            for kind in kinds:
                both = [found["kinds"].get(kind, {}) for found in (peer["in_turns"], peer)]
                if any(percentile not in figures for figures in both):
                    cells.append("-")
                    continue
                cells.append(f"{both[0][percentile] / both[1][percentile]:.2f}")
            rates = (peer["in_turns"]["throughput"]["4"], peer["throughput"]["4"])
            cells.append(f"{rates[0] / rates[1]:.2f}" if percentile == "p50" else "")
            rows.append([peer["client"], *cells])
        header = (
            f"{OURS} over each peer, in turns, {percentile.replace('_', ' ')}",
            *kinds,
            "questions/s, 4 clients",
        )
        yield table(header, rows)


def store_table(size: Results) -> str:
    """Return the table of sizes, building and throughput."""
    rows = []
    for store in size["systems"]:
        own = next(found for found in size["searches"] if found["system"] == store["system"])
        rows.append(
            [
                store["system"],
                own["text_leg"],
                megabytes(store["table_bytes"]),
                megabytes(store["index_bytes"]),
                number(store["build_seconds"]),
                *(f"{asked:.0f}" for asked in own["throughput"].values()),
            ]
        )
    header = (
        "system",
        "text leg",
        "table MB",
        "indexes MB",
        "build s",
        *(f"{clients}/s" for clients in (1, 4, 16)),
    )
    return table(header, rows)


def build_table(size: Results) -> str:
    """Return the table of loading times by step."""
    rows = []
    for store in size["systems"]:
        steps = store["steps"]
        listed = ", ".join(f"{name} {seconds:.1f}" for name, seconds in steps.items())
        rows.append([store["system"], listed, f"{size['chunks'] / store['build_seconds']:,.0f}"])
    return table(("load", "seconds of each step", "chunks/s"), rows)


def notes(size: Results, results: Results) -> Iterator[str]:
    """Yield the run, and the systems without figures at this size."""
    run = size["run"]
    versions: dict[str, str] = {}
    for store in size["systems"]:
        versions |= store["versions"]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield (
        f"{run['begun']}, commit {run['commit']}, {run['cores']} cores,"
        f" {run['memory_bytes'] / 2**30:.0f} GiB, other load {run['load']:.1f} at the start;"
        f" Python {run['python']}, {listed}."
    )
    if missing := results["missing"]:
        yield "Not here: " + "; ".join(f"{name} ({how})" for name, how in missing.items()) + "."


def writing_table(size: Results) -> str:
    """Return the tables of writing and of searches under the write load."""
    writing = size["writing"]
    load = writing["load"]
    asked = f"{load['rate']:g} chunks/s, {load['changed']:.0%} of documents changed"
    rows = [
        *(
            [f"ingest, {writers} writer{'s' * (writers != '1')}", f"{rate:,.0f} chunks/s"]
            for writers, rate in writing["ingest"].items()
        ),
        [f"steady load, wanted {asked}", f"{load['achieved']:.1f} chunks/s"],
        [
            f"a document of {writing['chunks_per_document']} chunks under that load",
            f"p50 {load['write']['p50']:.0f}, p95 {load['write']['p95']:.0f} ms",
        ],
        *(
            [
                f"natural questions {when}",
                "p50 {p50:.1f}, p95 {p95:.1f}, p99 {p99:.1f} ms ({queries} asked)".format(
                    **load[name]
                ),
            ]
            for when, name in (("at rest", "rest"), ("under that load", "loaded"))
        ),
        ["p95 under load over p95 at rest", f"{load['p95_ratio']:.2f}"],
    ]
    return table(("writing", "found"), rows)


def quality_table(measured: Results) -> str:
    """Return nDCG@10 and the times of a collection."""
    forms = {"ndcg": ".4f", "p50": ".1f", "p95": ".1f"}
    rows = [
        [search["client"], *(f"{search[name]:{form}}" for name, form in forms.items())]
        for search in measured["searches"]
    ]
    return table((measured["collection"], "nDCG@10", "p50 ms", "p95 ms"), rows)


def markdown(results: Results) -> str:
    """Return all tables."""
    parts = []
    for size in results["sizes"]:
        parts += [f"## {size['chunks']:,} chunks", *notes(size, results)]
        if size.get("vector_index"):
            parts.append(f"Vector index of {OURS}: `{size['vector_index']}`")
        if size["systems"]:
            parts += [*in_turns_tables(size), store_table(size), build_table(size)]
            parts += kind_tables(size)
        if "writing" in size:
            parts.append(writing_table(size))
    if results["quality"]:
        parts += ["## Quality", *map(quality_table, results["quality"])]
    return "\n\n".join(parts)


def write(results: Results, directory: Path) -> None:
    """Write tables and figures."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.md").write_text(markdown(results) + "\n", "utf-8")
    (directory / "results.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
