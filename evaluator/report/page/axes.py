"""What was swept, as a page shows it: an axis of the sweep with several keys is one axis with a text for each step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.report.picture.labels import axis_title, name_and_unit, text, title
from evaluator.report.ranking import is_constant, quantities
from evaluator.results.schema import axes_of

if TYPE_CHECKING:
    import xarray as xr

MOST_STEPS = 40
"""Steps of an axis with several keys up to which it is shown as one; a table or a sample of designs has more."""


@dataclass(frozen=True)
class Axis:
    """Something that differs between designs: ``names`` are the coordinates that it stands for.

    ``first`` are positions along ``config``, one for each level, in the order of the levels; ``at``, (config,), says
    which level each design has. A single number is ``numeric``, and its levels ascend.
    """

    key: str
    names: tuple[str, ...]
    first: np.ndarray
    at: np.ndarray
    numeric: bool
    label: str
    title: str
    unit: str

    def words(self, ds: xr.Dataset, row: int) -> str:
        """The design's level as text: numbers of several with their names, what is not set left out."""
        if len(self.names) == 1:
            return _shown(ds[self.names[0]].values[row])
        words = [_named(ds, name, row) for name in self.names if _is_set(ds, name, row) and not name.endswith("_role")]
        return ", ".join(words) or "as the scenario says"

    def quantity(self, ds: xr.Dataset, row: int) -> str:
        """The design's level in a sentence: ``arrival rate 4 requests/s``, ``h100-sxm``."""
        return f"{self.label} {self.words(ds, row)} {self.unit}".rstrip() if self.numeric else self.words(ds, row)


def axes_shown(ds: xr.Dataset) -> list[Axis]:
    """The axes of the sweep without what is the same in every design."""
    varying = [name for name in quantities(ds) if not is_constant(ds, name)]
    found = []
    for coordinates in axes_of(ds):
        names = tuple(name for name in coordinates if name in varying)
        if len(names) > 1 and _steps(ds, names)[0].size <= MOST_STEPS:
            found.append(_axis(ds, coordinates[0], names))
        else:
            found += [_axis(ds, name, (name,)) for name in names]
    return found


def _axis(ds: xr.Dataset, key: str, names: tuple[str, ...]) -> Axis:
    first, at = _steps(ds, names)
    numeric = len(names) == 1 and ds[key].dtype.kind in "iuf"
    if not numeric:  # as first swept
        order = np.argsort(first, kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(order.size)
        first, at = first[order], places[at]
    if len(names) > 1:
        return Axis(key, names, first, at, False, title(key), title(key), "")
    label, unit = name_and_unit(ds, key)
    return Axis(key, names, first, at, numeric, label, axis_title(ds, key), unit)


def _steps(ds: xr.Dataset, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The first position of every distinct step, and which step each design has."""
    codes = np.stack([np.unique(ds[name].values, return_inverse=True)[1] for name in names], axis=-1)
    _, first, at = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    return first, at.reshape(-1)


def _is_set(ds: xr.Dataset, name: str, row: int) -> bool:
    value = ds[name].values[row]
    return bool(value == value) and str(value) != "none"


def _shown(value: Any) -> str:
    return text(value) if value == value else "none"


def _named(ds: xr.Dataset, name: str, row: int) -> str:
    value = ds[name].values[row]
    return f"{title(name)} {text(value)}" if ds[name].dtype.kind in "iuf" else text(value)


def settings(ds: xr.Dataset, names: tuple[str, ...], row: int) -> list[str]:
    """``key.path=value`` of the coordinates ``names`` that a design has set, as ``--set`` takes it."""
    found = []
    for name in names:
        path = str(ds[name].attrs.get("description", "")).removeprefix("swept: ")
        if "." in path and _is_set(ds, name, row):
            value = ds[name].values[row].item()
            whole = isinstance(value, float) and value.is_integer()  # a count, in a column where others have none
            found.append(f"{path}={value if isinstance(value, str) else json.dumps(int(value) if whole else value)}")
    return found


def axis_json(ds: xr.Dataset, axis: Axis, rows: np.ndarray) -> dict[str, Any]:
    """An axis for the scripts: its levels, which of them each of ``rows`` has, and what sets them."""
    numbers = ds[axis.key].values[axis.first].tolist() if axis.numeric else []
    return {
        "key": axis.key,
        "label": axis.label,
        "title": axis.title,
        "unit": axis.unit,
        "numeric": axis.numeric,
        "levels": [None if n != n else n for n in numbers] or [axis.words(ds, row) for row in axis.first.tolist()],
        "at": axis.at[rows].tolist(),
        "sets": [settings(ds, axis.names, row) for row in axis.first.tolist()],
    }
