"""Rounds of a pipeline: batches that only decode follow one another, and nothing else happens.

Between two events the same decode groups go round: the oldest batch ends, each of its sequences has a token more, and
the decode group is sent again at once. Forming that batch finds nothing to do, and its time in each pipeline rank is
that of the decode group's batch before plus the growth of the contexts (``state.BatchPaces``). So a short loop over
such batches takes the place of whole trips. The batches are still sent one by one, because a rank starts on a batch at
the later of two times, the end of the rank before and the end of its own batch before: which of them is the later may
change at any batch.

A round ends before a batch at whose end a member leaves, joins or fills its attention window, before an arrival that
might come in, and where KV on demand runs out. The trip of a single batch (``pipeline``) then goes on.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import CostParameters, alike_steps, decode_growth, share_touched
from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.arrays import (
    Array,
    Bins,
    Flag,
    Float,
    FloatPerGroup,
    FloatPerRank,
    Int,
    IntPerGroup,
    IntPerRank,
)
from evaluator.stations.engine.common.leap import UNBOUNDED
from evaluator.stations.engine.common.rings import NONE, read, read_once, tagged_count, write
from evaluator.stations.engine.preemptive.batch import Scheduled, may_be_admitted
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.preemption import growth_of
from evaluator.stations.engine.preemptive.state import BatchPaces, RunningBatches, State
from evaluator.stations.engine.preemptive.waiting import next_arrival


def note_pace(given: Given, state: State, batch: Scheduled, took_s: tuple[Float, ...], on: Flag) -> BatchPaces | None:
    """The paces after the batch of the schedulable decode group was sent, if ``on``."""
    batch_paces = state.batch_paces
    if batch_paces is None:
        return None
    decode_group, costs, sums = state.schedulable, given.pipeline_ranks, batch.sums
    growing, first = read(state.decode_groups.growing, decode_group), decode_group * len(costs)
    alike = jnp.full((), UNBOUNDED)
    for cost in costs:
        alike = jnp.minimum(alike, alike_steps(cost, sums))

    def enter(array: Array, index: Int, *values: Array) -> Array:
        for more, value in enumerate(values):
            array = write(array, index + more, jnp.where(on, value, read_once(array, index + more)))
        return array

    return BatchPaces(
        decodes=enter(batch_paces.decodes, decode_group, jnp.where(sums.prefill_tokens > 0, 0.0, sums.decodes)),
        step=enter(batch_paces.step, decode_group, read(state.decode_groups.step, decode_group)),
        took_s=enter(batch_paces.took_s, first, *took_s),
        slope_s=enter(batch_paces.slope_s, first, *(decode_growth(cost, sums, growing) for cost in costs)),
        alike=enter(batch_paces.alike, decode_group, alike),
        touched=enter(batch_paces.touched, decode_group, share_touched(costs[0], sums.decodes + sums.prefill_tokens)),
    )


class Round(NamedTuple):
    """What changes from batch to batch of a round, and what it is for the batch that ends next, the oldest."""

    clock: Float
    passed: Int  # batches that have ended and been sent again
    end_s: FloatPerRank  # of the batches in flight
    decode_groups: IntPerRank  # of the batches in flight
    free_s: tuple[Float, ...]  # by pipeline rank
    steps: IntPerGroup  # done in this round
    gap_from: FloatPerGroup
    kv: Float
    kv_max: Float
    kv_unit_s: Float
    busy_s: Float
    itl_histogram: Bins
    decode_group: Int  # of the oldest batch
    done: Int  # steps of that decode group in this round
    ends_s: Float  # end of the oldest batch
    since_s: Float  # end of its decode group's last step


def go_round(given: Given, state: State, on: Flag) -> State:
    """The state after as many batches as pass before anything but decoding happens, if ``on``.

    ``on`` where the next thing to happen is an arrival or the end of the oldest batch.
    """
    batch_paces, replica, pipeline = state.batch_paces, state.replica, state.pipeline
    assert batch_paces is not None
    # An arrival that could not be admitted anyway does not end a round: nobody looks at it before an event.
    open_to_arrivals = may_be_admitted(given, state)
    # Somebody is on the way, and nothing would be in the next batch but the decode group of the batch that ends: no
    # decode that waits for one, no prompt under way, no preempted request that may come in.
    quiet = (
        on
        & (pipeline.launched_batches > pipeline.completed_batches)
        & (read(state.decode_groups.decodes, state.schedulable) == 0)
        & (state.prompts.oldest(replica.sentinel) == replica.sentinel)
        & ~(open_to_arrivals & (replica.queue.top >= 0))
    )
    if state.swapped is not None:
        # All that could be scheduled may have been swapped out: the copies delay the next batch, which a trip has to
        # send.
        quiet = quiet & (state.swapped.moved == 0.0)
    arrival_s = jnp.where(open_to_arrivals, next_arrival(given, state), jnp.inf)
    first_token_s = read_once(state.sequences.first_token_s, given.limits.measured_from)
    weight = jnp.where(first_token_s < jnp.inf, 1.0, 0.0)
    end = lax.while_loop(
        lambda now: quiet & _goes_on(given, state, batch_paces, now, arrival_s),
        lambda now: _end_and_send(given, state, batch_paces, now, weight),
        _start(given, state),
    )
    return _after(given, state, batch_paces, end)


def _start(given: Given, state: State) -> Round:
    pipeline, running_batches, totals = state.pipeline, state.pipeline.running_batches, state.totals
    slot = pipeline.completed_batches % given.structure.pipeline_ranks
    decode_group, none = read(running_batches.decode_group, slot), jnp.int32(0)
    return Round(
        clock=state.clock,
        passed=none,
        end_s=running_batches.end_s,
        decode_groups=running_batches.decode_group,
        free_s=tuple(pipeline.free_s[rank] for rank in range(given.structure.pipeline_ranks)),
        steps=jnp.zeros_like(state.decode_groups.step),
        gap_from=state.decode_groups.gap_from,
        kv=state.replica.kv,
        kv_max=totals.kv_units_max,
        kv_unit_s=totals.kv_unit_s,
        busy_s=totals.busy_s,
        itl_histogram=state.itl_histogram,
        decode_group=decode_group,
        done=none,
        ends_s=read(running_batches.end_s, slot),
        since_s=read(state.decode_groups.gap_from, decode_group),
    )


def _growth(given: Given, state: State, now: Round) -> Float:
    """KV units that the oldest batch's decode group takes for its next step."""
    if not given.structure.preempts:
        return jnp.zeros((), jnp.float64)
    step = read(state.decode_groups.step, now.decode_group) + now.done + 1
    return jnp.where(given.rules.on_demand, growth_of(given, state, now.decode_group, step), 0.0)


