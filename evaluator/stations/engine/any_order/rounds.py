"""Rounds of a pipeline: batches that only decode follow one another, and nothing else happens.

Between two events the same cohorts go round: the oldest batch lands, each of its sequences has a token more, and the
cohort is sent again at once. Forming that batch finds nothing to do, and its time in each pipeline rank is that of the
cohort's batch before plus the growth of the contexts (``state.Paces``). So a short loop over such batches takes the
place of whole trips. The batches are still sent one by one, because a rank starts on a batch at the later of two times,
the end of the rank before and the end of its own batch before: which of them is the later may change at any batch.

A round ends before a batch at whose end a member leaves, joins or fills its attention window, before an arrival that
might come in, and where KV on demand runs out. The trip of a single batch (``pipeline``) then goes on.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import CostParameters, alike_steps, decode_growth, share_touched
from evaluator.stations.engine.any_order.batch import Scheduled, may_be_admitted
from evaluator.stations.engine.any_order.lane import Given
from evaluator.stations.engine.any_order.preemption import growth_of
from evaluator.stations.engine.any_order.state import Flights, Paces, State, Waiting
from evaluator.stations.engine.any_order.waiting import next_arrival
from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.arrays import (
    Array,
    Bins,
    Flag,
    Float,
    FloatPerCohort,
    FloatPerRank,
    Int,
    IntPerCohort,
    IntPerRank,
)
from evaluator.stations.engine.common.leap import UNBOUNDED
from evaluator.stations.engine.common.rings import NONE, read, read_once, tagged_count, write


def note_pace(given: Given, state: State, batch: Scheduled, took_s: tuple[Float, ...], on: Flag) -> Paces | None:
    """The paces after the cohort at rest was sent, if ``on``."""
    paces = state.paces
    if paces is None:
        return None
    cohort, costs, sums = state.at_rest, given.pipeline_ranks, batch.sums
    growing, first = read(state.cohorts.growing, cohort), cohort * len(costs)
    alike = jnp.full((), UNBOUNDED)
    for cost in costs:
        alike = jnp.minimum(alike, alike_steps(cost, sums))

    def enter(array: Array, index: Int, *values: Array) -> Array:
        for more, value in enumerate(values):
            array = write(array, index + more, jnp.where(on, value, read_once(array, index + more)))
        return array

    return Paces(
        decodes=enter(paces.decodes, cohort, jnp.where(sums.prefill_tokens > 0, 0.0, sums.decodes)),
        step=enter(paces.step, cohort, read(state.cohorts.step, cohort)),
        took_s=enter(paces.took_s, first, *took_s),
        slope_s=enter(paces.slope_s, first, *(decode_growth(cost, sums, growing) for cost in costs)),
        alike=enter(paces.alike, cohort, alike),
        touched=enter(paces.touched, cohort, share_touched(costs[0], sums.decodes + sums.prefill_tokens)),
    )


class Round(NamedTuple):
    """What changes from batch to batch of a round, and what it is for the batch that lands next, the oldest."""

    clock: Float
    passed: Int  # batches that have landed and been sent again
    end_s: FloatPerRank  # of the flights
    cohorts: IntPerRank  # of the flights
    free_s: tuple[Float, ...]  # by pipeline rank
    steps: IntPerCohort  # done in this round
    gap_from: FloatPerCohort
    kv: Float
    kv_max: Float
    kv_unit_s: Float
    busy_s: Float
    itl_histogram: Bins
    cohort: Int  # of the oldest batch
    done: Int  # steps of that cohort in this round
    lands_s: Float  # end of the oldest batch
    since_s: Float  # end of its cohort's last step


def go_round(given: Given, state: State, on: Flag) -> State:
    """The state after as many batches as pass before anything but decoding happens, if ``on``.

    ``on`` where the next thing to happen is an arrival or the end of the oldest batch.
    """
    paces, waiting = state.paces, state.waiting
    assert paces is not None and isinstance(waiting, Waiting)
    open_to_arrivals = may_be_admitted(given, state)
    quiet = (
        on
        & (state.sent > state.landed)
        & (read(state.cohorts.decodes, state.at_rest) == 0)
        & (state.prompts.oldest() == state.prompts.sentinel)
        & ~(open_to_arrivals & (waiting.size > 0))
    )
    arrival_s = jnp.where(open_to_arrivals, next_arrival(given, waiting), jnp.inf)
    first_token_s = read_once(state.sequences.first_token_s, given.limits.measured_from)
    weight = jnp.where(first_token_s < jnp.inf, 1.0, 0.0)
    end = lax.while_loop(
        lambda now: quiet & _goes_on(given, state, paces, now, arrival_s),
        lambda now: _land_and_send(given, state, paces, now, weight),
        _start(given, state),
    )
    return _after(given, state, paces, end)


def _start(given: Given, state: State) -> Round:
    slot = state.landed % given.structure.pipeline_ranks
    cohort, none = read(state.flights.cohort, slot), jnp.int32(0)
    return Round(
        clock=state.clock,
        passed=none,
        end_s=state.flights.end_s,
        cohorts=state.flights.cohort,
        free_s=tuple(state.free_s[rank] for rank in range(given.structure.pipeline_ranks)),
        steps=jnp.zeros_like(state.cohorts.step),
        gap_from=state.cohorts.gap_from,
        kv=state.kv,
        kv_max=state.kv_max,
        kv_unit_s=state.kv_unit_s,
        busy_s=state.busy_s,
        itl_histogram=state.itl_histogram,
        cohort=cohort,
        done=none,
        lands_s=read(state.flights.end_s, slot),
        since_s=read(state.cohorts.gap_from, cohort),
    )


def _growth(given: Given, state: State, now: Round) -> Float:
    """KV units that the oldest batch's cohort takes for its next step."""
    step = read(state.cohorts.step, now.cohort) + now.done + 1
    return jnp.where(given.rules.on_demand, growth_of(given, state, now.cohort, step), 0.0)


