"""The picture of a sensitivity: what 1 % more of each input changes in the best design, over the load where swept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.report.layout import Layout, choose, pick
from evaluator.report.plot import COLOURS, GREY, canvas, footnotes, headings, in_words, legend, save, x_axis
from evaluator.report.sensitivity import MEASURES, elasticity, measures_of, told
from evaluator.report.table import is_constant, quantities, ranking

if TYPE_CHECKING:
    import xarray as xr

MOST_PANELS = 3


def plot_sensitivity(ds: xr.Dataset, path: str | Path) -> Path:
    """Draw the elasticities of a sweep with sensitivity, where anything is ``told``, to ``path`` (as ``plot``)."""
    return save(path, lambda: _draw(ds))


def _draw(ds: xr.Dataset) -> Any:
    feasible = told(ds)
    best = ranking(ds, feasible)[0][0]
    x = choose(ds, feasible).x
    others = [name for name in quantities(ds) if name != x and not is_constant(ds, name)]
    rows = np.array([best]) if x is None else feasible
    for name in others:
        rows = pick(ds, name, ds[name].values[best], rows)
    shown = measures_of(ds, rows)[:MOST_PANELS]
    inputs = [at for at in range(ds.sizes["input"]) if any(np.any(elasticity(ds, name, rows, at)[0]) for name in shown)]
    width = 3.2 + 3.7 * len(shown)
    figure = canvas(width, 4.6)
    grid = figure.subplots(1, len(shown), squeeze=False)
    figure.subplots_adjust(0.75 / width, 0.22, 1 - 2.45 / width, 0.74, wspace=0.3)
    for axes, name in zip(grid[0], shown, strict=True):
        for place, at in enumerate(inputs):
            _input(axes, ds, name, rows, at, x, COLOURS[place], place)
        axes.axhline(0.0, color="black", lw=0.8, zorder=1)
        axes.set_title(MEASURES[name], fontsize=10, loc="left")
        axes.grid(True, color="#e6e6e6", lw=0.6)
        axes.set_axisbelow(True)
    grid[0, 0].set_ylabel("change (%) for 1 % more of the input")
    layout = Layout(x, None, None, None, rows, ())
    if x is None:
        for axes in grid[0]:
            axes.set_xticks([])
    else:
        x_axis(grid, ds, layout)
    labels = [str(ds["input"].values[at]).replace("_", " ") for at in inputs]
    legend(figure, [("input", labels, _handles(len(inputs)))], 1 - 2.2 / width)
    which = f"the best design: {in_words(ds, best, others)}" if others else "the design"
    error = f"{'Bars' if x is None else 'Bands'}: chance and step of the difference together"
    headings(figure, ds, f"What limits {which}", [error, *footnotes(ds, layout)])
    return figure


def _handles(count: int) -> list[Any]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], color=colour, lw=2.2) for colour in COLOURS[:count]]


def _input(
    axes: Any, ds: xr.Dataset, name: str, rows: np.ndarray, at: int, x: str | None, colour: Any, place: int
) -> None:
    """One input: a curve with its band over x, faint and hollow where saturated; without x a bar."""
    if x is not None:
        rows = rows[np.argsort(ds[x].values[rows], kind="stable")]
    slope, error = elasticity(ds, name, rows, at)
    if x is None:
        axes.bar(place, slope[0], 0.7, yerr=error if np.isfinite(error[0]) else None, color=colour, ecolor=GREY)
        return
    along, over = ds[x].values[rows], ds["saturated"].values[rows]
    axes.plot(along, slope, lw=1.0, alpha=0.35, color=colour, marker="o", ms=3.2, markerfacecolor="white", zorder=2)
    calm = np.where(over, np.nan, slope)
    axes.plot(along, calm, lw=1.7, color=colour, marker="o", ms=3.2, zorder=3)
    axes.fill_between(along, calm - error, calm + error, color=colour, alpha=0.15, lw=0, zorder=1)
