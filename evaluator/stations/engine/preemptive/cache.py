"""What the loop carries of a prefix cache: blocks of KV that requests with the same beginning share, as in vLLM v1.

The content of a whole block and of all before it has a number, its *name* (``lane.BlockContent``), so that two blocks
of one name hold the KV of the same tokens in the same place. Blocks with names are kept by runs (``block_runs``); those
without are all alike, so that their number will do.

Of several replicas that run together (``engine.joint``) the texts and runs of replica r follow those of the replicas
before it, and each has a sentinel of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evaluator.stations.engine.common.arrays import Int, IntPerGroup, IntPerRequest, IntPerText
from evaluator.stations.engine.common.rings import NONE
from evaluator.stations.engine.preemptive.block_runs import Runs
from evaluator.stations.engine.preemptive.cache_events import CacheEvents
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.linked_lists import LinkedList


class DraftedVisits(NamedTuple):
    """Of decodes that verify drafts: the step at which one next needs a block, or fills one, is found as it goes."""

    computed: IntPerRequest  # tokens of the KV of a decode at that step
    place: IntPerRequest  # how many decodes had joined a group before it
    joins: Int  # how many have


class UnnamedAnswers(NamedTuple):
    """Decodes by the text whose blocks they fill, which get names when somebody looks (``Structure.names_late``)."""

    first: IntPerText  # of the decodes of a text, or NONE
    next: IntPerRequest  # the one behind it, or NONE
    text: IntPerRequest  # of a decode, else NONE
    steps: IntPerGroup  # steps of each decode group, up to the last whose KV is taken


class Cache(NamedTuple):
    """The blocks of the KV, and which of them each request holds: the first ``named`` are runs."""

    runs: Runs
    tail: IntPerRequest  # the last run that it holds, if it holds any
    units: IntPerRequest  # how many blocks it holds, and
    # How many of them, from the first on, have a name; of ``unnamed`` requests as many as before they decoded, or more.
    named: IntPerRequest
    hit_tokens: IntPerRequest  # prompt tokens found on the first admission; NONE before it
    # Decodes by the remainder of the step that opens a block for them, see ``prefix_cache.bucket``; None: ``unnamed``.
    due: LinkedList | None
    hits: Int  # leading blocks of the waiting queue's head that are there, and
    idle_hits: Int  # those of them that nobody uses
    drafted: DraftedVisits | None = None  # None where every decode gives one token
    events: CacheEvents | None = None  # None: no router hears of changes later
    unnamed: UnnamedAnswers | None = None

    @property
    def buckets(self) -> LinkedList:
        """``due``, which there is."""
        assert self.due is not None
        return self.due


def initial_cache(given: Given) -> Cache | None:
    """Empty blocks; None where there is no prefix cache."""
    shape = given.structure.cache
    if shape is None:
        return None
    slots = given.requests.arrival_s.shape[0]
    number, zeros, groups = jnp.zeros((), jnp.int32), jnp.zeros(slots, jnp.int32), given.structure.decode_groups()
    none, late = zeros + NONE, given.structure.names_late
    texts = jnp.full(shape.texts * shape.replicas, NONE, jnp.int32)
    return Cache(
        runs=Runs.empty(shape.texts, shape.blocks, shape.replicas),
        tail=zeros, units=zeros, named=zeros, hit_tokens=none,
        due=None if late else LinkedList.empty(slots + shape.due * groups),
        hits=number, idle_hits=number,
        drafted=None if given.speculation is None else DraftedVisits(zeros, zeros, number),
        events=CacheEvents.empty(shape.events) if shape.events else None,
        unnamed=UnnamedAnswers(texts, none, none, jnp.zeros(groups, jnp.int32)) if late else None,
    )  # fmt: skip
