"""A lane with several pipeline ranks: as many batches in flight as there are ranks.

Batches are numbered as they are sent and end in that order. Each trip of the loop sends a batch if there is room for
one, and otherwise, or after the last that fits, moves the clock to what comes next: the end of the oldest batch, or an
arrival that could be sent at once.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import share_touched
from evaluator.cost.quantities import batch_tokens, raised
from evaluator.stations.engine.common.arrays import Array, Flag, Float
from evaluator.stations.engine.common.leap import batch_time
from evaluator.stations.engine.common.rings import NONE, read, read_once, write
from evaluator.stations.engine.preemptive.batch import Scheduled, form_batch
from evaluator.stations.engine.preemptive.iteration_end import IterationEnd, MeasuredSteps, complete_iteration
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.rounds import go_round, note_pace
from evaluator.stations.engine.preemptive.state import State
from evaluator.stations.engine.preemptive.swapping import copy_s, launched
from evaluator.stations.engine.preemptive.waiting import arrive, next_arrival


def pipeline_step(given: Given, state: State) -> State:
    """Send a batch, if there is room; if no other can follow at once, the clock goes on to what comes next.

    Before it does, all batches pass that only decode what was decoded before (``rounds``). A batch is not formed while
    the oldest one has ended but is not completed, because its tokens come first.
    """
    ended = oldest_end(state) <= state.clock
    room = has_room(given, state) & ~ended
    state = arrive(given, state)
    start_s = jnp.maximum(state.clock, state.pipeline.free_s[0])
    state, batch = form_batch(given, state, start_s, room)
    goes = room & batch.nonempty
    state = send_batch(given, state, batch, start_s, goes)
    if state.swapped is not None:
        state = launched(state, goes)
    again = (goes | (room & state.batch.preempted)) & has_room(given, state)
    if state.batch_paces is not None:
        state = go_round(given, state, ~again)
    return _move_on(given, state, ~again)


def _rank_times(given: Given, batch: Scheduled, on: Flag) -> tuple[Float, ...]:
    """Seconds of the batch in each pipeline rank; many trips send none, and do not compute any."""
    costs = given.pipeline_ranks
    zeros = (jnp.zeros((), jnp.float64),) * len(costs)
    return lax.cond(on, lambda: tuple(batch_time(cost, batch.sums) for cost in costs), lambda: zeros)


class Passage(NamedTuple):
    """What a batch takes in each pipeline rank, where its own statistics do not say it (``joint.lockstep``)."""

    times: tuple[Float, ...]
    touched: Float  # fraction of the experts


def send_batch(
    given: Given, state: State, batch: Scheduled, start_s: Float, on: Flag, passage: Passage | None = None
) -> State:
    """The batch enters the pipeline, if ``on``, and its decodes are no longer schedulable.

    Each rank begins with it when the rank before has ended with it and the rank has ended with the batch before.
    """
    pipeline = state.pipeline
    clock, free, busy = start_s, [], jnp.zeros(())
    times = _rank_times(given, batch, on) if passage is None else passage.times
    # Copies to and from host memory delay this batch alone: what the next ones take follows from ``times``.
    copies_s = None if state.swapped is None else jnp.where(on, copy_s(given, state), 0.0)
    # A rank starts on the batch at the later of two times: the rank before is done with it, or it with the one before.
    for pipeline_rank, time_s in enumerate(times):
        took_s = time_s if copies_s is None else time_s + copies_s
        if given.ranks is not None:  # nor does anybody wait in a rank that the pool does not have
            took_s = jnp.where(pipeline_rank < given.ranks, took_s, 0.0)
        clock = jnp.maximum(clock, pipeline.free_s[pipeline_rank]) + took_s
        free.append(clock)
        busy = busy + took_s
    ranks = given.structure.pipeline_ranks
    slot = pipeline.launched_batches % ranks
    running_batches, decodes = pipeline.running_batches, on & batch.decodes
    # The batch that had this cell before left an empty decode group there: it takes the place of the one that goes.
    spare = read(running_batches.decode_group, slot)

    def enter(array: Array, value: Array) -> Array:
        return write(array, slot, jnp.where(on, value, read_once(array, slot)))

    first = given.pipeline_ranks[0]
    touched = jnp.asarray(share_touched(first, batch_tokens(first, batch.sums)) if passage is None else passage.touched)
    batch_paces = note_pace(given, state, batch, times, decodes)
    state = state.in_pipeline(
        schedulable=jnp.where(decodes, spare, pipeline.schedulable),
        launched_batches=pipeline.launched_batches + on,
        running_batches=running_batches._replace(
            end_s=enter(running_batches.end_s, clock),
            decodes=enter(running_batches.decodes, batch.decodes),
            decode_group=write(running_batches.decode_group, slot, jnp.where(decodes, pipeline.schedulable, spare)),
            completing=enter(running_batches.completing, state.batch.completing),
        ),
        free_s=jnp.where(on, jnp.stack(free), pipeline.free_s),
        prefill_tokens=enter(pipeline.prefill_tokens, batch.sums.prefill_tokens),
    )
    totals, replica = state.totals, state.replica
    state = state.at_replica(decode_iterations=replica.decode_iterations + decodes).in_totals(
        kv_units_max=jnp.where(on, jnp.maximum(totals.kv_units_max, replica.kv), totals.kv_units_max),
        busy_s=totals.busy_s + jnp.where(on, busy / given.batches_under_way(), 0.0),
        experts_touched=totals.experts_touched + jnp.where(on, touched, 0.0),
        # A fit to measurements is of one rank: only beside a pool with a pipeline does it come here.
        peaks=raised(first, totals.peaks, batch.sums, jnp.float64(1.0)),
    )
    return state._replace(batch_paces=batch_paces)


def has_room(given: Given, state: State) -> Flag:
    """Fewer batches are in flight than there are ranks."""
    return state.pipeline.launched_batches - state.pipeline.completed_batches < given.batches_under_way()


def oldest_end(state: State) -> Float:
    """When the oldest batch in flight ends; infinite if there is none."""
    launched_batches, completed_batches, running_batches = (
        state.pipeline.launched_batches,
        state.pipeline.completed_batches,
        state.pipeline.running_batches,
    )
    return jnp.where(
        launched_batches > completed_batches,
        read(running_batches.end_s, completed_batches % running_batches.end_s.shape[0]),
        jnp.inf,
    )


def complete_oldest(
    given: Given, state: State, on: Flag, measured: MeasuredSteps | None = None, counts: Flag | bool = True
) -> State:
    """The oldest batch in flight has come to its end at the time of the clock, if ``on``; it ``counts`` as an iteration
    if it is no dummy beside those of other data-parallel ranks."""
    pipeline, clock = state.pipeline, state.clock
    slot, running_batches = pipeline.completed_batches % given.structure.pipeline_ranks, pipeline.running_batches
    decodes = on & read(running_batches.decodes, slot)
    completing = jnp.where(on, read(running_batches.completing, slot), NONE)
    iteration_end = IterationEnd(
        read(running_batches.decode_group, slot), decodes.astype(jnp.int32), clock, clock, completing, measured
    )
    state = complete_iteration(
        given, state.in_totals(iterations=state.totals.iterations + (on & counts)), iteration_end
    )
    return state.in_pipeline(completed_batches=state.pipeline.completed_batches + on)


def _move_on(given: Given, state: State, on: Flag) -> State:
    """The clock goes on, if ``on``, to the end of the oldest batch or, if another may be sent, to the next arrival.

    If no batch is in flight and no arrival is left, the lane can never finish: it stops with ``stuck``.
    """
    end_s, arrival_s = oldest_end(state), next_arrival(given, state)
    may_send = has_room(given, state) & (arrival_s > state.clock)
    until_s = jnp.minimum(end_s, jnp.where(may_send, arrival_s, jnp.inf))
    stuck = on & (until_s == jnp.inf)
    clock = jnp.where(on & ~stuck, until_s, state.clock)
    ends = on & (end_s < jnp.inf) & (end_s <= until_s)
    kv_unit_s = state.totals.kv_unit_s + state.replica.kv * (clock - state.clock)
    state = state.in_totals(kv_unit_s=kv_unit_s)._replace(clock=clock, stuck=stuck)
    return complete_oldest(given, state, ends)