def _goes_on(given: Given, state: State, batch_paces: BatchPaces, now: Round, arrival_s: Float) -> Flag:
    """The oldest batch ends without an event, and its decode group is sent again as it is."""
    structure, ranks, decode_groups = given.structure, given.structure.pipeline_ranks, state.decode_groups
    pipeline, decode_group = state.pipeline, now.decode_group
    under_way, completed_batches = (
        pipeline.launched_batches - pipeline.completed_batches,
        pipeline.completed_batches + now.passed,
    )
    step = read(decode_groups.step, decode_group) + now.done + 1
    cell, slot = structure.cell(decode_group, step), completed_batches % ranks
    # Batches that were on their way before the round may compute prompts, or nothing but these; those sent in it do
    # not.
    plain = read(pipeline.running_batches.decodes, slot) & (read(pipeline.running_batches.completing, slot) < 0)
    goes_on = (
        (plain | (now.passed >= under_way))
        & (read(decode_groups.joined, decode_group) < 0)  # whoever has joined has a gap of its own in the histogram
        & (read(state.rings.leaving, cell) < 0)
        # The pace is that of a batch of these very decodes; 0 where there is none, as of a batch with prompts.
        & (read(batch_paces.decodes, decode_group) == read(decode_groups.decodes, decode_group))
        & (arrival_s > now.ends_s)
        & ((under_way == 1) | (read(now.end_s, (completed_batches + 1) % ranks) > now.ends_s))  # else two end at once
        & (now.kv + _growth(given, state, now) <= given.limits.kv_units)
    )
    if structure.windowed:
        goes_on = goes_on & (tagged_count(state.rings.crossing, cell, step) == 0)
    if not all(isinstance(cost, CostParameters) for cost in given.pipeline_ranks):
        goes_on = goes_on & (step - read(batch_paces.step, decode_group) < read(batch_paces.alike, decode_group))
    return goes_on


