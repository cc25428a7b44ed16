"""The engine's program for queues in any order: KV on demand, pipelines, shares of long prompts, least work first.

The other program (``in_order``) keeps every queue as a range of request numbers, because requests are admitted in the
order in which they arrive and none goes back to the waiting queue. Here queues are linked lists and a heap, each
request carries what it has computed and generated (``state``), and each trip of the loop is what
``evaluator.reference`` does in an iteration: form a batch (``batch``), let it run, and hand out its tokens
(``iteration_end``). Without a pipeline, runs of iterations of the same batch are leapt over as in the other program; a
pipeline (``pipeline``) sends its batches one by one, those that only decode in a short loop of their own (``rounds``).

Every phase is a function from state to state. Arrays thus pass through the nested loops one after the other, and XLA
updates them in place; the conventions are explained in ``common.rings``.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import alike_steps, decode_growth, share_touched
from evaluator.cost.quantities import batch_tokens, raised
from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.lane import LaneResult, Requests, over_lanes
from evaluator.stations.engine.common.leap import UNBOUNDED, Leap, batch_time, iterations_until
from evaluator.stations.engine.common.rings import WORD, steps_to_event
from evaluator.stations.engine.preemptive import prefix_cache
from evaluator.stations.engine.preemptive.batch import Scheduled, form_batch, scheduled
from evaluator.stations.engine.preemptive.decode_groups import steps_done
from evaluator.stations.engine.preemptive.iteration_end import IterationEnd, complete_iteration
from evaluator.stations.engine.preemptive.lane import Given, Lane, Structure
from evaluator.stations.engine.preemptive.pipeline import pipeline_step
from evaluator.stations.engine.preemptive.preemption import growth_at
from evaluator.stations.engine.preemptive.state import State, initial_state, no_batch
from evaluator.stations.engine.preemptive.waiting import any_waiting, arrive, next_arrival


class Usage(NamedTuple):
    """KV during a leap."""

    kv: Float  # units in use at its end
    kv_unit_s: Float  # units in use, integrated over the leap


def _leap(given: Given, state: State, batch: Scheduled) -> tuple[Leap, Usage]:
    """As many iterations of this batch as pass before it changes, at least one, and the KV that they take.

    With KV on demand, decodes take more of it in every step, so the leap ends before the step that finds too little.
    """
    cost = given.pipeline_ranks[0]
    first_s = batch_time(cost, batch.sums)
    slope_s = jnp.where(batch.decodes, decode_growth(cost, batch.sums, state.decode_groups.growing[0]), 0.0)
    most = alike_iterations(given, state, batch, _until_arrival(given, state, first_s, slope_s))
    step, on_demand = state.decode_groups.step[0], given.rules.on_demand

    def goes_on(carry: tuple[Int, Float, Float]) -> Flag:
        ahead, kv, _ = carry
        fits = kv + growth_at(given, state, step + ahead) <= given.limits.kv_units
        return on_demand & (ahead < most) & fits

    def go_on(carry: tuple[Int, Float, Float]) -> tuple[Int, Float, Float]:
        ahead, kv, kv_unit_s = carry
        kv = kv + growth_at(given, state, step + ahead)
        return ahead + 1, kv, kv_unit_s + kv * (first_s + slope_s * ahead)

    start = (jnp.int32(1), state.kv, state.kv * first_s)
    ahead, kv, kv_unit_s = lax.while_loop(goes_on, go_on, start)
    leap = Leap(jnp.where(on_demand, ahead, most).astype(jnp.float64), first_s, slope_s)
    return leap, Usage(kv, jnp.where(on_demand, kv_unit_s, state.kv * leap.duration_s()))


def _until_arrival(given: Given, state: State, first_s: Float, slope_s: Float) -> Float:
    """Iterations until a request arrives that may come in at once."""
    arrival_s = next_arrival(given, state.waiting)
    until = iterations_until(arrival_s - state.clock, first_s, slope_s)
    may_come_in = (state.running_count < given.limits.max_num_seqs) & (arrival_s < jnp.inf)
    may_come_in = may_come_in & (given.rules.least_work | ~any_waiting(given, state))  # FCFS: behind those that wait
    return jnp.where(may_come_in, jnp.clip(until, 1.0, UNBOUNDED), UNBOUNDED)


def alike_iterations(given: Given, state: State, batch: Scheduled, most: Float) -> Int:
    """Iterations, at most ``most``, until a look or an event changes the batch; arrivals and KV are left out."""
    if given.speculation is not None:
        return jnp.int32(1)  # contexts grow unevenly
    rules, formed = given.rules, state.batch
    waits = any_waiting(given, state)
    most = jnp.minimum(most, alike_steps(given.pipeline_ranks[0], batch.sums)).astype(jnp.int32)
    waited = state.decode_iterations - state.last_look
    to_look = rules.look_every - waited % jnp.maximum(rules.look_every, 1)
    most = jnp.minimum(most, jnp.where((rules.look_every > 0) & waits, to_look, jnp.int32(1 << 30)))
    first = 0 if given.structure.decode_groups() == 1 else state.schedulable * given.structure.ring // WORD
    to_event = steps_to_event(state.rings.events, steps_done(given, state), given.structure.ring, first)
    alone = (formed.prompts.tokens == 0) & (formed.admitted == 0) & ~formed.short
    if state.cache is not None:  # what the head of the waiting queue finds there may change with every step
        seat = state.running_count < given.limits.max_num_seqs
        alone = alone & ~(waits & seat & ~given.limits.policy.drain_first)
    return jnp.where(alone, jnp.minimum(most, to_event), 1)


def _take_steps(given: Given, state: State, steps: Int) -> State:
    """The blocks that decodes take and name in a leap of so many steps; those of the first have theirs."""
    step = steps_done(given, state)

    def take(carry: tuple[Int, State]) -> tuple[Int, State]:
        ahead, state = carry
        return ahead + 1, prefix_cache.take_step(given, state, step + ahead, jnp.ones((), bool))

    return lax.while_loop(lambda carry: carry[0] < steps, take, (jnp.int32(1), state))[1]


def _loop_step(given: Given, state: State) -> State:
    """A batch from its forming to its end, or a leap; if the batch is empty, the clock goes on to the next arrival.

    If the batch is empty and no arrival is left, or the waiting queue's head still does not fit, then nothing that is
    to come can change that and the lane can never finish: it stops with ``stuck``.
    """
    state = arrive(given, state._replace(batch=no_batch()))
    state = form_batch(given, state, state.clock, ~jnp.zeros((), bool))
    batch = scheduled(given, state)
    alike, usage = _leap(given, state, batch)
    there = jnp.where(batch.there, 1.0, 0.0)
    leap = alike._replace(iterations=there * alike.iterations)
    took_s = leap.duration_s()
    end_s = state.clock + took_s
    steps = jnp.where(batch.decodes, leap.iterations, 0.0).astype(jnp.int32)
    idle = ~batch.there & ~state.batch.preempted
    clock = jnp.where(idle, next_arrival(given, state.waiting), end_s)
    stuck = idle & (any_waiting(given, state) | (clock == jnp.inf))
    if state.cache is not None:
        state = _take_steps(given, state, steps)
    kv = jnp.where(batch.there, usage.kv, state.kv)
    cost = given.pipeline_ranks[0]
    tokens = batch_tokens(cost, batch.sums)
    state = state._replace(
        launched_batches=state.launched_batches + batch.there,
        decode_iterations=state.decode_iterations + steps,
        kv=kv,
        kv_max=jnp.maximum(state.kv_max, kv),
        kv_unit_s=state.kv_unit_s + there * usage.kv_unit_s,
        busy_s=state.busy_s + took_s,
        iterations=state.iterations + leap.iterations,
        experts_touched=state.experts_touched + leap.iterations * share_touched(cost, tokens),
        peaks=raised(cost, state.peaks, batch.sums, alike.iterations),
    )
    state = complete_iteration(
        given, state, IterationEnd(state.schedulable, steps, state.clock + leap.first_s, end_s, state.batch.completing)
    )
    return state._replace(clock=clock, stuck=stuck, completed_batches=state.completed_batches + batch.there)


def _run_lane(given: Given) -> LaneResult:
    loop_step = _loop_step if given.structure.pipeline_ranks == 1 else pipeline_step
    final = lax.while_loop(
        lambda state: (state.finished < given.limits.requests) & ~state.stuck,
        lambda state: loop_step(given, state),
        initial_state(given),
    )
    return result_of(final)


def result_of(final: State) -> LaneResult:
    """What is told of a lane that has come to its end."""
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
        hit_tokens=None if final.cache is None else final.cache.hit_tokens[:-1],
        decoded=None if final.accepted is None else final.accepted.decoded,
        decoded_tokens=None if final.accepted is None else final.accepted.decoded_tokens,
    )


@functools.partial(jax.jit, static_argnames=("structure", "vectorise"))
def run_lanes(lanes: Lane, requests: Requests, structure: Structure, vectorise: bool = False) -> LaneResult:
    """Simulate a batch of lanes: ``lanes`` and ``requests`` with a leading ``lane`` axis, and so the result.

    ``vectorise`` as in ``over_lanes``: for accelerators.
    """

    def run(lane: Lane, requests: Requests) -> LaneResult:
        return _run_lane(Given(*lane, requests, structure))

    return over_lanes(run, lanes, requests, vectorise)
