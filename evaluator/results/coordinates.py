"""Swept quantities as coordinates: short names, numbers where they are numbers, text elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics.variables import VARIABLES, coordinate_units
from evaluator.units import parse_quantity

_RESERVED = {"config", "quantile", "input", "seed", "stage", "class", "pool", "request", *VARIABLES}
_DOT = re.compile(r"\.(?!\d)")  # slo.ttft.p99.9 has three parts
_STATISTIC = re.compile(r"p[\d.]+|mean")
_POOR = {"times"}  # says nothing without the figure that is multiplied


class SweepAxis(Protocol):
    """One axis of the grid: what was written for each step, and what each step sets (key path -> value)."""

    @property
    def name(self) -> str: ...
    @property
    def values(self) -> Sequence[Any]: ...
    @property
    def changes(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def keys(self) -> Sequence[str]: ...  # what designs set, where the axis has a name of its own


def _flat(changes: Mapping[str, Any], whole: str = "") -> dict[str, Any]:
    """Key paths down to scalars: what a mapping sets is told apart key by key, but at ``whole``."""
    flat: dict[str, Any] = {}
    for path, value in changes.items():
        # Figures in the place of a name, as of a device: the label of the step tells them.
        if isinstance(value, Mapping) and path == whole:
            continue
        if isinstance(value, Mapping):
            flat |= _flat({f"{path}.{key}": inner for key, inner in value.items()})
        else:
            flat[path] = value
    return flat


def _set_by(axis: SweepAxis, changes: dict[str, Any]) -> dict[str, Any]:
    """What the axis itself sets, without the defaults elsewhere that follow from it (the warm-up from the requests)."""
    # An axis with a name of its own says which keys it sets; one that is named by a key sets what is below it.
    if axis.name.partition(".")[0] not in ("workload", "deployment", "pipeline", "slo"):
        return {path: value for path, value in changes.items() if path in axis.keys}
    return {path: value for path, value in changes.items() if path == axis.name or path.startswith(f"{axis.name}.")}


def _short_names(paths: Sequence[str]) -> dict[str, str]:
    """The shortest ends of the key paths that are unique, no variable's name, and more than a statistic (p90)."""
    # Longer ends tell more, but head tables and legends: they grow only where they must.
    keys = {path: _DOT.split(path) for path in paths}
    depth = dict.fromkeys(paths, 1)
    while True:
        names = {path: "_".join(keys[path][-depth[path] :]) for path in paths}
        taken = list(names.values())
        poor = [
            path
            for path, name in names.items()
            if taken.count(name) > 1 or name in _RESERVED | _POOR or _STATISTIC.fullmatch(name)
        ]
        # All that clash grow alike: of two pools ``prefill_hardware`` and ``decode_hardware``, and none is just
        # ``hardware``.
        longer = [path for path in poor if depth[path] < len(keys[path])]
        if not longer:
            # Nothing longer is left to say: a name of the dataset's own gets a prefix.
            return {path: f"swept_{name}" if name in _RESERVED else name for path, name in names.items()}
        for path in longer:
            depth[path] += 1


def _label(value: Any) -> str:
    # As YAML writes them, since that is what a reader of the scenario knows.
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_label(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_label, value))}]"
    return str(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _column(path: str, values: Sequence[Any]) -> np.ndarray:
    """Values as booleans, integers or floats (NaN for none) where all of them are, quantities in SI, else text."""
    # A boolean is an integer to Python, so that it is asked for first. Integers stay such: a table shows 4 devices,
    # not 4.0.
    if all(isinstance(value, bool) for value in values):
        return np.array(values, dtype=bool)
    if all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values):
        return np.array(values, dtype=np.int64)
    unit = coordinate_units(path)
    if unit != "1" and any(isinstance(value, str) for value in values):
        try:
            return np.array([parse_quantity(value, unit, path) for value in values])
        # A table of numbers with one name among them is a column of text as it was written.
        except InputError:  # a name among quantities, such as ``auto``
            return np.array([_label(value) for value in values])
    if any(_number(value) for value in values) and all(value is None or _number(value) for value in values):
        return np.array([np.nan if value is None else float(value) for value in values])
    return np.array([_label(value) for value in values])


def axis_coordinates(axes: Sequence[SweepAxis]) -> list[dict[str, tuple[str, np.ndarray]]]:
    """For each axis its coordinates, name -> (key path, values over the axis); the first one names the dimension."""
    steps = [[_set_by(axis, _flat(change, axis.name)) for change in axis.changes] for axis in axes]
    swept = [list(dict.fromkeys(path for step in axis_steps for path in step)) for axis_steps in steps]
    paths = [
        [axis.name, *(path for path in key_paths if path != axis.name)]
        for axis, key_paths in zip(axes, swept, strict=True)
    ]
    # Of an axis whose name is no key that it sets, and that sets one alone, this one is the name.
    paths = [
        key_paths if key_paths[0] in swept_keys or len(key_paths) != 2 else key_paths[1:]
        for key_paths, swept_keys in zip(paths, swept, strict=True)
    ]
    short = _short_names(list(dict.fromkeys(path for key_paths in paths for path in key_paths)))
    result = []
    for axis, axis_steps, key_paths in zip(axes, steps, paths, strict=True):
        columns = {}
        for path in key_paths:
            set_by = sum(path in step for step in axis_steps)
            named = path == axis.name and set_by < len(axis_steps)  # by other keys: then the labels tell it
            written = axis.values if named else [step.get(path) for step in axis_steps]
            columns[short[path]] = (path, _column(path, written))
        result.append(columns)
    return result
