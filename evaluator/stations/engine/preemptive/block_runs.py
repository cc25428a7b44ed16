"""Runs of blocks in a prefix cache: blocks that follow one another in a text and have the same users.

A block with a name is known here by its text (``Text``) and its place in it, so that a run is a range of places. Most
of a request's blocks come together, are shared together and come free together: all that happens to them is done by the
run, at the cost of one block. Runs are cut where somebody uses a part of one, and put together again where nobody uses
either.

A text has two rings of runs. One is of those that are *found*, in the order of their places. The blocks of a text that
are there are always its first ones, however they were taken: whoever holds a block holds one of each place before it
and gives these back after it, so that they are evicted after it. Found runs thus follow one another without a gap. The
other ring is of *copies*, whose content was there when they were computed (by two requests at once, or for the last
token of a prompt that is there), in the order in which they got their names, a run for each block; where the found
block of a place is evicted, the copy that was named first becomes the found one. A copy has one user at most, its
``owner``.

Blocks that nobody uses are evicted in the order in which they came free, those of a request from the last to the first.
Of the run that came free first that is from its end on, so that a list of runs has the order of all blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float, Int, IntPerRing, IntPerRun
from evaluator.stations.engine.common.rings import NONE, read, read_each, read_once, where, write
from evaluator.stations.engine.preemptive.cache_events import CacheEvents, EventQueue
from evaluator.stations.engine.preemptive.linked_lists import LinkedList


class Text(NamedTuple):
    """Blocks of a request that come one after the other in any request that has them."""

    ring: Int  # of the runs that are found, which is the number of the text
    number: Int  # of the content of the first block (``lane.BlockContent``)
    first: Int  # the place of that block in the request
    end: Int  # the place behind the last one that the request may have


class BlockCounts(NamedTuple):
    """Of the blocks of one replica."""

    written: Int  # how many are in use or have a name; the others are all alike
    known: Int  # how many have a name
    slot: Int  # the first run slot that is free, counted from the first of the replica


class Runs(NamedTuple):
    """The runs of all replicas; a slot for each block, which suffices whatever runs they are cut into."""

    heads: IntPerRing  # the first run of each ring, or NONE: rings of runs that are found, then those of copies
    start: IntPerRun  # place of the first block; of a free slot the next one, counted as ``BlockCounts.slot``
    blocks: IntPerRun  # how many
    users: IntPerRun  # requests that hold all of them; nobody holds some of them
    ring: IntPerRun  # that it is in
    owner: IntPerRun  # of a copy: who holds it, or NONE
    same: LinkedList  # the rings, without sentinels
    idle: LinkedList  # runs that nobody uses, the one that came free first is the oldest

    @classmethod
    def empty(cls, texts: int, blocks: int, replicas: int) -> Runs:
        """No runs; of each replica so many texts and blocks."""
        slots = blocks * replicas + replicas  # sentinels of ``idle`` behind all
        zeros, none = jnp.zeros(slots, jnp.int32), jnp.full(slots, NONE, jnp.int32)
        number = jnp.arange(slots, dtype=jnp.int32)
        return cls(
            heads=jnp.full(2 * texts * replicas, NONE, jnp.int32), start=number % blocks + 1, blocks=zeros,
            users=zeros, ring=zeros, owner=none, same=LinkedList.empty(slots), idle=LinkedList.empty(slots),
        )  # fmt: skip

    def emptied(self, replica: Int, texts: int, blocks: int) -> Runs:
        """Without what a replica has, which nobody uses; of each replica there are so many texts and blocks."""
        fresh, slot = Runs.empty(texts, blocks, 1), replica * blocks
        # Sentinels are behind the slots of all replicas.
        sentinel = self.start.shape[0] // (blocks + 1) * blocks + replica

        def as_new(column: IntPerRun, values: IntPerRun) -> IntPerRun:
            return lax.dynamic_update_slice(column, values[:blocks], (slot,))

        def unlinked(links: LinkedList) -> LinkedList:
            alone = slot + jnp.arange(blocks, dtype=jnp.int32)  # linked to itself
            newer, older = (column.write(slot, alone) for column in (links.newer, links.older))
            return links._replace(newer=write(newer, sentinel, sentinel), older=write(older, sentinel, sentinel))

        heads = self.heads
        for first in (replica * texts, self.copies + replica * texts):
            heads = lax.dynamic_update_slice(heads, fresh.heads[:texts], (first,))
        return Runs(
            heads, as_new(self.start, fresh.start), as_new(self.blocks, fresh.blocks), as_new(self.users, fresh.users),
            as_new(self.ring, fresh.ring), as_new(self.owner, fresh.owner), unlinked(self.same), unlinked(self.idle),
        )  # fmt: skip

    @property
    def copies(self) -> int:
        """How far the ring of a text's copies is behind that of what is found."""
        return int(self.heads.shape[0]) // 2

    def end(self, r: Int) -> Int:
        """The place in the text behind the last block."""
        start, blocks = read_each(r, self.start, self.blocks)
        return start + blocks

    def slot_of(self, r: Int) -> Int:
        """``r``, or some slot in the place of NONE."""
        # Not 0: XLA would know that the maximum is not negative, and ``read_once`` would be a plain read.
        return jnp.where(r >= 0, r, self.start.shape[0] - 1)

    def last(self, head: Int) -> Int:
        """The last run of the ring with this head; NONE of an empty one."""
        return jnp.where(head >= 0, read_once(self.same.older, self.slot_of(head)), NONE)

    def following(self, r: Int) -> Int:
        """The next run of its ring; NONE behind the last."""
        after, ring = read_each(r, self.same.newer, self.ring)
        return jnp.where(after == read_once(self.heads, ring), NONE, after)

    def without(self, r: Int) -> tuple[Runs, Int]:
        """With ``r`` taken out of its ring, and which that was."""
        cell, after = read_each(r, self.ring, self.same.newer)
        head = read_once(self.heads, cell)
        left = jnp.where(after == r, NONE, after)
        return self._replace(
            heads=write(self.heads, cell, jnp.where(head == r, left, head)), same=self.same.remove(r, after != r)
        ), cell


