"""How all pictures look: type, colours, line styles, markers, and what is drawn in the same way in each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

SETTINGS: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.family": "DejaVu Sans",
}
TITLE, HEADING, BODY, SMALL = 14, 10, 9, 7.5  # sizes of type in points

# Okabe and Ito (2008), colours that the colour-blind can tell apart; its yellow is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B4A9E", "#444444")
GREY = "#6b6b6b"
_PALE = "#e6e6e6"
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))
MARKERS = ("o", "s", "^")


def shades_of(ds: xr.Dataset, name: str | None, levels: Sequence[Any]) -> list[Any]:
    """Distinct colours for names; shades that follow the order for numbers."""
    if name is not None and ds[name].dtype.kind in "iuf" and len(levels) > 2:
        from matplotlib import colormaps

        # To 0.88: its last yellow is too pale on white.
        return [colormaps["viridis"](0.88 * index / (len(levels) - 1)) for index in range(len(levels))]
    return list(COLOURS[: len(levels)])


def grid_lines(axes: Any, along: str = "both") -> None:
    """Pale lines behind what is drawn."""
    axes.grid(True, axis=along, color=_PALE, lw=0.6)
    axes.set_axisbelow(True)


def curve(axes: Any, along: np.ndarray, values: np.ndarray, saturated: np.ndarray, **marks: Any) -> np.ndarray:
    """One curve, (point,): full where the design is not saturated, faint and hollow where it is; the full part."""
    # The whole curve faintly, then over it what is not saturated: the line stays connected where one turns
    # into the other.
    axes.plot(along, values, lw=1.0, alpha=0.35, markerfacecolor="white", ms=3.2, **marks, zorder=2)
    calm = np.where(saturated, np.nan, values)
    axes.plot(along, calm, lw=1.7, ms=3.2, **marks, zorder=3)
    return calm


def swatches(shades: Sequence[Any]) -> list[Any]:
    """Handles of a legend: a line in each colour."""
    from matplotlib.lines import Line2D

    return [Line2D([], [], color=shade, lw=2.2) for shade in shades]


def lines(count: int) -> list[Any]:
    """Handles of a legend: the first ``count`` line styles with their markers."""
    from matplotlib.lines import Line2D

    common: Any = {"color": "black", "lw": 1.6, "ms": 3.5, "markevery": [1]}
    return [Line2D([], [], ls=DASHES[index], marker=MARKERS[index], **common) for index in range(count)]


def spot(color: Any = "black", marker: str = "o", ms: float = 6.0) -> Any:
    """A handle of a legend: one marker."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color, ls="", marker=marker, ms=ms)
