"""The prefix caches as a router knows them that hears of their changes some time later (``cache_events``)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Array, Flag, FlagPerReplica, Float, Int, IntPerReplica
from evaluator.stations.engine.common.rings import read, read_once, write
from evaluator.stations.engine.joint.sent_blocks import NUMBERS, TOGETHER, RememberedBlocks, is_remembered
from evaluator.stations.engine.preemptive.cache_events import CacheEvents, EventQueue
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.prefix_cache import text_at


class LateCaches(NamedTuple):
    """What the events that were heard say of each cache; of a text its first blocks are found, and no others."""

    blocks: Array  # int32 (text + 1, replica): how many blocks of a text, from its first on
    known: IntPerReplica  # blocks with a name
    missed: Flag  # a router asked that was to hear of more than there was room for: what it chose is void


def nothing_heard(given: Given) -> LateCaches | None:
    """Of empty caches; None where no router of the program knows late."""
    shape, replicas = given.structure.cache, given.structure.replicas
    if shape is None or not shape.events:
        return None
    return LateCaches(jnp.zeros((shape.texts + 1, replicas), jnp.int32), jnp.zeros(replicas, jnp.int32),
                      jnp.zeros((), bool))  # fmt: skip


class Heard(NamedTuple):
    """What hearing changes."""

    late: LateCaches
    events: CacheEvents
    queues: EventQueue  # each field with an axis (replica,)


def hear(given: Given, heard: Heard, now: Float, delay_s: Float) -> Heard:
    """With all that the router has heard by now, so long after it was told."""
    shape = given.structure.cache
    assert shape is not None
    texts = shape.texts

    def of_replica(carry: tuple[Int, Heard]) -> tuple[Int, Heard]:
        r, heard = carry

        def queue(heard: Heard) -> EventQueue:
            return jax.tree.map(lambda column: read(column, r), heard.queues)

        def take(heard: Heard) -> Heard:
            late, events, own_queue = heard.late, heard.events, queue(heard)
            ring, blocks, known = (
                read_once(column, own_queue.first) for column in (events.ring, events.blocks, events.known)
            )
            # Texts of a replica have numbers behind those of the replicas before it; the last row is of no text.
            row = jnp.where(ring >= 0, ring - r * texts, texts)
            events, own_queue = events.without_first(own_queue)
            return Heard(
                late._replace(
                    blocks=lax.dynamic_update_slice(late.blocks, blocks[None, None], (row, r)),
                    known=write(late.known, r, known),
                ),
                events,
                jax.tree.map(lambda column, value: write(column, r, value), heard.queues, own_queue),
            )

        def comes(heard: Heard) -> Flag:
            return heard.events.first_s(queue(heard)) + delay_s <= now

        return r + 1, lax.while_loop(comes, take, heard)

    # Whatever the router is: events that nobody takes leave no room for others.
    lost = heard.events.lost
    stop = jnp.where(lost, 0, given.together.replicas)
    heard = lax.while_loop(lambda carry: carry[0] < stop, of_replica, (jnp.int32(0), heard))[1]
    # Behind the last request nobody asks, and nothing is missed.
    return heard._replace(late=heard.late._replace(missed=heard.late.missed | lost))


def late_blocks(
    given: Given, late: LateCaches, sent: RememberedBlocks, i: Int, on: Flag, predicts: Flag
) -> IntPerReplica:
    """Leading blocks of request ``i`` that each cache is thought to have, if ``on``; ``predicts``: those that were sent
    there, too. One token at least is left to compute."""
    replicas = late.known.shape[0]
    stop = jnp.where(on, (read(given.requests.prompt_tokens, i) - 1) // given.block(), 0)

    def look(carry: tuple[Int, FlagPerReplica, IntPerReplica]) -> tuple[Int, FlagPerReplica, IntPerReplica]:
        place, goes_on, blocks = carry
        text = text_at(given, jnp.int32(0), i, place)
        behind, zero = place - text.first, jnp.int32(0)
        count = jnp.clip(jnp.minimum(text.end, stop) - place, 0, TOGETHER)
        blocks_of_text = lax.dynamic_slice(late.blocks, (text.ring, zero), (1, replicas))
        turns = lax.dynamic_slice(sent.turn, (text.number + behind, zero), (TOGETHER, replicas))
        heard = (behind + NUMBERS)[:, None] < blocks_of_text
        heard = heard | (predicts & is_remembered(turns, place, sent.oldest_turn[None], sent.place[None]))
        leading = jnp.minimum(jnp.where(heard, TOGETHER, NUMBERS[:, None]).min(axis=0), count)
        return place + count, goes_on & (leading == count), blocks + jnp.where(goes_on, leading, 0)

    start = (stop * 0, jnp.ones(replicas, bool), jnp.zeros(replicas, jnp.int32))
    return lax.while_loop(lambda carry: (carry[0] < stop) & carry[1].any(), look, start)[2]
