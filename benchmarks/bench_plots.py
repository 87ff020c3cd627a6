"""Plots of the figures of benchmarks.bench as SVG, for light and dark pages; needs matplotlib."""

import io
import math
import statistics
import textwrap
from pathlib import Path
from typing import Any

import matplotlib  # type: ignore[import-not-found, unused-ignore]

from benchmarks.names import BARE, NATURAL, OURS, Results

matplotlib.use("Agg")
from matplotlib import pyplot  # type: ignore[import-not-found, unused-ignore]
from matplotlib.ticker import FixedLocator, NullLocator  # type: ignore[import-not-found, unused-ignore]

MARKERS = "osD^vP*X"
MOST_TICKS = 9

# Colours of the plots, which a dark page replaces.
INK, SOFT, LINE, PAGE = "#1d2126", "#5c6671", "#dfe3e7", "#fbfbfa"
_DARK = {INK: "#e6e9ec", SOFT: "#9aa5af", LINE: "#333a41", PAGE: "#14171a"}
_NAMES = {INK: "--ink", SOFT: "--soft", LINE: "--line", PAGE: "--page"}
# Readable on both pages.
COLOURS = (
    "#2f7fd6", "#c9760c", "#1f9273", "#cf4b48", "#8a67d4", "#a8742f", "#c2549a", "#7c8894",
    "#7d8f14", "#1695ab",
)  # fmt: skip

