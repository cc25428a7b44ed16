"""Columns of text, of which many rows say the same.

NumPy gives every row of a text array the room of the longest text: with 160 characters of a status, a million rows take
640 MB. An array of objects takes 8 bytes a row, and one text for all rows that are equal.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr


def is_text(values: np.ndarray) -> bool:
    """Whether an array has texts in any of their forms: of a fixed width, of any width, objects."""
    return values.dtype.kind in "UTO"


def as_objects(texts: np.ndarray) -> np.ndarray:
    """The texts, of any shape, as an array of objects, equal ones the same object."""
    objects = np.empty(texts.size, dtype=object)
    # Interned: as many objects as different texts.
    objects[:] = [sys.intern(str(text)) for text in texts.ravel().tolist()]
    return objects.reshape(texts.shape)


def shared(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns with those of text as objects."""
    return {name: as_objects(values) if is_text(values) else values for name, values in columns.items()}


def text_variable(dims: Sequence[Hashable], texts: np.ndarray, attrs: Mapping[Any, Any]) -> xr.Variable:
    """A variable of the objects of ``as_objects`` as they are: xarray would give every row a text of its own."""
    import xarray as xr

    return xr.Variable(dims, texts, attrs, fastpath=True)


def text_bytes(texts: np.ndarray) -> int:
    """Bytes of all texts by themselves, which the size of an array of objects leaves out."""
    # Each different text is encoded once.
    lengths = {text: len(str(text).encode()) for text in set(texts.ravel().tolist())}
    return sum(map(lengths.__getitem__, texts.ravel().tolist()))
