"""The pictures of docs/errors.md, of the campaigns' rows and of the table of what lies within the stated errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.benchmarks.accuracy import closed_loops
from tests.benchmarks.accuracy.__main__ import CAMPAIGNS, TABLES
from tests.benchmarks.accuracy.coverage import CAMPAIGNS as AUTHORS

DATA = Path(os.environ.get("EVALUATOR_DATA", "../shared/data"))
PANELS = {
    "kernels": ("isolated kernels", "s", "time"),
    "iterations": ("iterations, vLLM on B300", "ms", "iteration"),
    "servers": ("servers, as fitted", "ms", "_mean"),
    "requests": ("runs request by request", "s", ""),
    "closed_batches": ("closed batches, H100", "ms", "itl_p50"),
    "mlperf": ("TensorRT-LLM under MLPerf", "ms", "tpot_mean"),
    "closed_loops": ("batches, engines of 2024", "s", "e2e_mean"),
    "energy": ("power, H100 and A100", "part of TDP", "watts"),
}
"""What a campaign's panel is called, its unit, and how the metrics end that it shows (with "watts": are)."""
BAND = 0.2
FEW_DECADES = 300.0
MOST = 3000
"""Points of a panel, at most: every so many-th of those in order of what was measured."""
KINDS = {"dense": "dense", "experts": "mixture of experts", "state": "layers with a state"}
BY_LOAD = ("closed_batches", "mlperf", "servers", "iterations", "closed_loops")
AT = np.geomspace(1, 1024, 11)
"""Edges of groups of sequences at a time."""
FEWEST = 3
STATED = 68.0
LOADS = ("up to 48", "up to 160", "more")
METRIC = "itl_mean"


@cache
def rows(campaign: str) -> pd.DataFrame:
    """All rows of a campaign, found once for all pictures; of closed loops the batches, which take no minute."""
    found = [closed_loops.batches(DATA)] if campaign == "closed_loops" else CAMPAIGNS[campaign](DATA)
    return pd.concat(found, ignore_index=True)


