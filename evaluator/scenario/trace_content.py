"""The columns of a trace that say what its prompts share: sessions, and hashes of blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluator.errors import InputError

CONTENT = ("session", "hash_ids")


@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of integers, one per request: that of request i is ``values[offsets[i]:offsets[i + 1]]``."""

    values: NDArray[np.int64]
    offsets: NDArray[np.int64]  # (request + 1,)

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]


def session_numbers(names: Sequence[Any]) -> NDArray[np.int64]:
    """Names of any kind as numbers, (request,): those of new sessions count up in their order."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in map(str, names)], dtype=np.int64)


def hash_ids(file: str, rows: Sequence[Any]) -> Ragged:
    """Lists of integers, or their texts in JSON. Errors: InputError naming the row that holds anything else."""
    lists = []
    for number, row in enumerate(rows, 1):
        try:
            values = json.loads(row) if isinstance(row, str) else row
        except ValueError:
            values = None
        if not isinstance(values, list) or not all(type(value) is int and abs(value) < 2**62 for value in values):
            raise InputError(f"{file}: row {number}, hash_ids: must be a list of integers, got {str(row)[:60]!r}")
        lists.append(values)
    offsets = np.cumsum([0, *map(len, lists)])
    return Ragged(np.array([value for values in lists for value in values], dtype=np.int64), offsets)
