"""Small arrays inside the loop: one element read or written, and the ring of steps with an event.

A ring holds one cell per step (see ``program``) and is longer than the longest output, so that no two steps to come
share a cell. ``events`` has one bit per step, in words of 64.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array

WORD = 64


def read(array: Array, index: Array) -> Array:
    """The element at ``index``."""
    return lax.dynamic_slice(array, (index,), (1,))[0]


def write(array: Array, index: Array, value: Array) -> Array:
    """The array with ``value`` at ``index``, in the array's dtype; in place inside a compiled loop."""
    return lax.dynamic_update_slice(array, jnp.asarray(value, array.dtype)[None], (index,))


def bit(slot: Array) -> Array:
    """The bit of a slot in its word."""
    return jnp.uint64(1) << (slot % WORD).astype(jnp.uint64)


def mark(events: Array, slot: Array, on: Array) -> Array:
    """The ring with an event at ``slot``, if ``on``."""
    word = read(events, slot // WORD)
    return write(events, slot // WORD, word | jnp.where(on, bit(slot), jnp.uint64(0)))


def steps_to_event(events: Array, step: Array, ring: int) -> Array:
    """Steps until the next marked one, at least 1; where the next 64 or more hold none, as far as was looked."""
    slot = (step + 1) % ring
    near = read(events, slot // WORD) >> (slot % WORD).astype(jnp.uint64)
    far = read(events, (slot // WORD + 1) % (ring // WORD))
    return 1 + jnp.where(near != 0, _trailing_zeros(near), WORD - slot % WORD + _trailing_zeros(far))


def unmark(events: Array, slot: Array) -> Array:
    """The ring without an event at ``slot``."""
    return write(events, slot // WORD, read(events, slot // WORD) & ~bit(slot))


def _trailing_zeros(word: Array) -> Array:
    return lax.population_count(~word & (word - jnp.uint64(1))).astype(jnp.int32)


def tagged_add(counts: Array, slot: Array, step: Array, more: Array | int = 1) -> Array:
    """``more`` at ``slot`` for ``step``; a count left there by an earlier step is forgotten.

    So no cell need be cleared: to clear what was read would make XLA copy the ring on every trip. Cells are
    step << 32 | count, int64.
    """
    cell, tag = read(counts, slot), step.astype(jnp.int64) << 32
    return write(counts, slot, jnp.where(cell >> 32 == step, cell, tag) + more)


def tagged_count(counts: Array, slot: Array, step: Array) -> Array:
    """How many were added at ``slot`` for ``step``, float64."""
    cell = read(counts, slot)
    return jnp.where(cell >> 32 == step, cell & 0xFFFFFFFF, 0).astype(jnp.float64)


def load(array: Array, index: Array) -> Array:
    """The element at ``index``, read at once and only once.

    XLA repeats a plain ``read`` in every computation that uses it, and one that comes after the array was written to in
    place makes it copy the array. It does not repeat a conditional; nor does it know that no index is negative.
    """
    return lax.cond(index >= 0, lambda: read(array, index), lambda: jnp.zeros((), array.dtype))
