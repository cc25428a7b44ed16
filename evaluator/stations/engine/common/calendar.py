"""A heap of things to come, by their time and then by a code. Masked writes and ``read_once``: see ``rings``."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Array, CodeHeap, Flag, Float, Int, TimeHeap
from evaluator.stations.engine.common.rings import read_once, write


class Calendar(NamedTuple):
    """A binary heap of pairs in two arrays; of one time the lowest code comes first."""

    time_s: TimeHeap
    code: CodeHeap
    size: Int

    @classmethod
    def empty(cls, slots: int) -> Calendar:
        """Room for an entry of each of ``slots`` request slots."""
        return cls(jnp.full(slots + 1, jnp.inf), jnp.zeros(slots + 1, jnp.int64), jnp.int32(0))

    def first(self) -> tuple[Float, Array]:
        """(time, code) of what comes next; of an empty calendar the time is infinite."""
        root = jnp.minimum(self.size, 0)  # 0, traced, as ``read_once`` needs it
        return jnp.where(self.size > 0, read_once(self.time_s, root), jnp.inf), read_once(self.code, root)

    def enter(self, time_s: Float, code: Array, on: Flag) -> Calendar:
        """With one more entry, if ``on``; codes are below 2 ** 62."""
        code = jnp.where(on, code.astype(jnp.int64), jnp.int64(1) << 62)
        time_s = jnp.where(on, time_s, jnp.inf)  # behind all others, where the size will not count it

        def rises(carry: tuple[Int, Array, Array]) -> Flag:
            place, times, codes = carry
            parent = (place - 1) // 2
            return (place > 0) & _earlier(time_s, code, read_once(times, parent), read_once(codes, parent))

        def rise(carry: tuple[Int, Array, Array]) -> tuple[Int, Array, Array]:
            place, times, codes = carry
            parent = (place - 1) // 2
            up_s, up = read_once(times, parent), read_once(codes, parent)
            return parent, write(times, place, up_s), write(codes, place, up)

        place, times, codes = lax.while_loop(rises, rise, (self.size, self.time_s, self.code))
        return Calendar(write(times, place, time_s), write(codes, place, code), self.size + on)

    def without_first(self, on: Flag) -> Calendar:
        """Without what comes next, if ``on``; there must be something then."""
        size = self.size - on
        last = jnp.where(on, size, 0)
        moved_s, moved = read_once(self.time_s, last), read_once(self.code, last)

        def child(place: Int, times: Array, codes: Array) -> tuple[Int, Float, Array]:
            left = 2 * place + 1
            of_left = read_once(times, left), read_once(codes, left)
            of_right = read_once(times, left + 1), read_once(codes, left + 1)
            right = (left + 1 < size) & _earlier(*of_right, *of_left)
            time_s, code = (jnp.where(right, *values) for values in zip(of_right, of_left, strict=True))
            return left + right, time_s, code

        def sinks(carry: tuple[Int, Array, Array]) -> Flag:
            place, times, codes = carry
            _, time_s, code = child(place, times, codes)
            return (2 * place + 1 < size) & _earlier(time_s, code, moved_s, moved)

        def sink(carry: tuple[Int, Array, Array]) -> tuple[Int, Array, Array]:
            place, times, codes = carry
            below, time_s, code = child(place, times, codes)
            return below, write(times, place, time_s), write(codes, place, code)

        place, times, codes = lax.while_loop(sinks, sink, (jnp.minimum(size, 0), self.time_s, self.code))
        return Calendar(write(times, place, moved_s), write(codes, place, moved), size)


def _earlier(time_s: Float, code: Array, other_s: Float, other: Array) -> Flag:
    return (time_s < other_s) | ((time_s == other_s) & (code < other))
