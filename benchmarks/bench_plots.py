"""Plots of the figures of benchmarks.bench; needs matplotlib."""

import statistics
from pathlib import Path
from typing import Any

import matplotlib  # type: ignore[import-not-found, unused-ignore]

from benchmarks.bench_report import BARE, NATURAL, OURS, Results

matplotlib.use("Agg")
from matplotlib import pyplot  # type: ignore[import-not-found, unused-ignore]
from matplotlib.ticker import LogLocator  # type: ignore[import-not-found, unused-ignore]

MARKERS = "osD^vP*X"


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
            "color": "black" if is_ours else f"C{place - 1}",
            "marker": MARKERS[place % len(MARKERS)],
            "linewidth": 3 if is_ours else 1.5,
            "markersize": 9 if is_ours else 6,
            "zorder": 3 if is_ours else 2,
        }

    def _save(self, name: str, figure: Any) -> None:
        figure.savefig(self._directory / name, dpi=120)
        pyplot.close(figure)

    def sizes(self) -> None:
        """Draw p50 and p95 of natural questions over the sizes."""
        figure, both = pyplot.subplots(1, 2, figsize=(12, 5), sharey=True, layout="constrained")
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
            axes.set(xscale="log", xlabel="chunks", title=percentile)
            chunks = [size["chunks"] for size in self._sizes]
            axes.set_xticks(chunks, [f"{count:,}" for count in chunks])
            axes.xaxis.minorticks_off()
            logarithmic(axes.yaxis, axes)
        both[0].set_ylabel("milliseconds, natural questions, ten rows")
        figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        self._save("sizes.png", figure)

    def kinds(self) -> None:
        """Draw p95 by kind of query at the largest size."""
        size = self._sizes[-1]
        searches = [search for search in size["searches"] if search["client"] in self._clients]
        kinds: dict[str, Any] = max((search["kinds"] for search in searches), key=len)
        figure, axes = pyplot.subplots(figsize=(12, 5), layout="constrained")
        wide = 0.8 / len(searches)
        for place, search in enumerate(searches):
            offered = {kind: at for at, kind in enumerate(kinds) if kind in search["kinds"]}
            axes.bar(
                [at + place * wide for at in offered.values()],
                [search["kinds"][kind]["p95"] for kind in offered],
                width=wide,
                color=self._style(search["client"])["color"],
                label=search["client"],
            )
        axes.set_xticks([at + 0.4 - wide / 2 for at in range(len(kinds))], list(kinds))
        axes.set_ylabel(f"p95 in ms, {size['chunks']:,} chunks")
        logarithmic(axes.yaxis, axes)
        figure.legend(loc="outside lower center", ncols=4)
        self._save("kinds.png", figure)

    def throughput(self) -> None:
        """Draw questions a second over clients at the largest size."""
        size = self._sizes[-1]
        figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
        for search in size["searches"]:
            asked = search["throughput"]
            if asked:
                style = self._style(search["client"])
                axes.plot(list(asked), list(asked.values()), label=search["client"], **style)
        axes.set(
            xlabel="clients",
            ylabel=f"natural questions a second, {size['chunks']:,} chunks",
        )
        logarithmic(axes.yaxis, axes)
        figure.legend(loc="outside lower center", ncols=3)
        self._save("throughput.png", figure)

    def quality(self) -> None:
        """Draw mean nDCG@10 beside p95, at the largest size that has the most systems."""
        size = max(self._sizes, key=lambda one: (len(one["systems"]), one["chunks"]))
        figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
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
            xlabel=f"p95 in ms of natural questions, {size['chunks']:,} chunks (left is better)",
            ylabel="nDCG@10 (up is better)",
            title=f"mean of {names}",
        )
        logarithmic(axes.xaxis, axes)
        axes.grid(alpha=0.3)
        figure.legend(loc="outside lower center", ncols=3)
        self._save("quality.png", figure)

    def draw(self) -> None:
        """Draw all plots that have figures."""
        if self._sizes:
            self.sizes()
            self.kinds()
            self.throughput()
        if self._sizes and self._quality:
            self.quality()


def logarithmic(axis: Any, axes: Any) -> None:
    """Give an axis a logarithmic scale with plain numbers."""
    axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_tick_params(which="minor", length=0, labelsize=0)
    axes.grid(axis=axis.axis_name, alpha=0.3)


def draw(results: Results, directory: Path) -> None:
    """Draw all plots into a folder."""
    Plots(results, directory).draw()
