"""Replicas with several pipeline ranks: batches end and are sent as in ``preemptive.pipeline``, none is leapt over."""

from __future__ import annotations

import jax.numpy as jnp

from evaluator.stations.engine.common.arrays import Int
from evaluator.stations.engine.common.rings import read, read_once, write
from evaluator.stations.engine.joint.kv_reservation import reserve_between
from evaluator.stations.engine.joint.pools import given_at
from evaluator.stations.engine.joint.routing import add_counts, counts_row, decoded_tokens
from evaluator.stations.engine.joint.state import ClusterState, ends_at, put_back, replica_at_hand
from evaluator.stations.engine.preemptive.batch import form_batch
from evaluator.stations.engine.preemptive.iteration_end import MeasuredSteps
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.pipeline import complete_oldest, has_room, oldest_end, send_batch
from evaluator.stations.engine.preemptive.state import State


def complete_batch(given: Given, cluster: ClusterState) -> ClusterState:
    """The oldest batch of the replica where something ends now has come to its end."""
    r = cluster.next_replica
    own = given_at(given, r, cluster.several)
    before = _at_hand(cluster, r)
    pipeline = before.pipeline
    slot = pipeline.completed_batches % own.structure.pipeline_ranks
    decode_group, flies = (
        read(pipeline.running_batches.decode_group, slot),
        read(pipeline.running_batches.decodes, slot),
    )
    decodes = jnp.where(flies, read(before.decode_groups.decodes, decode_group), 0.0)
    since_s = read_once(before.sequences.first_token_s, own.limits.measured_from)
    state = complete_oldest(own, before, ~jnp.zeros((), bool), MeasuredSteps(since_s, jnp.int32(0)))
    router_counts = state.router_counts
    assert router_counts is not None
    tokens = decoded_tokens(before, state, decodes) + router_counts.completed
    more = counts_row(
        requests=before.finished - state.finished,
        work_tokens=-read(pipeline.prefill_tokens, slot) - tokens,
        output_tokens=-tokens,
        context_tokens=tokens - router_counts.left_context,
    )
    end_s = write(cluster.running_batches.end_s, r, oldest_end(state))
    following = jnp.argmin(end_s).astype(jnp.int32)
    return put_back(cluster, r, state)._replace(
        counts=add_counts(cluster.counts, r, more),
        running_batches=cluster.running_batches._replace(end_s=end_s),
        next_s=read(end_s, following),
        next_replica=following,
        ready=cluster.ready.push(r, ~jnp.zeros((), bool)),
    )


def launch_batch(given: Given, cluster: ClusterState) -> ClusterState:
    """A replica where something has happened sends a batch, if it has one; it is looked at again if there is room."""
    r = cluster.ready.top
    own = given_at(given, r, cluster.several)
    # A batch may be formed while others are in flight; it starts when the first rank is free.
    state = _at_hand(cluster, r)
    start_s = jnp.maximum(state.clock, state.pipeline.free_s[0])
    state, batch = form_batch(own, state, start_s, ~jnp.zeros((), bool))
    if own.structure.kv_reservation:
        cluster, state = reserve_between(given, cluster, r, state, batch.there | ~state.batch.preempted)
    state = send_batch(own, state, batch, start_s, batch.there)
    again = (batch.there | state.batch.preempted) & has_room(own, state)
    router_counts = state.router_counts
    assert router_counts is not None
    more = counts_row(work_tokens=router_counts.again, kv_units=router_counts.waiting_units)
    cluster = put_back(cluster, r, state)._replace(
        counts=add_counts(cluster.counts, r, more),
        ready=cluster.ready.pop(~again),
        ending=jnp.zeros((), bool),
    )
    return ends_at(cluster, r, oldest_end(state))


def _at_hand(cluster: ClusterState, r: Int) -> State:
    """The state as of replica r, with the integral of its KV up to now."""
    state = replica_at_hand(cluster, r)
    held_s = state.clock - state.pipeline.counted_s
    state = state.in_totals(kv_unit_s=state.totals.kv_unit_s + state.replica.kv * held_s)
    return state.in_pipeline(counted_s=state.clock)
