"""What was swept, for the scripts of a page: the levels of an axis, and what sets each of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.errors import InputError
from evaluator.report.axes import ShownAxis, is_set
from evaluator.yaml import loads_yaml

if TYPE_CHECKING:
    import xarray as xr


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
        if path and is_set(ds, name, row):
            # Python's own number, or JSON refuses it.
            value = ds.variables[name].values[row].item()
            value = _descriptions(str(ds.attrs.get("scenario", ""))).get((path, value), value)
            whole = isinstance(value, float) and value.is_integer()  # a count, in a column where others have none
            settings_of_row.append(
                f"{path}={value if isinstance(value, str) else json.dumps(int(value) if whole else value)}"
            )
    return settings_of_row


def axis_json(ds: xr.Dataset, axis: ShownAxis, rows: np.ndarray) -> dict[str, Any]:
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
