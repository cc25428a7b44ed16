"""Values over the points of a sweep, encoded by a dictionary: the distinct values, and which of them each point has."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Encoded:
    """Distinct ``values``; ``codes`` are their indices over the points, of a shape that broadcasts to all points.

    So a value that many points share is built once (as in a categorical of pandas, or a dictionary array of Arrow).
    """

    values: list[Any]
    codes: np.ndarray = field(default_factory=lambda: np.zeros((), dtype=np.int64))

    def spread(self, shape: tuple[int, ...]) -> list[Any]:
        """One value per point, in C order."""
        if self.codes.ndim == 0:
            # No axis touches it: one object repeated, without an array of a code for each of the points.
            return self.values * prod(shape)
        values = np.empty(len(self.values), dtype=object)
        for index, value in enumerate(self.values):  # at once, NumPy would take tuples apart
            values[index] = value
        return np.broadcast_to(values[self.codes], shape).reshape(-1).tolist()


def combined(columns: Sequence[tuple[np.ndarray, int]]) -> tuple[list[np.ndarray], np.ndarray]:
    """The combinations of several codes (each with how many values it numbers) that points have.

    Returns for each of them its index in every combination, (combination,), and the codes of the combinations.
    """
    codes, count = np.zeros((), dtype=np.int64), 1
    chosen: list[np.ndarray] = []
    for more, size in columns:  # one number for each pair, renumbered at once, so that the numbers stay small
        # A pair (a, b) as the number a * size + b: the codes broadcast, so that two axes of ten give a table of
        # these two alone.
        pairs, codes = _distinct(codes * size + more, count * size)
        chosen = [*(index[pairs // size] for index in chosen), pairs % size]
        count = len(pairs)
    return chosen, codes


def _distinct(keys: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
    """The sorted distinct integers of ``keys``, all below ``bound``, and the index of each key among them."""
    if bound > 8 * keys.size + 1024:  # a table of all possible keys would be larger than sorting them is slow
        distinct, codes = np.unique(keys, return_inverse=True)
        return distinct, codes.reshape(keys.shape)
    present = np.zeros(bound, dtype=bool)
    present[keys] = True
    distinct = np.flatnonzero(present)
    index = np.empty(bound, dtype=np.int64)
    index[distinct] = np.arange(len(distinct))
    return distinct, index[keys]


def identity(changes: Mapping[str, Any]) -> Hashable:
    """Equal for changes (key path -> value) that set the same values of the same types."""
    return tuple(
        # The type is a part of it: 1 == 1.0 == True in Python, and a count of 1.0 is read otherwise than a flag.
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
            hash(value)  # a frozen record has a hash only if all that it holds has one
            key: Hashable = value
        except TypeError:  # parameters are in a mapping
            # Records that hold a mapping have no hash; as dataclasses their text tells their values apart.
            key = repr(value)
        code = index.setdefault(key, len(distinct))
        if code == len(distinct):
            distinct.append(value)
        places.append(code)
    return distinct, places
