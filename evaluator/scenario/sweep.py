"""Sweep axes checked: every value is read once, alone, and told apart from the others of its axis."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from evaluator.catalog.what_if import in_si
from evaluator.errors import InputError
from evaluator.keys import Place, is_interval, split_path, written
from evaluator.records import with_fields, without_collecting
from evaluator.scenario.axes import RawAxis
from evaluator.scenario.encoded import identity
from evaluator.scenario.key_paths import get, leaves
from evaluator.scenario.objectives import check_bare_bound, written_slo
from evaluator.scenario.scenario import Axis
from evaluator.scenario.swept_fields import SECTIONS, Base, FieldPath, outermost, owner, read_field, rebuilt
from evaluator.scenario.workload import FOLLOWING, Workload, check_workload, finish

MANY = 1000
"""Steps of an axis from which on reading them one by one would be felt: a tenth of a millisecond each."""


def check_axes(axes: Sequence[RawAxis], base: Base, given: set[str]) -> tuple[Axis, ...]:
    """The axes with every value read once against the base scenario, alone.

    ``given`` are the keys of ``workload`` that the file sets; what follows from others moves with a swept value
    unless it is among them. Errors: InputError naming the key, the axis and the number of the value.
    """
    # What an axis sets is said, too: a swept number of requests leaves a swept warm-up as it is.
    given = given | {split_path(path)[1] for axis in axes for path in axis.keys if path.startswith("workload.")}
    reader = _Reader(base, frozenset(FOLLOWING) - given)
    with without_collecting():
        return tuple(_check_axis(axis, reader) for axis in axes)


def _check_axis(axis: RawAxis, reader: _Reader) -> Axis:
    labels, changes = [], []
    first: dict[Hashable, int] = {}
    plain = _between(axis)
    for index, step in enumerate(axis.steps):
        # Two values at most are read in full of a long axis of numbers, the least and the greatest; of the others
        # only what else their steps set.
        normal: dict[str, Any]
        if plain is None or index in plain.extremes:
            normal, following = reader.read(step, axis.place(index))
        else:
            rest = {path: value for path, value in step.items() if path not in plain.columns}
            normal, following = reader.read(rest, axis.place(index)) if rest else ({}, {})
            step_values = {path: column[index] for path, column in plain.columns.items()}
            normal = {path: step_values[path] if path in step_values else normal[path] for path in step}
        # In SI units, so that 1s and 1000ms are found to be the same value.
        other = first.setdefault(identity(normal), index)
        if other != index and not axis.repeats:
            _refuse_twice(axis, other, index, normal)
        if not axis.designs:
            labels.append(_label(axis.values[index], axis.name, normal))
        elif not axis.values:
            labels.append(_joined(normal, ""))
        changes.append({**normal, **following})
    keys = axis.keys if axis.designs else ()
    return Axis(axis.name, tuple(labels or axis.values), tuple(changes), keys)


@dataclass(frozen=True)
class _Intervals:
    """Columns of numbers in SI units, by their key path, and the steps between which all others lie."""

    columns: dict[str, list[float]]
    extremes: set[int]


_ALONE = frozenset({"workload.arrivals.rate_rps"})
"""Keys of any number above 0 that no other key restricts and no default follows, beside the figures of devices."""


def _between(axis: RawAxis) -> _Intervals | None:
    """What of a long axis need not be read step by step, as what it may be is an interval: the extremes tell of all.

    None: there is nothing. A key is left out where other keys of its steps lie in the same section of arrivals.
    """
    if len(axis.steps) < MANY:
        return None
    # Only columns that every step has: a gap in one means the scenario's value there, which is no number of the
    # column.
    shared = set(axis.steps[0]).intersection(*axis.steps)
    arrivals = [path for path in axis.keys if path.startswith("workload.arrivals")]
    columns = {}
    for key in sorted(shared):
        if not (is_interval(key) or (key in _ALONE and arrivals == [key])):
            continue
        try:
            column = [_si(key, step[key]) for step in axis.steps]
        except InputError:  # to be told at its place
            continue
        if all(type(value) is float and isfinite(value) for value in column):
            columns[key] = column
    extremes = {int(extreme) for column in columns.values() for extreme in (np.argmin(column), np.argmax(column))}
    return _Intervals(columns, extremes) if columns else None


def _si(key: str, value: Any) -> Any:
    """A number in SI units; what is none stays as it is."""
    if key in _ALONE:
        return float(value) if type(value) in (int, float) else value
    return in_si(value, split_path(key))


def _refuse_twice(axis: RawAxis, first: int, second: int, normal: Mapping[str, Any]) -> None:
    before, place = axis.place(first), axis.place(second)
    # Steps of a table have files with lines for places, those of a list have numbers.
    same = f"{before.file.rpartition(', ')[2]}" if before.file != place.file else f"value {first + 1}"
    raise place.error(f"{axis.name} is the same as {same}: {_joined(normal, axis.name) or 'nothing is set'}; keep one")


class _Reader:
    """Reads what steps set, equal values once: a table repeats most of its cells."""

    def __init__(self, base: Base, follows: frozenset[str]) -> None:
        self.base, self.follows = base, follows
        self.fields: dict[Hashable, tuple[Any, dict[str, Any]]] = {}
        self.groups: dict[tuple[str, ...], dict[FieldPath, list[str]]] = {}
        self.checked: dict[Hashable, dict[str, Any]] = {}

    def read(self, given: Mapping[str, Any], where: Place) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a step sets, in SI units, and the defaults elsewhere that follow from it, both key path -> value."""
        groups = self._groups(tuple(given))
        read = {
            field: self._field(field, {path: given[path] for path in paths}, where) for field, paths in groups.items()
        }
        normal = {path: value for _, in_si in read.values() for path, value in in_si.items()}
        following = self._together({field: value for field, (value, _) in read.items()}, where)
        return {path: normal[path] for path in given}, following

    def _groups(self, paths: tuple[str, ...]) -> dict[FieldPath, list[str]]:
        if paths not in self.groups:
            fields = outermost(self.base.field_of(path) for path in paths)
            groups: dict[FieldPath, list[str]] = {field: [] for field in fields}
            for path in paths:
                groups[owner(self.base.field_of(path), fields)].append(path)
            self.groups[paths] = groups
        return self.groups[paths]

    def _field(self, field: FieldPath, given: dict[str, Any], where: Place) -> tuple[Any, dict[str, Any]]:
        key = field, identity(given)
        if key not in self.fields:
            if field == ("slo",):  # as in a file, though here each bound is an axis of its own
                for path, raw in given.items():
                    check_bare_bound(raw, where.key(path))
            value = read_field(self.base, field, given, where)
            self.fields[key] = value, {path: _normal(path, raw, field, value) for path, raw in given.items()}
        return self.fields[key]

    def _together(self, read: dict[FieldPath, Any], where: Place) -> dict[str, Any]:
        """Checks the sections whose keys were read as a whole; returns the defaults that follow."""
        bound = {field: value for field, value in read.items() if self.base.is_checked(field)}
        # The workload's rules join several of its keys (a warm-up and the requests): they are checked for each
        # combination of values that steps have, and not for each step.
        traffic = {field: value for field, value in read.items() if field[0] == "workload"}
        for part, check in ((bound, self._check), (traffic, self._following)):
            # The values are kept, so that their ids stay theirs.
            key = tuple((field, id(value)) for field, value in part.items())
            if key not in self.checked:
                self.checked[key] = check(part, where)
        return self.checked[key]

    def _check(self, read: dict[FieldPath, Any], where: Place) -> dict[str, Any]:
        """Nothing, where the sections hold together."""
        if read:
            rebuilt(SECTIONS["deployment"], self.base.deployment, ("deployment",), read, where)
        return {}

    def _following(self, read: dict[FieldPath, Any], where: Place) -> dict[str, Any]:
        values = {field[1]: value for field, value in read.items()}
        return _following(self.base.workload, values, self.follows, where) if values else {}


