"""What was swept, as a page shows it: an axis of the sweep with several keys is one axis with a text for each step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.errors import InputError
from evaluator.report.layouts import laid_out, short_layout
from evaluator.report.picture.labels import axis_title, name_and_unit, text, title
from evaluator.report.ranking import is_constant, quantities
from evaluator.report.search import in_layout
from evaluator.results.schema import axes_of
from evaluator.yaml import loads_yaml

if TYPE_CHECKING:
    import xarray as xr

_LAYOUT = "pool_layout"
MOST_STEPS = 40
"""Steps of an axis with several keys up to which it is shown as one; a table or a sample of designs has more."""


@dataclass(frozen=True, eq=False)
class PageAxis:
    """Something that differs between designs: ``names`` are the coordinates that it stands for.

    ``told_by`` is the variable that has its words, where it is not the coordinates themselves.
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
    told_by: str = ""

    def words(self, ds: xr.Dataset, row: int) -> str:
        """The design's level as text: numbers of several with their names, what is not set left out."""
        if self.told_by:
            return str(ds.variables[self.told_by].values[row])
        if len(self.names) == 1:
            return _shown(ds.variables[self.names[0]].values[row])
        layouts = laid_out(self.names)
        words = [f"{pool} {short_layout(ds, names, row)}".strip() for pool, names in layouts.items()]
        in_layouts = {name for names in layouts.values() for name in names}
        words += [
            # The role of a pool stands in its name already.
            _named(ds, name, row)
            for name in self.names
            if name not in in_layouts and _is_set(ds, name, row) and not name.endswith("_role")
        ]
        return ", ".join(words) or "as the scenario says"

    def quantity(self, ds: xr.Dataset, row: int) -> str:
        """The design's level in a sentence: ``arrival rate 4 requests/s``, ``h100-sxm``."""
        return f"{self.label} {self.words(ds, row)} {self.unit}".rstrip() if self.numeric else self.words(ds, row)


def axes_shown(ds: xr.Dataset) -> list[PageAxis]:
    """The axes of the sweep without what is the same in every design; of a search, how pools are laid out is one."""
    varying = [name for name in quantities(ds) if not is_constant(ds, name)]
    layout = _layout(ds, varying)
    layout_names = layout.names if layout else ()
    shown: list[PageAxis] = []
    for coordinates in axes_of(ds):
        names = tuple(name for name in coordinates if name in varying and name not in layout_names)
        # The layout takes the place of the first axis that it stands for.
        if layout and layout not in shown and set(coordinates) & set(layout_names):
            shown.append(layout)
        # A table of a thousand designs is not an axis that a reader can filter by: its keys are shown one
        # by one.
        if len(names) > 1 and _steps(ds, names)[0].size <= MOST_STEPS:
            shown.append(_axis(ds, coordinates[0], names))
        else:
            shown += [_axis(ds, name, (name,)) for name in names]
    return shown if layout is None or layout in shown else [*shown, layout]


def _layout(ds: xr.Dataset, varying: list[str]) -> PageAxis | None:
    """How the pools of a search are laid out, in the place of the quantities that say so; None where it is the same."""
    if _LAYOUT not in ds or is_constant(ds, _LAYOUT):
        return None
    names = tuple(name for name in varying if in_layout(ds, name))
    first, level_of = _in_order(*_steps(ds, (_LAYOUT,)))
    label = str(ds[_LAYOUT].attrs.get("long_name", "layout"))
    return PageAxis(_LAYOUT, names, first, level_of, False, label, label, "", told_by=_LAYOUT)


def _axis(ds: xr.Dataset, key: str, names: tuple[str, ...]) -> PageAxis:
    first, level_of = _steps(ds, names)
    numeric = len(names) == 1 and ds[key].dtype.kind in "iuf"
    # ``unique`` sorts: numbers are to ascend, but texts are to stand as the scenario lists them.
    if not numeric:
        first, level_of = _in_order(first, level_of)
    if len(names) > 1:
        return PageAxis(key, names, first, level_of, False, title(key), title(key), "")
    label, unit = name_and_unit(ds, key)
    return PageAxis(key, names, first, level_of, numeric, label, axis_title(ds, key), unit)


