"""Arrays of one length in a record, as the columns of one array for each dtype.

A compiled loop hands over each array that it carries by a pointer, and writes its pointers down on every trip; so do
the loops and branches inside it. A record of ten arrays by request is ten pointers at each of these places. As columns
of one array they are one, and a column is found by adding where it begins.

Columns of one array are one array to XLA: what ``common.rings`` says of reads and writes counts for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Array, Int


@jax.tree_util.register_pytree_node_class
class RecordColumn:
    """One of the columns, to be read and written by the functions of ``common.rings``.

    A write is noted here and made when the record takes the column (``Columns._replace``), because several columns may
    be written at once. Until then it cannot be read. A loop may carry a column by itself; then it carries them all.
    """

    def __init__(self, array: Array, first: int, length: int) -> None:
        self._array, self._first, self.shape = array, first, (length,)
        self._writes: tuple[tuple[Int, Array], ...] = ()
        self._of_loop = False  # a loop has changed the array itself

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.made(self._array),), (self._first, self.shape[0])

    @classmethod
    def tree_unflatten(cls, form: Any, children: Any) -> RecordColumn:
        column = cls(*children, *form)
        column._of_loop = True
        return column

    @property
    def dtype(self) -> Any:
        """That of its cells."""
        return self._array.dtype

    def __getitem__(self, cells: slice) -> Array:
        return self._array[self._first : self._first + self.shape[0]][cells]

    def place(self, index: Int) -> tuple[Array, Int]:
        """The array with all columns, and where the cell ``index`` is in it."""
        assert not self._writes, "a column is read before its record has taken what was written"
        return self._array, self._cell(index)

    def _cell(self, index: Int) -> Int:
        # As XLA does with arrays: a sentinel of one of several replicas, which is behind the requests, is read as the
        # last of them by lanes in step that go along with others; it must not be a cell of the next column.
        return self._first + jnp.minimum(index, self.shape[0] - 1)

    def write(self, index: Int, values: Array) -> RecordColumn:
        """With ``values`` from ``index`` on."""
        column = RecordColumn(self._array, self._first, self.shape[0])
        column._writes, column._of_loop = (*self._writes, (index, values)), self._of_loop
        return column

    def made(self, array: Array) -> Array:
        """``array`` with what was written here."""
        for index, values in self._writes:
            array = lax.dynamic_update_slice(
                array, jnp.asarray(values, array.dtype), (self._cell(index),), allow_negative_indices=False
            )
        return array

    def taken(self, before: Array, array: Array) -> Array:
        """The same of a record whose array was ``before`` when the first of its columns was written."""
        if self._of_loop and array is before:
            return self.made(self._array)
        assert self._array is before, "a column was written that its record has no longer"
        return self.made(array)


class Columns:
    """A record of such arrays: those of a subclass by the names of its annotations; None where there is none."""

    _fields: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__annotations__)
        jax.tree_util.register_pytree_node_class(cls)

    def __init__(self, **columns: Array | None) -> None:
        assert set(columns) == set(self._fields), (sorted(columns), self._fields)
        by_dtype: dict[str, list[Array]] = {}
        places: dict[str, tuple[str, int] | None] = {}
        for name in self._fields:
            column = columns[name]
            if column is None:
                places[name] = None
                continue
            before = by_dtype.setdefault(str(column.dtype), [])
            places[name] = (str(column.dtype), len(before))
            before.append(column)
        self._arrays = {dtype: jnp.concatenate(some) for dtype, some in by_dtype.items()}
        self._places = places
        (self._length,) = {column.shape[0] for some in by_dtype.values() for column in some}

    def tree_flatten(self) -> tuple[Iterable[Any], Any]:
        return (self._arrays,), (tuple(self._places.items()), self._length)

    @classmethod
    def tree_unflatten(cls, form: Any, children: Iterable[Any]) -> Self:
        record = object.__new__(cls)
        places, record._length = form
        record._places = dict(places)
        (record._arrays,) = children
        return record

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        place = self._places[name]
        if place is None:
            return None
        dtype, number = place
        return RecordColumn(self._arrays[dtype], number * self._length, self._length)

    def _replace(self, **columns: RecordColumn | None) -> Self:
        """With what was written to some columns, which are this record's."""
        after = dict(self._arrays)
        for name, column in columns.items():
            place = self._places[name]
            if column is None or place is None:
                assert column is place, name
                continue
            after[place[0]] = column.taken(self._arrays[place[0]], after[place[0]])
        record = object.__new__(type(self))
        record._arrays, record._places, record._length = after, self._places, self._length
        return record
