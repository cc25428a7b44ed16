"""Columns of text, of which many rows say the same.

NumPy gives every row of a text array the room of the longest text: with 160 characters of a status, a million rows take
640 MB. An array of objects takes 8 bytes a row, and one text for all rows that are equal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr


def is_text(values: np.ndarray) -> bool:
    """Whether an array has texts in any of their forms: of a fixed width, of any width, objects."""
    return values.dtype.kind in "UTO"


def as_objects(texts: np.ndarray) -> np.ndarray:
    """The texts, of any shape, as an array of objects, equal ones the same object."""
    # Interned: as many objects as different texts.
    return _translated(texts, lambda text: sys.intern(str(text)))


def decoded(texts: np.ndarray) -> np.ndarray:
    """Texts as bytes in UTF-8, objects of any shape, as ``as_objects`` has them."""
    return _translated(texts, lambda text: sys.intern(text.decode()))


def _translated(texts: np.ndarray, translate: Callable[[Any], str]) -> np.ndarray:
    objects, rows = np.empty(texts.size, dtype=object), texts.ravel().tolist()
    # By their types, too, where there are several, since 1 == True.
    keys: list[Hashable] = rows if len(set(map(type, rows))) < 2 else list(zip(map(type, rows), rows, strict=True))
    # Each different text once: rows by the hundred thousand say the same few.
    translation = {key: translate(text) for key, text in dict(zip(keys, rows, strict=True)).items()}
    objects[:] = [translation[key] for key in keys]
    return objects.reshape(texts.shape)


def distinct(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different texts of a column, sorted, and which of them each row has: ``np.unique`` with ``return_inverse``.

    By their hashes: NumPy sorts all rows, in the room of the longest text each.
    """
    rows = list(map(str, texts.tolist()))  # a column of somebody else's may have numbers or None among its texts
    names = sorted(set(rows))
    place = {name: number for number, name in enumerate(names)}
    return np.array(names, dtype=str), np.fromiter(map(place.__getitem__, rows), dtype=np.int64, count=len(rows))


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
