"""Linked lists of requests inside the loop.

``LinkedList`` is doubly linked and closed to a ring by a sentinel, a slot behind the requests; a request that is not in
it is linked to itself, so that removing it changes nothing and needs no branch. Lists of several replicas share the
arrays: each has a sentinel of its own. ``push`` and ``unlink`` work on many short singly linked lists, whose heads are
cells of an array. Masked writes and ``read_once``: see ``common.rings``.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Array, Flag, Int, IntPerRequest
from evaluator.stations.engine.common.columns import Columns
from evaluator.stations.engine.common.rings import NONE, read_each, read_once, write


class LinkedList(Columns):
    """Requests in the order in which they were appended.

    A ``sentinel`` is before the oldest and behind the newest; it is traced, as ``read_once`` needs it.
    """

    newer: IntPerRequest
    older: IntPerRequest

    @classmethod
    def empty(cls, slots: int) -> LinkedList:
        """Chains without members for ``slots`` request slots, the sentinels among them."""
        numbers = jnp.arange(slots, dtype=jnp.int32)
        return cls(newer=numbers, older=numbers)

    def oldest(self, sentinel: Int) -> Int:
        """The first member; the sentinel if there is none."""
        return read_once(self.newer, sentinel)

    def newest(self, sentinel: Int) -> Int:
        """The last member; the sentinel if there is none."""
        return read_once(self.older, sentinel)

    def append(self, sentinel: Int, i: Int, on: Flag) -> LinkedList:
        """With ``i`` behind all others, if ``on``."""
        return self.insert(i, sentinel, on)

    def insert(self, i: Int, before: Int, on: Flag) -> LinkedList:
        """With ``i``, which is not in it, in front of a member or the sentinel, if ``on``."""
        behind = read_once(self.older, before)
        newer = write(self.newer, behind, jnp.where(on, i, before))
        older = write(self.older, i, jnp.where(on, behind, i))
        return self._replace(
            newer=write(newer, i, jnp.where(on, before, i)), older=write(older, before, jnp.where(on, i, behind))
        )

    def remove(self, i: Int, on: Flag = True) -> LinkedList:
        """Without ``i``, whether or not it was in it, if ``on``."""
        newer, older = read_each(i, self.newer, self.older)
        return self._replace(
            newer=write(write(self.newer, older, jnp.where(on, newer, i)), i, jnp.where(on, i, newer)),
            older=write(write(self.older, newer, jnp.where(on, older, i)), i, jnp.where(on, i, older)),
        )


def push(heads: Array, number: Int, links: IntPerRequest, i: Int, on: Flag) -> tuple[Array, IntPerRequest]:
    """The heads and links of lists with ``i`` put in front of list ``number``, if ``on``."""
    first, padding = read_once(heads, number), links.shape[0] - 1
    return write(heads, number, jnp.where(on, i, first)), write(links, jnp.where(on, i, padding), first)


def turned(links: IntPerRequest, first: Int) -> tuple[IntPerRequest, Int]:
    """The links and the first of a list in the opposite order, of one that begins with ``first``."""

    def turn(carry: tuple[IntPerRequest, Int, Int]) -> tuple[IntPerRequest, Int, Int]:
        links, before, current = carry
        following = read_once(links, current)
        # A link is never less than NONE: what is written depends on what was read (``common.rings``).
        return write(links, current, jnp.where(following >= NONE, before, following)), current, following

    links, last, _ = lax.while_loop(lambda carry: carry[2] >= 0, turn, (links, first * 0 + NONE, first))
    return links, last


def unlink(
    heads: Array, number: Int, links: IntPerRequest, i: Int, on: Flag
) -> tuple[Array, IntPerRequest, tuple[Int, Int]]:
    """The heads and links of lists with ``i`` taken out of list ``number``, if ``on``; it must be in it then.

    Also the links that were read: columns of the same record must be written after that (``rings.behind``).
    """
    padding = links.shape[0] - 1
    first, after = read_once(heads, number), read_once(links, i)
    leads = first == i
    walk = on & ~leads
    # Singly linked: whoever stands before it is found by walking, but for the first, where the padding cell is written.
    before = lax.while_loop(
        lambda member: walk & (read_once(links, member) != i),
        lambda member: read_once(links, member),
        jnp.where(walk, first, padding),
    )
    return write(heads, number, jnp.where(on & leads, after, first)), write(links, before, after), (before, after)