def _normal(path: str, raw: Any, field: FieldPath, value: Any) -> Any:
    """The value in SI units where it was written with one; names of files as they were written."""
    tree = written_slo(value) if field == ("slo",) else written(value)
    # Only numbers become coordinates in SI units; a name, a file or a section is told as the user wrote it.
    leaf = get(tree, split_path(path)[len(field) :])
    return leaf if isinstance(leaf, int | float) else raw


def _following(base: Workload, read: dict[str, Any], follows: frozenset[str], where: Place) -> dict[str, Any]:
    """Checks the workload as a whole; returns the defaults that differ from the base's because of this value."""
    place = where.key("workload")
    unsaid: dict[str, Any] = dict.fromkeys(follows)  # None: to be filled in anew from the other keys
    workload = finish(with_fields(base, **(unsaid | read)), place)
    check_workload(workload, place)
    # The number of requests moves the warm-up, for example. What moved is set with the step that moved it, since a
    # point is read key by key and nothing follows from others there.
    moved = [key for key in follows if getattr(workload, key) != getattr(base, key)]
    return {path: leaf for key in moved for path, leaf in leaves(written(getattr(workload, key)), f"workload.{key}")}


def _label(value: Any, name: str, normal: Mapping[str, Any]) -> Any:
    """The coordinate: the value itself, or ``policy=chunked,max_num_batched_tokens=512``."""
    if not isinstance(value, Mapping):
        return "none" if value is None else normal[name]
    return _joined(normal, name)


def _joined(normal: Mapping[str, Any], name: str) -> str:
    if list(normal) == [name]:
        return _shown(normal[name])
    # The last words of the keys where they differ, else the paths: a zip may set the policy of two pools.
    short = [split_path(path)[-1] for path in normal]
    names = short if len(set(short)) == len(short) else [path.removeprefix(f"{name}.") for path in normal]
    return ",".join(f"{key}={_shown(leaf)}" for key, leaf in zip(names, normal.values(), strict=True))


def _shown(leaf: Any) -> str:
    if isinstance(leaf, Mapping) and isinstance(leaf.get("name"), str):
        return leaf["name"]  # a device or a model that is described here says what it is called
    if isinstance(leaf, Mapping) and leaf:  # a section that says nothing is its own only leaf
        return ",".join(f"{path}={_shown(entry)}" for path, entry in leaves(leaf, ""))
    return "none" if leaf is None else f"{leaf:g}" if isinstance(leaf, float) else str(leaf)
