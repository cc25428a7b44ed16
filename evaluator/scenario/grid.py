"""Every point of a sweep: the product of its axes, or what its conditions leave of it, with shared parts built once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.catalog.what_if import DEVICE_FIGURES, devices_with
from evaluator.errors import InputError, InputWarning
from evaluator.keys import Place, shown, split_path, written
from evaluator.scenario.arrivals import arrivals_with
from evaluator.scenario.conditions import column, fulfilled
from evaluator.scenario.deployment import Deployment
from evaluator.scenario.encoded import Encoded, combined, identity, interned
from evaluator.scenario.engine_defaults import LEFT_TO_ENGINE, with_engine_defaults
from evaluator.scenario.objectives import Objective
from evaluator.scenario.pools import answers_alone
from evaluator.scenario.scenario import Axis, Scenario
from evaluator.scenario.short_names import is_end, key_path, resolve
from evaluator.scenario.sweep import MANY
from evaluator.scenario.swept_fields import SECTIONS, Base, FieldPath, outermost, owner, read_field, rebuilt, value_at
from evaluator.scenario.workload import Workload

MOST_KNOWN = 10_000
"""Values of a field that are remembered while the points are read."""

Point = tuple[Workload, Deployment, tuple[Objective, ...]]


@dataclass(frozen=True)
class Grid:
    """``points`` in C order over ``axes`` (the last axis varies fastest); a scenario without a sweep is one point.

    Unlike in the scenario, every step of an axis names all that its axis changes, with the value it has there.
    ``rows``, where conditions leave only some points, are their places (point,) in the product of the axes, ascending.
    """

    axes: tuple[Axis, ...]
    shape: tuple[int, ...]
    points: list[Point]
    rows: np.ndarray | None = None

    def steps(self, config: int) -> tuple[int, ...]:
        """The step of a point on each axis."""
        row = config if self.rows is None else int(self.rows[config])
        return tuple(int(step) for step in np.unravel_index(row, self.shape)) if self.shape else ()

    def config(self, steps: Sequence[int]) -> int:
        """The point at a step of each axis. Errors: InputError where a condition of the sweep excludes it."""
        row = int(np.ravel_multi_index(tuple(steps), self.shape)) if self.shape else 0
        if self.rows is None:
            return row
        # ``rows`` ascend: where the row is not among them, the place found holds another one.
        config = int(np.searchsorted(self.rows, row))
        if config == len(self.rows) or self.rows[config] != row:
            values = ", ".join(
                f"{axis.name} = {axis.values[step]}" for axis, step in zip(self.axes, steps, strict=True)
            )
            raise InputError(f"the sweep's conditions (where) exclude {values}")
        return config

    def numbers(self, configs: np.ndarray) -> np.ndarray:
        """The rows of the product that points are: what a dataset names a configuration by."""
        return configs if self.rows is None else self.rows[configs]


def expand(scenario: Scenario) -> Grid:
    """The points of ``scenario.sweep`` over its workload, deployment and slo.

    Parts that are equal are the same object in all points. Errors: InputError where two axes exclude each other
    within one section of keys (a rate for a closed loop); what does not fit a machine is no error here.
    """
    base = base_of(scenario)
    axes = scenario.sweep
    shape = tuple(len(axis.values) for axis in axes)
    rows = kept_rows(scenario)
    # (axis,): the step of each point, of shapes that broadcast to the product: what two axes set is of the shape of
    # these two, until the points themselves are listed. Only the rows that conditions leave are flat.
    steps: list[np.ndarray] = list(np.ogrid[tuple(slice(size) for size in shape)]) if shape else []
    if rows is not None:
        steps = list(np.unravel_index(rows, shape))
    read = _read_fields(base, axes, steps)
    # In this order, as the first of several faults is told.
    deployment, pipeline, workload = (assembled(base, name, read) for name in ("deployment", "pipeline", "workload"))
    parts = (workload, _with_pipelines(deployment, pipeline), read.get(("slo",)) or Encoded([base.slo]))
    over = shape if rows is None else (len(rows),)
    points = list(zip(*(part.spread(over) for part in parts), strict=True))
    firsts = [_first_points(number, shape, step, rows is None) for number, step in enumerate(steps)]
    return Grid(_completed(axes, firsts, points), shape, points, rows)


def _with_pipelines(deployment: Encoded, pipeline: Encoded) -> Encoded:
    """The deployments with their pipelines, every combination once."""
    # The pipeline is a section of its own in the file and a field of the deployment in the record, since what serves
    # a request is one object to the plan. Without stages the deployments stay the objects that they are.
    if len(pipeline.values) == 1 and not pipeline.values[0]:
        return deployment
    return over_points(
        {"deployment": deployment, "pipeline": pipeline},
        lambda pair: replace(pair["deployment"], pipeline=pair["pipeline"]),
    )


def size(scenario: Scenario) -> int:
    """How many points the sweep of a scenario has."""
    rows = kept_rows(scenario)
    return prod(len(axis.values) for axis in scenario.sweep) if rows is None else len(rows)


def kept_rows(scenario: Scenario, warns: bool = False) -> np.ndarray | None:
    """The rows of the product of the axes that fulfil all conditions, ascending; None where there are no conditions.

    ``warns``: a warning says where a condition divides by zero, since a comparison with what has no value is false.
    Errors: InputError for a condition that is none, and where no point is left.
    """
    if not scenario.where:
        return None
    axes = scenario.sweep
    place = Place(scenario.path or scenario.name).key("sweep.where")
    values = _ValuesOfKeys(scenario)
    # Whole columns at a time: a million points take as long as their comparisons in NumPy, not as a million of
    # Python's.
    conditions = {condition: fulfilled(condition, values, place) for condition in scenario.where}
    holds = reduce(np.logical_and, [held for held, _ in conditions.values()])
    shape = tuple(len(axis.values) for axis in axes)
    if warns:
        for condition, (held, undefined) in conditions.items():
            if undefined.any():
                warnings.warn(f"{place}: {_undefined(condition, held, undefined, axes)}", InputWarning, stacklevel=2)
    rows = np.flatnonzero(np.broadcast_to(holds, shape))
    if not len(rows):
        raise place.error(f"leaves none of the {prod(shape):,} points of the sweep")
    return rows


class _ValuesOfKeys:
    """The values of keys over the product of the axes, each in a shape that broadcasts: so a condition on two of ten
    axes is computed on two."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.axes = scenario, scenario.sweep
        # One axis for each path: axes that set the same key were refused when they were read.
        self.owners = {
            path: number for number, axis in enumerate(self.axes) for change in axis.changes for path in change
        }
        self._by_path: dict[str, np.ndarray] = {}

    def __call__(self, name: str, where: Place) -> np.ndarray:
        """The values of the key that a condition calls ``name``."""
        path = _key_of(name, self.owners, where)
        if path not in self._by_path:
            # A key that nobody says has the engine's default, which may follow from swept keys: of the device, for
            # example.
            movers = _movers(path, self.owners, self.scenario.deployment)
            self._by_path[path] = _defaults(self.scenario, path, movers) if movers else self._stated(name, path, where)
        return self._by_path[path]

    def _stated(self, name: str, path: str, where: Place) -> np.ndarray:
        scenario, number = self.scenario, self.owners.get(path)
        value = lookup((scenario.workload, scenario.deployment, scenario.slo), path)
        if number is None and not isinstance(value, int | float | str):
            raise where.error(f"{name} has no value here; conditions are on keys that the sweep or the scenario sets")
        steps = [value] if number is None else [change.get(path, value) for change in self.axes[number].changes]
        shape = [1] * len(self.axes)
        if number is not None:
            shape[number] = len(steps)
        return column(steps).reshape(shape)


