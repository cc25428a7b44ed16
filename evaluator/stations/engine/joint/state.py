"""What the loop over several replicas carries from trip to trip.

All arrays by request and by decode group are those of one replica's program (``preemptive.state``), shared by all of
them:
replica r has decode group r, or with a pipeline as many in a row as it needs, and the ends of its chains are sentinels
of its
own. What a replica alone has is a number in
``ReplicaRows``. A trip takes it out (``replica_at_hand``), lets the replica do what it would do alone, and puts it
back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import BatchStatistics
from evaluator.routing import COUNTERS
from evaluator.stations.engine.common.arrays import (
    Array,
    Counts,
    Flag,
    FlagPerReplica,
    Float,
    FloatPerReplica,
    FloatPerReplicaRank,
    Int,
    IntPerReplica,
    IntPerRequest,
)
from evaluator.stations.engine.common.rings import NONE, read, write
from evaluator.stations.engine.joint.caches import CacheRows, cache_at_hand, no_rows, rows_put_back
from evaluator.stations.engine.joint.lane import Network
from evaluator.stations.engine.joint.pools import PoolStates, nothing_yet, totals_at_hand, totals_put_back
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.state import QueueList, RunningBatches, State, initial_state, no_router_counts


class ReplicaRows(NamedTuple):
    """By replica: the numbers of ``State`` that are one replica's."""

    first: IntPerReplica  # of its waiting queue
    last: IntPerReplica
    running_count: FloatPerReplica
    decode_iterations: IntPerReplica
    last_look: IntPerReplica
    kv: FloatPerReplica


class JointBatches(NamedTuple):
    """By replica: the batch under way, or, leaping, ``iterations`` alike one after the other.

    The first of them takes ``first_s``, each next one ``slope_s`` more than the one before. Where no batch is under
    way, ``end_s`` is infinite and ``sums`` has no decodes.
    """

    start_s: FloatPerReplica
    end_s: FloatPerReplica
    iterations: FloatPerReplica
    first_s: FloatPerReplica
    slope_s: FloatPerReplica
    seen: FloatPerReplica  # iterations whose KV has been counted
    completing: IntPerReplica  # list of requests whose prompts are complete with it
    sums: BatchStatistics  # each field a FloatPerReplica

    def end_of(self, iterations: FloatPerReplica) -> FloatPerReplica:
        """When so many of the iterations are done."""
        grown_s = 0.5 * self.slope_s * iterations * (iterations - 1.0)
        return self.start_s + (iterations * self.first_s + grown_s)

    def under_way(self, time_s: Float) -> FloatPerReplica:
        """The first of the iterations, counted from 1, that does not end before a time; at most the last.

        The root of the quadratic may be wrong by rounding; it is taken a little too low and corrected.
        """
        wait_s = jnp.maximum(time_s - self.start_s, 0.0)
        b = self.first_s - 0.5 * self.slope_s
        root = 2.0 * wait_s / (b + jnp.sqrt(b * b + 2.0 * self.slope_s * wait_s))
        found = jnp.clip(jnp.ceil(root - 1e-6), 1.0, jnp.maximum(self.iterations, 1.0))
        return found + jnp.where((found < self.iterations) & (self.end_of(found) < time_s), 1.0, 0.0)

    def done(self, time_s: Float) -> FloatPerReplica:
        """How many of the iterations have ended by a time."""
        under_way = self.under_way(time_s)
        return under_way - jnp.where(self.end_of(under_way) <= time_s, 0.0, 1.0)


class ReadyReplicas(NamedTuple):
    """Replicas where something ended or arrived and no batch was sent since: a stack, as a linked list."""

    there: FlagPerReplica
    below: IntPerReplica
    top: Int  # or NONE

    def push(self, r: Int, on: Flag) -> ReadyReplicas:
        """With replica r, if ``on`` and it is not in it."""
        there = read(self.there, r)
        new = on & ~there
        return ReadyReplicas(
            there=write(self.there, r, there | on),
            below=write(self.below, r, jnp.where(new, self.top, read(self.below, r))),
            top=jnp.where(new, r, self.top),
        )

    def pop(self, on: Flag) -> ReadyReplicas:
        """Without the replica on top, if ``on``; there must be one."""
        return ReadyReplicas(
            there=write(self.there, self.top, ~on),
            below=self.below,
            top=jnp.where(on, read(self.below, self.top), self.top),
        )


