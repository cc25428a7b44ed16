"""The loop of a replica that runs by itself, and what is told of it: the engine's program for queues in any order.

The other program (``fcfs_reserved``) keeps every queue as a range of request numbers, because requests are admitted in
the order in which they arrive and none goes back to the waiting queue. Here queues are linked lists and a heap, each
request carries what it has computed and generated (``state``), and each trip of the loop is what
``evaluator.reference`` does in an iteration: form a batch (``batch``), let it run or leap (``iteration``), and hand out
its tokens (``iteration_end``). A pipeline (``pipeline``) sends its batches one by one, those that only decode in a
short loop of their own (``rounds``).

``engine.joint`` does with several replicas on one clock what is done here with one. To run a single one there takes
about twice as long, because an arrival is an event of its own, and launch and end are two visits to its numbers: so a
replica that nobody depends on has this loop.

Every phase is a function from state to state. Arrays thus pass through the nested loops one after the other, and XLA
updates them in place; the conventions are explained in ``common.rings``.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float
from evaluator.stations.engine.common.lane import LaneResult, Requests, over_lanes
from evaluator.stations.engine.common.leap import UNBOUNDED, iterations_until, once
from evaluator.stations.engine.preemptive.asynchronous import asynchronous_step
from evaluator.stations.engine.preemptive.batch import form_batch
from evaluator.stations.engine.preemptive.iteration import complete, launch
from evaluator.stations.engine.preemptive.kv import kv_of
from evaluator.stations.engine.preemptive.lane import Given, Lane, PackedLane, Structure, given_to, packed
from evaluator.stations.engine.preemptive.pipeline import pipeline_step
from evaluator.stations.engine.preemptive.state import State, initial_state, no_batch
from evaluator.stations.engine.preemptive.swapping import launched
from evaluator.stations.engine.preemptive.token_ratio import form_by_ratio
from evaluator.stations.engine.preemptive.waiting import any_waiting, arrival_goes_first, arrive, next_arrival


def _until_arrival(given: Given, state: State, first_s: Float, slope_s: Float, repeats: Flag) -> Float:
    """Iterations until a request arrives that may come in at once."""
    arrival_s = next_arrival(given, state)
    may_come_in = (state.replica.running_count < given.limits.max_num_seqs) & (arrival_s < jnp.inf)
    may_come_in = may_come_in & repeats & arrival_goes_first(given, any_waiting(given, state), state.stuck)
    until = once(may_come_in, lambda: iterations_until(arrival_s - state.clock, first_s, slope_s))
    return jnp.where(may_come_in, jnp.clip(until, 1.0, UNBOUNDED), UNBOUNDED)


def _loop_step(given: Given, state: State) -> State:
    """A batch from its forming to its end, or a leap; if the batch is empty, the clock goes on to the next arrival.

    If the batch is empty and no arrival is left, or the waiting queue's head still does not fit, then nothing that is
    to come can change that and the lane can never finish: it stops with ``stuck``.
    """
    if given.new_tokens is not None:
        state, batch = form_by_ratio(given, state, state.clock)
    else:
        # True as an array, which ``Flag`` is: a pipeline forms its batches masked, if there is room for one.
        state, batch = form_batch(given, arrive(given, state), state.clock, ~jnp.zeros((), bool))
    # Nothing comes between a launch and its end but arrivals, which the leap's bound knows: both are in one trip, and
    # the clock jumps from the start of the first iteration to the end of the last.
    running_batch, leap = launch(given, state, batch, functools.partial(_until_arrival, given, state))
    if state.swapped is not None:
        state = launched(state, batch.nonempty)
    # Whoever was preempted for want of KV may be admitted at once: no time passes, and the next trip looks again.
    idle = ~batch.nonempty & ~state.batch.preempted
    took_s = jnp.where(batch.nonempty, leap.took_s, 0.0)
    running_batch = running_batch._replace(end_s=state.clock + took_s)
    clock = jnp.where(idle, next_arrival(given, state), running_batch.end_s)
    stuck = idle & (any_waiting(given, state) | (clock == jnp.inf))
    # KV before tokens: who leaves at the end gives back all that it holds, the KV of the leap's steps included.
    state = kv_of(given).leap(given, state, jnp.where(batch.decodes, running_batch.iterations, 0.0))
    state = kv_of(given).take_for_leap(given, state, jnp.where(batch.nonempty, leap.kv, state.replica.kv))
    kv_unit_s = jnp.where(batch.nonempty, leap.kv_unit_s, 0.0)
    if given.structure.kv_manager is not None:  # it may keep KV while nothing runs; others hold none then
        waits_s = jnp.where(idle & (clock < jnp.inf), clock - state.clock, 0.0)
        kv_unit_s = kv_unit_s + state.replica.kv * waits_s
    state = complete(given, state, running_batch, took_s, kv_unit_s)
    return state._replace(clock=clock, stuck=stuck)


def _run_lane(given: Given, start: State) -> LaneResult:
    loop_step = _loop_step if given.structure.pipeline_ranks == 1 else pipeline_step
    if given.structure.asynchronous:
        loop_step = asynchronous_step
    no_leaf: Any = None  # each trip forms a batch of its own: none is carried from one to the next
    final = lax.while_loop(
        lambda state: (state.finished < given.limits.requests) & ~state.stuck,
        lambda state: loop_step(given, state._replace(batch=no_batch()))._replace(batch=no_leaf),
        start._replace(batch=no_leaf),
    )
    return result_of(final)


def result_of(final: State) -> LaneResult:
    """What is told of a lane that has come to its end."""
    totals = final.totals
    none: Float = jnp.zeros_like(totals.busy_s)  # of several pools a number for each replica
    return LaneResult(
        scheduled_s=final.sequences.scheduled_s[:-1],
        first_token_s=final.sequences.first_token_s[:-1],
        last_token_s=final.sequences.last_token_s[:-1],
        totals=totals._replace(
            decoded=none if final.accepted is None else final.accepted.decoded,
            decoded_tokens=none if final.accepted is None else final.accepted.decoded_tokens,
        ),
        itl_histogram=final.itl_histogram,
        hit_tokens=None if final.cache is None else jnp.maximum(final.cache.hit_tokens[:-1], 0),
    )


@functools.partial(jax.jit, static_argnames=("structure", "vectorise"))
def run_lanes(lanes: Lane, requests: Requests, structure: Structure, vectorise: bool = False) -> LaneResult:
    """Simulate a batch of lanes: ``lanes`` and ``requests`` with a leading ``lane`` axis, and so the result.

    ``vectorise`` as in ``over_lanes``: for accelerators.
    """

    def start(lane: PackedLane, requests: Requests) -> State:
        return initial_state(given_to(lane, requests, structure))

    def run(lane: PackedLane, requests: Requests, start: State) -> LaneResult:
        return _run_lane(given_to(lane, requests, structure), start)

    return over_lanes(start, run, packed(lanes), requests, vectorise)
