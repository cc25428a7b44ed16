"""A lane with several pipeline ranks: as many batches in flight as there are ranks.

Batches are numbered as they are sent and end in that order. Each trip of the loop sends a batch if there is room for
one, and otherwise, or after the last that fits, moves the clock to what comes next: the end of the oldest batch, or an
arrival that could be sent at once.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import share_touched
from evaluator.cost.quantities import batch_tokens
from evaluator.stations.engine.common.arrays import Array, Flag, Float
from evaluator.stations.engine.common.leap import batch_time
from evaluator.stations.engine.common.rings import NONE, read, read_once, write
from evaluator.stations.engine.preemptive.batch import Scheduled, form_batch, scheduled
from evaluator.stations.engine.preemptive.iteration_end import IterationEnd, complete_iteration
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.rounds import go_round, note_pace
from evaluator.stations.engine.preemptive.state import State, no_batch
from evaluator.stations.engine.preemptive.waiting import arrive, next_arrival


def pipeline_step(given: Given, state: State) -> State:
    """Send a batch, if there is room; if no other can follow at once, the clock goes on to what comes next.

    Before it does, all batches pass that only decode what was decoded before (``rounds``).
    A batch is not formed while the oldest one has ended but not landed, because its tokens come first.
    """
    ranks = given.structure.pipeline_ranks
    oldest = state.completed_batches % ranks
    ended = (state.launched_batches > state.completed_batches) & (
        read(state.running_batches.end_s, oldest) <= state.clock
    )
    room = (state.launched_batches - state.completed_batches < ranks) & ~ended
    state = arrive(given, state._replace(batch=no_batch()))
    start_s = jnp.maximum(state.clock, state.free_s[0])
    state = form_batch(given, state, start_s, room)
    batch = scheduled(given, state)
    goes = room & batch.there
    state = send_batch(given, state, batch, start_s, goes)
    again = (goes | (room & state.batch.preempted)) & (state.launched_batches - state.completed_batches < ranks)
    if given.speculation is None:
        state = go_round(given, state, ~again)
    return _move_on(given, state, ~again)


def _rank_times(given: Given, batch: Scheduled, on: Flag) -> tuple[Float, ...]:
    """Seconds of the batch in each pipeline rank; many trips send none, and do not compute any."""
    costs = given.pipeline_ranks
    zeros = (jnp.zeros((), jnp.float64),) * len(costs)
    return lax.cond(on, lambda: tuple(batch_time(cost, batch.sums) for cost in costs), lambda: zeros)


def send_batch(given: Given, state: State, batch: Scheduled, start_s: Float, on: Flag) -> State:
    """The batch enters the pipeline, if ``on``, and its decodes are no longer at rest.

    Each rank begins with it when the rank before has ended with it and the rank has ended with the batch before.
    """
    clock, free, busy = start_s, [], jnp.zeros(())
    times = _rank_times(given, batch, on)
    for pipeline_rank, took_s in enumerate(times):
        clock = jnp.maximum(clock, state.free_s[pipeline_rank]) + took_s
        free.append(clock)
        busy = busy + took_s
    ranks = given.structure.pipeline_ranks
    slot = state.launched_batches % ranks
    running_batches, decodes = state.running_batches, on & batch.decodes
    spare = read(running_batches.decode_group, slot)

    def enter(array: Array, value: Array) -> Array:
        return write(array, slot, jnp.where(on, value, read_once(array, slot)))

    touched = jnp.asarray(share_touched(given.pipeline_ranks[0], batch_tokens(given.pipeline_ranks[0], batch.sums)))
    return state._replace(
        running_batches=running_batches._replace(
            end_s=enter(running_batches.end_s, clock),
            decodes=enter(running_batches.decodes, batch.decodes),
            decode_group=write(running_batches.decode_group, slot, jnp.where(decodes, state.schedulable, spare)),
            completing=enter(running_batches.completing, state.batch.completing),
        ),
        schedulable=jnp.where(decodes, spare, state.schedulable),
        launched_batches=state.launched_batches + on,
        decode_iterations=state.decode_iterations + decodes,
        free_s=jnp.where(on, jnp.stack(free), state.free_s),
        kv_max=jnp.where(on, jnp.maximum(state.kv_max, state.kv), state.kv_max),
        busy_s=state.busy_s + jnp.where(on, busy / ranks, 0.0),
        experts_touched=state.experts_touched + jnp.where(on, touched, 0.0),
        batch_paces=note_pace(given, state, batch, times, decodes),
    )


def _move_on(given: Given, state: State, on: Flag) -> State:
    """The clock goes on, if ``on``, to the end of the oldest batch or, if another may be sent, to the next arrival.

    If no batch is in flight and no arrival is left, the lane can never finish: it stops with ``stuck``.
    """
    ranks = given.structure.pipeline_ranks
    slot = state.completed_batches % ranks
    flies = state.launched_batches > state.completed_batches
    end_s = jnp.where(flies, read(state.running_batches.end_s, slot), jnp.inf)
    arrival_s = next_arrival(given, state.waiting)
    may_send = (state.launched_batches - state.completed_batches < ranks) & (arrival_s > state.clock)
    until_s = jnp.minimum(end_s, jnp.where(may_send, arrival_s, jnp.inf))
    stuck = on & (until_s == jnp.inf)
    clock = jnp.where(on & ~stuck, until_s, state.clock)
    lands = on & flies & (end_s <= until_s)
    decodes = lands & read(state.running_batches.decodes, slot)
    completing = jnp.where(lands, read(state.running_batches.completing, slot), NONE)
    iteration_end = IterationEnd(
        read(state.running_batches.decode_group, slot), decodes.astype(jnp.int32), clock, clock, completing
    )
    kv_unit_s = state.kv_unit_s + state.kv * (clock - state.clock)
    state = state._replace(clock=clock, stuck=stuck, kv_unit_s=kv_unit_s, iterations=state.iterations + lands)
    state = complete_iteration(given, state, iteration_end)
    return state._replace(completed_batches=state.completed_batches + lands)