def draw_scatter(path: Path) -> None:
    """Predicted over measured, a panel for each campaign, with the band of 20 %."""
    from evaluator.report.picture.style import COLOURS, GREY, grid_lines

    with _figure(2, 4, (12.5, 6.6)) as (figure, panels):
        for axes, (campaign, (title, unit, ends)) in zip(panels.flat, PANELS.items(), strict=True):
            found = rows(campaign)
            found = found[found["metric"].str.endswith(ends) & (found["measured"] > 0)].sort_values("measured")
            shown = found.iloc[:: max(1, len(found) // MOST)]
            axes.plot(shown["measured"], shown["predicted"], ".", color=COLOURS[0], ms=3, alpha=0.35, rasterized=True)
            ends_at = np.array([found["measured"].min() / 1.3, found["measured"].max() * 1.3])
            axes.plot(ends_at, ends_at, color=GREY, lw=1)
            axes.fill_between(ends_at, (1 - BAND) * ends_at, (1 + BAND) * ends_at, color=COLOURS[4], alpha=0.25, lw=0)
            axes.set(xscale="log", yscale="log", xlim=ends_at, ylim=ends_at)
            _few_ticks(axes, ends_at)
            axes.set_xlabel(f"measured ({unit})")
            axes.set_ylabel(f"predicted ({unit})")
            within = 100.0 * (found["error_pct"].abs() <= 100 * BAND).mean()
            axes.set_title(title, loc="left", fontsize=10)
            axes.text(0.04, 0.93, f"{within:.0f} % within 20 %", transform=axes.transAxes, va="top")
            grid_lines(axes)
        _save(figure, "Predicted over measured; the band is 20 % wide on either side", path)


def _few_ticks(axes: Any, ends: np.ndarray) -> None:
    """Ticks at 1, 2 and 5 of a decade where there are few decades, at powers of ten where there are many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
        if ends[1] < FEW_DECADES * ends[0]:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def draw_by_load(path: Path) -> None:
    """Signed errors over the sequences at a time, a panel for each campaign, a line for each kind of model."""
    from evaluator.report.picture.style import COLOURS, GREY, MARKERS, grid_lines

    with _figure(1, 5, (14, 3.9), sharey=True) as (figure, panels):
        for axes, campaign in zip(panels, BY_LOAD, strict=True):
            title, _, ends = PANELS[campaign]
            found = rows(campaign)
            found = found[found["metric"].str.endswith("itl_mean" if campaign == "servers" else ends)]
            for kind, colour, marker in zip(KINDS, COLOURS, MARKERS, strict=False):
                at, middle, low, high = _by_load(found[found["kind"] == kind])
                axes.fill_between(at, low, high, color=colour, alpha=0.15, lw=0)
                axes.plot(at, middle, marker=marker, color=colour, ms=5, lw=1.5, label=KINDS[kind])
            axes.axhline(0, color=GREY, lw=1)
            axes.set(xscale="log", xlim=(0.8, 1400), ylim=(-80, 40))
            axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
            axes.set_title(title, loc="left", fontsize=10)
            axes.set_xlabel("sequences at a time")
            grid_lines(axes)
        panels[0].set_ylabel("predicted over measured - 1 (%)")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        _save(figure, "Median error of the time of an iteration or an answer, and its middle 68 %", path)


def _by_load(found: pd.DataFrame) -> Iterator[np.ndarray]:
    grouped = found[found["at"] >= 1].groupby(pd.cut(found["at"], AT, include_lowest=True), observed=True)
    large = [part for _, part in grouped if len(part) >= FEWEST]
    yield np.array([part["at"].median() for part in large])
    for share in (0.5, 0.16, 0.84):
        yield np.array([part["error_pct"].quantile(share) for part in large])


def draw_coverage(path: Path) -> None:
    """How many measured values lie within the error that is stated of them, by campaign, case and load."""
    from evaluator.accuracy.cases import CASES
    from evaluator.report.picture.style import COLOURS, GREY, MARKERS, grid_lines

    table = pd.read_csv(TABLES.parent / "coverage.csv", comment="#")
    table = table[(table["metric"] == METRIC) & table["load"].isin(LOADS)]
    lines = list(dict.fromkeys(zip(table["campaign"], table["case"], strict=True)))
    lines.sort(key=lambda line: (list(AUTHORS.values()).index(line[0]), list(CASES).index(line[1])))
    with _figure(1, 1, (10.5, 0.33 * len(lines) + 1.6)) as (figure, axes):
        for place, (campaign, case) in enumerate(lines):
            part = table[(table["campaign"] == campaign) & (table["case"] == case)]
            for load, colour, marker in zip(LOADS, COLOURS, MARKERS, strict=False):
                of = part[part["load"] == load]
                lift = 0.22 * (1 - LOADS.index(load))  # so that three loads of one value are all seen
                size = 3.0 + 2.2 * np.log10(of["servers"].max() if len(of) else 1.0)
                axes.plot(of["inside_pct"], [place - lift] * len(of), marker, color=colour, ms=size)
        axes.axvline(STATED, color=GREY, lw=1)
        axes.set_yticks(range(len(lines)), [f"{campaign}: {CASES[case].told}" for campaign, case in lines])
        axes.set(xlim=(-3, 103), ylim=(len(lines) - 0.5, -0.5))
        axes.set_xlabel("measured means of ITL within (%); the line: 68 %")
        grid_lines(axes)
        shown = [axes.plot([], [], at, color=colour, ms=5)[0] for at, colour in zip(MARKERS, COLOURS, strict=False)]
        names = [f"{load} at a time" for load in LOADS]
        figure.legend(shown, names, loc="outside lower center", ncols=3, frameon=False)
        _save(figure, "Within the stated error; larger marks are of more servers", path)


@contextmanager
def _figure(down: int, across: int, size: tuple[float, float], **shared: Any) -> Iterator[tuple[Any, Any]]:
    """A figure in the type of all pictures, closed at the end."""
    import matplotlib.pyplot as plt

    from evaluator.report.picture.style import SETTINGS

    with plt.rc_context(SETTINGS):
        figure, panels = plt.subplots(down, across, figsize=size, layout="constrained", **shared)
        yield figure, panels
        plt.close(figure)


def _save(figure: Any, title: str, path: Path) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    figure.savefig(path, dpi=90)


PICTURES: Mapping[str, Callable[[Path], None]] = {
    "errors-scatter.png": draw_scatter,
    "errors-by-load.png": draw_by_load,
    "errors-stated.png": draw_coverage,
}
