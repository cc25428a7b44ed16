"""The parts of a scenario that a change can touch, each read on its own: keys of workload and deployment, and slo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from evaluator.scenario.changes import apply
from evaluator.scenario.fields import Place, Table, read_key, unknown_key
from evaluator.scenario.keys import DEPLOYMENT, LATER_DEPLOYMENT, read_slo, workload_table
from evaluator.scenario.scenario import Deployment, Objective, Workload
from evaluator.scenario.tree import get, put, section_tree, slo_tree, split_path

FieldPath = tuple[str, ...]  # (workload, arrivals), (deployment, model), ..., (slo,)


@dataclass(frozen=True)
class Base:
    """What the values of a sweep change. Relative files are looked for in ``folder``, then the current directory."""

    workload: Workload
    deployment: Deployment
    slo: tuple[Objective, ...]
    folder: Path

    @cached_property
    def tree(self) -> dict[str, Any]:
        """The whole as a tree in SI units."""
        return {
            "workload": section_tree(self.workload),
            "deployment": section_tree(self.deployment),
            "slo": slo_tree(self.slo),
        }

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The keys of the two sections that have them."""
        return {"workload": workload_table(self.folder), "deployment": DEPLOYMENT}


@lru_cache(maxsize=4096)
def touched_fields(changes: tuple[str, ...]) -> tuple[FieldPath, ...]:
    """The fields that the key paths of ``changes`` lie in, each once."""
    paths = (split_path(path) for path in changes)
    return tuple(dict.fromkeys(keys[:1] if keys[0] == "slo" else keys[:2] for keys in paths))


def read_fields(base: Base, changes: Mapping[str, Any], place: Place) -> dict[FieldPath, Any]:
    """The fields that ``changes`` touch, read with them applied to the base. Errors: InputError as in a file."""
    fields = touched_fields(tuple(changes))
    part: Any = {}
    for field in fields:
        if len(field) == 1 and field != ("slo",):
            raise place.key(field[0]).error("expected a section of keys")
        value = get(base.tree, field)
        if isinstance(value, Mapping | int | float | str):  # not null and not missing: nothing to build on
            part = put(part, field, value)
    part = apply(part, changes, place)
    return {field: _read_field(base, field, get(part, field), place) for field in fields}


def _read_field(base: Base, field: FieldPath, raw: Any, place: Place) -> Any:
    """One field from its raw value."""
    where = place.key(field[0])
    if field == ("slo",):
        return () if raw is None else read_slo(raw, where)
    table = base.tables[field[0]]
    if field[1] not in table:
        raise unknown_key(field[1], table, where, LATER_DEPLOYMENT)
    return read_key(raw, field[1], table, where)
