"""The fields of a scenario that a sweep sets, each read on its own: single keys, however deep they lie, and slo.

A *field* is the path of a key down to where a table ends. A section that is read as a whole (the
arrivals, whose process chooses the other keys) is one field, a key of ``batching`` is another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evaluator.keys import Named, Place, Reader, Section, read_key, split_path, unknown_key, written
from evaluator.scenario.deployment import Deployment
from evaluator.scenario.key_paths import get, put
from evaluator.scenario.objectives import Objective, read_slo, written_slo
from evaluator.scenario.pipeline import Stage, pipeline_reader
from evaluator.scenario.pools import deployment_reader
from evaluator.scenario.set_keys import apply
from evaluator.scenario.workload import Workload, workload_reader

FieldPath = tuple[str, ...]  # (workload, arrivals), (deployment, batching, policy), ..., (slo,)

SECTIONS: dict[str, Section | Named] = {
    "workload": workload_reader,
    "deployment": deployment_reader,
    "pipeline": pipeline_reader,
}
"""The sections that have keys."""


@dataclass(frozen=True)
class Base:
    """What the values of a sweep change."""

    workload: Workload
    deployment: Deployment
    slo: tuple[Objective, ...]
    place: Place

    @cached_property
    def tree(self) -> dict[str, Any]:
        """The whole as a tree in SI units, in which a change can set a key below a field that is read as a whole."""
        sections = {name: written(getattr(self, name)) for name in SECTIONS}
        return {**sections, "slo": written_slo(self.slo)}

    @property
    def pipeline(self) -> Mapping[str, Stage]:
        """The stages by their names, which are a section beside the deployment."""
        return self.deployment.pipeline

    # Both are asked for each step of an axis, of which a table has a hundred thousand with the same few paths.
    @cached_property
    def _known(self) -> dict[str, FieldPath]:
        return {}

    def field_of(self, path: str) -> FieldPath:
        """The field that a key path lies in."""
        if path not in self._known:
            keys = split_path(path)
            inner = keys[0] in SECTIONS and len(keys) > 1
            depth = field_depth(SECTIONS[keys[0]], getattr(self, keys[0]), keys[1:]) if inner else 0
            self._known[path] = keys[: 1 + depth]
        return self._known[path]

    def is_checked(self, field: FieldPath) -> bool:
        """Whether a field of the deployment lies in a section whose keys may exclude each other."""
        if field[0] != "deployment":
            return False
        if field not in self._checked:
            reader: Reader = SECTIONS[field[0]]
            value, checked = getattr(self, field[0]), False
            for key in field[1:]:
                # Any section on the way down may have rules that join its keys, so that one of them makes the
                # field worth a check.
                checked = checked or getattr(reader, "check", None) is not None
                reader, value = reader.below(value, key)  # type: ignore[attr-defined]
            self._checked[field] = checked
        return self._checked[field]

    @cached_property
    def _checked(self) -> dict[FieldPath, bool]:
        return {}

    def value(self, field: FieldPath) -> Any:
        """What the scenario has there."""
        return value_at(getattr(self, field[0]), field[1:])


def value_at(value: Any, keys: Iterable[str]) -> Any:
    """What a record has at ``keys`` below it; None where there is none."""
    for key in keys:
        # Formulas of lengths, devices and models that are like others keep their keys in a mapping.
        inside = value.parameters if hasattr(value, "parameters") and not hasattr(value, key) else value
        value = inside.get(key) if isinstance(inside, Mapping) else getattr(inside, key, None)
    return value


def field_depth(reader: Reader, base: Any, keys: tuple[str, ...]) -> int:
    """How many of ``keys``, below the section that ``reader`` reads and that is ``base``, lead to their field.

    A section that is absent in ``base`` and a set of named sections without the name are fields themselves.
    """
    # Down to the last table: what is set below a record that is read as a whole changes all of it.
    for depth, key in enumerate(keys):
        if base is None or not isinstance(reader, Section | Named):
            return depth
        # An unknown key of a section is a field of its own, whose reading gives the message; an unknown name of
        # a set (a pool) is the whole set's.
        if key not in reader.names(base):
            return depth if isinstance(reader, Named) else depth + 1
        reader, base = reader.below(base, key)
    return len(keys)


def outermost(fields: Iterable[FieldPath]) -> tuple[FieldPath, ...]:
    """The fields without those that lie in another one of them, each once."""
    all_fields = dict.fromkeys(fields)
    return tuple(field for field in all_fields if not any(field[:n] in all_fields for n in range(1, len(field))))


def owner(field: FieldPath, among: Iterable[FieldPath]) -> FieldPath:
    """The one of ``outermost`` fields that ``field`` is, or lies in."""
    return next(field[:n] for n in range(1, len(field) + 1) if field[:n] in among)


def read_field(base: Base, field: FieldPath, changes: Mapping[str, Any], place: Place) -> Any:
    """One field with ``changes``, all of which lie in it, applied to the base. Errors: InputError as in a file."""
    path = ".".join(field)
    if len(changes) == 1 and path in changes:  # the common case: the key itself is set, and nothing below it
        return _read(base, field, changes[path], place)
    part: Any = {}
    # What the scenario has is written as a tree again, since records are the truth of it: a search or a comparison
    # replaces parts of them, of which no text says anything.
    value = get(base.tree, field)
    if isinstance(value, Mapping | int | float | str):  # not null and not missing: nothing to build on
        part = put(part, field, value)
    return _read(base, field, get(apply(part, changes, place), field), place)


def _read(base: Base, field: FieldPath, raw: Any, place: Place) -> Any:
    """One field from its raw value."""
    if field == ("slo",):
        return () if raw is None else read_slo(raw, place.key("slo"))
    if len(field) == 1:
        raise place.key(field[0]).error("expected a section of keys")
    reader: Reader = SECTIONS[field[0]]
    value = getattr(base, field[0])
    for key in field[1:-1]:
        reader, value = reader.below(value, key)  # type: ignore[attr-defined]
    where = place.key(".".join(field[:-1]))
    if isinstance(reader, Named):
        return None if raw is None else reader.entry(raw, where.key(field[-1]))
    assert isinstance(reader, Section)
    if field[-1] not in reader.table:
        raise unknown_key(field[-1], reader.table, where)
    return read_key(raw, field[-1], reader.table, where)


def rebuilt(
    reader: Reader,
    base: Any,
    path: FieldPath,
    read: Mapping[FieldPath, Any],
    place: Place,
    join: Callable[[dict[str, Any], Callable[[dict[str, Any]], Any]], Any] = lambda parts, build: build(parts),
) -> Any:
    """The section at ``path`` with the fields that were ``read``, some of which lie in it.

    ``join`` builds a section from what was read below it, by key: from a value of each key, or from what each key has
    over the points of a sweep (``grid``). Errors: InputError where values do not go together.
    """
    if path in read:
        return read[path]
    depth = len(path)
    touched = {field[depth] for field in read if field[:depth] == path}
    assert isinstance(reader, Section | Named)
    parts = {
        name: rebuilt(*reader.below(base, name), (*path, name), read, place, join)
        for name in reader.names(base)  # in the order of the keys, as the first of several faults is told
        if name in touched
    }
    where = place.key(".".join(path))
    return join(parts, lambda values: reader.rebuilt(base, values, where))