class ReplicaRuns(NamedTuple):
    """The runs of all replicas, with what those of the replica at hand need."""

    runs: Runs
    counts: BlockCounts
    first: Int  # slot of the replica
    sentinel: Int  # of its runs in ``idle``
    events: CacheEvents | None = None  # None: nobody listens, else also
    queue: EventQueue | None = None
    now: Float | None = None

    def with_event(self, ring: Int, blocks: Int) -> ReplicaRuns:
        """With an event for the router: of the text ``ring`` the first ``blocks`` can be found in this cache now.

        ``ring`` NONE: no such count has changed, but the number of all blocks with names has.
        """
        assert self.events is not None and self.queue is not None and self.now is not None
        events, queue = self.events.with_event(self.queue, self.now, ring, blocks, self.counts.known)
        return self._replace(events=events, queue=queue)

    def cut(self, r: Int, place: Int) -> ReplicaRuns:
        """Run ``r`` cut in two at a place of its text: it keeps the blocks from there on, a new run (``older``) has the
        others."""
        runs, counts, new = self.runs, self.counts, self.first + self.counts.slot
        start, blocks, users, cell, behind = read_each(
            r, runs.start, runs.blocks, runs.users, runs.ring, runs.idle.newer
        )
        end, slot, head = start + blocks, read_once(runs.start, new), read_once(runs.heads, cell)
        runs = runs._replace(
            heads=write(runs.heads, cell, jnp.where(head == r, new, head)),
            # What is written depends on what was read, see ``common.rings``: a slot is never negative.
            start=write(write(runs.start, new, jnp.where(slot >= 0, start, slot)), r, place),
            blocks=write(write(runs.blocks, r, end - place), new, place - start),
            users=write(runs.users, new, users),
            ring=write(runs.ring, new, cell),
            same=runs.same.insert(new, r, start < place),
            idle=runs.idle.insert(new, behind, users == 0),  # its beginning is evicted after its end
        )
        return self._replace(runs=runs, counts=counts._replace(slot=slot))

    def freed(self, r: Int) -> ReplicaRuns:
        """Without the run ``r``, which is in no list but its ring."""
        runs, _ = self.runs.without(r)
        runs = runs._replace(start=write(runs.start, r, self.counts.slot))
        return self._replace(runs=runs, counts=self.counts._replace(slot=r - self.first))

    def take(self, blocks: Int, capacity: Int) -> ReplicaRuns:
        """So many blocks, of which there are enough that nobody uses, are in use and hold nothing yet."""
        # vLLM v1 ``BlockPool.get_new_blocks`` takes from the front of ``free_block_queue``: blocks without a name are
        # there first, then the least recently freed, which forget their content only now
        # (``_maybe_evict_cached_block``).
        new = jnp.minimum(blocks, capacity - self.counts.written)
        counts = self.counts._replace(written=self.counts.written + new)
        start = (blocks - new, self._replace(counts=counts))
        return lax.while_loop(lambda carry: carry[0] > 0, _evict_some, start)[1]

    def add(self, i: Int, tail: Int, text: Text, place: Int, stop: Int) -> tuple[ReplicaRuns, Int, Int]:
        """Blocks of request ``i`` from ``place`` on get names: (the runs, the last that it holds, the place behind).

        That is ``stop`` at most; these places are of the request. ``tail`` is the last run that it holds, if ``place``
        is not its first.
        """
        runs = self.runs
        in_text, last = place - text.first, runs.last(read_once(runs.heads, text.ring))
        start, found_blocks, users = read_each(runs.slot_of(last), runs.start, runs.blocks, runs.users)
        copies = (last >= 0) & (in_text < start + found_blocks)
        stop = jnp.where(copies, place + 1, stop)
        cell = text.ring + jnp.where(copies, runs.copies, 0)
        head = read_once(runs.heads, cell)
        # The run before goes on if nobody else has it: its blocks stay together until somebody shares a part of them.
        goes_on = (place > 0) & ~copies & (last == tail) & (users == 1) & (start + found_blocks == in_text)
        slot = jnp.where(goes_on, tail, self.first + self.counts.slot)

        def enter(here: ReplicaRuns) -> ReplicaRuns:
            runs = here.runs
            following = read_once(runs.start, slot)
            before = jnp.where(head >= 0, head, slot)  # in front of the first is behind the last
            runs = runs._replace(
                heads=write(runs.heads, cell, before),
                start=write(runs.start, slot, jnp.where(following >= 0, in_text, following)),
                blocks=write(runs.blocks, slot, jnp.int32(0)),
                users=write(runs.users, slot, jnp.int32(1)),
                ring=write(runs.ring, slot, cell),
                owner=write(runs.owner, slot, i),
                same=runs.same.insert(slot, before, head >= 0),
            )
            return here._replace(runs=runs, counts=here.counts._replace(slot=following))

        here = where(~goes_on, enter, self)
        runs, counts = here.runs, here.counts
        blocks = write(runs.blocks, slot, read_once(runs.blocks, slot) + (stop - place))
        counts = counts._replace(known=counts.known + (stop - place))
        here = here._replace(runs=runs._replace(blocks=blocks), counts=counts)
        if here.events is not None:
            here = here.with_event(jnp.where(copies, NONE, text.ring), stop - text.first)
        return here, slot, stop

    def share(self, r: Int, stop: Int) -> tuple[ReplicaRuns, Int]:
        """One user more of a run up to the place ``stop`` of its text, where it is cut: (the runs, that one)."""
        over = self.runs.end(r) > stop
        here = where(over, lambda here: here.cut(r, stop), self)
        runs = here.runs
        r = jnp.where(over, read_once(runs.same.older, r), r)
        users = read_once(runs.users, r) + 1
        runs = runs._replace(users=write(runs.users, r, users), idle=runs.idle.remove(r))
        return here._replace(runs=runs), r

    def held(self, i: Int, ring: Int, end: Int) -> Int:
        """The run before the place ``end`` of a text that request ``i`` holds: a copy of its own, else what is found.

        Of each place that a request holds its block is found, or it computed what was there: who looks for blocks
        gets what is found, and that stays so while somebody uses it.
        """
        runs = self.runs

        def others(r: Int) -> Flag:
            slot = runs.slot_of(r)
            start = read(runs.start, slot)
            return (r >= 0) & ((read(runs.owner, slot) != i) | (start != end - 1))

        copy = lax.while_loop(others, runs.following, read_once(runs.heads, ring + runs.copies))
        last = runs.slot_of(runs.last(read_once(runs.heads, ring)))
        found_run = lax.while_loop(
            lambda r: (copy < 0) & (read(runs.start, r) >= end), lambda r: read(runs.same.older, r), last
        )
        return jnp.where(copy >= 0, copy, found_run)

    def give_back(self, r: Int) -> tuple[ReplicaRuns, Int, Int]:
        """One user less of a run: (the runs, its blocks, those of them that nobody uses any more)."""
        runs = self.runs
        start, blocks, users, ring, owner, after = read_each(
            r, runs.start, runs.blocks, runs.users, runs.ring, runs.owner, runs.same.newer
        )
        newest, users, end = runs.idle.newest(self.sentinel), users - 1, start + blocks
        idle, last = users == 0, after == read_once(runs.heads, ring)
        # What came free just before may be what follows: nobody holds either, and they are evicted one after the other.
        joins = idle & ~last & (after == newest) & (read_once(runs.start, newest) == end) & (ring < runs.copies)
        owner = jnp.where(idle, NONE, owner)
        runs = runs._replace(
            users=write(runs.users, r, users),
            owner=write(runs.owner, r, owner),
            idle=runs.idle.insert(r, self.sentinel, idle & ~joins),
        )

        def join(here: ReplicaRuns) -> ReplicaRuns:
            runs = here.runs
            more = read_once(runs.blocks, newest)
            runs = runs._replace(
                start=write(runs.start, newest, start), blocks=write(runs.blocks, newest, more + blocks)
            )
            return here._replace(runs=runs).freed(r)

        return where(joins, join, self._replace(runs=runs)), blocks, jnp.where(idle, blocks, 0)


