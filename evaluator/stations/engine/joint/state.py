"""What the loop over several replicas carries from trip to trip.

All arrays by request and by decode group are those of one replica's program (``preemptive.state``), shared by all of
them: replica r has decode group r, or with a pipeline as many in a row as it needs, and its lists of requests end at
sentinels of its own. What a replica has of its own is a row of ``ClusterState.replicas``. A trip takes it out
(``replica_at_hand``), lets the replica do what it would do alone, and puts it back (``put_back``).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import BatchStatistics
from evaluator.cost.lockstep import splits
from evaluator.metrics.use import PoolTotals
from evaluator.routing import COUNTERS
from evaluator.stations.engine.common.arrays import (
    Array,
    Counts,
    Flag,
    FlagPerReplica,
    Float,
    FloatPerReplica,
    Int,
    IntPerReplica,
    IntPerRequest,
)
from evaluator.stations.engine.common.columns import Columns
from evaluator.stations.engine.common.rings import NONE, read, write
from evaluator.stations.engine.joint.fleet import FleetState, initial_fleet
from evaluator.stations.engine.joint.late_caches import LateCaches, nothing_heard
from evaluator.stations.engine.joint.pools import PoolStates, nothing_yet
from evaluator.stations.engine.joint.sent_blocks import RememberedBlocks, nothing_sent
from evaluator.stations.engine.preemptive.iteration import LaunchedBatch
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.state import (
    ReplicaState,
    State,
    initial_replica,
    initial_state,
    no_batch,
    no_router_counts,
)


class ReadyReplicas(NamedTuple):
    """Replicas where something ended or arrived and no batch was sent since: a stack, as a linked list."""

    contains: FlagPerReplica
    below: IntPerReplica
    top: Int  # or NONE

    def push(self, r: Int, on: Flag) -> ReadyReplicas:
        """With replica r, if ``on`` and it is not in it."""
        waits = read(self.contains, r)
        new = on & ~waits
        return ReadyReplicas(
            contains=write(self.contains, r, waits | on),
            below=write(self.below, r, jnp.where(new, self.top, read(self.below, r))),
            top=jnp.where(new, r, self.top),
        )

    def pop(self, on: Flag) -> ReadyReplicas:
        """Without the replica on top, if ``on``; there must be one."""
        return ReadyReplicas(
            contains=write(self.contains, self.top, ~on),
            below=self.below,
            top=jnp.where(on, read(self.below, self.top), self.top),
        )


class ReadyInOrder(NamedTuple):
    """The same, the first replica on top: a prefill side sends its batches, and asks for room, before a decode side."""

    contains: FlagPerReplica
    top: Int  # or NONE

    def push(self, r: Int, on: Flag) -> ReadyInOrder:
        """With replica r, if ``on``."""
        sooner = on & ((self.top < 0) | (r < self.top))
        return ReadyInOrder(write(self.contains, r, read(self.contains, r) | on), jnp.where(sooner, r, self.top))

    def pop(self, on: Flag) -> ReadyInOrder:
        """Without the replica on top, if ``on``; there must be one."""
        waiting = write(self.contains, self.top, ~on)
        first = jnp.where(waiting.any(), jnp.argmax(waiting).astype(jnp.int32), NONE)
        return ReadyInOrder(waiting, jnp.where(on, first, self.top))


class BatchSums(Columns):
    """``BatchStatistics`` of the batches of all replicas.

    They are written when a batch is launched and at no other time, so that XLA may read them in any order.
    """

    decodes: FloatPerReplica
    decode_context: FloatPerReplica
    decode_window_context: FloatPerReplica
    prefill_tokens: FloatPerReplica
    prefill_sequences: FloatPerReplica
    prefill_area: FloatPerReplica
    prefill_window_area: FloatPerReplica
    prefill_context: FloatPerReplica
    prefill_window_context: FloatPerReplica

    def of_all(self) -> BatchStatistics:
        """Those of all replicas, each field (replica,)."""
        return BatchStatistics(*(getattr(self, name)[:] for name in self._fields))

    def row(self, r: Int) -> BatchStatistics:
        """Those of replica r."""
        return BatchStatistics(*(read(getattr(self, name), r) for name in self._fields))

    def with_row(self, r: Int, sums: BatchStatistics) -> BatchSums:
        """With others of replica r."""
        return self._replace(**{name: write(getattr(self, name), r, value) for name, value in sums._asdict().items()})


class LaunchedBatches(NamedTuple):
    """The batches of all replicas that are under way; the fields are those of ``LaunchedBatch``."""

    start_s: FloatPerReplica
    end_s: FloatPerReplica  # infinite where no batch is under way: then all else is that of an earlier one
    iterations: FloatPerReplica
    first_s: FloatPerReplica
    slope_s: FloatPerReplica
    seen: FloatPerReplica
    completing: IntPerReplica
    sums: BatchSums

    def of_all(self) -> LaunchedBatch:
        """Those of all replicas, each field (replica,)."""
        return LaunchedBatch._make((*self[:-1], self.sums.of_all()))

    def row(self, r: Int) -> LaunchedBatch:
        """That of replica r."""
        return LaunchedBatch._make((*(read(column, r) for column in self[:-1]), self.sums.row(r)))

    def with_row(self, r: Int, batch: LaunchedBatch) -> LaunchedBatches:
        """With another one of replica r."""
        columns = (write(column, r, value) for column, value in zip(self[:-1], batch[:-1], strict=True))
        return LaunchedBatches._make((*columns, self.sums.with_row(r, batch.sums)))


class Together(NamedTuple):
    """By data-parallel rank, what the next or the current iteration of its replica depends on, see ``lockstep``."""

    has_batch: FlagPerReplica
    again: FlagPerReplica  # it has to form one once more
    own_s: FloatPerReplica  # time of the batch without experts
    growth_s: FloatPerReplica  # by how much it is longer in each further iteration
    fastest_s: FloatPerReplica  # the same at most, while windows fill
    launched_s: FloatPerReplica  # that the host takes at least to launch it
    tokens: FloatPerReplica
    alike: FloatPerReplica  # iterations until the batch changes
    touched: FloatPerReplica  # fraction of the experts that an iteration of the replica touches
    weight: FloatPerReplica  # ranks of the replica for each that has a batch
    sequences: FloatPerReplica | None = None  # with drafts, those in the batch
    brought: FloatPerReplica | None = None  # where batches may be split in two, see ``cost.lockstep``


class PlannedBatches(NamedTuple):
    """By replica, of its last two batches where these are planned ahead (``asynchronous``)."""

    end_s: FloatPerReplica  # when the newer one ends
    count: IntPerReplica  # batches that were planned so far
    older: IntPerReplica  # list of the requests whose last token comes with the older one, or NONE
    newer: IntPerReplica  # the same of the newer one
    # bool (2 * replica,): whether gaps of every second batch were entered before it was known if they count
    unknown: Array


class ClusterState(NamedTuple):
    """All replicas between two trips."""

    state: State  # what all of them share; nothing of the replica at hand, which a trip takes out and puts back
    replicas: ReplicaState  # each field with a leading axis (replica,); a number and a sentinel follow from the place
    totals: PoolTotals | None  # of several pools each with a leading axis (replica,); one pool has those of ``state``
    # In a pipeline only ``end_s``, that of the oldest batch, and of ranks in lockstep what was formed to be sent.
    running_batches: LaunchedBatches
    counts: Counts  # what a router may count, as of the last ends of batches; of the KV only what is waited for
    next_s: Float  # the least ``end_s`` of the batches under way
    next_replica: Int  # whose it is
    ready: ReadyReplicas | ReadyInOrder
    ending: Flag  # what ends at the time of the clock has still to be looked for
    arrived: Int  # requests sent so far
    replica: IntPerRequest
    taken: Array | None = None  # int32 (kind * group,): choices taken from the tables of a router
    several: PoolStates | None = None  # None: one pool
    together: Together | None = None  # None: no ranks in lockstep
    fleet: FleetState | None = None  # None: all replicas are there all the time
    planned: PlannedBatches | None = None  # None: a batch is planned when the one before has ended
    sent: RememberedBlocks | None = None  # None: no router remembers what it has sent where
    late: LateCaches | None = None  # None: no router hears of the caches late


def initial_cluster(given: Given) -> ClusterState:
    """Idle replicas at time 0."""
    replicas = given.structure.replicas
    zeros, turns = jnp.zeros(replicas), given.together.router.turns
    none = jnp.full(replicas, NONE, jnp.int32)
    sums = BatchSums(**dict.fromkeys(BatchStatistics._fields, zeros))
    return ClusterState(
        state=_of_all(initial_state(given), given.network is not None),
        replicas=_initial_replicas(given),
        totals=None if given.network is None else _in_rows(initial_state(given).totals, replicas),
        running_batches=LaunchedBatches(
            zeros, jnp.full(replicas, jnp.inf), zeros, jnp.ones(replicas), zeros, zeros, none, sums
        ),
        counts=jnp.zeros((replicas, len(COUNTERS))),
        next_s=jnp.float64(jnp.inf),
        next_replica=jnp.int32(0),
        ready=_none_ready(given),
        ending=jnp.zeros((), bool) | True,
        arrived=jnp.int32(0),
        replica=jnp.full(given.requests.arrival_s.shape, NONE, jnp.int32),
        taken=None if turns is None else jnp.zeros(turns.shape[0] * turns.shape[1], jnp.int32),
        several=nothing_yet(given),
        together=_nothing_together(given, zeros) if given.structure.lockstep else None,
        fleet=initial_fleet(given),
        planned=PlannedBatches(zeros, jnp.zeros(replicas, jnp.int32), none, none, jnp.zeros(2 * replicas, bool))
        if given.structure.asynchronous
        else None,
        sent=nothing_sent(given),
        late=nothing_heard(given),
    )


def _of_all(state: State, by_replica: bool) -> State:
    """The state without what is of the replica at hand, its totals included where each replica has its own.

    XLA hands what a loop carries from trip to trip, also what each trip makes anew.
    """
    none: Any = None
    return state._replace(replica=none, batch=none, router_counts=none, totals=none if by_replica else state.totals)


def _nothing_together(given: Given, zeros: FloatPerReplica) -> Together:
    return Together(
        zeros > 0,
        zeros > 0,
        *(zeros,) * 8,
        sequences=None if given.speculation is None else zeros,
        brought=zeros if splits(given.pipeline_ranks[0]) else None,
    )


def _none_ready(given: Given) -> ReadyReplicas | ReadyInOrder:
    replicas, top = given.structure.replicas, jnp.int32(NONE)
    none = jnp.zeros(replicas, bool)
    return (
        ReadyInOrder(none, top)
        if given.structure.kv_reservation
        else ReadyReplicas(none, jnp.zeros(replicas, jnp.int32), top)
    )


def _initial_replicas(given: Given) -> ReplicaState:
    """Idle replicas, each with decode groups of its own."""
    numbers = jnp.arange(given.structure.replicas, dtype=jnp.int32)
    rows = _in_rows(initial_replica(given)._replace(number=None, sentinel=None), given.structure.replicas)
    if rows.pipeline is None:
        return rows
    first, running_batches = numbers * (given.structure.pipeline_ranks + 1), rows.pipeline.running_batches
    running_batches = running_batches._replace(decode_group=running_batches.decode_group + first[:, None])
    return rows._replace(pipeline=rows.pipeline._replace(schedulable=first, running_batches=running_batches))


T = TypeVar("T")


def _in_rows(values: T, count: int) -> T:
    """Each value as often as there are rows."""
    return jax.tree.map(lambda value: jnp.broadcast_to(value, (count, *jnp.shape(value))), values)


def ends_at(cluster: ClusterState, r: Int, end_s: Float) -> ClusterState:
    """The cluster where the batch of replica r ends at ``end_s``, no later than it did."""
    # No later than it did, so that the least of all ends need not be looked for: it is this one, or what it was.
    sooner = end_s < cluster.next_s
    return cluster._replace(
        running_batches=cluster.running_batches._replace(end_s=write(cluster.running_batches.end_s, r, end_s)),
        next_s=jnp.where(sooner, end_s, cluster.next_s),
        next_replica=jnp.where(sooner, r, cluster.next_replica),
    )


def replica_at_hand(cluster: ClusterState, r: Int) -> State:
    """The state as of replica r, with an empty batch, nothing counted for routers and nobody listed."""
    state = cluster.state
    replica = row_of(cluster, r)
    return state._replace(
        replica=replica,
        totals=state.totals if cluster.totals is None else jax.tree.map(lambda column: row(column, r), cluster.totals),
        batch=no_batch(),
        router_counts=no_router_counts(),
        listed=None if state.listed is None else state.listed._replace(first=jnp.int32(NONE)),
    )


def at_hand(cluster: ClusterState, r: Int) -> State:
    """The same, with the integral of its KV up to now where that is taken from event to event."""
    state = replica_at_hand(cluster, r)
    counted_s = state.replica.counted_s
    if counted_s is None:
        return state
    # Over what was in use since the last event at this replica.
    held_s = state.clock - counted_s
    state = state.in_totals(kv_unit_s=state.totals.kv_unit_s + state.replica.kv * held_s)
    return state.at_replica(counted_s=state.clock)


def row_of(cluster: ClusterState, r: Int) -> ReplicaState:
    """What replica r has of its own."""
    replica = jax.tree.map(lambda column: row(column, r), cluster.replicas)
    return replica._replace(number=r, sentinel=jnp.int32(cluster.replica.shape[0] - 1) + r)


def put_back(cluster: ClusterState, r: Int, state: State) -> ClusterState:
    """The cluster after replica r has done something; what routers count is left to the caller."""
    replica = state.replica._replace(number=None, sentinel=None)  # both follow from r, and need no column
    totals = cluster.totals
    if totals is not None:
        totals = jax.tree.map(lambda column, value: write_row(column, r, value), totals, state.totals)
    replicas = jax.tree.map(lambda column, value: write_row(column, r, value), cluster.replicas, replica)
    return cluster._replace(state=_of_all(state, totals is not None), replicas=replicas, totals=totals)


def count_decoded(cluster: ClusterState, r: Int, before: State, after: State) -> ClusterState:
    """Of several pools with drafts: what decodes at replica r have done between two states counts for its pool."""
    several = cluster.several
    if several is None or several.decoded is None:
        return cluster
    return cluster._replace(several=several._replace(decoded=several.decoded.joined(r, before, after)))


def kv_unit_s(cluster: ClusterState, r: Int) -> Float:
    """The integral of the KV in use over time to which replica r adds."""
    return cluster.state.totals.kv_unit_s if cluster.totals is None else read(cluster.totals.kv_unit_s, r)


def with_kv_unit_s(cluster: ClusterState, r: Int, value: Float) -> ClusterState:
    """The cluster with another one."""
    if cluster.totals is None:
        return cluster._replace(state=cluster.state.in_totals(kv_unit_s=value))
    return cluster._replace(totals=cluster.totals._replace(kv_unit_s=write(cluster.totals.kv_unit_s, r, value)))


def anybody_waits(cluster: ClusterState, r: Int) -> Flag:
    """Requests wait at replica r."""
    queue = cluster.replicas.queue
    return (read(queue.first, r) >= 0) | (read(queue.top, r) >= 0)


def not_waiting(replicas: ReplicaState) -> FloatPerReplica:
    """How many of the requests at each replica do not wait there; who is preempted does, as in the reference."""
    # Planned ahead, who was preempted when its last token was to come neither runs nor waits, and is there until then.
    return replicas.running_count if replicas.unseated is None else replicas.running_count + replicas.unseated


def row(column: Array, r: Int) -> Array:
    """Row r of an array."""
    return lax.dynamic_index_in_dim(column, r, keepdims=False, allow_negative_indices=False)


def write_row(column: Array, r: Int, value: Array) -> Array:
    """The array with ``value`` in row r."""
    value = jnp.asarray(value, column.dtype)
    return lax.dynamic_update_index_in_dim(column, value, r, 0, allow_negative_indices=False)
