"""The picture of a sweep, chosen from its axes: curves over the load, or speed for the user against speed per GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.report.picture.canvas import save
from evaluator.report.picture.curves import curves
from evaluator.report.picture.front import pareto
from evaluator.report.picture.layout import choose
from evaluator.report.picture.single import nothing, single

if TYPE_CHECKING:
    import xarray as xr


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
    layout = choose(ds, feasible)
    return pareto(ds, layout) if layout.x is None else curves(ds, layout)
