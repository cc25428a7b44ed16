"""The engine's program for queues in any order: KV on demand, pipelines, shares of long prompts, least work first.

The other program (``engine.in_order``) keeps every queue as a range of requests, because they are
admitted in the order in which they come and none goes back. Here queues are linked lists and a heap, a request carries
what it has computed and generated, and each trip is what ``evaluator.reference`` does in an iteration: put a batch
together, send it through the pipeline, and hand out the tokens of the batch that has come to its end. Without a
pipeline runs of alike iterations are leapt over as there.

Every phase is a function from state to state, so that arrays pass through nested loops in one line and XLA updates them
in place; what must not happen goes to a cell that nobody reads.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array, BatchStatistics, alike_steps, decode_growth, iteration_time, share_touched
from evaluator.cost.quantities import raised
from evaluator.stations.engine.any_order.batch import put_together
from evaluator.stations.engine.any_order.landing import Landing, land
from evaluator.stations.engine.any_order.lane import GeneralLane, GeneralStructure
from evaluator.stations.engine.any_order.preemption import growth_at
from evaluator.stations.engine.any_order.state import State, initial_state, no_batch
from evaluator.stations.engine.any_order.waiting import anybody, arrive, next_arrival
from evaluator.stations.engine.common.lane import LaneResult, Requests
from evaluator.stations.engine.common.rings import load, read, steps_to_event, write
from evaluator.stations.engine.in_order.program import iterations_until
from evaluator.stations.engine.in_order.state import NOBODY


class Sent(NamedTuple):
    """The batch that was put together."""

    sums: BatchStatistics
    decodes: Array  # bool: the group at rest takes a step
    there: Array  # bool: it is not empty


def _sent(given: GeneralLane, state: State) -> Sent:
    g, groups, batch = state.at_rest, state.groups, state.batch
    stalled = given.lane.policy.prefill_alone & (batch.tokens > 0)
    part = jnp.where(stalled, 0.0, 1.0)
    sums = BatchStatistics(
        decodes=part * read(groups.decodes, g),
        decode_context=part * read(groups.context, g),
        decode_window_context=part * read(groups.window_context, g),
        prefill_tokens=batch.tokens,
        prefill_sequences=batch.sequences,
        prefill_area=batch.area,
        prefill_window_area=batch.window_area,
        prefill_context=batch.context,
        prefill_window_context=batch.window_context,
    )
    decodes = sums.decodes > 0
    return Sent(sums, decodes, decodes | (batch.tokens > 0))


def _experts(given: GeneralLane, sums: BatchStatistics) -> Array:
    return jnp.asarray(share_touched(given.pipeline_ranks[0], sums.decodes + sums.prefill_tokens))


# -- without a pipeline


class Leap(NamedTuple):
    """Alike iterations, one after the other."""

    iterations: Array  # float64
    first_s: Array
    slope_s: Array
    kv: Array  # units in use at the end
    kv_unit_s: Array


def _leap(given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State, sent: Sent) -> Leap:
    """How many iterations are the same but for contexts that grow, and what they take of time and KV."""
    cost, groups, batch, rules = given.pipeline_ranks[0], state.groups, state.batch, given.rules
    first_s = iteration_time(cost, sent.sums)
    slope_s = jnp.where(sent.decodes, decode_growth(cost, sent.sums, groups.growing[0]), 0.0)
    arrival_s = next_arrival(given, requests, state.waiting)
    until = iterations_until(arrival_s - state.clock, first_s, slope_s)
    may_come_in = (state.running_count < given.lane.max_num_seqs) & (arrival_s < jnp.inf)
    may_come_in = may_come_in & (rules.least_work | ~anybody(given, requests, state))
    most = jnp.where(may_come_in, jnp.clip(until, 1.0, 1e9), 1e9)
    most = jnp.minimum(most, alike_steps(cost, sent.sums)).astype(jnp.int32)
    waited = state.decode_iterations - state.looked_at
    to_look = rules.look_every - waited % jnp.maximum(rules.look_every, 1)
    looks = (rules.look_every > 0) & anybody(given, requests, state)
    most = jnp.minimum(most, jnp.where(looks, to_look, jnp.int32(1 << 30)))
    step = groups.step[0]
    most = jnp.minimum(most, steps_to_event(state.rings.events, step, structure.ring))
    alone = (batch.tokens == 0) & (batch.admitted == 0) & ~batch.short
    most = jnp.where(alone, most, 1)

    def goes_on(carry: tuple[Array, Array, Array]) -> Array:
        ahead, kv, _ = carry
        fits = kv + growth_at(given, structure, state, step + ahead) <= given.lane.kv_units
        return rules.on_demand & (ahead < most) & fits

    def go_on(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        ahead, kv, kv_unit_s = carry
        kv = kv + growth_at(given, structure, state, step + ahead)
        return ahead + 1, kv, kv_unit_s + kv * (first_s + slope_s * ahead)

    start = (jnp.int32(1), state.kv, state.kv * first_s)
    ahead, kv, kv_unit_s = lax.while_loop(goes_on, go_on, start)
    count = jnp.where(rules.on_demand, ahead, most).astype(jnp.float64)
    took_s = count * first_s + 0.5 * slope_s * count * (count - 1.0)
    return Leap(count, first_s, slope_s, kv, jnp.where(rules.on_demand, kv_unit_s, state.kv * took_s))


def _trip(given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State) -> State:
    """A batch from its scheduling to its end, or a leap; without anybody to run, on to the next arrival."""
    state = arrive(given, requests, state._replace(batch=no_batch()))
    state = put_together(given, requests, structure, state, state.clock, ~jnp.zeros((), bool))
    sent = _sent(given, state)
    leap = _leap(given, requests, structure, state, sent)
    there = jnp.where(sent.there, 1.0, 0.0)
    count = there * leap.iterations
    took_s = count * leap.first_s + 0.5 * leap.slope_s * count * (count - 1.0)
    end_s = state.clock + took_s
    steps = jnp.where(sent.decodes, count, 0.0).astype(jnp.int32)
    idle = ~sent.there & ~state.batch.preempted
    clock = jnp.where(idle, next_arrival(given, requests, state.waiting), end_s)
    stuck = idle & (anybody(given, requests, state) | (clock == jnp.inf))
    kv = jnp.where(sent.there, leap.kv, state.kv)
    state = state._replace(
        sent=state.sent + sent.there,
        decode_iterations=state.decode_iterations + steps,
        kv=kv,
        kv_max=jnp.maximum(state.kv_max, kv),
        kv_unit_s=state.kv_unit_s + there * leap.kv_unit_s,
        busy_s=state.busy_s + took_s,
        iterations=state.iterations + count,
        experts_touched=state.experts_touched + count * _experts(given, sent.sums),
        peaks=raised(given.pipeline_ranks[0], state.peaks, sent.sums, leap.iterations),
    )
    landing = Landing(state.at_rest, steps, state.clock + leap.first_s, end_s, state.batch.completing)
    state = land(given, requests, structure, state, landing)
    return state._replace(clock=clock, stuck=stuck, landed=state.landed + sent.there)


# -- with a pipeline


def _pipeline_trip(given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State) -> State:
    """Send a batch, if one may go; where no other can follow at once, the clock goes on to whatever comes next."""
    pipeline_ranks = structure.pipeline_ranks
    oldest = state.landed % pipeline_ranks
    ended = (state.sent > state.landed) & (read(state.flights.end_s, oldest) <= state.clock)
    room = (state.sent - state.landed < pipeline_ranks) & ~ended
    state = arrive(given, requests, state._replace(batch=no_batch()))
    start_s = jnp.maximum(state.clock, state.free_s[0])
    state = put_together(given, requests, structure, state, start_s, room)
    sent = _sent(given, state)
    goes = room & sent.there
    state = _send(given, structure, state, sent, start_s, goes)
    again = (goes | (room & state.batch.preempted)) & (state.sent - state.landed < pipeline_ranks)
    return _move_on(given, requests, structure, state, ~again)


def _send(
    given: GeneralLane, structure: GeneralStructure, state: State, sent: Sent, start_s: Array, on: Array
) -> State:
    """The batch enters the pipeline, if ``on``, and its decodes are no longer at rest."""
    clock, free, busy = start_s, [], jnp.zeros(())
    for pipeline_rank, cost in enumerate(given.pipeline_ranks):
        took_s = iteration_time(cost, sent.sums)
        clock = jnp.maximum(clock, state.free_s[pipeline_rank]) + took_s
        free.append(clock)
        busy = busy + took_s
    slot = state.sent % structure.pipeline_ranks
    flights, decodes = state.flights, on & sent.decodes
    spare = read(flights.group, slot)

    def enter(array: Array, value: Array) -> Array:
        return write(array, slot, jnp.where(on, value, load(array, slot)))

    return state._replace(
        flights=flights._replace(
            end_s=enter(flights.end_s, clock),
            decodes=enter(flights.decodes, sent.decodes),
            group=write(flights.group, slot, jnp.where(decodes, state.at_rest, spare)),
            completing=enter(flights.completing, state.batch.completing),
        ),
        at_rest=jnp.where(decodes, spare, state.at_rest),
        sent=state.sent + on,
        decode_iterations=state.decode_iterations + decodes,
        free_s=jnp.where(on, jnp.stack(free), state.free_s),
        kv_max=jnp.where(on, jnp.maximum(state.kv_max, state.kv), state.kv_max),
        busy_s=state.busy_s + jnp.where(on, busy / structure.pipeline_ranks, 0.0),
        experts_touched=state.experts_touched + jnp.where(on, _experts(given, sent.sums), 0.0),
    )


def _move_on(given: GeneralLane, requests: Requests, structure: GeneralStructure, state: State, on: Array) -> State:
    """The clock goes on, if ``on``, to the end of the oldest batch or, if another may be sent, to the next arrival."""
    slot = state.landed % structure.pipeline_ranks
    flies = state.sent > state.landed
    end_s = jnp.where(flies, read(state.flights.end_s, slot), jnp.inf)
    arrival_s = next_arrival(given, requests, state.waiting)
    may_send = (state.sent - state.landed < structure.pipeline_ranks) & (arrival_s > state.clock)
    until_s = jnp.minimum(end_s, jnp.where(may_send, arrival_s, jnp.inf))
    stuck = on & (until_s == jnp.inf)
    clock = jnp.where(on & ~stuck, until_s, state.clock)
    lands = on & flies & (end_s <= until_s)
    decodes = lands & read(state.flights.decodes, slot)
    landing = Landing(
        read(state.flights.group, slot), decodes.astype(jnp.int32), clock, clock,
        jnp.where(lands, read(state.flights.completing, slot), NOBODY),
    )  # fmt: skip
    kv_unit_s = state.kv_unit_s + state.kv * (clock - state.clock)
    state = state._replace(clock=clock, stuck=stuck, kv_unit_s=kv_unit_s, iterations=state.iterations + lands)
    state = land(given, requests, structure, state, landing)
    return state._replace(landed=state.landed + lands)


def _run_lane(given: GeneralLane, requests: Requests, structure: GeneralStructure) -> LaneResult:
    trip = _trip if structure.pipeline_ranks == 1 else _pipeline_trip
    final = lax.while_loop(
        lambda state: (state.finished < given.lane.requests) & ~state.stuck,
        lambda state: trip(given, requests, structure, state),
        initial_state(given, requests, structure),
    )
    return LaneResult(
        scheduled_s=final.sequences.scheduled_s[:-1],
        first_token_s=final.sequences.first_token_s[:-1],
        last_token_s=final.sequences.last_token_s[:-1],
        busy_s=final.busy_s,
        iterations=final.iterations,
        kv_units_max=final.kv_max,
        kv_unit_s=final.kv_unit_s,
        preemptions=final.preemptions,
        experts_touched=final.experts_touched,
        peaks=final.peaks,
        itl_histogram=final.itl_histogram,
    )


@functools.partial(jax.jit, static_argnames=("structure", "vectorise"))
def run_general_lanes(
    lanes: GeneralLane, requests: Requests, structure: GeneralStructure, vectorise: bool = False
) -> LaneResult:
    """Simulate a batch of lanes: ``lanes`` and ``requests`` with a leading ``lane`` axis, and so the result.

    ``vectorise`` runs all lanes in step (for accelerators) instead of one after another; the numbers are the same.
    """

    def run(pair: tuple[GeneralLane, Requests]) -> LaneResult:
        return _run_lane(*pair, structure)

    return jax.vmap(run)((lanes, requests)) if vectorise else lax.map(run, (lanes, requests))