def _undefined(condition: str, held: np.ndarray, undefined: np.ndarray, axes: Sequence[Axis]) -> str:
    """At how many points a condition divides by zero, the first of them, and what becomes of them."""
    shape = tuple(len(axis.values) for axis in axes)
    undefined = np.broadcast_to(undefined, shape)
    count, first = int(undefined.sum()), np.unravel_index(int(np.argmax(undefined)), shape)
    dropped = int((undefined & ~np.broadcast_to(held, shape)).sum())
    # Axes over which the quotient does not change say nothing of why it has none.
    decisive = [number for number in range(len(axes)) if (undefined.any(number) != undefined.all(number)).any()]
    point = ", ".join(f"{axes[number].name} = {axes[number].values[first[number]]}" for number in decisive)
    where = f", the first with {point}" if point else ""
    lost = "they are left out" if dropped == count else f"{dropped:,} of them are left out"
    return (
        f"{shown(condition)} has no value at {count:,} of {prod(shape):,} points{where} (division by zero, or beyond "
        f"the largest number): what is compared with that is false, so that {lost}"
    )


def _key_of(name: str, owners: Mapping[str, int], place: Place) -> str:
    """The key path that a name in a condition stands for, one that is swept before all others."""
    if any(is_end(name, path) for path in owners):
        return resolve(name, owners, place)
    try:
        return key_path(name, place)
    except InputError as error:
        raise InputError(f"{error}; a text stands in quotes, such as hardware == 'h100-sxm'") from None


