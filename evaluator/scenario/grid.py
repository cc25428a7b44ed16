"""Every point of a sweep: the product of its axes, or what its conditions leave of it, with shared parts built once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.errors import InputError
from evaluator.scenario.fields import Place, Reader
from evaluator.scenario.parts import Part, combined, interned
from evaluator.scenario.scenario import Axis, Deployment, Objective, Scenario, Workload
from evaluator.scenario.sections import Base, FieldPath, outermost, read_field
from evaluator.scenario.tables import Named, Section
from evaluator.scenario.tree import split_path

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

    Parts that are equal are the same object in all points. Errors: InputError where two axes exclude each other
    within one section of keys (a rate for a closed loop); what does not fit a machine is no error here.
    """
    base = base_of(scenario)
    axes = scenario.sweep
    shape = tuple(len(axis.values) for axis in axes)
    steps = list(np.ogrid[tuple(slice(size) for size in shape)]) if shape else []
    read = _read_fields(base, axes, steps)
    parts = (
        assembled(base.sections["workload"], base.workload, ("workload",), read, base.place),
        assembled(base.sections["deployment"], base.deployment, ("deployment",), read, base.place),
        read.get(("slo",)) or Part([base.slo]),
    )
    points = list(zip(*(part.spread(shape) for part in parts), strict=True))
    return Grid(_completed(axes, shape, points), shape, points)


def base_of(scenario: Scenario) -> Base:
    """What the sweep of a scenario changes."""
    folder = Path(scenario.path).parent if scenario.path else Path.cwd()
    place = Place(scenario.path or scenario.name)
    return Base(scenario.workload, scenario.deployment, scenario.slo, folder, place)


def assembled(reader: Reader, base: Any, at: FieldPath, read: Mapping[FieldPath, Part], place: Place) -> Part:
    """The section at ``at`` over the points: ``base`` with the fields that were ``read``, every combination once."""
    if at in read:
        return read[at]
    parts: dict[str, Part] = {}
    if isinstance(reader, Section | Named):
        parts = {
            name: assembled(inner.read, value, (*at, name), read, place)
            for name, (inner, value) in reader.inside(base).items()
            if any(field[: len(at) + 1] == (*at, name) for field in read)
        }
    if not parts:
        return Part([base])
    rebuild: Callable[..., Any] = reader.rebuilt  # type: ignore[attr-defined]
    where = place.key(".".join(at))
    chosen, codes = combined([(part.codes, len(part.values)) for part in parts.values()])
    columns = [[part.values[index] for index in indices] for part, indices in zip(parts.values(), chosen, strict=True)]
    built = [rebuild(base, dict(zip(parts, values, strict=True)), where) for values in zip(*columns, strict=True)]
    return Part(built, codes)


def _read_fields(base: Base, axes: Sequence[Axis], steps: Sequence[np.ndarray]) -> dict[FieldPath, Part]:
    """Every field that an axis touches, over the points."""
    owners: dict[FieldPath, dict[int, list[str]]] = {}
    touched = [list(dict.fromkeys(path for change in axis.changes for path in change)) for axis in axes]
    fields = outermost(base.field_of(path) for paths in touched for path in paths)
    for number, paths in enumerate(touched):
        for path in paths:
            field = base.field_of(path)
            owner = next(field[:n] for n in range(1, len(field) + 1) if field[:n] in fields)
            owners.setdefault(owner, {}).setdefault(number, []).append(path)
    return {field: _read(base, field, axes, paths, steps) for field, paths in owners.items()}


def _read(
    base: Base, field: FieldPath, axes: Sequence[Axis], paths: Mapping[int, list[str]], steps: Sequence[np.ndarray]
) -> Part:
    """The values of one field over the points, from the axes that touch it: their numbers and the key paths there."""
    numbers = list(paths)
    changes = [
        [{path: change[path] for path in paths[number] if path in change} for change in axes[number].changes]
        for number in numbers
    ]
    chosen, codes = combined([(steps[number], len(axes[number].values)) for number in numbers])

    def read(indices: tuple[int, ...]) -> Any:
        together: dict[str, Any] = {}
        for of_axis, index in zip(changes, indices, strict=True):
            together |= of_axis[index]
        if not together:
            return base.value(field)
        try:
            return read_field(base, field, together, base.place)
        except InputError:  # once more, to say at which point
            named = zip(numbers, indices, strict=True)
            point = ", ".join(f"{axes[number].name} = {axes[number].values[index]}" for number, index in named)
            read_field(base, field, together, Place(base.place.file, note=f" (sweep: {point})"))
            raise

    values, places = interned(read(indices) for indices in zip(*(one.tolist() for one in chosen), strict=True))
    return Part(values, np.array(places)[codes])


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
            {**{path: value for path in paths if (value := lookup(points[step * stride], path)) is not None}, **change}
            for step, change in enumerate(axis.changes)
        )
        completed.append(Axis(axis.name, axis.values, changes))
    return tuple(completed)


def lookup(point: Point, path: str) -> Any:
    """What a point has at a key path; None where it has nothing there."""
    section, *keys = split_path(path)
    if section == "slo":
        bounds = [one.bound_s for one in point[2] if [one.metric, one.statistic] == keys]
        return bounds[0] if bounds else None
    value: Any = point[0] if section == "workload" else point[1]
    for key in keys:
        inside = value.parameters if hasattr(value, "parameters") and not hasattr(value, key) else value
        value = inside.get(key) if isinstance(inside, Mapping) else getattr(inside, key, None)
    return value
