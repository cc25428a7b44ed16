"""The deployment searches of MIST (section V-A, table III): the most requests per dollar of eight GPUs.

``python -m tests.benchmarks.mist FILE.png`` draws them.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tests.benchmarks.registry import Row, benchmark

if TYPE_CHECKING:
    import xarray as xr

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
SKUS = ("H100", "A100", "L40S")
AWS = {"H100": 12.29, "A100": 5.12, "L40S": 3.77}
"""USD per GPU and hour on demand, us-east-1, 2024: an eighth of p5.48xlarge, p4de.24xlarge and g6e.48xlarge."""


class Case(NamedTuple):
    """A search, the replicas of its baseline (chunked prefill on one SKU), and the paper's answer."""

    title: str
    baseline: str
    paper: str
    batching: str  # of the paper's answer; empty: the best


CASES = {
    "retrieval": Case("Retrieval and summary, Qwen3-4B", "8 x {} tp1", "6 x A100 tp1 + 2 x L40S tp1", ""),
    "maths": Case("Maths, Qwen3-14B", "8 x {} tp1", "1 x H100 tp1 + 7 x L40S tp1", ""),
    "code": Case("Code with a cached prefix, Qwen3-32B", "4 x {} tp2", "4 x L40S tp2", "mixed"),
}


class Search:
    """What one search found; arrays are (design,). ``per_usd`` is 0 of designs without a goodput."""

    def __init__(self, case: str, found: xr.Dataset) -> None:
        self.case = CASES[case]
        self.layouts = found["layout"].values.astype(str)
        tokens = zip(found["policy"].values.astype(str), found["max_num_batched_tokens"].values, strict=True)
        self.batching = [f"{policy} {most:.0f}" if policy == "chunked" else policy for policy, most in tokens]
        self.valid = found["status"].values.astype(str) == "ok"
        self.rate_rps = np.nan_to_num(found["goodput_rps"].values)
        self.usd_per_hour = found["usd_per_hour"].values
        self.per_usd = np.nan_to_num(found["goodput_per_usd"].values)
        self.skus = [tuple(sku for sku in SKUS if sku in layout) for layout in self.layouts]
        self.split = np.array(["+" in layout for layout in self.layouts])

    def at_prices(self, prices: dict[str, float]) -> np.ndarray:
        """Requests per dollar at other prices of the GPUs."""
        there = np.array([sum(prices[sku] * count for sku, count in devices(one).items()) for one in self.layouts])
        return 3600.0 * self.rate_rps / there

    def where(self, test: Callable[[int], bool]) -> int | None:
        """The design with the most requests per dollar of those that pass the test, which can run."""
        able = [place for place in range(len(self.layouts)) if self.valid[place] and test(place)]
        return max(able, key=lambda place: self.per_usd[place], default=None)

    @property
    def best(self) -> int:
        return int(np.argmax(self.per_usd))

    def baseline(self, sku: str) -> int | None:
        """Chunked prefill on eight GPUs of a kind."""
        layout = self.case.baseline.format(sku)
        return self.where(lambda place: self.layouts[place] == layout and self.batching[place] == "chunked 2048")

    @property
    def paper(self) -> int | None:
        """The paper's answer, where it can run."""
        return self.where(
            lambda place: self.layouts[place] == self.case.paper and self.case.batching in self.batching[place]
        )

    def kinds(self) -> dict[str, int | None]:
        """The best of each SKU with both phases on every replica, and split; and the best of two SKUs."""
        found: dict[str, int | None] = {}
        for sku in SKUS:
            for split, name in ((False, sku), (True, f"{sku}, split")):
                found[name] = self.where(lambda at, s=sku, d=split: self.skus[at] == (s,) and self.split[at] == d)  # type: ignore[misc]
        return {**found, "two kinds, split": self.where(lambda at: len(self.skus[at]) == 2)}

    def told(self, place: int) -> str:
        """Layout and batching."""
        return f"{self.layouts[place]}, {self.batching[place]}"