def _evict_some(carry: tuple[Int, ReplicaRuns]) -> tuple[Int, ReplicaRuns]:
    """Of the blocks to evict, those at the end of the run that came free first; of a text with copies, one."""
    lacking, here = carry
    runs = here.runs
    r = runs.idle.oldest(here.sentinel)
    start, blocks, ring = read_each(r, runs.start, runs.blocks, runs.ring)
    end, finds = start + blocks, ring < runs.copies
    # A copy that is evicted leaves nothing to be found in its place.
    first = jnp.where(finds, read_once(runs.heads, jnp.where(finds, ring + runs.copies, ring)), NONE)
    evicted = jnp.where(first >= 0, 1, jnp.minimum(end - start, lacking))
    copy = lax.while_loop(
        lambda r: (r >= 0) & (read(runs.start, runs.slot_of(r)) != end - 1), lambda r: runs.following(r), first
    )

    def find_copy(here: ReplicaRuns) -> ReplicaRuns:
        runs, cell = here.runs.without(copy)
        behind = read_once(runs.same.newer, r)
        return here._replace(
            runs=runs._replace(
                ring=write(runs.ring, copy, cell - runs.copies), same=runs.same.insert(copy, behind, cell >= 0)
            )
        )

    here = where(copy >= 0, find_copy, here)
    runs, counts, left = here.runs, here.counts, end - evicted - start
    here = here._replace(
        runs=runs._replace(blocks=write(runs.blocks, r, left)), counts=counts._replace(known=counts.known - evicted)
    )
    if here.events is not None:
        here = here.with_event(jnp.where(finds & (copy < 0), ring, NONE), start + left)

    def forget(here: ReplicaRuns) -> ReplicaRuns:
        return here._replace(runs=here.runs._replace(idle=here.runs.idle.remove(r))).freed(r)

    return lacking - evicted, where(left == 0, forget, here)
