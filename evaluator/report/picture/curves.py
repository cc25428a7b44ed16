"""The picture of a sweep over a load or another scale: curves of every measure, side by side or in facets."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.report.labels import axis_title, text, title
from evaluator.report.picture.canvas import canvas, footnotes, headings, legend, x_axis
from evaluator.report.picture.layout import Layout, ordered, pick
from evaluator.report.picture.measures import CUT, Panel, log_limits, panels_of
from evaluator.report.picture.style import (
    DASHES,
    HEADING,
    MARKERS,
    SMALL,
    curve,
    grid_lines,
    lines,
    shades_of,
    swatches,
)

if TYPE_CHECKING:
    import xarray as xr

MOST_BANDS = 6  # with more curves than this, error bands hide more than they tell
MOST_MARKERS = 40  # along one curve


@dataclass(frozen=True)
class Curve:
    """The rows of one curve, (point,), by ascending x, its colour, and the number of its line style."""

    rows: np.ndarray
    colour: Any
    style: int


def curves(ds: xr.Dataset, layout: Layout) -> Any:
    """Measures over x: a row of panels, or with facets a row for each measure and a column for each facet."""
    panels = panels_of(ds, layout)
    facets, colours, styles = (ordered(ds, name, layout.rows) for name in (layout.facet, layout.colour, layout.style))
    shades = shades_of(ds, layout.colour, colours)
    figure, grid, right = _grid(len(panels), len(facets))
    for column, facet in enumerate(facets):
        drawn = _curves_of(ds, layout, facet, shades)
        for panel, axes in zip(panels, grid[:, column], strict=True):
            for of_shade in drawn:
                _draw(axes, ds, str(layout.x), panel, of_shade, len(drawn) <= MOST_BANDS)
            _finish(axes, panel, layout.rows, ds)
        if layout.facet is not None:
            grid[0, column].set_title(f"{title(layout.facet)} {text(facet)}", fontsize=HEADING, loc="left")
    for panel, axes_of_panel in zip(panels, grid, strict=True):
        axes_of_panel[0].set_ylabel(panel.label)
        _label_bound(axes_of_panel[-1], panel)
    x_axis(grid if layout.facet is None else grid[-1:], ds, layout)
    measures = ", ".join(panel.label.split(" (")[0] for panel in panels)
    cut = any(panel.bound and np.nanmax(panel.values[layout.rows]) > CUT * panel.bound for panel in panels)
    notes = [*footnotes(ds, layout), *([f"Latencies beyond {CUT:g} times the SLO are cut off"] if cut else [])]
    headings(figure, ds, f"{measures} over the {axis_title(ds, str(layout.x))}", notes)
    groups = ((layout.colour, colours, swatches(shades)), (layout.style, styles, lines(len(styles))))
    legend(figure, groups, right)
    return figure


def _grid(measures: int, facets: int) -> tuple[Any, Any, float]:
    """Figure, axes [measure][facet] and where the legend starts; without facets the measures stand side by side."""
    down, across = (measures, facets) if facets > 1 else (1, measures)
    width = 3.35 + across * (3.3 if down > 1 else 3.9)
    height = 2.0 + down * (2.15 if down > 1 else 3.2)
    figure = canvas(width, height)
    # Facets are compared along a row, measures have axes of their own.
    share = {"sharex": True, "sharey": "row"} if down > 1 else {}
    grid = figure.subplots(down, across, squeeze=False, **share)
    right = 1 - 2.4 / width
    gaps = {"wspace": 0.08, "hspace": 0.16} if down > 1 else {"wspace": 0.46}
    figure.subplots_adjust(0.85 / width, 1.0 / height, right - 0.1 / width, 1 - 1.15 / height, **gaps)
    return figure, grid if down > 1 else grid.T, right + 0.55 / width  # the objective's label is between


def _curves_of(ds: xr.Dataset, layout: Layout, facet: Any, shades: list[Any]) -> list[Curve]:
    """The curves of one facet: one for each colour and line style."""
    colours, styles = (ordered(ds, name, layout.rows) for name in (layout.colour, layout.style))
    some = pick(ds, layout.facet, facet, layout.rows)
    drawn = []
    for (shade, colour), (number, style) in product(zip(shades, colours, strict=True), enumerate(styles)):
        rows = pick(ds, layout.style, style, pick(ds, layout.colour, colour, some))
        drawn.append(Curve(rows[np.argsort(ds[layout.x].values[rows], kind="stable")], shade, number))
    return drawn


def _draw(axes: Any, ds: xr.Dataset, x: str, panel: Panel, drawn: Curve, band: bool) -> None:
    """One curve of a measure, and with ``band`` two standard errors around what is not saturated."""
    # A design that served nothing has no latency; matplotlib would leave a gap in its curve.
    rows = drawn.rows[np.isfinite(panel.values[drawn.rows])]
    if rows.size == 0:
        return
    along, marker = ds[x].values[rows], MARKERS[drawn.style] if rows.size <= MOST_MARKERS else ""
    marks = {"color": drawn.colour, "marker": marker, "ls": DASHES[drawn.style]}
    calm = curve(axes, along, panel.values[rows], ds["saturated"].values[rows], **marks)
    if band and panel.stderr is not None:
        error = 2.0 * panel.stderr[rows]  # no band where it is not known
        # On a logarithmic axis a band down to 0 would fill the panel.
        low = np.maximum(calm - error, 0.2 * calm) if panel.log else calm - error
        axes.fill_between(along, low, calm + error, color=drawn.colour, alpha=0.13, lw=0, zorder=1)


def _finish(axes: Any, panel: Panel, rows: np.ndarray, ds: xr.Dataset) -> None:
    """Scale, bound and grid of one panel. Saturated points tell how long one looked: they do not set the scale."""
    values, over = panel.values[rows], ds["saturated"].values[rows]
    finite = values[np.isfinite(values)]
    calm = values[np.isfinite(values) & ~over]
    calm = calm if calm.size else finite
    if panel.log and calm.min() > 0:
        axes.set_yscale("log")
        axes.set_ylim(*log_limits(calm, panel.bound))
        _plain_ticks(axes)
    else:
        # 1e-12: where all is 0, limits that are equal would be widened by matplotlib with a warning.
        axes.set_ylim(0.0, panel.top or 1.15 * max(calm.max(), panel.bound or 0.0, 1e-12))
    if panel.bound is not None:
        axes.axhline(panel.bound, color="black", lw=0.9, ls=(0, (4, 3)), zorder=1)
    grid_lines(axes)


def _label_bound(axes: Any, panel: Panel) -> None:
    """The objective's value right of its line, outside the axes, where no curve runs."""
    if panel.bound is not None:
        where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "annotation_clip": False}
        label = f"SLO {panel.bound:g} {panel.unit}"
        axes.annotate(label, (1, panel.bound), (4, 0), **where, fontsize=SMALL, ha="left", va="center")


def _plain_ticks(axes: Any) -> None:
    """0.2, 0.5, 1, 2 instead of powers of ten; 1, 2 and 5 of every decade where there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 200 else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
