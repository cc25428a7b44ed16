"""What a picture of a sweep shows: which axis is drawn how, and which rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.report.axes import axes_shown
from evaluator.report.labels import text, title
from evaluator.report.ranking import is_constant, ranking
from evaluator.results.schema import axes_of, quantities

if TYPE_CHECKING:
    import xarray as xr

MOST_COLOURS, MOST_STYLES, MOST_FACETS = 8, 3, 4
MIN_X = 4  # an axis of fewer values makes no curve

# What an axis is best shown as, the most telling first; axes that are not named follow in their own order.
_LOAD = ("rate_rps", "users")
_COUNTS = (
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "data_parallel",
    "replicas",
)  # designs, not a scale
_COLOUR = ("hardware", "model", "tensor_parallel", "policy")
_STYLE = ("policy", "router", "admission", "weights", "kv")
_FACET = ("model", "tensor_parallel")


@dataclass(frozen=True)
class Layout:
    """Which axis is shown how, and the rows (positions along ``config``) that are shown; ``notes`` say what is not.

    ``facet`` is a column of panels where there is an ``x``, else a size of marker.
    """

    x: str | None
    colour: str | None
    style: str | None
    facet: str | None
    rows: np.ndarray
    notes: tuple[str, ...]


def choose(ds: xr.Dataset, feasible: np.ndarray, scale: bool = True, order: np.ndarray | None = None) -> Layout:
    """Axes to x, colour, line style and facets; what is left over is held at its value in the best configuration.

    ``feasible`` are the positions along ``config`` that ran. Of too many levels the best are kept; ``notes`` say so.
    Without ``scale`` no axis becomes x. ``order`` are those positions, the best first, where they are not ranked as a
    sweep's.
    """
    # Each axis is taken out as it gets its place, in the order in which readers tell apart best: x, colour,
    # style, facet.
    left = [name for name in quantities(ds) if not is_constant(ds, name)]
    x = _x(ds, left) if scale else None
    left = [name for name in left if name != x]
    colour = _take(left, _COLOUR, lambda name: True)
    style = _take(left, _STYLE, lambda name: _count(ds, name) <= MOST_STYLES)
    facet = _take(left, _FACET, lambda name: _count(ds, name) <= MOST_FACETS)
    # Best first until the end, since levels are kept in the order in which they appear: "the best 8" are the first 8.
    rows = ranking(ds, feasible)[0] if order is None else order
    notes = []
    # Along a curve all but x must stand still. Without x every design is a point, and may differ in whatever it does.
    for name in left if x else ():
        best = ds[name].values[rows[0]]
        notes.append(f"{title(name)} {text(best)} as in the best design")
        rows = pick(ds, name, best, rows)
    if left and not x:
        notes.append(f"all values of {', '.join(map(title, left))}, with no mark of their own")
    if colour is not None:
        levels = _levels(ds[colour].values[rows])
        if len(levels) > MOST_COLOURS:
            notes.append(f"the best {MOST_COLOURS} of {len(levels)} values of {title(colour)}")
            rows = rows[np.isin(ds[colour].values[rows], levels[:MOST_COLOURS])]
    # In their own order again: curves are drawn along x, and ranks are not needed any more.
    return Layout(x, colour, style, facet, np.sort(rows), tuple(notes))


def with_steps_joined(ds: xr.Dataset) -> xr.Dataset:
    """The dataset with one coordinate, of texts, for each axis of the sweep that sets several keys a step.

    Drawn one by one, such keys would take a place each, and those that find none would hide steps: of five layouts by
    tensor, context and expert parallelism two would be seen. An axis with the scale of x stays as it is.
    """
    x = _x(ds, [name for name in quantities(ds) if not is_constant(ds, name)])
    steps = {axis.key: axis for axis in axes_shown(ds) if len(axis.names) > 1 and x not in axis.names}
    if not steps:
        return ds
    words = {key: np.array([axis.words(ds, row) for row in axis.first])[axis.at] for key, axis in steps.items()}
    joined = ds.assign_coords({key: ("config", texts, {"units": "1"}) for key, texts in words.items()})
    axes = [[names[0]] if names[0] in steps else names for names in axes_of(ds)]
    return joined.assign_attrs(coordinates_of=json.dumps(axes))


def _x(ds: xr.Dataset, names: Sequence[str]) -> str | None:
    """The load where it is swept, else the finest numeric scale, else None."""
    scales = [name for name in names if ds[name].dtype.kind in "iuf" and name not in _COUNTS]
    fine = sorted((name for name in scales if _count(ds, name) >= MIN_X), key=lambda name: -_count(ds, name))
    # A load with two values is still a load; other scales need ``MIN_X`` to be a curve.
    load = [name for name in _LOAD if name in scales and _count(ds, name) > 1]
    return next(iter((*load, *fine)), None)


def _count(ds: xr.Dataset, name: str) -> int:
    return int(np.unique(ds[name].values).size)


def _take(left: list[str], preferred: Sequence[str], fits: Callable[[str], bool]) -> str | None:
    """Remove from ``left`` and return the first of the preferred axes, else the first of all, that fits."""
    for name in (*(name for name in preferred if name in left), *left):
        if fits(name):
            left.remove(name)
            return name
    return None


def _levels(values: np.ndarray) -> list[Any]:
    """Distinct values in the order in which they first appear."""
    _, first = np.unique(values, return_index=True)
    return [values[position] for position in np.sort(first)]


def _same(values: np.ndarray, value: Any) -> np.ndarray:
    # A quantity that some designs do not have is NaN there, and is a level like any other.
    return np.isnan(values) if value != value else values == value


def ordered(ds: xr.Dataset, name: str | None, rows: np.ndarray) -> list[Any]:
    """The levels shown: numbers ascending, text in the order of the sweep; one None where there is no such axis."""
    if name is None:
        return [None]
    levels = _levels(ds[name].values[rows])
    return sorted(levels) if ds[name].dtype.kind in "iuf" else levels


def pick(ds: xr.Dataset, name: str | None, value: Any, rows: np.ndarray) -> np.ndarray:
    """Those of ``rows`` that have the value; all of them where there is no such axis."""
    return rows if name is None else rows[_same(ds[name].values[rows], value)]