def devices(layout: str) -> dict[str, int]:
    """GPUs of each kind of a layout such as ``6 x A100 tp1 + 1 x L40S tp2``."""
    found: dict[str, int] = {}
    for replicas, sku, tensor, pipeline in re.findall(r"(\d+) x (\w+) tp(\d+)(?: pp(\d+))?", layout):
        found[sku] = found.get(sku, 0) + int(replicas) * int(tensor) * int(pipeline or 1)
    return found


def search(case: str, *overrides: str) -> xr.Dataset:
    """The question of a scenario."""
    from evaluator.scenario import load_scenario
    from evaluator.search import optimize

    return optimize(load_scenario(SCENARIOS / f"mist-{case}.yaml", overrides))


@benchmark("mist")
def mist(quick: bool) -> Iterator[Row]:
    """Valid designs, winners, and gains over chunked prefill of MIST's three searches."""
    for case in CASES:
        start = time.perf_counter()
        found = Search(case, search(case, *(["workload.requests=500"] if quick else [])))
        note = f"{found.valid.sum()} of {len(found.valid)} designs can run, {(found.per_usd > 0).sum()} have a goodput"
        yield Row(f"{case}", time.perf_counter() - start, "s", note)
        yield from _rows(case, found)


def _rows(case: str, found: Search) -> Iterator[Row]:
    for label, per_usd in {"": found.per_usd, ", AWS": found.at_prices(AWS)}.items():
        best = int(np.argmax(per_usd))
        yield Row(f"{case}: winner{label}", per_usd[best], "requests/USD", found.told(best))
        for sku in SKUS:
            base = found.baseline(sku)
            if base is not None and per_usd[base] > 0.0:
                yield Row(f"{case}: over {found.told(base)}{label}", per_usd[best] / per_usd[base], "times", "")
        if found.paper is not None:
            yield Row(f"{case}: the paper's{label}", per_usd[found.paper], "requests/USD", found.told(found.paper))
    for name, place in found.kinds().items():
        if place is not None:
            yield Row(f"{case}: {name}", found.per_usd[place], "requests/USD", found.told(place))


def draw(path: Path, found: dict[str, xr.Dataset] | None = None) -> None:
    """The best of each kind of design, a panel for each search; ``found`` are results that are there already."""
    import matplotlib.pyplot as plt

    from evaluator.report.picture.style import SETTINGS

    results = found or {case: search(case) for case in CASES}
    with plt.rc_context(SETTINGS):
        figure, panels = plt.subplots(1, 3, figsize=(15, 5.2), layout="constrained", sharey=True)
        for axes, (case, dataset) in zip(panels, results.items(), strict=True):
            _panel(axes, Search(case, dataset))
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.suptitle("MIST's searches: requests per dollar of eight GPUs", x=0.01, ha="left", fontsize=13)
        figure.savefig(path, dpi=90)


def _panel(axes: Any, found: Search) -> None:
    from evaluator.report.picture.style import COLOURS, GREY, SMALL, grid_lines

    baseline = found.baseline("H100")
    bars = [(name, place, COLOURS[1 if "split" in name else 0]) for name, place in found.kinds().items()]
    bars += [("baseline: H100, chunked", baseline, GREY), ("the paper's winner", found.paper, COLOURS[2])]
    labels = {COLOURS[0]: "both phases on every replica", COLOURS[1]: "prefill and decode split"}
    most = found.per_usd.max()
    for y, (_, place, colour) in enumerate(bars):
        value = 0.0 if place is None else found.per_usd[place]
        axes.barh(y, value, 0.62, color=colour, label=labels.pop(colour, None))
        text = "does not fit" if place is None else found.told(place) if value > 0.0 else "misses the objectives"
        inside = value > 0.62 * most
        axes.text(
            value - 0.01 * most if inside else value + 0.01 * most, y, text, va="center",
            ha="right" if inside else "left", fontsize=SMALL, color="white" if inside else "black",
        )  # fmt: skip
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * most)
    axes.set_title(found.case.title, loc="left", fontsize=10)
    axes.set_xlabel("requests per dollar")
    grid_lines(axes, "x")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
