"""What the points of a sweep share: the distinct values of a part, and which of them each point has."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Part:
    """Distinct ``values``; ``codes`` are their indices over the points, of a shape that broadcasts to all points."""

    values: list[Any]
    codes: np.ndarray = field(default_factory=lambda: np.zeros((), dtype=np.int64))

    def spread(self, shape: tuple[int, ...]) -> list[Any]:
        """One value per point, in C order."""
        if self.codes.ndim == 0:
            return self.values * prod(shape)
        values = np.empty(len(self.values), dtype=object)
        for index, value in enumerate(self.values):  # at once, NumPy would take tuples apart
            values[index] = value
        return np.broadcast_to(values[self.codes], shape).reshape(-1).tolist()


def combined(parts: Sequence[tuple[np.ndarray, int]]) -> tuple[list[np.ndarray], np.ndarray]:
    """The combinations of several codes (each with how many values it numbers) that points have.

    Returns for each of the parts its index in every combination, (combination,), and the codes of the combinations.
    """
    codes, count = np.zeros((), dtype=np.int64), 1
    chosen: list[np.ndarray] = []
    for more, size in parts:
        found, codes = _distinct(codes * size + more, count * size)
        chosen = [*(one[found // size] for one in chosen), found % size]
        count = len(found)
    return chosen, codes


def _distinct(keys: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
    """The sorted distinct integers of ``keys``, all below ``bound``, and the index of each key among them."""
    if bound > 8 * keys.size + 1024:
        found, codes = np.unique(keys, return_inverse=True)
        return found, codes.reshape(keys.shape)
    there = np.zeros(bound, dtype=bool)
    there[keys] = True
    found = np.flatnonzero(there)
    index = np.empty(bound, dtype=np.int64)
    index[found] = np.arange(len(found))
    return found, index[keys]


def identity(changes: Mapping[str, Any]) -> Hashable:
    """Equal for changes (key path -> value) that set the same values of the same types."""
    return tuple(
        (path, type(value), value if isinstance(value, Hashable) else repr(value))
        for path, value in sorted(changes.items())
    )


def interned(values: Iterable[Any]) -> tuple[list[Any], list[int]]:
    """The distinct ones of ``values`` (of one key, hence of one type each) and the index of each among them."""
    distinct: list[Any] = []
    index: dict[Hashable, int] = {}
    places = []
    for value in values:
        try:
            hash(value)
            key: Hashable = value
        except TypeError:  # parameters are in a mapping
            key = repr(value)
        place = index.setdefault(key, len(distinct))
        if place == len(distinct):
            distinct.append(value)
        places.append(place)
    return distinct, places
