"""Constants of a lane (costs, limits, rules) as cells of one array per dtype.

A compiled loop hands over everything that it reads by a pointer, and writes down its pointers on every trip, those of
the loops inside it likewise. A replica has some hundred numbers that never change; each as an array of its own they
made up two thirds of the pointers, and a fifth of the time of a lane. So they come as an array for each dtype, and a
number is read where it is used: in a loop inside another one it would else be handed over by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evaluator.stations.engine.common.arrays import Array, Int

MOST_CELLS = 16
"""Of an array that is packed. Longer ones, as the tables of a fitted cost, stay by themselves."""


@dataclass(frozen=True)
class _Cells:
    """Where the numbers of one field are."""

    dtype: str
    first: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Whole:
    """A field that stays by itself."""

    number: int
    alike: bool  # the same for all pools


@jax.tree_util.register_pytree_node_class
class Packed:
    """A record of such numbers: its fields by name, those of a tuple by number.

    A field that is a record, too, is one such again. An item of a tuple is a whole record of its type, because costs
    are told apart by their types.
    """

    def __init__(self, arrays: dict[str, Array], others: list[Array], record: Any) -> None:
        self._arrays, self._others, self._record = arrays, others, record

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self._arrays, self._others), self._record

    @classmethod
    def tree_unflatten(cls, record: Any, children: Any) -> Packed:
        arrays, others = children
        return cls(arrays, others, record)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        field = getattr(self._record, name)
        return Packed(self._arrays, self._others, field) if isinstance(field, tuple) else self._value(field)

    def __getitem__(self, number: int) -> Any:
        return jax.tree.map(self._value, self._record[number])

    def __len__(self) -> int:
        return len(self._record)

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def row(self, number: Int) -> Packed:
        """The record of one pool, where each of several has its own."""

        def row_of(values: Array) -> Array:
            return lax.dynamic_index_in_dim(values, number, keepdims=False, allow_negative_indices=False)

        others = list(self._others)
        for field in jax.tree.leaves(self._record):
            if isinstance(field, _Whole) and not field.alike:
                others[field.number] = row_of(others[field.number])
        return Packed({dtype: row_of(cells) for dtype, cells in self._arrays.items()}, others, self._record)

    def replaced(self, **fields: Array) -> Packed:
        """With other values of some fields."""
        places = {name: _Whole(number, True) for number, name in enumerate(fields, len(self._others))}
        return Packed(self._arrays, [*self._others, *fields.values()], self._record._replace(**places))

    def _record_in(self, columns: dict[str, list[Array]], others: list[Array]) -> Any:
        """Where the fields are in a record that packs this one, too, to whose columns and others its own are added."""
        first, number = {dtype: _width(columns.get(dtype, [])) for dtype in self._arrays}, len(others)
        for dtype, cells in self._arrays.items():
            columns.setdefault(dtype, []).append(cells)
        others += self._others

        def moved(field: Any) -> Any:
            if isinstance(field, _Whole):
                return replace(field, number=number + field.number)
            return replace(field, first=first[field.dtype] + field.first)

        return jax.tree.map(moved, self._record)

    def _value(self, field: Any) -> Any:
        if isinstance(field, _Whole):
            return self._others[field.number]
        if not isinstance(field, _Cells):
            return field
        cells = self._arrays[field.dtype]  # with an axis (pool,) in front where there are several
        some = lax.slice_in_dim(cells, field.first, field.first + prod(field.shape), axis=-1)
        return some.reshape(*cells.shape[:-1], *field.shape)


def _width(columns: list[Array]) -> int:
    return sum(column.shape[-1] for column in columns)


def pack(record: Any, pools: bool = False) -> Packed:
    """A record of arrays, or of records of them, all with a leading axis (lane,), or (lane, pool).

    What has no axis (pool,) where the others do is the same for all pools, and stays by itself. NumPy's arrays are
    packed in NumPy: a call of a program takes some 10 us for each array that it is given. A part of the record may be
    packed already.
    """
    axes = 2 if pools else 1
    leaves, fields = jax.tree.flatten(record, is_leaf=lambda part: isinstance(part, Packed))
    columns: dict[str, list[Array]] = {}
    widths: Counter[str] = Counter()
    others: list[Array] = []
    places: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Packed):
            places.append(leaf._record_in(columns, others))
            widths = Counter({dtype: _width(some) for dtype, some in columns.items()})
            continue
        alike, shape, dtype = leaf.ndim < axes, leaf.shape[axes:], leaf.dtype.str
        if alike or prod(shape) > MOST_CELLS:
            places.append(_Whole(len(others), alike))
            others.append(leaf)
            continue
        places.append(_Cells(dtype, widths[dtype], shape))
        columns.setdefault(dtype, []).append(leaf.reshape(*leaf.shape[:axes], prod(shape)))
        widths[dtype] += prod(shape)
    concatenate = np.concatenate if all(isinstance(leaf, np.ndarray) for leaf in leaves) else jnp.concatenate
    arrays = {dtype: concatenate(some, axis=-1) for dtype, some in columns.items()}
    return Packed(arrays, others, jax.tree.unflatten(fields, places))
