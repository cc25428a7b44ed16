"""A scenario as plain nested dicts with dotted key paths: looking up, merging, flattening."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluator.keys import split_path

Tree = Mapping[str, Any]
MISSING: Any = object()

FIGURES = ("model", "hardware")
"""Keys of a deployment, and of its pools, that hold a name, or in its place a section of figures."""
WHOLE = (*FIGURES, "speculative")
"""These, and keys whose sections replace one another as a whole: keys of one section say nothing of the other."""


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
        # The depth grows by one on each way back up, so that the caller can name the key where it stood.
        raise KeyError(error.args[0] + 1) from None
    # A copy of the mappings along the path, and nothing else: points of a sweep share all that they do not set.
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
    # Stages may have a model and hardware of their own; a workload's ``models`` are shares and merge as any
    # section.
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
