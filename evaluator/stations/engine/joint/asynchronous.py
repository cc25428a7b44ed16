"""Replicas that plan their next batch before the tokens of the one under way are known (``preemptive.asynchronous``).

A replica has at most two batches: the older one runs, the newer one is planned and starts when that ends. So an event
of the calendar is the end of the older one: who had the last token with it leaves, and the next batch is planned. Where
nothing runs, a batch that is planned starts at once, and the one behind it is planned at the same point in time.
Nothing leaps: every batch is planned by itself, as in the reference.

A batch is completed when it is planned, with the times at which it will end. Gaps between tokens count only behind the
first token of the first measured request (``iteration_end.MeasuredSteps``), which another replica may yet plan, to come
before this batch ends. Until it is known, gaps are kept in a histogram of the batch, and counted when that ends.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Array, Flag, Float, Int
from evaluator.stations.engine.common.histogram import BINS
from evaluator.stations.engine.common.rings import NONE, read, read_once, where, write
from evaluator.stations.engine.joint.pools import given_at
from evaluator.stations.engine.joint.routing import add_counts, counts_row, decoded_tokens
from evaluator.stations.engine.joint.state import ClusterState, PlannedBatches, at_hand, ends_at, put_back
from evaluator.stations.engine.preemptive.asynchronous import leave
from evaluator.stations.engine.preemptive.batch import form_batch
from evaluator.stations.engine.preemptive.iteration import LaunchedBatch, complete, launch
from evaluator.stations.engine.preemptive.iteration_end import MeasuredSteps
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.state import Listed, State


def complete_older(given: Given, cluster: ClusterState) -> ClusterState:
    """The older batch of the replica where something ends now has ended: those that were done with it leave."""
    r = cluster.next_replica
    pool_given, batches = given_at(given, r, cluster.several), _batches(cluster)
    end_s = read(cluster.running_batches.end_s, r)
    before = _with_list(at_hand(cluster, r), end_s, read(batches.older, r))
    state = leave(pool_given, before)
    router_counts = state.router_counts
    assert router_counts is not None
    # Its tokens were counted when it was planned.
    more = counts_row(requests=before.finished - state.finished, context_tokens=-router_counts.left_context)
    ends_s = write(cluster.running_batches.end_s, r, jnp.inf)
    following = jnp.argmin(ends_s).astype(jnp.int32)
    cluster = put_back(cluster, r, state)._replace(
        counts=add_counts(cluster.counts, r, more),
        running_batches=cluster.running_batches._replace(end_s=ends_s),
        planned=batches._replace(older=write(batches.older, r, NONE)),
        next_s=read(ends_s, following),
        next_replica=following,
        ready=cluster.ready.push(r, ~jnp.zeros((), bool)),
    )
    return _count_gaps(pool_given, cluster, r, end_s)


def plan_batch(given: Given, cluster: ClusterState) -> ClusterState:
    """A replica where something has happened plans a batch, and the one behind it, if this one starts at once."""
    r, batches = cluster.ready.top, _batches(cluster)
    pool_given = given_at(given, r, cluster.several)
    before = _with_list(at_hand(cluster, r), jnp.float64(0.0), jnp.int32(NONE))
    # vLLM ``EngineCore.step_with_batch_queue``: a batch is planned while the one before it runs.
    start_s = jnp.maximum(before.clock, read(batches.end_s, r))
    state, batch = form_batch(pool_given, before, start_s, ~jnp.zeros((), bool))
    running_batch, _ = launch(pool_given, state, batch, lambda *_: jnp.float64(1.0))
    took_s = running_batch.iterations * running_batch.first_s  # an empty one makes no iteration, and takes no time
    running_batch = running_batch._replace(start_s=start_s, end_s=start_s + took_s)
    place = 2 * r + (read(batches.count, r) & 1)
    formed, (state, unknown) = state, _completed(pool_given, state, running_batch, place)
    router_counts = state.router_counts
    assert router_counts is not None and state.planned is not None
    # A planned token counts at once: its place is all that the scheduler needs to know.
    tokens = decoded_tokens(formed, state, running_batch.iterations * batch.sums.decodes) + router_counts.completed
    more = counts_row(
        work_tokens=router_counts.again - running_batch.iterations * batch.sums.prefill_tokens - tokens,
        output_tokens=-tokens,
        context_tokens=tokens,
        kv_units=router_counts.waiting_units,
    )
    # It starts when the batch before it ends, and only then is the next one planned.
    waits = start_s > before.clock
    idle = ~waits & ~batch.nonempty & ~formed.batch.preempted
    cluster = put_back(cluster, r, state)._replace(
        counts=add_counts(cluster.counts, r, more),
        planned=PlannedBatches(
            end_s=write(batches.end_s, r, running_batch.end_s),
            count=write(batches.count, r, read(batches.count, r) + 1),
            older=write(batches.older, r, read_once(batches.newer, r)),
            newer=write(batches.newer, r, state.planned.leaving.first),
            unknown=write(batches.unknown, place, unknown),
        ),
        ready=cluster.ready.pop(waits | idle),
        ending=jnp.zeros((), bool),
    )
    return ends_at(cluster, r, jnp.where(waits, start_s, jnp.inf))


def _completed(given: Given, state: State, running_batch: LaunchedBatch, place: Int) -> tuple[State, Flag]:
    """With the tokens of a batch that was planned; and whether it is unknown yet which of its gaps count, so that they
    are in the histogram at its ``place``."""
    since_s = read_once(state.sequences.first_token_s, given.limits.measured_from)
    unknown = since_s == jnp.inf
    given = given._replace(histogram=jnp.where(unknown, _histogram(given, place), _pool(given)))
    measured = MeasuredSteps(jnp.where(unknown, -jnp.inf, since_s), jnp.int32(0))
    took_s = running_batch.iterations * running_batch.first_s
    return complete(given, state, running_batch, took_s, jnp.float64(0.0), measured), unknown


def _count_gaps(given: Given, cluster: ClusterState, r: Int, end_s: Float) -> ClusterState:
    """Gaps of the older batch of replica r, which has ended, count if the first measured token came before that."""
    batches, state = _batches(cluster), cluster.state
    place = 2 * r + (read(batches.count, r) & 1)  # of two batches in turn the older has the place of the next one
    since_s = read_once(state.sequences.first_token_s, given.limits.measured_from)

    def count(bins: Array) -> Array:
        of_batch, of_pool = _histogram(given, place) * BINS, _pool(given) * BINS
        gaps = lax.dynamic_slice(bins, (of_batch,), (BINS,))
        sums = lax.dynamic_slice(bins, (of_pool,), (BINS,)) + jnp.where(since_s < end_s, gaps, 0.0)
        bins = lax.dynamic_update_slice(bins, sums, (of_pool,))
        return lax.dynamic_update_slice(bins, jnp.zeros(BINS), (of_batch,))

    bins = where(read(batches.unknown, place), count, state.itl_histogram)
    return cluster._replace(state=state._replace(itl_histogram=bins))


def _histogram(given: Given, place: Int) -> Int:
    """The number of the histogram of a batch, behind those of the pools."""
    return given.structure.pools + place


def _pool(given: Given) -> Int:
    return jnp.int32(0) if given.pool is None else given.pool


def _with_list(state: State, end_s: Float, first: Int) -> State:
    """With those that leave when a batch ends at ``end_s``."""
    assert state.planned is not None
    leaving = Listed(first, state.planned.leaving.next)
    return state._replace(planned=state.planned._replace(end_s=end_s, leaving=leaving))


def _batches(cluster: ClusterState) -> PlannedBatches:
    assert cluster.planned is not None
    return cluster.planned