def _end_and_send(given: Given, state: State, batch_paces: BatchPaces, now: Round, weight: Float) -> Round:
    """The oldest batch ends, and its decode group starts on its next step."""
    ranks, decode_group, done = given.structure.pipeline_ranks, now.decode_group, now.done + 1
    decodes = read(state.decode_groups.decodes, decode_group)
    ahead = (read(state.decode_groups.step, decode_group) + done - read(batch_paces.step, decode_group)).astype(
        jnp.float64
    )
    clock, free, busy = now.ends_s, [], jnp.zeros(())
    for rank, free_s in enumerate(now.free_s):
        cell = decode_group * ranks + rank
        took_s = read(batch_paces.took_s, cell) + ahead * read(batch_paces.slope_s, cell)
        clock = jnp.maximum(clock, free_s) + took_s
        free.append(clock)
        busy = busy + took_s
    kv = now.kv + _growth(given, state, now)
    completed_batches, launched_batches = (
        state.pipeline.completed_batches + now.passed,
        state.pipeline.launched_batches + now.passed,
    )
    old, new = completed_batches % ranks, launched_batches % ranks
    end_s = write(now.end_s, new, clock)
    decode_groups = write(
        write(now.decode_groups, old, read_once(now.decode_groups, new)), new, decode_group
    )  # an empty one for this one
    steps, gap_from = write(now.steps, decode_group, done), write(now.gap_from, decode_group, now.ends_s)
    slot = (completed_batches + 1) % ranks
    following = read(decode_groups, slot)
    return Round(
        clock=now.ends_s,
        passed=now.passed + 1,
        end_s=end_s,
        decode_groups=decode_groups,
        free_s=tuple(free),
        steps=steps,
        gap_from=gap_from,
        kv=kv,
        kv_max=jnp.maximum(now.kv_max, kv),
        kv_unit_s=now.kv_unit_s + now.kv * (now.ends_s - now.clock),
        busy_s=now.busy_s + busy / ranks,
        itl_histogram=histogram.enter(now.itl_histogram, now.ends_s - now.since_s, weight * decodes),
        decode_group=following,
        done=read(steps, following),
        ends_s=read(end_s, slot),
        since_s=read(gap_from, following),
    )


def _after(given: Given, state: State, batch_paces: BatchPaces, end: Round) -> State:
    """The state after a round; a batch that was sent in it has decodes and completes no prompt."""
    ranks, decode_groups, pipeline = given.structure.pipeline_ranks, state.decode_groups, state.pipeline
    launched_batches, grown = pipeline.launched_batches + end.passed, end.steps.astype(jnp.float64)
    ago = (launched_batches - 1 - jnp.arange(ranks, dtype=jnp.int32)) % ranks
    decode_groups = decode_groups._replace(
        step=decode_groups.step + end.steps,
        context=decode_groups.context + grown * decode_groups.decodes,
        gap_from=end.gap_from,
    )
    if given.structure.windowed:
        decode_groups = decode_groups._replace(
            window_context=decode_groups.window_context + grown * decode_groups.growing
        )
    state = state.in_pipeline(
        launched_batches=launched_batches,
        completed_batches=pipeline.completed_batches + end.passed,
        running_batches=RunningBatches(
            end_s=end.end_s,
            decodes=pipeline.running_batches.decodes | (ago < end.passed),
            decode_group=end.decode_groups,
            completing=jnp.where(ago < end.passed, NONE, pipeline.running_batches.completing),
        ),
        free_s=jnp.stack(end.free_s),
    )
    state = state.at_replica(kv=end.kv, decode_iterations=state.replica.decode_iterations + end.passed)
    state = state.in_totals(
        busy_s=end.busy_s,
        iterations=state.totals.iterations + end.passed,
        kv_units_max=end.kv_max,
        kv_unit_s=end.kv_unit_s,
        experts_touched=state.totals.experts_touched + jnp.sum(grown * batch_paces.touched),
    )
    return state._replace(clock=end.clock, decode_groups=decode_groups, itl_histogram=end.itl_histogram)
