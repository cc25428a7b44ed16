"""What the loop carries of a prefix cache: blocks of KV that requests with the same beginning share, as in vLLM v1.

The content of a whole block and of all before it has a number, its *name* (``lane.Content``), so that two blocks of one
name hold the KV of the same tokens in the same place. Blocks count who uses them. One that nobody uses keeps its
content and joins the end of the chain ``idle``, the last block of a request first (the front, where it has no name,
since nobody can find it again); a request takes blocks that were never used, and after them the first of the chain,
which forget what they held.

Of several replicas that run together (``engine.joint``) the names and blocks of replica r follow those of the replicas
before it, and each has sentinels of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evaluator.stations.engine.common.arrays import Int, IntPerBlock, IntPerHolding, IntPerName, IntPerRequest
from evaluator.stations.engine.common.rings import NONE
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.linked_lists import LinkedList


class BlockCounts(NamedTuple):
    """Of the blocks of one replica."""

    joined: Int  # how many have ever been taken
    known: Int  # how many have a name


class DraftedVisits(NamedTuple):
    """Of decodes that verify drafts: the step at which one next needs a block, or fills one, is found as it goes."""

    computed: IntPerRequest  # tokens of the KV of a decode at that step
    place: IntPerRequest  # how many decodes had joined a group before it
    joins: Int  # how many have


class Cache(NamedTuple):
    """The blocks of the KV, and which of them each request holds."""

    first: IntPerName  # the block that holds it; of several the one that was named first; NONE: none does
    same: LinkedList  # blocks of one name, in the order in which they were named, as a ring without a sentinel
    name: IntPerBlock  # or NONE
    users: IntPerBlock  # requests that hold the block
    idle: LinkedList  # blocks that were used, and that nobody uses now
    held: IntPerHolding  # the blocks of each request, in order, from ``Content.held_from`` on
    units: IntPerRequest  # how many it holds
    named: IntPerRequest  # how many of them, from the first on, have a name
    hit_tokens: IntPerRequest  # prompt tokens found on the first admission
    due: LinkedList  # decodes by the remainder of the step that opens a block for them, see ``prefix_cache.bucket``
    hits: Int  # leading blocks of the waiting queue's head that are there, and
    idle_hits: Int  # those of them that nobody uses
    drafted: DraftedVisits | None = None  # None where every decode gives one token


def initial_cache(given: Given) -> Cache | None:
    """Empty blocks; None where there is no prefix cache."""
    shape, replicas = given.structure.cache, given.structure.replicas
    if shape is None:
        return None
    slots = given.requests.arrival_s.shape[0]
    number = jnp.zeros((), jnp.int32)
    blocks = shape.blocks * replicas + replicas
    none, zeros = jnp.full(blocks, NONE, jnp.int32), jnp.zeros(slots, jnp.int32)
    return Cache(
        first=jnp.full(shape.names * replicas + 1, NONE, jnp.int32),
        same=LinkedList.empty(blocks), name=none, users=jnp.zeros(blocks, jnp.int32), idle=LinkedList.empty(blocks),
        held=jnp.zeros(shape.held, jnp.int32), units=zeros, named=zeros, hit_tokens=zeros,
        due=LinkedList.empty(slots + shape.due * given.structure.decode_groups()),
        hits=number, idle_hits=number,
        drafted=None if given.speculation is None else DraftedVisits(zeros, zeros, number),
    )  # fmt: skip
