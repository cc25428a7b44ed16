"""What a router has sent to each replica: the blocks of prompts that it remembers, as ``reference.prefix_knowledge``.

The requests that are sent to a replica are numbered there by *turns*, from 1 on. The memory of a replica is an LRU:
blocks are in the order of the last turn in which they were sent and, within a turn, of their place in the prompt. That
place is the same in every prompt, since the name of a block stands for all blocks before it, too. So a memory forgets
all blocks up to some turn and place, and the last turn of each block is all that has to be stored. Blocks of one text
have consecutive names (``block_runs.Text``), and so consecutive rows: they are read ``TOGETHER`` at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from evaluator.stations.engine.common.arrays import (
    Array,
    Flag,
    Float,
    FloatPerRequest,
    Int,
    IntPerReplica,
    IntPerRequest,
)
from evaluator.stations.engine.common.rings import NONE, read, read_once, write
from evaluator.stations.engine.preemptive.lane import Given, Remembered
from evaluator.stations.engine.preemptive.prefix_cache import text_at

TOGETHER = 32
"""Blocks that are looked at in one step."""
NUMBERS = np.arange(TOGETHER, dtype=np.int32)
_EVERY = 1 << 30
"""More blocks than there are."""


class RememberedBlocks(NamedTuple):
    """What is remembered. If all that was sent to a replica is forgotten, ``oldest_turn`` is behind ``turns``."""

    turn: Array  # int32 (name + TOGETHER, replica): of the last request with a block; 0: it was never sent there
    sent_s: FloatPerRequest
    next: IntPerRequest  # the request that was sent to the same replica after it
    turns: IntPerReplica  # so far
    latest: IntPerReplica  # the request of the last turn
    oldest: IntPerReplica  # the first request of whose blocks some may be remembered,
    oldest_turn: IntPerReplica  # its turn,
    place: IntPerReplica  # and the first of its blocks that is not forgotten
    known: IntPerReplica  # blocks that are remembered


def nothing_sent(given: Given) -> RememberedBlocks | None:
    """Nothing is remembered; None where no router of the program does."""
    by, shape, replicas = given.together.router.by_prefix, given.structure.cache, given.structure.replicas
    if by is None or by.remembered is None:
        return None
    assert shape is not None
    slots, zeros = given.requests.arrival_s.shape[0], jnp.zeros(replicas, jnp.int32)
    return RememberedBlocks(
        turn=jnp.zeros((shape.names + TOGETHER, replicas), jnp.int32),
        sent_s=jnp.zeros(slots), next=jnp.full(slots, NONE, jnp.int32),
        turns=zeros, latest=zeros + NONE, oldest=zeros + NONE, oldest_turn=zeros + 1, place=zeros, known=zeros,
    )  # fmt: skip


def remembered_blocks(given: Given, sent: RememberedBlocks, i: Int, on: Flag) -> IntPerReplica:
    """By replica, how many blocks of request ``i`` it was sent, if ``on``.

    Only the blocks before the first one that no replica was sent are counted.
    """
    replicas = sent.turns.shape[0]
    stop = jnp.where(on, _whole_blocks(given, i), 0)

    def look(carry: tuple[Int, Int, IntPerReplica]) -> tuple[Int, Int, IntPerReplica]:
        place, _, blocks = carry
        name, count = _some(given, i, place, stop)
        rows = lax.dynamic_slice(sent.turn, (name, jnp.int32(0)), (TOGETHER, replicas))
        remembered = is_remembered(rows, place, sent.oldest_turn[None], sent.place[None])
        # llm-d ``matchLongestPrefix``: each counts those that it has, also behind one that only others have.
        missing = jnp.where(remembered.any(axis=1), TOGETHER, NUMBERS).min()
        having = jnp.minimum(count, missing)
        blocks = blocks + (remembered & (having > NUMBERS)[:, None]).sum(axis=0, dtype=jnp.int32)
        return place + having, jnp.where(having < count, place, stop), blocks

    start = (stop * 0, stop, jnp.zeros(replicas, jnp.int32))
    return lax.while_loop(lambda carry: carry[0] < carry[1], look, start)[2]


def with_time(given: Given, sent: RememberedBlocks, i: Int, now: Float, on: Flag) -> RememberedBlocks:
    """With the time at which request ``i`` is sent, if ``on``. It has no effect before ``remember``."""
    # Written before the times of other requests are read: else XLA would copy the whole array (``common.rings``).
    return sent._replace(sent_s=write(sent.sent_s, jnp.where(on, i, given.padding()), now))


def remember(given: Given, sent: RememberedBlocks, i: Int, r: Int, now: Float, on: Flag) -> RememberedBlocks:
    """Request ``i`` is sent to replica ``r``, if ``on``, at the time that ``with_time`` has written.

    The oldest blocks are forgotten where the memory has no room for all.
    """
    stop, turn = jnp.where(on, _whole_blocks(given, i), 0), read(sent.turns, r) + 1
    oldest_turn, first = read(sent.oldest_turn, r), read(sent.place, r)

    def enter(carry: tuple[Int, Array, Int]) -> tuple[Int, Array, Int]:
        place, table, known = carry
        name, count = _some(given, i, place, stop)
        rows, inside = _column(table, name, r), count > NUMBERS
        new = inside & ~is_remembered(rows, place, oldest_turn, first)
        table = lax.dynamic_update_slice(table, jnp.where(inside, turn, rows)[:, None], (name, r))
        return place + count, table, known + new.sum(dtype=jnp.int32)

    _, table, known = lax.while_loop(lambda carry: carry[0] < stop, enter, (stop * 0, sent.turn, read(sent.known, r)))
    nobody = oldest_turn == turn  # all of the turns before it are forgotten
    padding = given.padding()
    sent = sent._replace(
        turn=table,
        next=write(sent.next, jnp.where(on & ~nobody, read(sent.latest, r), padding), i),
        turns=write(sent.turns, r, jnp.where(on, turn, turn - 1)),
        latest=write(sent.latest, r, jnp.where(on, i, read(sent.latest, r))),
        oldest=write(sent.oldest, r, jnp.where(on & nobody, i, read(sent.oldest, r))),
        known=write(sent.known, r, known),
    )
    return _forget(given, sent, r, now)


def without_expired(given: Given, sent: RememberedBlocks, now: Float, on: Flag) -> RememberedBlocks:
    """Without the blocks that were sent longer ago than the router's ``ttl_s``, if ``on``."""
    # At each arrival and for all replicas: between equally long queues the replica that knows the fewest blocks wins.
    stop = jnp.where(on & (_rules(given).ttl_s < jnp.inf), given.together.replicas, 0)

    def forget(carry: tuple[Int, RememberedBlocks]) -> tuple[Int, RememberedBlocks]:
        r, sent = carry
        # Written back as it was: an array that a loop only reads XLA copies before it (``common.rings``), here for each
        # request.
        oldest = jnp.maximum(read(sent.oldest, r), 0)
        sent = sent._replace(sent_s=write(sent.sent_s, oldest, read_once(sent.sent_s, oldest)))
        return r + 1, _forget(given, sent, r, now)

    return lax.while_loop(lambda carry: carry[0] < stop, forget, (jnp.int32(0), sent))[1]


