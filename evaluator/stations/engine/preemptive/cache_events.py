"""KV events: what changed in the prefix caches of replicas, for a router that hears of it later.

An event says how many blocks of a text are found from its first one on, which is all that can be found of it
(``block_runs``), and how many blocks of the replica have a name. Each replica has a queue of them, in the order in
which they happened; what was heard is free for the next.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evaluator.stations.engine.common.arrays import Flag, Float, FloatPerEvent, Int, IntPerEvent
from evaluator.stations.engine.common.rings import NONE, read, read_once, write


class EventQueue(NamedTuple):
    """Of one replica."""

    first: Int  # that nobody has heard of, or NONE
    last: Int


class CacheEvents(NamedTuple):
    """Those of all replicas; the last cell is for what there is no room for."""

    at_s: FloatPerEvent
    ring: IntPerEvent  # the text whose blocks changed, or NONE: only the number of all did
    blocks: IntPerEvent  # of that text from its first on that can be found now
    known: IntPerEvent
    next: IntPerEvent  # in its queue, or of those that are free
    free: Int  # the first of these, or NONE
    lost: Flag  # there was no room for some event
    step_s: Float  # when the step of a leap begins in which something changes; below 0: it changes now

    @classmethod
    def empty(cls, events: int) -> CacheEvents:
        """Room for so many, of which nothing has happened."""
        none = jnp.full(events + 1, NONE, jnp.int32)
        following = jnp.where(jnp.arange(events + 1) < events - 1, jnp.arange(1, events + 2), NONE).astype(jnp.int32)
        false = jnp.zeros((), bool)
        return cls(jnp.zeros(events + 1), none, none, none, following, jnp.int32(0), false, jnp.float64(-1.0))

    def with_event(
        self, queue: EventQueue, now: Float, ring: Int, blocks: Int, known: Int
    ) -> tuple[CacheEvents, EventQueue]:
        """With one more at the end of a queue."""
        padding = self.at_s.shape[0] - 1
        event = jnp.where(self.free >= 0, self.free, padding)
        behind, empty = read_once(self.next, event), queue.first < 0
        # The link of the one before is written to the padding cell where there is none.
        links = write(write(self.next, event, jnp.where(behind >= NONE, NONE, behind)),
                      jnp.where(empty, padding, queue.last), event)  # fmt: skip
        events = self._replace(
            at_s=write(self.at_s, event, now),
            ring=write(self.ring, event, ring),
            blocks=write(self.blocks, event, blocks),
            known=write(self.known, event, known),
            next=links,
            free=jnp.where(self.free >= 0, behind, NONE),
            lost=self.lost | (self.free < 0),
        )
        return events, EventQueue(jnp.where(empty, event, queue.first), event)

    def without_first(self, queue: EventQueue) -> tuple[CacheEvents, EventQueue]:
        """Without the first of a queue, which there is."""
        following = read_once(self.next, queue.first)
        events = self._replace(next=write(self.next, queue.first, jnp.where(following >= NONE, self.free, following)),
                               free=queue.first)  # fmt: skip
        return events, EventQueue(following, queue.last)

    def first_s(self, queue: EventQueue) -> Float:
        """When the first of a queue was; infinite if there is none."""
        at_s = read(self.at_s, jnp.maximum(queue.first, 0))
        return jnp.where(queue.first >= 0, at_s, jnp.inf)
