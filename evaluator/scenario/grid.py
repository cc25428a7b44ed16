"""Every point of a sweep: the product of its axes, with what points share built once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.errors import InputError
from evaluator.scenario.fields import Place
from evaluator.scenario.scenario import Axis, Deployment, Objective, Scenario, Workload
from evaluator.scenario.sections import Base, FieldPath, read_fields, touched_fields
from evaluator.scenario.workload import finish

Point = tuple[Workload, Deployment, tuple[Objective, ...]]


@dataclass(frozen=True)
class Grid:
    """``points`` in C order over ``axes`` (the last axis varies fastest); a scenario without a sweep is one point.

    Unlike in the scenario, every step of an axis names all that its axis changes, with the value it has there.
    """

    axes: tuple[Axis, ...]
    shape: tuple[int, ...]
    points: list[Point]


def expand(scenario: Scenario) -> Grid:
    """The points of ``scenario.sweep`` over its workload, deployment and slo.

    A part that an axis does not touch is the same object in all points. Errors: InputError where two axes exclude
    each other within one section of keys (a rate for a closed loop); what does not fit a machine is no error here.
    """
    folder = Path(scenario.path).parent if scenario.path else Path.cwd()
    base = Base(scenario.workload, scenario.deployment, scenario.slo, folder)
    place = Place(scenario.path or scenario.name)
    shape = tuple(len(axis.values) for axis in scenario.sweep)
    fields: dict[FieldPath, list[int]] = {}
    for number, axis in enumerate(scenario.sweep):
        for field in dict.fromkeys(field for change in axis.changes for field in touched_fields(tuple(change))):
            fields.setdefault(field, []).append(number)
    read = {field: _read(base, field, scenario.sweep, numbers, place) for field, numbers in fields.items()}
    parts = (
        _sections(read, base.workload, "workload", lambda values: finish(values, place.key("workload"))),
        _sections(read, base.deployment, "deployment", lambda values: Deployment(**values)),
        read.get(("slo",), scenario.slo),
    )
    points = list(zip(*(_spread(part, shape) for part in parts), strict=True))
    return Grid(_completed(scenario.sweep, shape, points), shape, points)


def _completed(axes: tuple[Axis, ...], shape: tuple[int, ...], points: list[Point]) -> tuple[Axis, ...]:
    """The axes with every step naming all that its axis changes: what a step leaves out is as in its point."""
    completed = []
    for number, axis in enumerate(axes):
        paths = dict.fromkeys(path for change in axis.changes for path in change)
        if all(len(change) == len(paths) for change in axis.changes):
            completed.append(axis)
            continue
        stride = prod(shape[number + 1 :])
        changes = tuple(
            {**{path: value for path in paths if (value := _lookup(points[step * stride], path)) is not None}, **change}
            for step, change in enumerate(axis.changes)
        )
        completed.append(Axis(axis.name, axis.values, changes))
    return tuple(completed)


def _lookup(point: Point, path: str) -> Any:
    """What a point has at a key path; None where it has nothing there."""
    section, *keys = path.split(".")
    if section == "slo":
        metric, statistic = path.removeprefix("slo.").split(".", 1)
        bounds = [one.bound_s for one in point[2] if (one.metric, one.statistic) == (metric, statistic)]
        return bounds[0] if bounds else None
    value: Any = point[0] if section == "workload" else point[1]
    for key in keys:
        inside = value.parameters if hasattr(value, "parameters") and not hasattr(value, key) else value
        value = inside.get(key) if isinstance(inside, Mapping) else getattr(inside, key, None)
    return value


def _read(base: Base, field: FieldPath, axes: tuple[Axis, ...], numbers: list[int], place: Place) -> np.ndarray:
    """The values of one field, objects of shape (axis, ...): 1 long along the axes that do not touch it."""
    values = np.empty([len(axis.values) if number in numbers else 1 for number, axis in enumerate(axes)], dtype=object)
    flat = values.reshape(-1)
    changes = {number: [_within(field, change) for change in axes[number].changes] for number in numbers}
    for position, indices in enumerate(np.ndindex(values.shape)):
        together: dict[str, Any] = {}
        for number in numbers:
            together |= changes[number][indices[number]]
        try:
            flat[position] = _read_point(base, field, together, place)
        except InputError:  # once more, to say at which point
            point = ", ".join(f"{axes[number].name} = {axes[number].values[indices[number]]}" for number in numbers)
            _read_point(base, field, together, Place(place.file, note=f" (sweep: {point})"))
            raise
    return values


def _within(field: FieldPath, change: Mapping[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in change.items() if touched_fields((path,)) == (field,)}


def _read_point(base: Base, field: FieldPath, changes: dict[str, Any], place: Place) -> Any:
    if changes:
        return read_fields(base, changes, place)[field]
    return getattr(base, field[0]) if field == ("slo",) else getattr(getattr(base, field[0]), field[1])


def _sections(read: dict[FieldPath, np.ndarray], base: Any, section: str, build: Any) -> Any:
    """The section at every combination of the fields that are swept: an object array, or the base itself."""
    swept = {field[1]: values for field, values in read.items() if field[0] == section}
    if not swept:
        return base
    shape = np.broadcast_shapes(*(values.shape for values in swept.values()))
    columns = {
        name: _spread(swept[name], shape) if name in swept else repeat(getattr(base, name), prod(shape))
        for name in base.__dataclass_fields__
    }
    built = np.empty(prod(shape), dtype=object)
    names = tuple(columns)
    for position, values in enumerate(zip(*columns.values(), strict=True)):
        built[position] = build(dict(zip(names, values, strict=True)))
    return built.reshape(shape)


def _spread(values: Any, shape: tuple[int, ...]) -> list[Any]:
    """One value per point in C order."""
    if not isinstance(values, np.ndarray):
        return [values] * prod(shape)
    return np.broadcast_to(values, shape).reshape(-1).tolist()
