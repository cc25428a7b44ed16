"""A binary heap in an array: the smallest entry is the first. Masked writes and ``read_once``: see ``common.rings``."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Array, Flag, Int
from evaluator.stations.engine.common.rings import read_once, write


def enter(heap: Array, size: Int, entry: Array) -> Array:
    """The heap of ``size`` entries with one more."""

    def rises(carry: tuple[Int, Array]) -> Flag:
        place, heap = carry
        return (place > 0) & (read_once(heap, (place - 1) // 2) > entry)

    def rise(carry: tuple[Int, Array]) -> tuple[Int, Array]:
        place, heap = carry
        parent = (place - 1) // 2
        return parent, write(heap, place, read_once(heap, parent))

    place, heap = lax.while_loop(rises, rise, (size, heap))
    return write(heap, place, entry)


def replace_first(heap: Array, size: Int, moved: Array) -> Array:
    """The heap of ``size`` entries with ``moved`` in the place of the first: with the last one, the heap without it."""

    def smaller_child(heap: Array, place: Int) -> tuple[Int, Array]:
        left = 2 * place + 1
        first, second = read_once(heap, left), read_once(heap, left + 1)
        right = (left + 1 < size) & (second < first)
        return left + right, jnp.where(right, second, first)

    def sinks(carry: tuple[Int, Array]) -> Flag:
        place, heap = carry
        return (2 * place + 1 < size) & (smaller_child(heap, place)[1] < moved)

    def sink(carry: tuple[Int, Array]) -> tuple[Int, Array]:
        place, heap = carry
        child, value = smaller_child(heap, place)
        return child, write(heap, place, value)

    place, heap = lax.while_loop(sinks, sink, (jnp.int32(0), heap))
    return write(heap, place, moved)
