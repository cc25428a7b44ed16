"""The picture of a search: what designs serve against what users see of it, and against what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.report.labels import in_words
from evaluator.report.picture.canvas import calibration, canvas, headings, legend, save
from evaluator.report.picture.front import handles_of, marked, sizes_of
from evaluator.report.picture.layout import Layout, choose, ordered
from evaluator.report.picture.style import MARKERS, SMALL, grid_lines, shades_of
from evaluator.report.picture.sweep import nothing
from evaluator.report.ranking import front, is_constant
from evaluator.report.search import in_layout, question_of, ranking, serves
from evaluator.results.schema import quantities

if TYPE_CHECKING:
    import xarray as xr

MOST_LABELS = 6


@dataclass(frozen=True)
class SearchPanel:
    """A point for each design: values (config,) and their labels; of ``less`` the smaller value is the better."""

    x: np.ndarray
    y: np.ndarray
    x_label: str
    y_label: str
    less: bool = False


def plot_search(ds: xr.Dataset, path: str | Path) -> Path:
    """Draw the dataset of a search to ``path`` (.png, .pdf or .svg) and return the path.

    Errors: InputError for another suffix, where matplotlib is missing, and where the file cannot be written.
    """
    return save(path, lambda: figure_of(ds))


def figure_of(ds: xr.Dataset) -> Any:
    """Panels with the designs that serve something and the front of those that no other beats in both measures."""
    good = np.flatnonzero(serves(ds))
    if not good.size:
        return nothing(ds)
    layout = _layout(ds, good)
    panels = [panel for panel in _panels(ds) if np.isfinite(panel.x[layout.rows]).any()]
    names = (layout.colour, layout.style, layout.facet)
    levels = [ordered(ds, name, layout.rows) for name in names]
    shades, sizes = shades_of(ds, layout.colour, levels[0]), sizes_of(levels[2], layout.rows.size // 4)
    figure = canvas(3.2 + 4.9 * len(panels), 5.4)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    width = figure.get_size_inches()[0]
    figure.subplots_adjust(0.75 / width, 0.20, 1 - 2.05 / width, 0.83, wspace=0.24)
    for axes, panel in zip(grid, panels, strict=True):
        for (shade, *styles), some in marked(ds, names, levels, layout.rows, shades):
            axes.scatter(
                panel.x[some], panel.y[some], s=sizes[styles[1]], marker=MARKERS[styles[0]], color=shade, lw=0,
                alpha=0.8, rasterized=layout.rows.size > 2000, zorder=3,
            )  # fmt: skip
        axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
        least, most = np.nanmin(panel.x[layout.rows]), np.nanmax(panel.x[layout.rows])
        # From 0 where less is better, as distances to nothing are what is compared there; else the axis may be cut.
        axes.set_xlim(0.0 if panel.less or least < 0.5 * most else 0.8 * least, 1.08 * most)
        axes.set_ylim(0.0, 1.2 * np.nanmax(panel.y[layout.rows]))
        grid_lines(axes)
        _front(axes, ds, panel, layout.rows)
    headings(figure, ds, _subtitle(ds), _notes(ds, layout))
    legend(figure, list(zip(names, levels, handles_of(shades, levels, sizes), strict=True)), 1 - 1.85 / width)
    return figure


def _layout(ds: xr.Dataset, rows: np.ndarray) -> Layout:
    """Colours and markers; sizes of markers stand for nothing, and what else is swept has no mark of its own."""
    chosen = choose(ds, rows, scale=False, order=ranking(ds)[0])
    return replace(chosen, facet=None, notes=tuple(note for note in chosen.notes if "no mark" not in note))


def _named(ds: xr.Dataset, row: int) -> str:
    """A design in a few words below each other: its layout, then what it is on and how it is batched."""
    swept = [name for name in quantities(ds) if not is_constant(ds, name)]
    layout = [str(ds["pool_layout"].values[row])] if any(in_layout(ds, name) for name in swept) else []
    others = [name for name in swept if not in_layout(ds, name) and ds[name].dtype.kind not in "iuf"][:3]
    return "\n".join([*layout, in_words(ds, row, others)]).strip()


def _panels(ds: xr.Dataset) -> list[SearchPanel]:
    user, price, devices = (ds[name].values for name in ("tok_per_s_per_user", "usd_per_hour", "devices"))
    speed = "output tokens/s per user (1 / mean TPOT)"
    if question_of(ds)["rate_rps"] is not None:
        panels = [
            SearchPanel(devices, user, "devices", speed, less=True),
            SearchPanel(price, user, "price (USD/h)", speed, less=True),
        ]
        return panels
    goodput = ds["goodput_rps"].values
    return [
        SearchPanel(user, ds["goodput_rps_per_gpu"].values, speed, "goodput per GPU (requests/s)"),
        SearchPanel(price, goodput, "price (USD/h)", "goodput (requests/s)", less=True),
    ]


def _front(axes: Any, ds: xr.Dataset, panel: SearchPanel, rows: np.ndarray) -> None:
    """The line of designs that no other beats in both measures, some of them named."""
    from matplotlib.patheffects import withStroke

    rows = rows[np.isfinite(panel.x[rows]) & np.isfinite(panel.y[rows])]
    best = rows[front(-panel.x[rows] if panel.less else panel.x[rows], panel.y[rows])]
    # One design alone is no front; where less is better, its label still says what the fewest are.
    if best.size < 2 and not panel.less:
        return
    best = best[np.argsort(panel.x[best])]
    axes.step(panel.x[best], panel.y[best], where="post" if panel.less else "pre", color="black", lw=1.0, zorder=2)
    # Labels lie over points of other designs.
    halo = [withStroke(linewidth=2.0, foreground="white")]
    gap, labelled, named = panel.y[rows].max() / MOST_LABELS, np.inf, list[Any]()
    for row in best[np.argsort(-panel.y[best])]:
        name = _named(ds, row)
        # From the top down, each at least a line of type below the last: labels of neighbours on the front would
        # overlap.
        if abs(panel.y[row] - labelled) < gap or name in [text.get_text() for text in named]:
            continue
        labelled = panel.y[row]
        point = panel.x[row], panel.y[row]
        label = axes.annotate(name, point, fontsize=SMALL, linespacing=1.05, zorder=4, path_effects=halo,
                              textcoords="offset points", xytext=ABOVE, ha="left")  # fmt: skip
        named.append(label)
    _beyond(axes, named, panel.less)


ABOVE = (5, 6)
"""Points of the page from a design to its label, to the right and up."""
WIDER = 1.1
"""By how much a label may be wider in the file than measured here: hinted letters do not grow with the resolution."""
MOST_ROOM = 1.5
"""How many times as long an axis may become to make room for labels."""


def _beyond(axes: Any, labels: list[Any], less: bool) -> None:
    """Puts labels on the side of the front on which there are no designs: the left one where less is better.

    On the right the axis is made longer where they need it; what has no room on its side goes to the other.
    """
    frame = axes.get_window_extent()
    low, high = axes.get_xlim()
    ends = [high]
    for label in labels:
        width = WIDER * label.get_window_extent().width + ABOVE[0] * axes.figure.dpi / 72
        from_low = (label.xy[0] - low) / (high - low) * frame.width
        # The width of a label is fixed in inches: where the axis grows to ``end``, all points move to the left, this
        # one among them, and the label ends at the frame.
        end = low + (label.xy[0] - low) * frame.width / max(frame.width - width, 1.0)
        left = from_low >= width if less else end > MOST_ROOM * high
        if left:
            label.set_ha("right")
            label.xyann = (-ABOVE[0], ABOVE[1])
        elif not less:
            ends.append(end)
    axes.set_xlim(low, max(ends))


def _subtitle(ds: xr.Dataset) -> str:
    rate = question_of(ds)["rate_rps"]
    if rate is None:
        return "Highest rate within the objectives; line: designs that no other beats in both measures"
    return f"What it takes to serve {rate:g} requests/s; line: designs that no other beats in both measures"


def _notes(ds: xr.Dataset, layout: Layout) -> list[str]:
    """What a reader has to know: which designs are not shown, seeds, and the calibration set."""
    notes = [f"Shown: {'; '.join(layout.notes)}"] if layout.notes else []
    status, total = ds["status"].values, ds.sizes["config"]
    absent = total - int(serves(ds).sum())
    if absent:
        cannot = int((status != OK).sum())
        notes.append(
            f"{absent:,} of {total:,} designs are absent: {cannot:,} cannot run or are over budget, "
            f"{absent - cannot:,} do not meet the objectives"
        )
    unpriced = np.isnan(ds["usd_per_hour"].values[layout.rows])
    if unpriced.any() and not unpriced.all():
        notes.append("Designs without a known price are not in the panel of prices")
    seeds = ds.attrs.get("seeds", "").count(",") + 1
    notes.append(f"{seeds} seeds" if seeds > 1 else "One seed")
    return [*notes, *calibration(ds, layout.rows)]
