"""Replicas with several pipeline ranks: batches land and are sent as in ``preemptive.pipeline``, none is leapt over."""

from __future__ import annotations

import jax.numpy as jnp

from evaluator.stations.engine.common.arrays import Float, Int
from evaluator.stations.engine.common.rings import read, read_once, write
from evaluator.stations.engine.joint.kv_reservation import reserve_between
from evaluator.stations.engine.joint.lane import GivenPool
from evaluator.stations.engine.joint.pools import given_at
from evaluator.stations.engine.joint.routing import add_counts, counts_row, decoded_tokens
from evaluator.stations.engine.joint.state import Fleet, Pipelines, ends_at, put_back, replica_at_hand, row, write_row
from evaluator.stations.engine.preemptive.batch import form_batch, scheduled
from evaluator.stations.engine.preemptive.iteration_end import IterationEnd, MeasuredSteps, complete_iteration
from evaluator.stations.engine.preemptive.pipeline import send_batch
from evaluator.stations.engine.preemptive.state import State, no_batch


def complete_batch(pool: GivenPool, fleet: Fleet) -> Fleet:
    """The oldest batch of the replica where something ends now has come to its end."""
    r = fleet.next_replica
    given = given_at(pool, r, fleet.several)
    before = _at_hand(fleet, r)
    slot = before.completed_batches % given.structure.pipeline_ranks
    decode_group, flies = read(before.running_batches.decode_group, slot), read(before.running_batches.decodes, slot)
    decodes = jnp.where(flies, read(before.decode_groups.decodes, decode_group), 0.0)
    since_s = read_once(before.sequences.first_token_s, given.limits.measured_from)
    clock, completing = before.clock, read(before.running_batches.completing, slot)
    iteration_end = IterationEnd(
        decode_group, flies.astype(jnp.int32), clock, clock, completing, MeasuredSteps(since_s, jnp.int32(0))
    )
    state = complete_iteration(given, before._replace(iterations=before.iterations + 1.0), iteration_end)
    router_counts = state.router_counts
    assert router_counts is not None
    tokens = decoded_tokens(before, state, decodes) + router_counts.completed
    more = counts_row(
        requests=before.finished - state.finished,
        work_tokens=-read(row(_pipelines(fleet).prefill_tokens, r), slot) - tokens,
        output_tokens=-tokens,
        context_tokens=tokens - router_counts.left_context,
    )
    state = state._replace(completed_batches=before.completed_batches + 1)
    end_s = write(fleet.running_batches.end_s, r, _oldest_end(state))
    following = jnp.argmin(end_s).astype(jnp.int32)
    return put_back(fleet, r, state)._replace(
        counts=add_counts(fleet.counts, r, more),
        running_batches=fleet.running_batches._replace(end_s=end_s),
        next_s=read(end_s, following),
        next_replica=following,
        touched=fleet.touched.push(r, ~jnp.zeros((), bool)),
    )


def launch_batch(pool: GivenPool, fleet: Fleet) -> Fleet:
    """A replica where something has happened sends a batch, if it has one; it is looked at again if there is room."""
    r, ranks = fleet.touched.top, pool.given.structure.pipeline_ranks
    given = given_at(pool, r, fleet.several)
    state = _at_hand(fleet, r)._replace(batch=no_batch())
    start_s = jnp.maximum(state.clock, state.free_s[0])
    state = form_batch(given, state, start_s, ~jnp.zeros((), bool))
    batch = scheduled(given, state)
    if state.kv_reservation is not None:
        fleet, state = reserve_between(pool, fleet, r, state, batch.there | ~state.batch.preempted)
    slot, goes = state.launched_batches % ranks, batch.there
    state = send_batch(given, state, batch, start_s, goes)
    again = (goes | state.batch.preempted) & (state.launched_batches - state.completed_batches < ranks)
    router_counts = state.router_counts
    assert router_counts is not None
    more = counts_row(work_tokens=router_counts.again, kv_units=router_counts.waiting_units)
    fleet = put_back(fleet, r, state)
    pipelines = _pipelines(fleet)
    tokens = row(pipelines.prefill_tokens, r)
    tokens = write(tokens, slot, jnp.where(goes, batch.sums.prefill_tokens, read(tokens, slot)))
    fleet = fleet._replace(
        counts=add_counts(fleet.counts, r, more),
        pipelines=pipelines._replace(prefill_tokens=write_row(pipelines.prefill_tokens, r, tokens)),
        touched=fleet.touched.pop(~again),
        ending=jnp.zeros((), bool),
    )
    return ends_at(fleet, r, _oldest_end(state))


def _pipelines(fleet: Fleet) -> Pipelines:
    assert fleet.pipelines is not None
    return fleet.pipelines


def _at_hand(fleet: Fleet, r: Int) -> State:
    """The state as of replica r, with the integral of its KV up to now; ``put_back`` takes down how far it goes."""
    state = replica_at_hand(fleet, r)
    held_s = state.clock - read(_pipelines(fleet).counted_s, r)
    return state._replace(kv_unit_s=state.kv_unit_s + state.kv * held_s)


def _oldest_end(state: State) -> Float:
    """When the oldest batch in flight ends; infinite if there is none."""
    ranks = state.running_batches.end_s.shape[0]
    return jnp.where(
        state.launched_batches > state.completed_batches,
        read(state.running_batches.end_s, state.completed_batches % ranks),
        jnp.inf,
    )