def _movers(path: str, owners: Mapping[str, int], deployment: Deployment) -> list[str]:
    """Swept keys that decide the value of a key path which the scenario leaves to the engine: the key itself, in some
    points, and those that its default follows from. Empty for any other key path."""
    section, *keys = split_path(path)
    if section != "deployment" or len(keys) != 2 or keys[1] not in LEFT_TO_ENGINE.get(keys[0], {}):
        return []
    if getattr(getattr(deployment, keys[0]), keys[1]) is not None or deployment.pools is not None:
        return []
    swept = [f"deployment.{key}" for key in LEFT_TO_ENGINE[keys[0]][keys[1]] if f"deployment.{key}" in owners]
    return [path, *swept] if swept else []


def _defaults(scenario: Scenario, path: str, movers: Sequence[str]) -> np.ndarray:
    """What the points have at a key path as far as ``movers`` tell, over the product of the axes (axis, ...)."""
    base = base_of(scenario)
    axes = [
        replace(
            axis,
            changes=tuple({key: value for key, value in change.items() if key in movers} for change in axis.changes),
        )
        for axis in scenario.sweep
    ]
    steps = list(np.ogrid[tuple(slice(len(axis.values)) for axis in axes)])
    read = _read_fields(base, axes, steps)
    deployments = assembled(base, "deployment", read)
    points: list[Point] = [(base.workload, deployment, base.slo) for deployment in deployments.values]
    return column([lookup(point, path) for point in points])[deployments.codes]


def base_of(scenario: Scenario) -> Base:
    """What the sweep of a scenario changes."""
    folder = Path(scenario.path).parent if scenario.path else None
    place = Place(scenario.path or scenario.name, folder=folder)
    return Base(scenario.workload, scenario.deployment, scenario.slo, place)


def assembled(base: Base, section: str, read: Mapping[FieldPath, Encoded]) -> Encoded:
    """A section over the points: ``base`` with the fields that were ``read``, every combination once."""
    value = getattr(base, section)
    if not any(field[0] == section for field in read):
        return Encoded([value])
    return rebuilt(SECTIONS[section], value, (section,), read, base.place, over_points)


def over_points(parts: dict[str, Encoded], build: Callable[[dict[str, Any]], Any]) -> Encoded:
    """What is built of each combination of the ``parts`` that points have, by key, each once."""
    # Only combinations that some point has are built: of two axes of one section that is their product, of a table as
    # many as it has rows that differ.
    chosen, codes = combined([(part.codes, len(part.values)) for part in parts.values()])
    columns = [[part.values[index] for index in indices] for part, indices in zip(parts.values(), chosen, strict=True)]
    return Encoded([build(dict(zip(parts, values, strict=True))) for values in zip(*columns, strict=True)], codes)


def _read_fields(base: Base, axes: Sequence[Axis], steps: Sequence[np.ndarray]) -> dict[FieldPath, Encoded]:
    """Every field that an axis touches, over the points."""
    owners: dict[FieldPath, dict[int, list[str]]] = {}
    touched = [list(dict.fromkeys(path for change in axis.changes for path in change)) for axis in axes]
    # Of an axis of a section and one of a key in it, the section is the field: both are read together, the
    # outer one first.
    fields = outermost(base.field_of(path) for paths in touched for path in paths)
    for number, paths in enumerate(touched):
        for path in paths:
            owners.setdefault(owner(base.field_of(path), fields), {}).setdefault(number, []).append(path)
    return {field: _read(base, field, axes, paths, steps) for field, paths in owners.items()}


def _read(
    base: Base, field: FieldPath, axes: Sequence[Axis], paths: Mapping[int, list[str]], steps: Sequence[np.ndarray]
) -> Encoded:
    """The values of one field over the points, from the axes that touch it: their numbers and the key paths there."""
    numbers = list(paths)
    changes = [
        [{path: change[path] for path in paths[number] if path in change} for change in axes[number].changes]
        for number in numbers
    ]
    chosen, codes = combined([(steps[number], len(axes[number].values)) for number in numbers])
    value_of: dict[Hashable, Any] = {}  # the rows of a table repeat most of their values

    def read(indices: tuple[int, ...]) -> Any:
        together = _together(changes, indices)
        if not together:  # a row of a table whose cells for this field are all empty
            return base.value(field)
        key = identity(together)
        if key in value_of:
            return value_of[key]
        try:
            value = read_field(base, field, together, base.place)
        except InputError:  # once more, to say at which point
            named = zip(numbers, indices, strict=True)
            point = ", ".join(f"{axes[number].name} = {axes[number].values[index]}" for number, index in named)
            read_field(base, field, together, base.place.noted(f" (sweep: {point})"))
            raise
        if len(value_of) < MOST_KNOWN:  # a million different values are never met again, and would only fill the memory
            value_of[key] = value
        return value

    combinations = list(zip(*(index.tolist() for index in chosen), strict=True))
    read_values = _told_by_extremes(field, changes, combinations, read) or map(read, combinations)
    # Different texts may mean the same (1s, 1000ms): points that have equal values share one object, and with it all
    # that is built of it.
    values, places = interned(read_values)
    return Encoded(values, np.array(places)[codes])


