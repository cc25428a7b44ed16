"""How the event loop reads and writes its arrays, and the ring of steps.

Two conventions hold in every function of both programs.

*Masked writes.* A write that is not wanted in this trip is made all the same: into a padding cell that is never read as
data (the slot behind the requests, the last cell of a ring), or with the value that was there before. So the code needs
no branch, which would cost more than the write, and which ``vmap`` turns into both sides anyway. Functions with a
parameter ``on`` leave the state as it is where ``on`` is false.

An index is never negative where it matters: JAX would count ``NONE`` from the end, and take three instructions at each
place to look for it. So XLA takes the first cell for it. A read at ``NONE`` gives a number that nobody uses; a write
must never have such an index, since the first cell is one of data.

*Who may read an array when.* XLA updates an array of a loop in place only if nothing still needs its old content. A
plain ``read`` is an expression that XLA may repeat in every computation that uses its value; if one of them runs after
a write, XLA copies the whole array on every trip, and the loop becomes slower by the length of the array. Therefore

1. an array is written first and read after within a trip, where that is possible; else
2. the value written depends on the value read, so that XLA sees their order; else
3. the value is read by ``read_once``, which XLA does not repeat, and, where the value written does not depend on it, is
   said to come before it (``behind``).

Columns of a record (``columns``) are one array: who writes one of them has to be behind all that was read of any.

A ring holds one cell per step (a step is an iteration in which decodes take part, see ``fcfs_reserved.program``) and is
longer than the longest output, so that no two steps to come share a cell. Its length is a power of two (``in_ring``).
``events`` has one bit per step, in words of 64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Array, Flag, Float, Int, StepBits, StepCounts
from evaluator.stations.engine.common.columns import RecordColumn

NONE = -1
"""In place of a number: no request (the end of a linked list), no decode group, no batch."""
WORD = 64

Carry = TypeVar("Carry")


def read(array: Array, index: Int) -> Array:
    """The element at ``index``; XLA may evaluate it more than once, see the head of this module."""
    if array.shape == (1,):
        return array[0]  # an array of one cell is a number: nothing is lost where XLA copies it
    return _cell(array, index)


def _cell(array: Array, index: Int) -> Array:
    if isinstance(array, RecordColumn):
        array, index = array.place(index)
    return lax.dynamic_slice(array, (index,), (1,), allow_negative_indices=False)[0]


def read_once(array: Array, index: Int) -> Array:
    """The element at ``index``, evaluated at one point of the program; ``index`` is not negative.

    XLA never evaluates a conditional twice, and the condition cannot be simplified away because XLA does not know that
    the index is not negative. With an index that is a constant of the program it would be: then use a traced one.
    """
    if array.shape == (1,):
        return array[0]
    return lax.cond(index >= 0, lambda: _cell(array, index), lambda: jnp.zeros((), array.dtype))


def read_each(index: Int, *arrays: Array) -> tuple[Array, ...]:
    """The elements of several arrays at ``index``, as by ``read_once``: a conditional for all."""
    if any(array.shape == (1,) for array in arrays):
        return tuple(read_once(array, index) for array in arrays)

    def elements() -> tuple[Array, ...]:
        return tuple(_cell(array, index) for array in arrays)

    return lax.cond(index >= 0, elements, lambda: tuple(jnp.zeros((), array.dtype) for array in arrays))


def write(array: Array, index: Int, value: Array) -> Array:
    """The array with ``value`` at ``index``, in the array's dtype; in place inside a compiled loop."""
    value = jnp.asarray(value, array.dtype)[None]
    if isinstance(array, RecordColumn):
        return array.write(index, value)
    return (
        value if array.shape == (1,) else lax.dynamic_update_slice(array, value, (index,), allow_negative_indices=False)
    )


def behind(index: Int, *values: Int | Float) -> Int:
    """``index``, of a write that must come after these values were read; none of them is less than NONE.

    XLA does not know that, and so reads them before it knows where to write.
    """
    for value in values:
        index = jnp.where(value >= NONE, index, NONE)
    return index


def add(array: Array, index: Int, value: Array) -> Array:
    """The array with ``value`` more at ``index``."""
    return write(array, index, read_once(array, index) + value)


