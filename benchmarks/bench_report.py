"""Tables and plots of what benchmarks.bench measured: `python -m benchmarks.bench_report FILE`.

It computes ratios of the figures and measures nothing itself.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

OURS = "second-brain"
SMALL = 2_600
PROMISES = {"vector only": 100, "text only": 50, "natural question": 100}
TWO_CALLS = "two RPCs, merged in Python"
BARE = ("bare SQL, vector leg", "bare SQL, text leg")
NATIVE = "pg_textsearch + pgvector"
NATURAL = "natural question"
GROWS_FROM = 10_000
NETWORK = 10.0  # milliseconds added to each round trip

Results = dict[str, Any]


def line(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join([line(header), line(["---"] * len(header)), *map(line, rows)])


def megabytes(count: int | None) -> str:
    """Return a size in megabytes, or a dash."""
    return "-" if count is None else f"{count / 2**20:,.0f}"


def share(figures: dict[str, Any], name: str) -> str:
    """Return a share as it was measured, or a dash."""
    found = figures.get(name)
    return "-" if found is None else f"{found:.3f}"


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
                    f"{figures['rows']:.1f}",
                    share(figures, "recall"),
                    share(figures, "overlap"),
                    str(figures["queries"]),
                ]
            )
        header = (kind, "p50 ms", "p95 ms", "p99 ms", "rows", "recall", "overlap", "queries")
        yield table(header, rows)


def store_table(size: Results) -> str:
    """Return the table of sizes, memory, building and throughput."""
    rows = []
    for store in size["systems"]:
        own = next(found for found in size["searches"] if found["system"] == store["system"])
        rows.append(
            [
                store["system"],
                own["text_leg"],
                megabytes(store["table_bytes"]),
                megabytes(store["index_bytes"]),
                f"{store['build_seconds']:.1f}",
                megabytes(store["build_bytes"]),
                megabytes(store["search_bytes"]),
                *(f"{asked:.0f}" for asked in own["throughput"].values()),
            ]
        )
    header = (
        "system",
        "text leg",
        "table MB",
        "indexes MB",
        "build s",
        "memory to build MB",
        "memory of 16 clients MB",
        *(f"{clients}/s" for clients in (1, 4, 16)),
    )
    return table(header, rows)


def ratios(results: Results) -> list[list[str]]:
    """Return rows of what, the size, the bound and what was found."""
    rows: list[list[str]] = []
    for size in results["sizes"]:
        chunks = f"{size['chunks']:,}"
        kinds = {search["client"]: search["kinds"] for search in size["searches"]}
        if OURS not in kinds:
            continue
        ours = kinds[OURS]
        natural = ours[NATURAL]
        if all(NATURAL in kinds.get(leg, {}) for leg in BARE):
            legs = sum(kinds[leg][NATURAL]["p50"] for leg in BARE)
            found = f"{natural['p50'] / legs:.2f}"
            rows.append(["hybrid p50 over both legs as bare SQL", chunks, "at most 1.25", found])
        if TWO_CALLS in kinds:
            pairs = {
                kind: (ours[kind]["p50"], kinds[TWO_CALLS][kind]["p50"])
                for kind in ours
                if not kind.endswith(" only") and kind in kinds[TWO_CALLS]
            }
            loopback = {kind: one / two for kind, (one, two) in pairs.items()}
            apart = {
                kind: (one + NETWORK) / (two + 2 * NETWORK) for kind, (one, two) in pairs.items()
            }
            for what, found_by_kind in (
                ("hybrid p50 over two RPCs merged in Python", loopback),
                ("the same, 10 ms added to each round trip", apart),
            ):
                worst = max(found_by_kind, key=found_by_kind.__getitem__)
                found = f"{found_by_kind[NATURAL]:.2f}; worst {found_by_kind[worst]:.2f} ({worst})"
                rows.append([what, chunks, "at most 1 for any kind", found])
        hybrid = {kind: figures["p95"] for kind, figures in ours.items() if kind != NATURAL}
        worst = max(hybrid, key=hybrid.__getitem__)
        found = f"{hybrid[worst] / natural['p95']:.2f} ({worst})"
        rows.append(["worst kind's p95 over the natural question's", chunks, "at most 3", found])
        if NATURAL in kinds.get(NATIVE, {}):
            found = f"{natural['p95'] / kinds[NATIVE][NATURAL]['p95']:.2f}"
            rows.append([f"hybrid p95 over {NATIVE}", chunks, "at most 2", found])
        for kind, milliseconds in PROMISES.items() if size["chunks"] == SMALL else ():
            found = f"{ours[kind]['p95']:.0f} ms"
            rows.append([f"p95, {kind}", chunks, f"under {milliseconds} ms", found])
        recalls = {kind: found["recall"] for kind, found in ours.items() if "recall" in found}
        least = min(recalls, key=recalls.__getitem__)
        found = f"{recalls[least]:.3f} ({least})"
        rows.append(["least recall of the vector leg", chunks, "at least 0.95", found])
    grown = {
        size["chunks"]: search["kinds"][NATURAL]["p95"]
        for size in results["sizes"]
        for search in size["searches"]
        if search["client"] == OURS and size["chunks"] >= GROWS_FROM
    }
    if len(grown) > 1:
        first, last = min(grown), max(grown)
        found = f"{grown[last] / grown[first]:.2f}"
        rows.append(["growth of hybrid p95", f"{first:,} to {last:,}", "at most 4", found])
    return rows


def markdown(results: Results) -> str:
    """Return all tables."""
    machine = results["machine"]
    parts = [
        f"PostgreSQL {machine['postgres_major']}, {machine['cores']} cores,"
        f" {machine['memory_bytes'] / 2**30:.0f} GiB, Python {machine['python']}"
    ]
    for size in results.get("sizes", []):
        parts += [f"## {size['chunks']:,} chunks", store_table(size), *kind_tables(size)]
    if results.get("sizes"):
        parts += ["## Ratios", table(("what", "chunks", "expected", "found"), ratios(results))]
    for measured in results.get("quality", []):
        header = (measured["collection"], "nDCG@10", "p50 ms")
        rows = [
            [search["client"], f"{search['ndcg']:.4f}", f"{search['p50']:.1f}"]
            for search in measured["searches"]
        ]
        parts.append(table(header, rows))
    if results["missing"]:
        rows = [[name, how] for name, how in results["missing"].items()]
        parts += ["## Not installed", table(("system", "how"), rows)]
    return "\n\n".join(parts)


def plot(results: Results, directory: Path) -> None:
    """Draw times over sizes, times by kind at the largest size, and throughput."""
    import matplotlib  # type: ignore[import-not-found, unused-ignore]

    matplotlib.use("Agg")
    from matplotlib import pyplot  # type: ignore[import-not-found, unused-ignore]
    from matplotlib.ticker import LogLocator  # type: ignore[import-not-found, unused-ignore]

    sizes = results["sizes"]
    largest = [search for search in sizes[-1]["searches"] if search["client"] not in BARE]
    colours = {search["client"]: f"C{place}" for place, search in enumerate(largest)}
    chunks = f"{sizes[-1]['chunks']:,} chunks"

    def save(name: str, figure: Any, axes: Any, what: str) -> None:
        axes.set(yscale="log", ylabel=what)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.minorticks_off()
        axes.grid(axis="y", alpha=0.3)
        figure.legend(loc="outside right upper", fontsize="small")
        figure.savefig(directory / name, dpi=120)
        pyplot.close(figure)

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for name, colour in colours.items():
        points = [
            (size["chunks"], search["kinds"][NATURAL]["p95"])
            for size in sizes
            for search in size["searches"]
            if search["client"] == name
        ]
        width = 3 if name == OURS else 1.5
        axes.plot(*zip(*points, strict=True), "o-", color=colour, lw=width, label=name)
    axes.set(xscale="log", xlabel="chunks")
    axes.set_xticks([size["chunks"] for size in sizes], [f"{size['chunks']:,}" for size in sizes])
    axes.xaxis.minorticks_off()
    save("sizes.png", figure, axes, "p95 in ms, natural questions")

    kinds: dict[str, Any] = max((search["kinds"] for search in largest), key=len)
    figure, axes = pyplot.subplots(figsize=(12, 5), layout="constrained")
    wide = 0.8 / len(largest)
    for place, search in enumerate(largest):
        offered = {kind: number for number, kind in enumerate(kinds) if kind in search["kinds"]}
        places = [number + place * wide for number in offered.values()]
        heights = [search["kinds"][kind]["p95"] for kind in offered]
        name = search["client"]
        axes.bar(places, heights, width=wide, color=colours[name], label=name)
    axes.set_xticks([number + 0.4 - wide / 2 for number in range(len(kinds))], list(kinds))
    axes.tick_params(axis="x", rotation=15)
    save("kinds.png", figure, axes, f"p95 in ms, {chunks}")

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for search in largest:
        if search["throughput"]:
            asked = search["throughput"]
            name = search["client"]
            axes.plot(list(asked), list(asked.values()), "o-", color=colours[name], label=name)
    axes.set(xlabel="clients")
    save("throughput.png", figure, axes, f"natural questions a second, {chunks}")


def write(results: Results, directory: Path) -> None:
    """Write tables and figures, and the plots where matplotlib is installed."""
    directory.mkdir(parents=True, exist_ok=True)
    name = "quality" if "quality" in results else "bench"
    (directory / f"{name}.md").write_text(markdown(results) + "\n", "utf-8")
    (directory / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    if "sizes" in results:
        try:
            plot(results, directory)
        except ImportError as exc:
            print(f"no plots: {exc} (pip install matplotlib)", file=sys.stderr)


def main() -> None:
    """Print the tables of a bench.json again, and write them and the plots anew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="bench.json or quality.json")
    parser.add_argument("--results", type=Path, help="folder to write to")
    options = parser.parse_args()
    results = json.loads(options.file.read_text("utf-8"))
    print(markdown(results))
    if options.results:
        write(results, options.results)


if __name__ == "__main__":
    main()
