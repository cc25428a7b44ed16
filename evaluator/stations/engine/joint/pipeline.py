"""Replicas with several pipeline ranks: batches end and are sent as in ``preemptive.pipeline``, none is leapt over."""

from __future__ import annotations

import jax.numpy as jnp

from evaluator.stations.engine.common.rings import read, read_once, write
from evaluator.stations.engine.joint.kv_reservation import reserve_between
from evaluator.stations.engine.joint.lockstep_leap import first_rank
from evaluator.stations.engine.joint.pools import given_at
from evaluator.stations.engine.joint.routing import add_counts, counts_row, decoded_tokens
from evaluator.stations.engine.joint.state import ClusterState, at_hand, count_decoded, ends_at, put_back
from evaluator.stations.engine.joint.transfers import ask_early
from evaluator.stations.engine.preemptive.batch import form_batch
from evaluator.stations.engine.preemptive.iteration_end import MeasuredSteps
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.pipeline import complete_oldest, has_room, oldest_end, send_batch


def complete_batch(given: Given, cluster: ClusterState) -> ClusterState:
    """The oldest batch of the replica where something ends now has come to its end."""
    # Batches leave a pipeline in the order in which they entered, so that the oldest is always the next to end.
    r = cluster.next_replica
    pool_given = given_at(given, r, cluster.several)
    before = at_hand(cluster, r)
    pipeline = before.pipeline
    slot = pipeline.completed_batches % pool_given.structure.pipeline_ranks
    decode_group, decoded = (
        read(pipeline.running_batches.decode_group, slot),
        read(pipeline.running_batches.decodes, slot),
    )
    # Before the end: those who leave with it have had a token, too.
    decodes = jnp.where(decoded, read(before.decode_groups.decodes, decode_group), 0.0)
    # No batch stands for several iterations here, so that none has steps before and after the end of the warm-up.
    since_s = read_once(before.sequences.first_token_s, pool_given.limits.measured_from)
    # A data-parallel rank without a batch passes the pipeline with a dummy one, beside those of others.
    counts = decoded | (read(pipeline.prefill_tokens, slot) > 0) if given.structure.lockstep else True
    state = complete_oldest(pool_given, before, ~jnp.zeros((), bool), MeasuredSteps(since_s, jnp.int32(0)), counts)
    router_counts = state.router_counts
    assert router_counts is not None
    tokens = decoded_tokens(before, state, decodes) + router_counts.completed
    more = counts_row(
        requests=before.finished - state.finished,
        work_tokens=-read(pipeline.prefill_tokens, slot) - tokens,
        output_tokens=-tokens,
        context_tokens=tokens - router_counts.left_context,
    )
    end_s = write(cluster.running_batches.end_s, r, oldest_end(state))  # of the batch behind it, if one is under way
    following = jnp.argmin(end_s).astype(jnp.int32)
    cluster = count_decoded(cluster, r, before, state)
    return put_back(cluster, r, state)._replace(
        counts=add_counts(cluster.counts, r, more),
        running_batches=cluster.running_batches._replace(end_s=end_s),
        next_s=read(end_s, following),
        next_replica=following,
        ready=cluster.ready.push(first_rank(given, r) if given.structure.lockstep else r, ~jnp.zeros((), bool)),
    )


def launch_batch(given: Given, cluster: ClusterState) -> ClusterState:
    """A replica where something has happened sends a batch, if it has one; it is looked at again if there is room."""
    r = cluster.ready.top
    pool_given = given_at(given, r, cluster.several)
    # A batch may be formed while others are in flight; it starts when the first rank is free.
    state = at_hand(cluster, r)
    start_s = jnp.maximum(state.clock, state.pipeline.free_s[0])
    state, batch = form_batch(pool_given, state, start_s, ~jnp.zeros((), bool))
    if pool_given.structure.kv_reservation:
        cluster, state = reserve_between(given, cluster, r, state, batch.nonempty | ~state.batch.preempted)
    state = send_batch(pool_given, state, batch, start_s, batch.nonempty)
    # vLLM ``EngineCore.step_with_batch_queue`` fills its queue of batches before it waits for the oldest. Whoever was
    # preempted to the last may come in again at once, which takes no time.
    again = (batch.nonempty | state.batch.preempted) & has_room(pool_given, state)
    router_counts = state.router_counts
    assert router_counts is not None
    more = counts_row(work_tokens=router_counts.again, kv_units=router_counts.waiting_units)
    cluster = put_back(cluster, r, state)._replace(
        counts=add_counts(cluster.counts, r, more),
        ready=cluster.ready.pop(~again),
        ending=jnp.zeros((), bool),
    )
    cluster = ends_at(cluster, r, oldest_end(state))
    return ask_early(given, cluster, r) if given.structure.kv_reservation else cluster