def _together(changes: Sequence[Sequence[Mapping[str, Any]]], indices: tuple[int, ...]) -> Mapping[str, Any]:
    """What steps of one axis or of several change of a field."""
    steps = [of_axis[index] for of_axis, index in zip(changes, indices, strict=True)]
    # The very step of one axis, of which a sweep may have a million.
    return steps[0] if len(steps) == 1 else {path: value for step in steps for path, value in step.items()}


_WITH_NUMBERS: dict[str, tuple[Collection[str], Callable[[Any, Iterable[Mapping[str, float]]], Iterator[Any]]]] = {
    "hardware": (DEVICE_FIGURES, devices_with),
    "arrivals": (("rate_rps",), arrivals_with),
}
"""Fields of which a sweep may have many that differ in such numbers alone, and what makes them of one that was read."""


def _told_by_extremes(
    field: FieldPath,
    changes: Sequence[Sequence[Mapping[str, Any]]],
    combinations: Sequence[tuple[int, ...]],
    read: Callable[[tuple[int, ...]], Any],
) -> Iterator[Any] | None:
    """Many devices or rates that differ in the same few numbers, of which the least and the greatest alone are read.

    None where they differ in anything else: in names, in what lies deeper (links, peaks), in counts.
    """
    if len(combinations) < MANY or field[-1] not in _WITH_NUMBERS:
        return None
    numbers, others_with = _WITH_NUMBERS[field[-1]]
    # Of one axis, or of several that each set a number of their own: what a number may be does not hang on the others.
    rows = [_together(changes, indices) for indices in combinations]
    prefix = ".".join(field)
    names = {path: path.removeprefix(f"{prefix}.") for path in rows[0]}
    if not (names and set(numbers) >= set(names.values()) and all(row.keys() == rows[0].keys() for row in rows)):
        return None
    columns = {name: [row[path] for row in rows] for path, name in names.items()}
    if not all(type(value) is float and isfinite(value) for column in columns.values() for value in column):
        return None
    # Whatever lies between two figures that a device may have is one that it may have, too (``keys.is_interval``); so
    # it is with rates.
    extremes = {int(place) for column in columns.values() for place in (np.argmin(column), np.argmax(column))}
    for place in extremes:
        described = read(combinations[place])
    figures = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return others_with(described, figures)


def _first_points(number: int, shape: tuple[int, ...], steps: np.ndarray, whole: bool) -> dict[int, int]:
    """For every step of an axis the first point that has it."""
    if whole:
        stride = prod(shape[number + 1 :])  # C order: the first point with a step has step 0 of all other axes
        return {step: step * stride for step in range(shape[number])}
    present, first = np.unique(steps, return_index=True)
    return dict(zip(present.tolist(), first.tolist(), strict=True))


def _completed(axes: tuple[Axis, ...], firsts: list[dict[int, int]], points: list[Point]) -> tuple[Axis, ...]:
    """The axes with every step naming all that its axis changes: what a step leaves out is as in its first point."""
    completed = []
    for axis, first in zip(axes, firsts, strict=True):
        paths = dict.fromkeys(path for change in axis.changes for path in change)
        changes = []
        for step, change in enumerate(axis.changes):
            # A dataset has one coordinate for each key of an axis; a step that leaves a key out has the scenario's
            # value there, or that of the engine.
            whole = dict(change)
            if step in first and len(change) < len(paths):
                point = points[first[step]]
                whole |= {path: lookup(point, path) for path in paths if path not in change}
            # A key that has no value there either (an engine's default that depends on the prompts) stays out: a
            # coordinate cannot be None.
            changes.append({path: whole[path] for path in paths if path in change or whole.get(path) is not None})
        completed.append(replace(axis, changes=tuple(changes)))
    return tuple(completed)


def lookup(point: Point, path: str) -> Any:
    """What a point has at a key path, the engine's default where it says nothing; None where there is none."""
    section, *keys = split_path(path)
    if section == "slo":
        bounds = [bound.bound_s for bound in point[2] if [bound.metric, bound.statistic] == keys]
        return bounds[0] if bounds else None
    value: Any = point[0] if section == "workload" else point[1]
    if section == "pipeline":
        value = written(point[1].pipeline) or {}
    if section == "deployment" and keys[0] in LEFT_TO_ENGINE and value.pools is None:
        value = with_engine_defaults(value, point[0], answers_alone(value))
    return value_at(value, keys)
