"""The picture of a sweep without a scale: speed for the user against output per device, and the front of designs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.report.labels import in_words
from evaluator.report.picture.canvas import canvas, footnotes, headings, legend
from evaluator.report.picture.layout import Layout, ordered, pick
from evaluator.report.picture.style import MARKERS, SMALL, grid_lines, shades_of, spot
from evaluator.report.ranking import front, is_constant
from evaluator.results.schema import quantities

if TYPE_CHECKING:
    import xarray as xr

MOST_LABELS = 10  # labels are wide and flat, and those of nearly the same height would overlap
MANY = 500  # points beyond which they are drawn small


def pareto(ds: xr.Dataset, layout: Layout) -> Any:
    """Speed that a user sees against output per GPU, with the front of the designs that are not saturated."""
    user, gpu = ds["tok_per_s_per_user"].values, ds["tok_per_s_per_gpu"].values
    # TPOT is unknown where every output has one token, and with it the speed for a user.
    rows = layout.rows[np.isfinite(user[layout.rows]) & np.isfinite(gpu[layout.rows])]
    figure = canvas(9.5, 5.6)
    axes = figure.subplots()
    figure.subplots_adjust(0.09, 0.17, 0.76, 0.85)
    names = (layout.colour, layout.style, layout.facet)
    levels = [ordered(ds, name, rows) for name in names]
    shades = shades_of(ds, layout.colour, levels[0])
    sizes = sizes_of(levels[2], rows.size)
    for (shade, *styles), some in marked(ds, names, levels, rows, shades):
        # Rasterised: an SVG or PDF with a path for each of 10,000 points takes seconds to open.
        marks = {"s": sizes[styles[1]], "marker": MARKERS[styles[0]], "rasterized": rows.size > 2000, "zorder": 3}
        _points(axes, ds, some, shade, marks)
    _front_line(axes, ds, rows)
    axes.set(xlabel="output tokens/s per user (1 / mean TPOT)", ylabel="output tokens/s per GPU")
    axes.set_xlim(0.0, 1.08 * user[rows].max(initial=0.0) or 1.0)
    axes.set_ylim(0.0, 1.15 * gpu[rows].max(initial=0.0) or 1.0)
    grid_lines(axes)
    headings(figure, ds, "Speed for the user against output per GPU; line: the front", footnotes(ds, layout))
    legend(figure, list(zip(names, levels, handles_of(shades, levels, sizes), strict=True)), 0.78)
    return figure


def handles_of(shades: Sequence[Any], levels: Sequence[list[Any]], sizes: np.ndarray) -> list[list[Any]]:
    """Handles of the legends for colours, markers and sizes."""
    return [
        [spot(color=shade) for shade in shades],
        [spot(marker=MARKERS[index]) for index in range(len(levels[1]))],
        [spot(ms=float(np.sqrt(size))) for size in sizes],
    ]


def sizes_of(levels: Sequence[Any], points: int) -> np.ndarray:
    """Areas of markers, one for each level; small ones where there are many points."""
    return (34 if points <= MANY else 8) * 2.0 ** (np.arange(len(levels)) - 0.5 * (len(levels) - 1))


def marked(
    ds: xr.Dataset, names: Sequence[str | None], levels: Sequence[list[Any]], rows: np.ndarray, shades: Sequence[Any]
) -> Iterator[tuple[tuple[Any, int, int], np.ndarray]]:
    """(colour, which marker, which size) and the rows that are drawn so; the largest first, not to hide the others.

    ``names`` are the axes that colour, marker and size stand for, ``levels`` the values of each.
    """
    places = product(*(range(len(values)) for values in levels))
    for first, second, third in sorted(places, key=lambda indices: -indices[2]):
        some = rows
        for name, values, index in zip(names, levels, (first, second, third), strict=True):
            some = pick(ds, name, values[index], some)
        yield (shades[first], second, third), some


def _points(axes: Any, ds: xr.Dataset, rows: np.ndarray, shade: Any, marks: dict[str, Any]) -> None:
    """Designs of one colour, marker and size; hollow where they are saturated."""
    user, gpu = ds["tok_per_s_per_user"].values, ds["tok_per_s_per_gpu"].values
    over = ds["saturated"].values[rows]
    calm, full = rows[~over], rows[over]
    axes.scatter(user[calm], gpu[calm], color=shade, lw=0, alpha=0.85, **marks)
    axes.scatter(user[full], gpu[full], facecolor="none", edgecolor=shade, alpha=0.5, lw=0.8, **marks)


def _front_line(axes: Any, ds: xr.Dataset, rows: np.ndarray) -> None:
    """The front of the designs that are not saturated, some of them named."""
    user, gpu = ds["tok_per_s_per_user"].values, ds["tok_per_s_per_gpu"].values
    calm = rows[~ds["saturated"].values[rows]]
    if calm.size < 2:
        return
    best = calm[front(user[calm], gpu[calm])]
    # Steps and no straight lines: between two designs there is none.
    axes.step(user[best], gpu[best], where="post", color="black", lw=1.0, zorder=2)
    names = [name for name in quantities(ds) if not is_constant(ds, name)][:3]
    labelled = -np.inf
    for row in best:
        # ``best`` comes from the largest x down, so that its y only rises.
        if gpu[row] - labelled < gpu[rows].max() / MOST_LABELS:
            continue
        labelled = gpu[row]
        left = user[row] > 0.5 * user[rows].max()  # keep the label inside
        where = {"xytext": (-5 if left else 5, 6), "textcoords": "offset points", "ha": "right" if left else "left"}
        axes.annotate(in_words(ds, row, names), (user[row], gpu[row]), fontsize=SMALL, zorder=4, **where)