# 6 inches wide with letters of 12 points: readable when the picture is 400 pixels wide.
_WIDTH = 6
pyplot.rcParams.update(
    {
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 12,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": SOFT,
        "axes.facecolor": PAGE,
        "figure.facecolor": PAGE,
        "xtick.color": SOFT,
        "ytick.color": SOFT,
        "grid.color": LINE,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
)


class Plots:
    """The plots of some results; a client has the same colour and marker in all of them."""

    def __init__(self, results: Results, directory: Path) -> None:
        self._sizes = [size for size in results["sizes"] if size["searches"]]
        self._quality = results["quality"]
        self._directory = directory
        listed = [
            search["client"]
            for found in (*self._sizes, *self._quality)
            for search in found["searches"]
        ]
        self._clients = [client for client in dict.fromkeys([OURS, *listed]) if client not in BARE]

    def _style(self, client: str) -> dict[str, Any]:
        place = self._clients.index(client)
        is_ours = client == OURS
        return {
            "color": INK if is_ours else COLOURS[(place - 1) % len(COLOURS)],
            "marker": MARKERS[place % len(MARKERS)],
            "linewidth": 3 if is_ours else 1.5,
            "markersize": 9 if is_ours else 6,
            "zorder": 3 if is_ours else 2,
        }

    def _save(self, name: str, figure: Any) -> None:
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        pyplot.close(figure)
        (self._directory / f"{name}.svg").write_text(adapted(drawn.getvalue()), "utf-8")

    def sizes(self) -> None:
        """Draw p50 and p95 of natural questions over the sizes."""
        figure, both = pyplot.subplots(
            2, 1, figsize=(_WIDTH, 10), sharex=True, sharey=True, layout="constrained"
        )
        for axes, percentile in zip(both, ("p50", "p95"), strict=True):
            for client in self._clients:
                points = [
                    (size["chunks"], search["kinds"][NATURAL][percentile])
                    for size in self._sizes
                    for search in size["searches"]
                    if search["client"] == client and NATURAL in search["kinds"]
                ]
                if points:
                    axes.plot(*zip(*points, strict=True), label=client, **self._style(client))
            axes.set(xscale="log", ylabel=f"{percentile} in ms")
            chunks = [size["chunks"] for size in self._sizes]
            axes.set_xticks(chunks, [in_short(count) for count in chunks])
            axes.xaxis.minorticks_off()
        for axes in both:
            logarithmic(axes.yaxis, axes)
        both[0].set_title("natural questions, ten rows")
        both[1].set_xlabel("chunks")
        _legend(figure, both[0])
        self._save("sizes", figure)

    def kinds(self) -> None:
        """Draw p95 by kind of query at the largest size."""
        size = self._sizes[-1]
        searches = [search for search in size["searches"] if search["client"] in self._clients]
        kinds: dict[str, Any] = max((search["kinds"] for search in searches), key=len)
        height = 2.5 + 0.16 * len(kinds) * len(searches)
        figure, axes = pyplot.subplots(figsize=(_WIDTH, height), layout="constrained")
        wide = 0.8 / len(searches)
        for place, search in enumerate(searches):
            offered = {kind: at for at, kind in enumerate(kinds) if kind in search["kinds"]}
            axes.barh(
                [at + place * wide for at in offered.values()],
                [search["kinds"][kind]["p95"] for kind in offered],
                height=wide,
                color=self._style(search["client"])["color"],
                label=search["client"],
            )
        axes.set_yticks([at + 0.4 - wide / 2 for at in range(len(kinds))], list(kinds))
        axes.invert_yaxis()
        axes.set(xlabel="p95 in ms", title=f"{size['chunks']:,} chunks")
        logarithmic(axes.xaxis, axes)
        _legend(figure, axes)
        self._save("kinds", figure)

    def throughput(self) -> None:
        """Draw questions a second over clients at the largest size."""
        size = self._sizes[-1]
        figure, axes = pyplot.subplots(figsize=(_WIDTH, 6.5), layout="constrained")
        for search in size["searches"]:
            asked = search["throughput"]
            if asked:
                style = self._style(search["client"])
                axes.plot(list(asked), list(asked.values()), label=search["client"], **style)
        axes.set(
            xlabel="clients",
            ylabel="natural questions a second",
            title=f"{size['chunks']:,} chunks",
        )
        logarithmic(axes.yaxis, axes)
        _legend(figure, axes)
        self._save("throughput", figure)

    def quality(self) -> None:
        """Draw mean nDCG@10 beside p95, at the largest size that has the most systems."""
        size = max(self._sizes, key=lambda one: (len(one["systems"]), one["chunks"]))
        figure, axes = pyplot.subplots(figsize=(_WIDTH, 6.5), layout="constrained")
        for search in size["searches"]:
            client = search["client"]
            found = [
                judged["ndcg"]
                for collection in self._quality
                for judged in collection["searches"]
                if judged["client"] == client
            ]
            if len(found) == len(self._quality):
                p95 = search["kinds"][NATURAL]["p95"]
                style = {**self._style(client), "markersize": 12, "linestyle": "none"}
                axes.plot([p95], [statistics.mean(found)], label=client, **style)
        names = ", ".join(collection["collection"] for collection in self._quality)
        axes.set(
            xlabel=f"p95 in ms, {size['chunks']:,} chunks (left is better)",
            ylabel="nDCG@10 (up is better)",
            title="\n".join(textwrap.wrap(f"mean of {names}", 48)),
        )
        logarithmic(axes.xaxis, axes)
        axes.grid(visible=True)
        _legend(figure, axes)
        self._save("quality", figure)

    def draw(self) -> None:
        """Draw all plots that have figures."""
        if self._sizes:
            self.sizes()
            self.kinds()
            self.throughput()
        if self._sizes and self._quality:
            self.quality()


def _legend(figure: Any, axes: Any) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left")


def in_short(count: int) -> str:
    """Return a number of chunks for an axis: 200k, 1M."""
    for size, letter in ((1_000_000, "M"), (1000, "k")):
        if count >= size:
            return f"{count / size:g}{letter}"
    return str(count)


def logarithmic(axis: Any, axes: Any) -> None:
    """Give an axis a logarithmic scale with plain numbers, from tick to tick."""
    axes.set(**{f"{axis.axis_name}scale": "log"})
    # Plots beside each other share a scale.
    sharing = getattr(axes, f"get_shared_{axis.axis_name}_axes")().get_siblings(axes)
    shared = [getattr(one, f"{axis.axis_name}axis") for one in sharing]
    # Bars begin at zero, which a logarithmic axis does not have.
    low = min(one.get_minpos() for one in shared)
    high = max(max(one.get_data_interval()) for one in shared)
    ticks = [digit * 10.0**power for power in range(-3, 7) for digit in (1, 2, 5)]
    first = max(tick for tick in ticks if tick <= low)
    last = min(tick for tick in ticks if tick >= high)
    shown = [tick for tick in ticks if first <= tick <= last]
    if len(shown) > MOST_TICKS:
        shown = [tick for tick in shown if math.log10(tick).is_integer()]
    axes.set(**{f"{axis.axis_name}lim": (first / 1.05, last * 1.05)})
    axis.set_major_locator(FixedLocator(shown))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,g}")
    axes.grid(visible=True, axis=axis.axis_name)
    axes.set_axisbelow(True)


def adapted(svg: str) -> str:
    """Replace the colours of the page by those of a style that a dark page changes."""
    light = "".join(f"{name}: {colour};" for colour, name in _NAMES.items())
    dark = "".join(f"{name}: {_DARK[colour]};" for colour, name in _NAMES.items())
    for colour, name in _NAMES.items():
        svg = svg.replace(colour, f"var({name})")
    style = (
        f"<style>svg {{ {light} font-family: system-ui, sans-serif; }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}</style>"
    )
    begin = svg.index("<defs>")
    return svg[:begin] + style + svg[begin:]


def draw(results: Results, directory: Path) -> None:
    """Draw all plots into a folder."""
    Plots(results, directory).draw()
