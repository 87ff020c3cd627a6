"""Tables of what benchmarks.bench measured.

It computes ratios of the figures and measures nothing itself. Several runs are merged: of the same
system at the same size the last run's figures count. Each figure keeps the run that it is from.
A ratio to a peer is of figures that were measured in turns.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.lance import LanceClient
from benchmarks.peers.ours import BareText, BareVector, Hybrid, TwoCalls
from benchmarks.peers.paradedb import ParadeClient
from benchmarks.peers.textsearch import TextSearchClient
from benchmarks.workload import COMMON, NATURAL

OURS, NATIVE, PARADE = Hybrid.name, TextSearchClient.name, ParadeClient.name
BARE = (BareVector.name, BareText.name)

Results = dict[str, Any]
"""The content of a results.json."""

SMALL = 2_600
PROMISES = {"vector only": 100, "text only": 50, "natural question": 100}
GROWS_FROM = 10_000
FILE = "results.json"


@dataclass(frozen=True)
class Ratio:
    """A percentile of the project's times over a peer's, and the most that is wanted by size."""

    name: str
    peer: str
    kind: str
    percentile: str
    bounds: dict[int, float]

    @property
    def what(self) -> str:
        """The name for readers."""
        return f"{self.kind}, {self.percentile} over {self.peer}"


RATIOS = (
    Ratio("textsearch", NATIVE, NATURAL, "p50", {20_000: 1.5, 200_000: 1.2, 1_000_000: 0.9}),
    Ratio("paradedb", PARADE, NATURAL, "p50", {2_600: 1.2, 10_000: 1.2}),
    Ratio("lancedb", LanceClient.name, NATURAL, "p50", {200_000: 1.3, 1_000_000: 1.1}),
    Ratio("common-words", NATIVE, COMMON, "p95", {200_000: 1.5}),
)
FILTERED = {10_000: 1.2, 100_000: 1.2}
FOUR_CLIENTS = {100_000: 1.0}
BULK_LOAD = SPACE = 1.3


def read(directory: Path) -> Results:
    """Return the results in a folder, or none if there is no file."""
    file = directory / FILE
    found: Results = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return found


def stamp(found: Results, run: str) -> None:
    """Add the run to the figures of a size or a collection."""
    found["run"] = run
    for search in found["searches"]:
        search["run"] = run


def merge(parts: Sequence[Results]) -> Results:
    """Return the figures of all parts; later ones replace earlier ones."""
    merged: Results = {"runs": {}, "missing": {}, "sizes": [], "quality": []}
    for part in parts:
        merged["runs"] |= part.get("runs", {})
        merged["missing"] |= part.get("missing", {})
        for size in part.get("sizes", []):
            _merge_by(merged["sizes"], "chunks", size)
        for collection in part.get("quality", []):
            _merge_by(merged["quality"], "collection", collection)
    merged["sizes"].sort(key=lambda size: size["chunks"])
    for found in (*merged["sizes"], *merged["quality"]):
        found["searches"].sort(key=lambda search: search.get("system", search["client"]) != OURS)
        found.get("systems", []).sort(key=lambda store: store["system"] != OURS)
    measured = {store["system"] for size in merged["sizes"] for store in size["systems"]}
    merged["missing"] = {
        name: how for name, how in merged["missing"].items() if name not in measured
    }
    return merged


def _merge_by(listed: list[Results], name: str, new: Results) -> None:
    old = next((one for one in listed if one[name] == new[name]), None)
    if old is None:
        listed.append(dict(new))
        return
    joined = {**old, **new}
    systems = {search.get("system") for search in new["searches"]}
    clients = {search["client"] for search in new["searches"]}
    joined["searches"] = [
        search
        for search in old["searches"]
        if search["client"] not in clients and (search.get("system") or "-") not in systems
    ] + new["searches"]
    if "systems" in new:
        joined["systems"] = [
            store for store in old["systems"] if store["system"] not in systems
        ] + new["systems"]
        joined["not_built"] = {
            system: why
            for system, why in {**old["not_built"], **new["not_built"]}.items()
            if system not in {store["system"] for store in joined["systems"]}
        }
    listed[listed.index(old)] = joined


def line(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join([line(header), line(["---"] * len(header)), *map(line, rows)])


def megabytes(count: int | None) -> str:
    """Return a size in megabytes, or a dash."""
    return "-" if count is None else f"{count / 2**20:,.0f}"


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
    faster: list[str] = []
    for percentile in ("p50", "p95", "cpu_p50"):
        rows = []
        for peer in peers:
            cells = []
            for kind in kinds:
                both = [found["kinds"].get(kind, {}) for found in (peer["in_turns"], peer)]
                if any(percentile not in figures for figures in both):
                    cells.append("-")
                    continue
                ratio = both[0][percentile] / both[1][percentile]
                cells.append(f"{ratio:.2f}")
                if ratio > 1 and percentile == "p50":
                    faster.append(f"{peer['client']} ({kind}, {ratio:.2f})")
            rates = (peer["in_turns"]["throughput"]["4"], peer["throughput"]["4"])
            cells.append(f"{rates[0] / rates[1]:.2f}" if percentile == "p50" else "")
            rows.append([peer["client"], *cells])
        header = (
            f"{OURS} over each peer, in turns, {percentile.replace('_', ' ')}",
            *kinds,
            "questions/s, 4 clients",
        )
        yield table(header, rows)
    if faster:
        yield f"Faster than {OURS} (p50 over the peer's): " + "; ".join(faster) + "."


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
                number(store["build_seconds"]),
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


def build_table(size: Results) -> str:
    """Return the table of loading times by step."""
    rows = []
    for store in size["systems"]:
        steps = store["steps"]
        listed = ", ".join(f"{name} {seconds:.1f}" for name, seconds in steps.items())
        rows.append([store["system"], listed, f"{size['chunks'] / store['build_seconds']:,.0f}"])
    return table(("load", "seconds of each step", "chunks/s"), rows)


def notes(size: Results, results: Results) -> Iterator[str]:
    """Return notes about systems without figures at this size, and figures of another run."""
    everywhere = {store["system"] for one in results["sizes"] for store in one["systems"]}
    here = {store["system"] for store in size["systems"]}
    whys = {**dict.fromkeys(sorted(everywhere - here), "not measured"), **size["not_built"]}
    versions: dict[str, str] = {}
    for store in size["systems"]:
        versions |= store["versions"]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield f"Commit {results['runs'][size['run']]['commit']}; {listed}."
    if whys:
        yield "Not here: " + "; ".join(f"{name} ({why})" for name, why in whys.items()) + "."
    runs: dict[str, list[str]] = {}
    for search in size["searches"]:
        runs.setdefault(search["run"], []).append(search["client"])
    if len(runs) > 1:
        each = (f"{', '.join(clients)} ({run})" for run, clients in runs.items())
        yield "Of several runs, which compare badly: " + "; ".join(each) + "."


def one_over_two(by_client: dict[str, Results]) -> dict[str, float]:
    """Return p50 of one call divided by p50 of two, for each kind of query with both legs."""
    one, two = by_client[OURS], by_client[TwoCalls.name]
    return {
        kind: one[kind]["p50"] / two[kind]["p50"]
        for kind in one
        if not kind.endswith(" only") and kind in two
    }


def latency_ratios(size: Results) -> dict[str, float]:
    """Return the same with added latency per round trip; empty if it was not measured."""
    kinds = size.get("latency", {}).get("kinds", {})
    return {kind: found[OURS]["p50"] / found[TwoCalls.name]["p50"] for kind, found in kinds.items()}


def latency_table(size: Results) -> str:
    """Return the times of one call and of two over the slower network."""
    latency = size["latency"]
    rows = []
    for kind, found in latency["kinds"].items():
        one, two = found[OURS], found[TwoCalls.name]
        rows.append(
            [
                kind,
                *(f"{one[name]:.1f}" for name in ("p50", "p95")),
                *(f"{two[name]:.1f}" for name in ("p50", "p95")),
                f"{one['p50'] / two['p50']:.2f}",
            ]
        )
    header = (
        f"{latency['milliseconds']:g} ms added to each round trip"
        f" (measured: {latency['added']:.1f})",
        "one call p50 ms",
        "p95 ms",
        "two calls p50 ms",
        "p95 ms",
        "p50 ratio",
    )
    return table(header, rows)


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


def at_most(
    what: str, where: str, bound: float, found: float, note: str = "", digits: int = 2
) -> list[str]:
    """Return the row of a figure that is good when small."""
    within = "yes" if found <= bound else "no"
    return [what, where, f"at most {bound:g}", f"{found:.{digits}f}{note}", within]


def at_least(what: str, where: str, bound: float, found: float, note: str = "") -> list[str]:
    """Return the row of a figure that is good when large."""
    within = "yes" if found >= bound else "no"
    return [what, where, f"at least {bound:g}", f"{found:.3f}{note}", within]


def rows_to_peers(size: Results, searches: dict[str, Results]) -> Iterator[list[str]]:
    """Yield the rows that compare with a peer."""
    chunks = size["chunks"]
    for ratio in RATIOS:
        peer = searches.get(ratio.peer, {})
        if chunks in ratio.bounds and "in_turns" in peer:
            one, other = peer["in_turns"]["kinds"][ratio.kind], peer["kinds"][ratio.kind]
            found = one[ratio.percentile] / other[ratio.percentile]
            yield at_most(ratio.what, f"{chunks:,}", ratio.bounds[chunks], found)
    native = searches.get(NATIVE, {})
    if chunks in FOUR_CLIENTS and "in_turns" in native:
        found = native["in_turns"]["throughput"]["4"] / native["throughput"]["4"]
        what = f"questions a second with 4 clients over {NATIVE}"
        yield at_least(what, f"{chunks:,}", FOUR_CLIENTS[chunks], found)
    stores = {store["system"]: store for store in size["systems"]}
    if {OURS, NATIVE} <= stores.keys():
        one, other = stores[OURS], stores[NATIVE]
        found = one["build_seconds"] / other["build_seconds"]
        yield at_most(f"seconds to load over {NATIVE}", f"{chunks:,}", BULK_LOAD, found)
        found = total_bytes(one) / total_bytes(other)
        yield at_most(f"bytes over {NATIVE}", f"{chunks:,}", SPACE, found)


def total_bytes(store: Results) -> int:
    """Return the bytes of table and indexes."""
    return int(store["table_bytes"] + store["index_bytes"])


def expected(results: Results) -> Iterator[list[str]]:
    """Yield rows: name, size, bound, measured figure, and whether it is within the bound."""
    for size in results["sizes"]:
        searches = {search["client"]: search for search in size["searches"]}
        if OURS not in searches:
            continue
        chunks = f"{size['chunks']:,}"
        is_largest = size is results["sizes"][-1]
        kinds = {client: search["kinds"] for client, search in searches.items()}
        ours = kinds[OURS]
        natural = ours[NATURAL]
        if all(NATURAL in kinds.get(leg, {}) for leg in BARE):
            legs = sum(kinds[leg][NATURAL]["p50"] for leg in BARE)
            what = "hybrid p50 over both legs as bare SQL"
            yield at_most(what, chunks, 1.25, natural["p50"] / legs)
        loopback = one_over_two(kinds) if TwoCalls.name in kinds else {}
        added = f"{size['latency']['milliseconds']:g} ms" if "latency" in size else ""
        for what, found in (
            ("hybrid p50 over two RPCs, worst kind", loopback),
            (f"the same, {added} added to each round trip", latency_ratios(size)),
        ):
            if found:
                worst = max(found, key=found.__getitem__)
                yield at_most(what, chunks, 1, found[worst], f" ({worst})")
        hybrid = {kind: one["p95"] for kind, one in ours.items() if not kind.endswith(" only")}
        worst = max(hybrid, key=hybrid.__getitem__)
        if is_largest:
            what = "worst kind's p95 over the natural question's"
            yield at_most(what, chunks, 3, hybrid[worst] / natural["p95"], f" ({worst})")
        yield from rows_to_peers(size, searches)
        what, natural_p50 = "filtered 10 % over natural question, p50", natural["p50"]
        if size["chunks"] in FILTERED:
            ratio = ours["filtered 10 %"]["p50"] / natural_p50
            yield at_most(what, chunks, FILTERED[size["chunks"]], ratio)
        for kind, milliseconds in PROMISES.items() if size["chunks"] == SMALL else ():
            yield at_most(f"p95 ms, {kind}", chunks, milliseconds, ours[kind]["p95"], digits=0)
        recalls = {kind: found for kind, found in ours.items() if "recall" in found}
        if "recall_90" in size:
            recalls["filtered 90 %"] = size["recall_90"]
        for kind, found in recalls.items():
            what = f"recall of the vector leg, {kind}"
            least = f" (least {found['recall_least']:.2f})"
            yield at_least(what, chunks, 0.95, found["recall"], least)
        if "writing" in size:
            ratio = size["writing"]["load"]["p95_ratio"]
            what = "search p95 under a write load over p95 at rest"
            yield at_most(what, chunks, 1.5, ratio)
    grown = {
        size["chunks"]: search
        for size in results["sizes"]
        for search in size["searches"]
        if search["client"] == OURS and size["chunks"] >= GROWS_FROM
    }
    if len(grown) > 1:
        first, last = min(grown), max(grown)
        one, other = grown[first], grown[last]
        ratio = other["kinds"][NATURAL]["p95"] / one["kinds"][NATURAL]["p95"]
        note = "" if one["run"] == other["run"] else " (figures of two runs)"
        yield at_most("growth of hybrid p95", f"{first:,} to {last:,}", 4, ratio, note)
    for measured in results["quality"]:
        found_by_client = {search["client"]: search["ndcg"] for search in measured["searches"]}
        if {OURS, NATIVE} <= found_by_client.keys():
            gain = found_by_client[OURS] - found_by_client[NATIVE]
            what = f"nDCG@10 minus that of {NATIVE}"
            yield at_least(what, measured["collection"], 0, gain)


def markdown(results: Results) -> str:
    """Return all tables."""
    parts = [
        "\n".join(
            f"- {run}: commit {machine['commit']}, PostgreSQL {machine['postgres_major']},"
            f" {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB,"
            f" Python {machine['python']}, other load {machine['load']:.1f} at the start"
            for run, machine in results["runs"].items()
        )
    ]
    rows = list(expected(results))
    if rows:
        header = ("what", "chunks", "expected", "found", "within")
        parts += ["## Expected", table(header, rows)]
    for size in results["sizes"]:
        parts.append(f"## {size['chunks']:,} chunks")
        parts += notes(size, results)
        if size.get("vector_index"):
            parts.append(f"Vector index of {OURS}: `{size['vector_index']}`")
        if size["systems"]:
            parts += [*in_turns_tables(size), store_table(size), build_table(size)]
            parts += kind_tables(size)
        if "latency" in size:
            parts.append(latency_table(size))
        if "writing" in size:
            parts.append(writing_table(size))
    if results["quality"]:
        parts.append("## Quality")
    for measured in results["quality"]:
        names = (measured["collection"], "nDCG@10", "p50 ms", "p95 ms")
        rows = [
            [search["client"], *(f"{search[name]:{form}}" for name, form in QUALITY.items())]
            for search in measured["searches"]
        ]
        parts.append(table(names, rows))
    if results["missing"]:
        rows = [[name, how] for name, how in results["missing"].items()]
        parts += ["## Not installed", table(("system", "how"), rows)]
    return "\n\n".join(parts)


QUALITY = {"ndcg": ".4f", "p50": ".1f", "p95": ".1f"}


def write(results: Results, directory: Path) -> None:
    """Write tables and figures."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.md").write_text(markdown(results) + "\n", "utf-8")
    (directory / FILE).write_text(json.dumps(results, indent=1) + "\n", "utf-8")
