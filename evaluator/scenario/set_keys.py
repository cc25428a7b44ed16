"""Setting keys of a scenario's tree: what ``--set`` and a sweep value do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.keys import Place, Table, split_path
from evaluator.scenario.arrivals import PROCESSES
from evaluator.scenario.key_paths import MISSING, WHOLE, Tree, get, put
from evaluator.scenario.lengths import FORMULAS


def apply(tree: Tree, changes: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """``tree`` with every key path of ``changes`` set; mappings merge into what is there.

    Where a change chooses another arrival process or another source of lengths, the keys that only the old one takes
    go, so that a Poisson base can be swept to a closed loop. A figure set below the name of a device or of a model
    makes one that is like it; the names are set first. Errors: InputError for a path through a plain value.
    """
    result: Any = tree
    # From the top down: with hardware: h100-sxm and hardware.memory_bytes: 80GB the name comes first, in whatever order
    # the two axes stand.
    for path, value in sorted(changes.items(), key=lambda change: len(split_path(change[0]))):
        keys = split_path(path)
        result = _without_name(result, keys)
        try:
            result = put(result, keys, value)
        except KeyError as error:
            depth = error.args[0]
            above = ".".join(keys[:depth])
            raise place.key(path).error(f"{above} holds a value, so nothing can be set below it") from None
    touched = {split_path(path)[:2] for path in changes}
    for field, drop in ((("workload", "arrivals"), _other_process), (("workload", "lengths"), _other_source)):
        if field in touched or ("workload",) in touched:
            result = _replace(tree, result, field, drop)
    return dict(result)


_VALUE_OR_KEYS = (("deployment", "router"), ("workload", "sessions", "turns"), ("workload", "sessions", "think_s"))
"""Keys that hold a plain value, or a section of keys in its place."""


def _without_name(tree: Tree, keys: tuple[str, ...]) -> Any:
    """The tree with ``{like: NAME}`` for a name of a device or model that ``keys`` lead through.

    What is set in the place of a device or model itself, or of what drafts, replaces it (``WHOLE``). Keys
    replace a plain value that stands for them (``_VALUE_OR_KEYS``).
    """
    for depth, key in enumerate(keys, start=1):
        if (
            keys[:depth] in _VALUE_OR_KEYS
            and depth < len(keys)
            and isinstance(get(tree, keys[:depth]), str | int | float)
        ):
            return put(tree, keys[:depth], None)  # a mapping cannot merge into a value, but into nothing
        if key not in WHOLE or keys[0] != "deployment":
            continue
        value = get(tree, keys[:depth])
        if depth == len(keys) and isinstance(value, Mapping):
            return put(tree, keys, None)  # else the figures of the old device would merge into the new one
        if depth < len(keys) and isinstance(value, str):
            return put(tree, keys[:depth], {"like": value})
    return tree


def _replace(before: Tree, after: Tree, field: tuple[str, str], drop: Any) -> Tree:
    old, new = get(before, field), get(after, field)
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return after
    # Only what the change left as it was may be stale.
    stale = [key for key in drop(old, new) if key in old and new.get(key) is old[key]]
    if not stale:
        return after
    section = {**after[field[0]], field[1]: {key: value for key, value in new.items() if key not in stale}}
    return {**after, field[0]: section}


def _other_process(old: Tree, new: Tree) -> list[str]:
    if old.get("process") == new.get("process"):
        return []
    return _not_of(new.get("process"), PROCESSES)


def _other_source(old: Tree, new: Tree) -> list[str]:
    # ``trace: FILE`` stands for a source of its own, so that the two keys exclude each other.
    if "trace" in new and "trace" not in old:
        return ["source", *_not_of(None, FORMULAS)]
    if old.get("source", MISSING) == new.get("source", MISSING):
        return []
    return ["trace", *_not_of(new.get("source"), FORMULAS)]


def _not_of(chosen: Any, tables: Mapping[str, Table]) -> list[str]:
    """The keys of all tables that are not in the chosen one."""
    chosen_keys = tables.get(chosen, {}) if isinstance(chosen, str) else {}
    return [key for table in tables.values() for key in table if key not in chosen_keys]
