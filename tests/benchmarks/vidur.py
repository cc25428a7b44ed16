"""Vidur's search (arXiv:2405.05465v2, sections 6 and 7.3): the cheapest deployment of Llama-2-70B for three workloads.

``python -m tests.benchmarks.vidur FILE.png`` draws it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.scenario import load_scenario
from tests.benchmarks.registry import Row, benchmark

if TYPE_CHECKING:
    import xarray as xr

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "vidur-search.yaml"
WORKLOADS = {686: "Chat-1M", 2588: "Arxiv-4K", 1067: "BWB-4K"}
"""By the mean of their prompts."""
DEVICES = ("a100-sxm", "h100-sxm")
PRICES = {"the paper's": (2.21, 4.25), "the catalog's": (2.16, 3.348)}
"""USD/h of the devices; the scenario has the paper's."""


class Search:
    """Requests per dollar of every design, (workload, design), 0 where the objectives are not met."""

    def __init__(self, *overrides: str) -> None:
        from evaluator.search import optimize

        ds = optimize(load_scenario(SCENARIO, overrides))
        self.workloads = [WORKLOADS[round(mean)] for mean in dict.fromkeys(ds["prompt_mean"].values)]
        self.names = _names(ds)[: ds.sizes["config"] // len(self.workloads)]
        self.per_usd = np.nan_to_num(ds["goodput_per_usd"].values).reshape(len(self.workloads), -1)

    def repriced(self, label: str) -> np.ndarray:
        """Requests per dollar at other prices, (workload, design)."""
        scale = dict(zip(DEVICES, np.divide(PRICES["the paper's"], PRICES[label]), strict=True))
        return self.per_usd * np.array([scale[name[0]] for name in self.names])

    def best(self, row: np.ndarray, device: str) -> int:
        """The design with the most of a row (design,), of those on a device."""
        return int(np.argmax(np.where([name[0] == device for name in self.names], row, -1.0)))


def _names(ds: xr.Dataset) -> list[tuple[str, str, str, int]]:
    """Of each design: device, layout, batching, and the most sequences."""
    device = [text.split("=")[1].split(",")[0] for text in ds["hardware"].values.astype(str)]
    layout = [text.removeprefix("1 x ") for text in ds["pool_layout"].values.astype(str)]
    tokens = zip(ds["policy"].values.astype(str), ds["max_num_batched_tokens"].values, strict=True)
    batching = [f"{policy} {most:.0f}" if policy == "chunked" else policy for policy, most in tokens]
    return list(zip(device, layout, batching, ds["max_num_seqs"].values.astype(int).tolist(), strict=True))


@benchmark("vidur")
def vidur(quick: bool) -> Iterator[Row]:
    """The winners of Vidur's search, what the wrong one costs, and what 20 ms of TBT are worth."""
    found = Search()
    for label in PRICES:
        for workload, row in zip(found.workloads, found.repriced(label), strict=True):
            for device in DEVICES:
                at = found.best(row, device)
                note = ", ".join(map(str, found.names[at]))
                yield Row(f"{workload}, {device}, {label} prices", row[at], "requests/USD", note)
    best = found.per_usd.argmax(axis=1)
    for workload, row in zip(found.workloads, found.per_usd, strict=True):
        for other, at in zip(found.workloads, best, strict=True):
            yield Row(f"{workload} by the winner of {other}", row.max() / row[at], "times the price", "")
    if not quick:
        only = "sweep.where=prompt_mean == 686"
        for bound in (120, 140):
            tight = Search(only, f"slo.itl.p99={bound}ms")
            for device in DEVICES:
                at = tight.best(tight.per_usd[0], device)
                label = f"Chat-1M, {device}, TBT p99 within {bound} ms"
                yield Row(label, tight.per_usd[0, at], "requests/USD", ", ".join(map(str, tight.names[at])))


def draw(path: Path) -> None:
    """The best of each device, layout and batching, a panel for each workload."""
    import matplotlib.pyplot as plt

    from evaluator.report.picture.style import COLOURS, SETTINGS

    found = Search()
    with plt.rc_context(SETTINGS):
        figure, panels = plt.subplots(1, 3, figsize=(13, 5.6), layout="constrained")
        for axes, workload, row in zip(panels, found.workloads, found.per_usd, strict=True):
            _panel(axes, found, row, COLOURS)
            axes.set_title(workload, loc="left", fontsize=10)
            axes.set_xlabel("requests per dollar")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False)
        figure.suptitle("Vidur's search: Llama-2-70B, TTFT p90 2 s, TBT p99 200 ms", x=0.01, ha="left", fontsize=13)
        figure.savefig(path, dpi=90)


def _panel(axes: Any, found: Search, row: np.ndarray, colours: tuple[str, ...]) -> None:
    from evaluator.report.picture.style import SMALL, grid_lines

    places = list(dict.fromkeys(name[1:3] for name in found.names))
    for offset, colour, device in ((-0.2, colours[1], "h100-sxm"), (0.2, colours[0], "a100-sxm")):
        for y, place in enumerate(places):
            here = [at for at, name in enumerate(found.names) if name[0] == device and name[1:3] == place]
            best = max(here, key=lambda at: row[at])
            axes.barh(y + offset, row[best], 0.4, color=colour, label=device if y == 0 else None)
            if row[best] > 0:
                axes.text(row[best], y + offset, f" {found.names[best][3]}", va="center", fontsize=SMALL)
    axes.set_yticks(range(len(places)), [", ".join(place) for place in places], fontsize=SMALL)
    axes.invert_yaxis()
    grid_lines(axes, "x")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
