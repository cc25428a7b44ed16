"""What was swept, as pages and pictures show it: an axis of the sweep with several keys is one axis, with a text for
each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evaluator.report.labels import axis_title, laid_out, name_and_unit, named_level, short_layout, text, title
from evaluator.report.ranking import is_constant
from evaluator.report.search import in_layout
from evaluator.results.schema import axes_of, quantities
from evaluator.results.texts import distinct

if TYPE_CHECKING:
    import xarray as xr

_LAYOUT = "pool_layout"
MOST_STEPS = 40
"""Steps of an axis with several keys up to which it is shown as one; a table or a sample of designs has more."""


@dataclass(frozen=True, eq=False)
class ShownAxis:
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
            value = ds.variables[self.names[0]].values[row]
            return text(value) if value == value else "none"
        layouts = laid_out(self.names)
        words = [f"{pool} {short_layout(ds, names, row)}".strip() for pool, names in layouts.items()]
        in_layouts = {name for names in layouts.values() for name in names}
        words += [
            # The role of a pool stands in its name already.
            named_level(ds, name, row)
            for name in self.names
            if name not in in_layouts and is_set(ds, name, row) and not name.endswith("_role")
        ]
        return ", ".join(words) or "as the scenario says"

    def quantity(self, ds: xr.Dataset, row: int) -> str:
        """The design's level in a sentence: ``arrival rate 4 requests/s``, ``h100-sxm``."""
        return f"{self.label} {self.words(ds, row)} {self.unit}".rstrip() if self.numeric else self.words(ds, row)


def axes_shown(ds: xr.Dataset) -> list[ShownAxis]:
    """The axes of the sweep without what is the same in every design; of a search, how pools are laid out is one."""
    varying = [name for name in quantities(ds) if not is_constant(ds, name)]
    layout = _layout(ds, varying)
    layout_names = layout.names if layout else ()
    shown: list[ShownAxis] = []
    for coordinates in axes_of(ds):
        names = tuple(name for name in coordinates if name in varying and name not in layout_names)
        # The layout takes the place of the first axis that it stands for.
        if layout and layout not in shown and set(coordinates) & set(layout_names):
            shown.append(layout)
        # A table of a thousand designs is not an axis that a reader can filter by: its keys are shown one by one.
        if len(names) > 1 and _steps(ds, names)[0].size <= MOST_STEPS:
            shown.append(_axis(ds, coordinates[0], names))
        else:
            shown += [_axis(ds, name, (name,)) for name in names]
    return shown if layout is None or layout in shown else [*shown, layout]


def _layout(ds: xr.Dataset, varying: list[str]) -> ShownAxis | None:
    """How the pools of a search are laid out, in the place of the quantities that say so; None where it is the same."""
    if _LAYOUT not in ds or is_constant(ds, _LAYOUT):
        return None
    names = tuple(name for name in varying if in_layout(ds, name))
    first, level_of = _in_order(*_steps(ds, (_LAYOUT,)))
    label = str(ds[_LAYOUT].attrs.get("long_name", "layout"))
    return ShownAxis(_LAYOUT, names, first, level_of, False, label, label, "", told_by=_LAYOUT)


def _axis(ds: xr.Dataset, key: str, names: tuple[str, ...]) -> ShownAxis:
    first, level_of = _steps(ds, names)
    numeric = len(names) == 1 and ds[key].dtype.kind in "iuf"
    # ``unique`` sorts: numbers are to ascend, but texts are to stand as the scenario lists them.
    if not numeric:
        first, level_of = _in_order(first, level_of)
    if len(names) > 1:
        return ShownAxis(key, names, first, level_of, False, title(key), title(key), "")
    label, unit = name_and_unit(ds, key)
    return ShownAxis(key, names, first, level_of, numeric, label, axis_title(ds, key), unit)


def _steps(ds: xr.Dataset, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The first position of every distinct step, and which step each design has."""
    # Codes and not values, as columns may be numbers, texts or a mixture with NaN. Those of several columns are made
    # one number, which sorts as the row of them does.
    code = np.zeros(ds.sizes["config"], dtype=np.int64)
    for name in names:
        values = ds[name].values
        of_name = distinct(values)[1] if values.dtype.kind == "U" else np.unique(values, return_inverse=True)[1]
        code = np.unique(code * (int(of_name.max(initial=0)) + 1) + of_name, return_inverse=True)[1]
    _, first, level_of = np.unique(code, return_index=True, return_inverse=True)
    return first, level_of


def _in_order(first: np.ndarray, level_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same levels in the order in which they were first swept."""
    order = np.argsort(first, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(order.size)
    return first[order], places[level_of]


def is_set(ds: xr.Dataset, name: str, row: int) -> bool:
    """Whether the step of a design sets the quantity: others of its axis may set it alone."""
    value = ds.variables[name].values[row]
    # NaN or ``none`` stands for a key that this step leaves as it is.
    return bool(value == value) and str(value) != "none"