class TouchedInOrder(NamedTuple):
    """The same, the first replica on top: a prefill side sends its batches, and asks for room, before a decode side."""

    there: FlagPerReplica
    top: Int  # or NONE

    def push(self, r: Int, on: Flag) -> TouchedInOrder:
        """With replica r, if ``on``."""
        sooner = on & ((self.top < 0) | (r < self.top))
        return TouchedInOrder(write(self.there, r, read(self.there, r) | on), jnp.where(sooner, r, self.top))

    def pop(self, on: Flag) -> TouchedInOrder:
        """Without the replica on top, if ``on``; there must be one."""
        there = write(self.there, self.top, ~on)
        first = jnp.where(there.any(), jnp.argmax(there).astype(jnp.int32), NONE)
        return TouchedInOrder(there, jnp.where(on, first, self.top))


class Pipelines(NamedTuple):
    """By replica, what its pipeline alone has: the numbers of ``State``, and cells for each of its ranks."""

    launched_batches: IntPerReplica
    completed_batches: IntPerReplica
    schedulable: IntPerReplica
    counted_s: FloatPerReplica  # up to when the integral of its KV goes
    running_batches: RunningBatches  # each field with a row of ranks for each replica
    free_s: FloatPerReplicaRank
    prefill_tokens: FloatPerReplicaRank  # of each batch in flight


class Together(NamedTuple):
    """By data-parallel rank, what the next or the current iteration of its replica depends on, see ``lockstep``."""

    there: FlagPerReplica  # it has a batch
    again: FlagPerReplica  # it has to form one once more
    own_s: FloatPerReplica  # time of the batch without experts
    growth_s: FloatPerReplica  # by how much it is longer in each further iteration
    fastest_s: FloatPerReplica  # the same at most, while windows fill
    tokens: FloatPerReplica
    alike: FloatPerReplica  # iterations until the batch changes
    touched: FloatPerReplica  # fraction of the experts that an iteration of the replica touches
    weight: FloatPerReplica  # ranks of the replica for each that has a batch
    sequences: FloatPerReplica | None = None  # with drafts, those in the batch


class Fleet(NamedTuple):
    """All replicas between two trips."""

    state: State
    rows: ReplicaRows
    pipelines: Pipelines | None  # None: one rank
    running_batches: JointBatches  # in a pipeline only ``end_s``, that of the oldest batch
    counts: Counts  # what a router may count, as of the last ends of flights; of the KV only what is waited for
    next_s: Float  # the least ``end_s`` of the flights
    next_replica: Int  # whose it is
    touched: ReadyReplicas | TouchedInOrder
    ending: Flag  # what ends at the time of the clock has still to be looked for
    arrived: Int  # requests sent so far
    replica: IntPerRequest
    caches: CacheRows | None = None  # None: no prefix caches
    opened: Int | None = None  # of users who think about answers: requests sent so far that follow no other
    several: PoolStates | None = None  # None: one pool
    together: Together | None = None  # None: no ranks in lockstep


def initial_fleet(given: Given, network: Network | None = None) -> Fleet:
    """Idle replicas at time 0."""
    replicas = given.structure.replicas
    zeros, ints = jnp.zeros(replicas), jnp.zeros(replicas, jnp.int32)
    none = jnp.full(replicas, NONE, jnp.int32)
    sums = BatchStatistics(*(zeros,) * len(BatchStatistics._fields))
    return Fleet(
        state=initial_state(given),
        rows=ReplicaRows(none, none, zeros, ints, ints, zeros),
        pipelines=_empty_pipelines(given),
        running_batches=JointBatches(
            zeros, jnp.full(replicas, jnp.inf), zeros, jnp.ones(replicas), zeros, zeros, none, sums
        ),
        counts=jnp.zeros((replicas, len(COUNTERS))),
        next_s=jnp.float64(jnp.inf),
        next_replica=jnp.int32(0),
        touched=_none_ready(given),
        ending=jnp.zeros((), bool) | True,
        arrived=jnp.int32(0),
        replica=jnp.full(given.requests.arrival_s.shape, NONE, jnp.int32),
        caches=no_rows(given),
        opened=None if given.session_turns is None else jnp.int32(0),
        several=nothing_yet(given, network),
        together=_nothing_together(given, zeros) if given.structure.lockstep else None,
    )


def _nothing_together(given: Given, zeros: FloatPerReplica) -> Together:
    return Together(zeros > 0, zeros > 0, *(zeros,) * 7, sequences=None if given.speculation is None else zeros)


def where(on: Flag, do: Callable[[Fleet], Fleet], fleet: Fleet) -> Fleet:
    """``do(fleet)`` if ``on``, else the fleet as it is."""
    start = (on, fleet)
    return lax.while_loop(lambda carry: carry[0], lambda carry: (jnp.zeros((), bool), do(carry[1])), start)[1]