def _steps(ds: xr.Dataset, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The first position of every distinct step, and which step each design has."""
    # Codes and not values, as columns may be numbers, texts or a mixture with NaN; rows of codes are compared as
    # integers.
    codes = np.stack([np.unique(ds[name].values, return_inverse=True)[1] for name in names], axis=-1)
    _, first, level_of = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    return first, level_of.reshape(-1)


def _in_order(first: np.ndarray, level_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same levels in the order in which they were first swept."""
    order = np.argsort(first, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(order.size)
    return first[order], places[level_of]


def _is_set(ds: xr.Dataset, name: str, row: int) -> bool:
    value = ds.variables[name].values[row]
    # NaN or ``none``: a key that other steps of the axis set and this one does not.
    return bool(value == value) and str(value) != "none"


def _shown(value: Any) -> str:
    return text(value) if value == value else "none"


def _named(ds: xr.Dataset, name: str, row: int) -> str:
    value = ds.variables[name].values[row]
    return f"{title(name)} {text(value)}" if ds.variables[name].dtype.kind in "iuf" else text(value)


def _path(ds: xr.Dataset, name: str) -> str:
    """The key of the scenario that a coordinate is; empty where it is none."""
    path = str(ds.variables[name].attrs.get("description", "")).removeprefix("swept: ")
    return path if "." in path else ""


@lru_cache(maxsize=4)
def _descriptions(scenario: str) -> dict[tuple[str, Any], str]:
    """What the sweep of a scenario's text calls by a ``name`` of its own: JSON, by the swept key and that name.

    The catalog does not know such a device or model, so that its name alone sets nothing.
    """
    descriptions: dict[tuple[str, Any], str] = {}

    def look(tree: Any) -> None:
        if isinstance(tree, Mapping):
            for key, value in tree.items():
                for step in value if isinstance(value, list) else [value]:
                    if isinstance(step, Mapping) and isinstance(step.get("name"), str):
                        descriptions[str(key), step["name"]] = json.dumps(step)
                look(value)
        elif isinstance(tree, list):
            for step in tree:
                look(step)

    try:
        tree = loads_yaml(scenario, "scenario")
        look(tree.get("sweep") if isinstance(tree, Mapping) else None)
    except (InputError, TypeError):  # a text that is no scenario, or with dates, describes nothing
        return {}
    return descriptions


def settings(ds: xr.Dataset, names: tuple[str, ...], row: int) -> list[str]:
    """``key.path=value`` of the coordinates ``names`` that a design has set, as ``--set`` takes it."""
    settings_of_row = []
    for name in names:
        path = _path(ds, name)
        if path and _is_set(ds, name, row):
            # Python's own number, or JSON refuses it.
            value = ds.variables[name].values[row].item()
            value = _descriptions(str(ds.attrs.get("scenario", ""))).get((path, value), value)
            whole = isinstance(value, float) and value.is_integer()  # a count, in a column where others have none
            settings_of_row.append(
                f"{path}={value if isinstance(value, str) else json.dumps(int(value) if whole else value)}"
            )
    return settings_of_row


def axis_json(ds: xr.Dataset, axis: PageAxis, rows: np.ndarray) -> dict[str, Any]:
    """An axis for the scripts: the levels that ``rows`` have, which of them each has, and what sets them.

    A sample of 100,000 designs has a tenth of the levels of a quantity that differs in each. A number is set by the
    ``path`` of its key, anything else by the settings of each level in ``sets``.
    """
    present, level_of = np.unique(axis.at[rows], return_inverse=True)
    first = axis.first[present].tolist()
    numbers = ds.variables[axis.key].values[first].tolist() if axis.numeric else []
    return {
        "key": axis.key,
        "label": axis.label,
        "title": axis.title,
        "unit": axis.unit,
        "numeric": axis.numeric,
        "levels": [None if n != n else n for n in numbers] or [axis.words(ds, row) for row in first],
        "at": level_of.tolist(),
        "path": _path(ds, axis.key) if axis.numeric else "",
        "sets": None if axis.numeric else [settings(ds, axis.names, row) for row in first],
    }
