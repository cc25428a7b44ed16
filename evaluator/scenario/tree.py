"""Plain nested dicts with dotted key paths: looking up, merging, flattening; a scenario's parts as such trees."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from evaluator.catalog.what_if import WhatIf
from evaluator.routing import HeavyLight, PrefixAware
from evaluator.scenario.scenario import Arrivals, Lengths, ModelShare, Objective, Stage

Tree = Mapping[str, Any]
MISSING: Any = object()

FIGURES = ("model", "hardware")
"""Keys of a deployment, and of its pools, that hold a name, or in its place a section of figures."""
WHOLE = (*FIGURES, "speculative")
"""The same, and keys with a section of which one replaces another as a whole: keys of one say nothing of the other."""

# A dot before a digit belongs to the name (slo.ttft.p99.9): no key starts with a digit.
_DOT = re.compile(r"\.(?![0-9])")


@lru_cache(maxsize=4096)
def split_path(path: str) -> tuple[str, ...]:
    """``a.b.p99.9`` -> (a, b, p99.9)."""
    return tuple(_DOT.split(path))


def get(tree: Any, keys: Sequence[str]) -> Any:
    """The value at ``keys``; MISSING where there is none."""
    for key in keys:
        if not isinstance(tree, dict) or key not in tree:
            return MISSING
        tree = tree[key]
    return tree


def put(tree: Any, keys: Sequence[str], value: Any) -> Any:
    """``tree`` with ``value`` merged in at ``keys`` (nothing is changed in place).

    A mapping merges into the mapping there, key by key; anything else replaces. Missing mappings on the way are made.
    Errors: KeyError with the number of leading keys that lead to something that is no mapping.
    """
    if not keys:
        return merge(tree, value)
    if tree is None or tree is MISSING:
        tree = {}
    if not isinstance(tree, dict):
        raise KeyError(0)
    try:
        below = put(tree.get(keys[0], MISSING), keys[1:], value)
    except KeyError as error:
        raise KeyError(error.args[0] + 1) from None
    return {**tree, keys[0]: below}


def merge(tree: Any, value: Any) -> Any:
    """``value``, or where both are mappings the two merged, ``value`` first."""
    if not isinstance(value, dict) or not isinstance(tree, dict):
        return value
    return {**tree, **{key: merge(tree.get(key), entry) for key, entry in value.items()}}


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(key path, value) of everything below that is not itself a mapping with keys.

    Sections that replace one another stay together: the figures of a device or of a model, and what drafts.
    """
    if isinstance(value, Mapping) and value and not is_whole(path):
        for key, entry in value.items():
            yield from leaves(entry, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def is_whole(path: str) -> bool:
    """Whether what stands at a key path replaces what stood there."""
    keys = split_path(path)
    return keys[0] in ("deployment", "pipeline") and keys[-1] in WHOLE


def plain(value: Any) -> Any:
    """``value`` with NumPy scalars, tuples, paths and other mappings turned into what YAML has."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return plain(value.tolist())
    return value


def field_tree(value: Any) -> Any:
    """A read value of one key of a section as the tree it could have been read from, in SI units."""
    if isinstance(value, Arrivals):
        given = {key: entry for key, entry in vars(value).items() if entry is not None}
        if value.process != "trace":
            del given["scale"]
        return given
    if isinstance(value, Lengths):
        return {"trace": value.file} if value.source == "trace" else {"source": value.source, **value.parameters}
    if isinstance(value, WhatIf):
        return value.parameters
    if isinstance(value, ModelShare):
        lengths = {} if value.lengths is None else {"lengths": field_tree(value.lengths)}
        return {"share": value.share, **lengths}
    if isinstance(value, Stage):
        own = {} if value.parameters is None else section_tree(value.parameters)
        common = {name: field_tree(getattr(value, name)) for name in ("pool", "back_to", "times", "tokens")}
        return {"stage": value.kind, **common, "only": list(value.only) or None, **own}
    if isinstance(value, HeavyLight | PrefixAware):
        return {value.router: section_tree(value)}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return {key: field_tree(entry) for key, entry in value.items()} or None
    if hasattr(value, "__dataclass_fields__"):
        return section_tree(value)
    return value


def slo_tree(slo: Sequence[Objective]) -> dict[str, Any]:
    """Objectives as the tree they could have been read from."""
    tree: dict[str, Any] = {}
    for objective in slo:
        tree.setdefault(objective.metric, {})[objective.statistic] = objective.bound_s / (1.0 + objective.relax)
        if objective.relax:
            tree["relax"] = objective.relax
    return tree


def section_tree(section: Any) -> dict[str, Any]:
    """A read Workload or Deployment as a tree in SI units."""
    keys = [each.name for each in fields(section) if each.metadata.get("key", True)]
    return {key: field_tree(getattr(section, key)) for key in keys}