def _forget(given: Given, sent: RememberedBlocks, r: Int, now: Float) -> RememberedBlocks:
    """The memory of replica ``r`` without blocks beyond its size or its time; a block is looked at once per turn."""
    rules = _rules(given)
    most = jnp.where(rules.blocks < 0, given.limits.kv_units.astype(jnp.int32), rules.blocks)

    def excess(sent: RememberedBlocks) -> Int:
        """How many of the oldest blocks are to be forgotten: none if nothing is remembered."""
        sent_s = read_once(sent.sent_s, jnp.maximum(read(sent.oldest, r), 0))
        # Dynamo ``PruneManager.pop_expired``: at the time at which they expire, not behind it.
        over = jnp.where(now >= sent_s + rules.ttl_s, _EVERY, read(sent.known, r) - most)
        return jnp.where(read(sent.oldest_turn, r) <= read(sent.turns, r), over, 0)

    def pass_some(sent: RememberedBlocks) -> RememberedBlocks:
        i, turn, place = read(sent.oldest, r), read(sent.oldest_turn, r), read(sent.place, r)
        stop = _whole_blocks(given, i)
        name, count = _some(given, i, place, stop)
        # Those that a later request had, too, stay as its own.
        of_turn = (_column(sent.turn, name, r) == turn) & (count > NUMBERS)
        passed = (jnp.cumsum(of_turn, dtype=jnp.int32) <= excess(sent)) & (count > NUMBERS)
        place = place + passed.sum(dtype=jnp.int32)
        ends = place >= stop
        return sent._replace(
            oldest=write(sent.oldest, r, jnp.where(ends, read_once(sent.next, i), i)),
            oldest_turn=write(sent.oldest_turn, r, turn + ends),
            place=write(sent.place, r, jnp.where(ends, 0, place)),
            known=write(sent.known, r, read(sent.known, r) - (of_turn & passed).sum(dtype=jnp.int32)),
        )

    return lax.while_loop(lambda sent: excess(sent) > 0, pass_some, sent)


def is_remembered(turns: Array, place: Int, oldest_turn: Array, first: Array) -> Array:
    """Whether blocks are, from a place of a prompt on, by their last turns (block,) or (block, replica)."""
    places = (place + NUMBERS).reshape(-1, *(1,) * (turns.ndim - 1))
    return (turns > oldest_turn) | ((turns == oldest_turn) & (places >= first))


def _some(given: Given, i: Int, place: Int, stop: Int) -> tuple[Int, Int]:
    """(the row of the block of request ``i`` at a place, how many rows from there on are of its blocks up to ``stop``).

    ``TOGETHER`` at the most.
    """
    text = text_at(given, jnp.int32(0), i, place)  # the same name at all replicas
    return text.number + place - text.first, jnp.clip(jnp.minimum(text.end, stop) - place, 0, TOGETHER)


def _column(table: Array, name: Int, r: Int) -> Array:
    """Some rows of a replica, before they are written (``common.rings``)."""
    rows = lax.cond(
        name >= 0,
        lambda: lax.dynamic_slice(table, (name, r), (TOGETHER, 1)),
        lambda: jnp.zeros((TOGETHER, 1), table.dtype),
    )
    return rows[:, 0]


def _whole_blocks(given: Given, i: Int) -> Int:
    return read(given.requests.prompt_tokens, i) // given.block()


def _rules(given: Given) -> Remembered:
    by = given.together.router.by_prefix
    assert by is not None and by.remembered is not None
    return by.remembered
