"""The picture of a sweep, chosen from its axes: curves over the load, or speed for the user against speed per GPU."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.metrics.reasons import reasons
from evaluator.report.picture.canvas import canvas, footnotes, headings, save
from evaluator.report.picture.curves import curves
from evaluator.report.picture.front import pareto
from evaluator.report.picture.layout import Layout, choose, with_steps_joined
from evaluator.report.picture.style import BODY, COLOURS, GREY, HEADING, grid_lines

if TYPE_CHECKING:
    import xarray as xr


_LATENCIES = (("ttft_s", "TTFT (s)", 1.0), ("tpot_s", "TPOT (ms)", 1e3), ("e2e_s", "end to end (s)", 1.0))


def plot(ds: xr.Dataset, path: str | Path) -> Path:
    """Draw the dataset of a sweep to ``path`` (.png, .pdf or .svg) and return the path.

    Errors: InputError for another suffix, where matplotlib is missing, and where the file cannot be written.
    """
    return save(path, lambda: figure_of(ds))


def figure_of(ds: xr.Dataset) -> Any:
    """The figure that suits the axes of the sweep and what of it can run; in matplotlib's style of the moment."""
    feasible = np.flatnonzero(ds["status"].values == OK)
    if feasible.size == 0:
        return nothing(ds)
    if ds.sizes["config"] == 1:
        return single(ds)
    ds = with_steps_joined(ds)
    layout = choose(ds, feasible)
    return pareto(ds, layout) if layout.x is None else curves(ds, layout)


# --- nothing to compare: one configuration, or none that can run


def single(ds: xr.Dataset) -> Any:
    """One configuration: its latencies at every quantile, with standard errors."""
    figure = canvas(9.0, 3.8)
    # Of one that answered nobody there is one empty panel; without a time per token there is none of it.
    known = [latency for latency in _LATENCIES if np.isfinite(ds[latency[0]].values).any()] or _LATENCIES[:1]
    grid = figure.subplots(1, len(known), squeeze=False)[0]
    figure.subplots_adjust(0.08, 0.2, 0.98, 0.74, wspace=0.32)
    names = [f"p{100 * level:g}" for level in ds["quantile"].values]
    for axes, (name, heading, scale) in zip(grid, known, strict=True):
        error = ds.get(f"{name}_stderr")
        bars = None if error is None else error.values[0] * scale  # none where it is not known
        axes.bar(names, np.nan_to_num(ds[name].values[0]) * scale, 0.6, yerr=bars, color=COLOURS[0], ecolor=GREY)
        axes.set_title(heading, loc="left", fontsize=HEADING)
        grid_lines(axes, "y")
    layout = Layout(None, None, None, None, np.arange(1), ())
    bars_note = ["Bars: Monte-Carlo standard error", *footnotes(ds, layout)]
    headings(figure, ds, "Latency quantiles of the one configuration", bars_note)
    return figure


def nothing(ds: xr.Dataset) -> Any:
    """No configuration can run: say so, and why."""
    figure = canvas(9.0, 2.6)
    count = ds.sizes["config"]
    # The four most frequent ones: the table of a sweep has all.
    lines = [textwrap.fill(f"{times:,} x {reason}", 105) for reason, times in reasons(ds["status"].values)[:4]]
    figure.text(0.028, 0.62, "\n".join(lines), fontsize=BODY, va="top", linespacing=1.6)
    headings(figure, ds, f"None of the {count:,} configurations can run", [])
    return figure