def _goes_on(given: Given, state: State, paces: Paces, now: Round, arrival_s: Float) -> Flag:
    """The oldest batch lands without an event, and its cohort is sent again as it is."""
    structure, ranks, cohorts = given.structure, given.structure.pipeline_ranks, state.cohorts
    cohort, flying, landed = now.cohort, state.sent - state.landed, state.landed + now.passed
    step = read(cohorts.step, cohort) + now.done + 1
    cell, slot = cohort * structure.ring + step % structure.ring, landed % ranks
    plain = read(state.flights.decodes, slot) & (read(state.flights.completing, slot) < 0)
    goes_on = (
        (plain | (now.passed >= flying))
        & (read(cohorts.fresh, cohort) < 0)
        & (read(state.rings.leaving, cell) < 0)
        & (read(paces.decodes, cohort) == read(cohorts.decodes, cohort))
        & (arrival_s > now.lands_s)
        & ((flying == 1) | (read(now.end_s, (landed + 1) % ranks) > now.lands_s))  # else two land at once
        & (now.kv + _growth(given, state, now) <= given.limits.kv_units)
    )
    if structure.windowed:
        goes_on = goes_on & (tagged_count(state.rings.crossing, cell, step) == 0)
    if not all(isinstance(cost, CostParameters) for cost in given.pipeline_ranks):
        goes_on = goes_on & (step - read(paces.step, cohort) < read(paces.alike, cohort))
    return goes_on


def _land_and_send(given: Given, state: State, paces: Paces, now: Round, weight: Float) -> Round:
    """The oldest batch lands, and its cohort starts on its next step."""
    ranks, cohort, done = given.structure.pipeline_ranks, now.cohort, now.done + 1
    decodes = read(state.cohorts.decodes, cohort)
    ahead = (read(state.cohorts.step, cohort) + done - read(paces.step, cohort)).astype(jnp.float64)
    clock, free, busy = now.lands_s, [], jnp.zeros(())
    for rank, free_s in enumerate(now.free_s):
        cell = cohort * ranks + rank
        took_s = read(paces.took_s, cell) + ahead * read(paces.slope_s, cell)
        clock = jnp.maximum(clock, free_s) + took_s
        free.append(clock)
        busy = busy + took_s
    kv = now.kv + _growth(given, state, now)
    old, new = (state.landed + now.passed) % ranks, (state.sent + now.passed) % ranks
    end_s = write(now.end_s, new, clock)
    cohorts = write(write(now.cohorts, old, read_once(now.cohorts, new)), new, cohort)  # an empty one for this one
    steps, gap_from = write(now.steps, cohort, done), write(now.gap_from, cohort, now.lands_s)
    slot = (state.landed + now.passed + 1) % ranks
    following = read(cohorts, slot)
    return Round(
        clock=now.lands_s,
        passed=now.passed + 1,
        end_s=end_s,
        cohorts=cohorts,
        free_s=tuple(free),
        steps=steps,
        gap_from=gap_from,
        kv=kv,
        kv_max=jnp.maximum(now.kv_max, kv),
        kv_unit_s=now.kv_unit_s + now.kv * (now.lands_s - now.clock),
        busy_s=now.busy_s + busy / ranks,
        itl_histogram=histogram.enter(now.itl_histogram, now.lands_s - now.since_s, weight * decodes),
        cohort=following,
        done=read(steps, following),
        lands_s=read(end_s, slot),
        since_s=read(gap_from, following),
    )


def _after(given: Given, state: State, paces: Paces, end: Round) -> State:
    """The state after a round; a flight that was sent in it has decodes and completes no prompt."""
    ranks, cohorts, flights = given.structure.pipeline_ranks, state.cohorts, state.flights
    sent, grown = state.sent + end.passed, end.steps.astype(jnp.float64)
    ago = (sent - 1 - jnp.arange(ranks, dtype=jnp.int32)) % ranks
    cohorts = cohorts._replace(
        step=cohorts.step + end.steps,
        context=cohorts.context + grown * cohorts.decodes,
        gap_from=end.gap_from,
    )
    if given.structure.windowed:
        cohorts = cohorts._replace(window_context=cohorts.window_context + grown * cohorts.growing)
    return state._replace(
        clock=end.clock,
        cohorts=cohorts,
        flights=Flights(
            end_s=end.end_s,
            decodes=flights.decodes | (ago < end.passed),
            cohort=end.cohorts,
            completing=jnp.where(ago < end.passed, NONE, flights.completing),
        ),
        sent=sent,
        landed=state.landed + end.passed,
        free_s=jnp.stack(end.free_s),
        decode_iterations=state.decode_iterations + end.passed,
        iterations=state.iterations + end.passed,
        kv=end.kv,
        kv_max=end.kv_max,
        kv_unit_s=end.kv_unit_s,
        busy_s=end.busy_s,
        experts_touched=state.experts_touched + jnp.sum(grown * paces.touched),
        itl_histogram=end.itl_histogram,
    )
