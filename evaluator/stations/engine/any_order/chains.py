"""Linked lists of requests inside the loop: who runs, whose prompt is under way, who leaves after a step.

``Chain`` is doubly linked and closed to a ring by a sentinel, the padding slot behind the requests; who is not in it is
linked to itself, so that nothing needs a branch. ``push`` and ``unlink`` work on many short singly linked lists, whose
heads are cells of an array.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array
from evaluator.stations.engine.common.rings import load, write


class Chain(NamedTuple):
    """Requests in the order in which they were appended; (request + 1,) int32 each."""

    newer: Array
    older: Array
    sentinel: Array  # before the oldest and behind the newest; traced, see ``load``

    @classmethod
    def empty(cls, slots: int, sentinel: Array) -> Chain:
        """Nobody is in it."""
        return cls(*(jnp.arange(slots, dtype=jnp.int32),) * 2, sentinel)

    def oldest(self) -> Array:
        """The first; the sentinel if there is none."""
        return load(self.newer, self.sentinel)

    def newest(self) -> Array:
        """The last; the sentinel if there is none."""
        return load(self.older, self.sentinel)

    def append(self, i: Array, on: Array) -> Chain:
        """With ``i`` behind all others, if ``on``."""
        return self.insert(i, self.sentinel, on)

    def insert(self, i: Array, before: Array, on: Array) -> Chain:
        """With ``i``, which is not in it, in front of a member or the sentinel, if ``on``."""
        behind = load(self.older, before)
        newer = write(self.newer, behind, jnp.where(on, i, before))
        older = write(self.older, i, jnp.where(on, behind, i))
        return self._replace(
            newer=write(newer, i, jnp.where(on, before, i)), older=write(older, before, jnp.where(on, i, behind))
        )

    def remove(self, i: Array, on: Array = True) -> Chain:
        """Without ``i``, whether or not it was in it, if ``on``."""
        newer, older = load(self.newer, i), load(self.older, i)
        return self._replace(
            newer=write(write(self.newer, older, jnp.where(on, newer, i)), i, jnp.where(on, i, newer)),
            older=write(write(self.older, newer, jnp.where(on, older, i)), i, jnp.where(on, i, older)),
        )


def push(heads: Array, at: Array, links: Array, i: Array, on: Array) -> tuple[Array, Array]:
    """The heads and links of lists with ``i`` put in front of the one at ``at``, if ``on``."""
    first = load(heads, at)
    return write(heads, at, jnp.where(on, i, first)), write(links, i, jnp.where(on, first, load(links, i)))


def unlink(heads: Array, at: Array, links: Array, i: Array, on: Array) -> tuple[Array, Array]:
    """The heads and links of lists with ``i`` taken out of the one at ``at``, if ``on``; it must be in it then."""
    padding = links.shape[0] - 1
    first, after = load(heads, at), load(links, i)
    leads = first == i
    walk = on & ~leads
    before = lax.while_loop(
        lambda one: walk & (load(links, one) != i),
        lambda one: load(links, one),
        jnp.where(walk, first, padding),
    )
    return write(heads, at, jnp.where(on & leads, after, first)), write(links, before, after)