def where(on: Flag, do: Callable[[Carry], Carry], carry: Carry) -> Carry:
    """``do(carry)`` if ``on``, else the carry as it is."""
    # A loop of one trip or none: a conditional would copy the arrays that it changes.
    start = (on, carry)
    return lax.while_loop(lambda pair: pair[0], lambda pair: (jnp.zeros((), bool), do(pair[1])), start)[1]


def in_ring(step: Int, ring: int) -> Int:
    """The cell of a step; the length of the ring is a power of two.

    A remainder would be a division, with four instructions more for the sign that JAX gives it.
    """
    assert ring & (ring - 1) == 0, ring
    return step & (ring - 1)


# -- events: a bit per step


def mark(events: StepBits, slot: Int, on: Flag) -> StepBits:
    """The ring with an event at ``slot``, if ``on``."""
    word = read(events, _word(slot))
    return write(events, _word(slot), word | jnp.where(on, _bit(slot), jnp.uint64(0)))


def unmark(events: StepBits, slot: Int) -> StepBits:
    """The ring without an event at ``slot``."""
    return write(events, _word(slot), read(events, _word(slot)) & ~_bit(slot))


def steps_to_event(events: StepBits, step: Int, ring: int, first: Int | int = 0) -> Int:
    """Steps from ``step`` to the next one with an event, at least 1; the ring begins at the word ``first``.

    Only the rest of the word and the next word are looked at. If they hold no event, the answer is the distance to
    their end (64 to 128 steps): a leap that ends there without an event costs one more trip, and is still exact.
    """
    slot = in_ring(step + 1, ring)
    place = _place(slot)
    near = read(events, first + _word(slot)) >> place.astype(jnp.uint64)
    far = read(events, first + in_ring(_word(slot) + 1, ring // WORD))
    return 1 + jnp.where(near != 0, _trailing_zeros(near), WORD - place + _trailing_zeros(far))


def _word(slot: Int) -> Int:
    return slot >> (WORD.bit_length() - 1)


def _place(slot: Int) -> Int:
    """Of a slot's bit in its word."""
    return slot & (WORD - 1)


def _bit(slot: Int) -> Array:
    """The bit of a slot in its word, uint64."""
    return jnp.uint64(1) << _place(slot).astype(jnp.uint64)


def _trailing_zeros(word: Array) -> Int:
    return lax.population_count(~word & (word - jnp.uint64(1))).astype(jnp.int32)


# -- counts by step


def tagged_add(counts: StepCounts, slot: Int, step: Int, more: Array | int = 1) -> StepCounts:
    """``more`` at ``slot`` for ``step``; a count that an earlier step left in the cell is forgotten.

    A cell is ``step << 32 | count``. Because the step tells whether the count is still valid, no cell is ever cleared:
    clearing what was read before would make XLA copy the ring on every trip.
    """
    cell, tag = read(counts, slot), step.astype(jnp.int64) << 32
    return write(counts, slot, jnp.where(cell >> 32 == step, cell, tag) + more)


def tagged_add_each(counts: StepCounts, slot: Int, step: Int, more: Array) -> StepCounts:
    """The same with ``more``, int64 (step,), for steps in a row whose cells are, too: from ``step`` at ``slot`` on.

    Where it is 0 the cell may be that of another step to come, and stays as it is.
    """
    cells = lax.dynamic_slice(counts, (slot,), more.shape, allow_negative_indices=False)
    steps = step.astype(jnp.int64) + jnp.arange(more.shape[0])
    after = jnp.where(cells >> 32 == steps, cells, steps << 32) + more
    after = jnp.where(more != 0, after, cells)
    return lax.dynamic_update_slice(counts, after, (slot,), allow_negative_indices=False)


def tagged_count(counts: StepCounts, slot: Int, step: Int, once: bool = False) -> Float:
    """How many were added at ``slot`` for ``step``; ``once``: as by ``read_once``."""
    cell = read_once(counts, slot) if once else read(counts, slot)
    return jnp.where(cell >> 32 == step, cell & 0xFFFFFFFF, 0).astype(jnp.float64)
