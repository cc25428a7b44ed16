"""The picture of a sensitivity: what 1 % more of each input changes in the best design, over the load where swept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.report.elasticities import MEASURES, elasticity, measures_of, rows_with_elasticities
from evaluator.report.labels import in_words
from evaluator.report.picture.canvas import canvas, footnotes, headings, legend, save, x_axis
from evaluator.report.picture.layout import Layout, choose, pick
from evaluator.report.picture.style import COLOURS, GREY, HEADING, curve, grid_lines, swatches
from evaluator.report.ranking import is_constant, ranking
from evaluator.results.schema import quantities

if TYPE_CHECKING:
    import xarray as xr

MOST_PANELS = 3


@dataclass(frozen=True)
class Shown:
    """The best design: its row, its rows over ``x`` (its row alone without an x), and what else tells it apart."""

    ds: xr.Dataset
    best: int
    rows: np.ndarray
    x: str | None
    others: tuple[str, ...]


def plot_sensitivity(ds: xr.Dataset, path: str | Path) -> Path:
    """Draw what limits the best design of a sweep with sensitivity to ``path``, as ``plot`` does.

    At least one configuration must have elasticities (``rows_with_elasticities``). Errors: as of ``plot``.
    """
    return save(path, lambda: sensitivity_figure_of(ds))


def sensitivity_figure_of(ds: xr.Dataset) -> Any:
    """A panel for each measure, in it a curve over x for each input that makes a difference; without x a bar."""
    shown = _chosen(ds)
    measures = measures_of(ds, shown.rows)[:MOST_PANELS]
    inputs = [position for position in range(ds.sizes["input"]) if _moves(shown, measures, position)]
    width = 3.2 + 3.7 * len(measures)
    figure = canvas(width, 4.6)
    grid = figure.subplots(1, len(measures), squeeze=False)
    figure.subplots_adjust(0.75 / width, 0.22, 1 - 2.45 / width, 0.74, wspace=0.3)
    for axes, name in zip(grid[0], measures, strict=True):
        _panel(axes, shown, name, inputs)
    grid[0, 0].set_ylabel("change (%) for 1 % more of the input")
    # Made by hand, since ``choose`` would give colours to axes of the sweep, and here they are those of the inputs.
    layout = Layout(shown.x, None, None, None, shown.rows, ())
    if shown.x is not None:
        x_axis(grid, ds, layout)
    labels = [str(ds["input"].values[position]).replace("_", " ") for position in inputs]
    which = f"the best design: {in_words(ds, shown.best, shown.others)}" if shown.others else "the design"
    error = f"{'Bars' if shown.x is None else 'Bands'}: chance and step of the difference together"
    headings(figure, ds, f"What limits {which}", [error, *footnotes(ds, layout)])
    legend(figure, [("input", labels, swatches(COLOURS[: len(inputs)]))], 1 - 2.2 / width)
    return figure


def _chosen(ds: xr.Dataset) -> Shown:
    feasible = rows_with_elasticities(ds)
    best = int(ranking(ds, feasible)[0][0])
    x = choose(ds, feasible).x
    others = tuple(name for name in quantities(ds) if name != x and not is_constant(ds, name))
    if x is None:
        return Shown(ds, best, np.array([best]), None, others)
    rows = feasible
    # Only the load varies along a curve; everything else is as in the best design.
    for name in others:
        rows = pick(ds, name, ds[name].values[best], rows)
    return Shown(ds, best, rows[np.argsort(ds[x].values[rows], kind="stable")], x, others)


def _moves(shown: Shown, measures: list[str], position: int) -> bool:
    """Whether an input makes a difference to any of the measures."""
    # An input that moves nothing (a link of one device) would take a colour and a line of the legend.
    return any(np.any(elasticity(shown.ds, name, shown.rows, position)[0]) for name in measures)


def _panel(axes: Any, shown: Shown, name: str, inputs: list[int]) -> None:
    """What the inputs change in one measure."""
    for number, position in enumerate(inputs):
        _input(axes, shown, name, position, number)
    axes.axhline(0.0, color="black", lw=0.8, zorder=1)
    axes.set_title(MEASURES[name], fontsize=HEADING, loc="left")
    grid_lines(axes)
    if shown.x is None:
        # Bars stand for inputs, which the legend names.
        axes.set_xticks([])


def _input(axes: Any, shown: Shown, name: str, position: int, number: int) -> None:
    """One input: a curve with its band over x; without x a bar, the ``number``-th from the left."""
    slope, error = elasticity(shown.ds, name, shown.rows, position)
    colour = COLOURS[number]
    if shown.x is None:
        axes.bar(number, slope[0], 0.7, yerr=error if np.isfinite(error[0]) else None, color=colour, ecolor=GREY)
        return
    along, over = shown.ds[shown.x].values[shown.rows], shown.ds["saturated"].values[shown.rows]
    calm = curve(axes, along, slope, over, color=colour, marker="o")
    axes.fill_between(along, calm - error, calm + error, color=colour, alpha=0.15, lw=0, zorder=1)