def _none_ready(given: Given) -> ReadyReplicas | TouchedInOrder:
    replicas, top = given.structure.replicas, jnp.int32(NONE)
    there = jnp.zeros(replicas, bool)
    return (
        TouchedInOrder(there, top)
        if given.structure.kv_reservation
        else ReadyReplicas(there, jnp.zeros(replicas, jnp.int32), top)
    )


def _empty_pipelines(given: Given) -> Pipelines | None:
    """No batch in flight; of the decode groups of a replica the first is at rest, each cell of a flight has another
    one."""
    replicas, ranks = given.structure.replicas, given.structure.pipeline_ranks
    if ranks == 1:
        return None
    none = jnp.zeros(replicas, jnp.int32)
    first = jnp.arange(replicas, dtype=jnp.int32) * (ranks + 1)
    shape = (replicas, ranks)
    running_batches = RunningBatches(
        end_s=jnp.full(shape, jnp.inf),
        decodes=jnp.zeros(shape, bool),
        decode_group=jnp.broadcast_to(first[:, None], shape) + jnp.broadcast_to(jnp.arange(1, ranks + 1)[None], shape),
        completing=jnp.full(shape, NONE, jnp.int32),
    )
    running_batches = running_batches._replace(decode_group=running_batches.decode_group.astype(jnp.int32))
    return Pipelines(none, none, first, jnp.zeros(replicas), running_batches, jnp.zeros(shape), jnp.zeros(shape))


def ends_at(fleet: Fleet, r: Int, end_s: Float) -> Fleet:
    """The fleet where the flight of replica r ends at ``end_s``, no later than it did."""
    sooner = end_s < fleet.next_s
    return fleet._replace(
        running_batches=fleet.running_batches._replace(end_s=write(fleet.running_batches.end_s, r, end_s)),
        next_s=jnp.where(sooner, end_s, fleet.next_s),
        next_replica=jnp.where(sooner, r, fleet.next_replica),
    )


def replica_at_hand(fleet: Fleet, r: Int) -> State:
    """The state as of replica r, with an empty tally."""
    state, rows = fleet.state, jax.tree.map(lambda column: read(column, r), fleet.rows)
    waiting = state.waiting
    assert isinstance(waiting, QueueList)
    sentinel = jnp.int32(fleet.replica.shape[0] - 1) + r
    state = _with_pipeline(state, fleet.pipelines, r)
    state = state._replace(
        waiting=waiting._replace(first=rows.first, last=rows.last),
        running=state.running._replace(sentinel=sentinel),
        prompts=state.prompts._replace(sentinel=sentinel),
        by_end=state.by_end._replace(sentinel=sentinel),
        running_count=rows.running_count,
        decode_iterations=rows.decode_iterations,
        last_look=rows.last_look,
        kv=rows.kv,
        router_counts=no_router_counts(),
        cache=cache_at_hand(state.cache, fleet.caches, r),
    )
    return totals_at_hand(state, fleet.several, r)


def _with_pipeline(state: State, pipelines: Pipelines | None, r: Int) -> State:
    if pipelines is None:
        return state._replace(schedulable=r)
    mine = jax.tree.map(lambda column: row(column, r), pipelines)
    return state._replace(
        launched_batches=mine.launched_batches,
        completed_batches=mine.completed_batches,
        schedulable=mine.schedulable,
        running_batches=mine.running_batches,
        free_s=mine.free_s,
    )


def put_back(fleet: Fleet, r: Int, state: State) -> Fleet:
    """The fleet after replica r has done something; its tally is left to the caller."""
    waiting = state.waiting
    assert isinstance(waiting, QueueList)
    mine = ReplicaRows(
        waiting.first, waiting.last, state.running_count, state.decode_iterations, state.last_look, state.kv
    )
    rows = jax.tree.map(lambda column, value: write(column, r, value), fleet.rows, mine)
    pipelines = fleet.pipelines
    if pipelines is not None:
        new = pipelines._replace(
            launched_batches=state.launched_batches, completed_batches=state.completed_batches,
            schedulable=state.schedulable, counted_s=state.clock,
            running_batches=state.running_batches, free_s=state.free_s, prefill_tokens=row(pipelines.prefill_tokens, r),
        )  # fmt: skip
        pipelines = jax.tree.map(lambda column, value: write_row(column, r, value), pipelines, new)
    caches, several = rows_put_back(fleet.caches, state.cache, r), totals_put_back(fleet.several, r, state)
    return fleet._replace(state=state, rows=rows, pipelines=pipelines, caches=caches, several=several)


def row(column: Array, r: Int) -> Array:
    """Row r of an array."""
    return lax.dynamic_index_in_dim(column, r, keepdims=False)


def write_row(column: Array, r: Int, value: Array) -> Array:
    """The array with ``value`` in row r."""
    return lax.dynamic_update_index_in_dim(column, value, r, 0)
