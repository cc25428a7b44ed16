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
from evaluator.stations.engine.any_order.state import Cohorts, Flights, Paces, State
from evaluator.stations.engine.any_order.waiting import next_arrival
from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.arrays import Array, Bins, Flag, Float, FloatPerRank, Int
from evaluator.stations.engine.common.rings import add, read, read_once, tagged_count, write


def note_pace(given: Given, state: State, batch: Scheduled, took_s: tuple[Float, ...], on: Flag) -> Paces | None:
    """The paces after the cohort at rest was sent, if ``on``: what a batch of the same decodes will take next."""
    paces = state.paces
    if paces is None:
        return None
    cohort, costs, sums = state.at_rest, given.pipeline_ranks, batch.sums
    growing, first = read(state.cohorts.growing, cohort), cohort * len(costs)
    slopes = [decode_growth(cost, sums, growing) for cost in costs]

    def enter(array: Array, index: Int, values: list[Float]) -> Array:
        old = lax.dynamic_slice(array, (index,), (len(values),))
        return lax.dynamic_update_slice(array, jnp.where(on, jnp.stack(values), old), (index,))

    least = jnp.asarray(1e9)
    for cost in costs:
        least = jnp.minimum(least, alike_steps(cost, sums))
    touched = jnp.asarray(share_touched(costs[0], sums.decodes + sums.prefill_tokens), jnp.float64)
    return Paces(
        decodes=enter(paces.decodes, cohort, [jnp.where(sums.prefill_tokens > 0, 0.0, sums.decodes)]),
        took_s=enter(paces.took_s, first, [took + slope for took, slope in zip(took_s, slopes, strict=True)]),
        slope_s=enter(paces.slope_s, first, slopes),
        steps=enter(paces.steps, cohort, [least - 1.0]),
        touched=enter(paces.touched, cohort, [touched]),
    )


class Round(NamedTuple):
    """What of the state changes from batch to batch of a round."""

    clock: Float
    sent: Int
    landed: Int
    at_rest: Int  # an empty cohort
    flights: Flights
    free_s: FloatPerRank
    cohorts: Cohorts
    paces: Paces
    kv: Float
    kv_max: Float
    kv_unit_s: Float
    busy_s: Float
    experts_touched: Float
    itl_histogram: Bins


class Next(NamedTuple):
    """The oldest batch, which lands next."""

    slot: Int
    cohort: Int
    step: Int  # of the cohort, after the landing
    end_s: Float
    growth: Float  # KV units that the batch sent after it takes


def _next(given: Given, state: State, now: Round) -> Next:
    slot = now.landed % given.structure.pipeline_ranks
    cohort = read(now.flights.cohort, slot)
    step = read(now.cohorts.step, cohort) + 1
    growth = jnp.where(given.rules.on_demand, growth_of(given, state, cohort, step), 0.0)
    return Next(slot, cohort, step, read(now.flights.end_s, slot), growth)


def go_round(given: Given, state: State, on: Flag) -> State:
    """The state after as many batches as pass before anything but decoding happens, if ``on``: the same flights.

    ``on`` where the next thing to happen is an arrival or the end of the oldest batch.
    """
    paces = state.paces
    assert paces is not None
    at_rest_is_empty = read(state.cohorts.decodes, state.at_rest) == 0
    quiet = on & at_rest_is_empty & (state.prompts.oldest() == state.prompts.sentinel)
    arrival_s = jnp.where(may_be_admitted(given, state), next_arrival(given, state.waiting), jnp.inf)
    waits = may_be_admitted(given, state) & (state.waiting.size > 0)
    first_token_s = read_once(state.sequences.first_token_s, given.limits.measured_from)
    weight = jnp.where(first_token_s < jnp.inf, 1.0, 0.0)
    start = Round(*(getattr(state, name) for name in Round._fields))
    end = lax.while_loop(
        lambda now: quiet & ~waits & _goes_on(given, state, now, arrival_s),
        lambda now: _land_and_send(given, state, now, weight),
        start,
    )
    passed = end.sent - start.sent
    return state._replace(
        **end._asdict(),
        decode_iterations=state.decode_iterations + passed,
        iterations=state.iterations + passed,
    )


def _goes_on(given: Given, state: State, now: Round, arrival_s: Float) -> Flag:
    """The oldest batch lands without an event, and its cohort is sent again as it is."""
    structure, ranks = given.structure, given.structure.pipeline_ranks
    one = _next(given, state, now)
    cohort, flights = one.cohort, now.flights
    cell = cohort * structure.ring + one.step % structure.ring
    flying = now.sent - now.landed
    alone = (flying == 1) | (read(flights.end_s, (now.landed + 1) % ranks) > one.end_s)
    goes_on = (
        (flying > 0)
        & read(flights.decodes, one.slot)
        & (read(flights.completing, one.slot) < 0)
        & (read(now.cohorts.fresh, cohort) < 0)
        & (read(state.rings.leaving, cell) < 0)
        & (read(now.paces.decodes, cohort) == read(now.cohorts.decodes, cohort))
        & (arrival_s > one.end_s)
        & alone
        & (now.kv + one.growth <= given.limits.kv_units)
    )
    if structure.windowed:
        goes_on = goes_on & (tagged_count(state.rings.crossing, cell, one.step) == 0)
    if not all(isinstance(cost, CostParameters) for cost in given.pipeline_ranks):
        goes_on = goes_on & (read(now.paces.steps, cohort) >= 1.0)
    return goes_on


def _land_and_send(given: Given, state: State, now: Round, weight: Float) -> Round:
    """The oldest batch lands, and its cohort starts on its next step."""
    ranks, one, decodes = given.structure.pipeline_ranks, _next(given, state, now), None
    cohort, cohorts, paces = one.cohort, now.cohorts, now.paces
    decodes, first = read(cohorts.decodes, cohort), cohort * ranks
    bins = histogram.enter(now.itl_histogram, one.end_s - read(cohorts.gap_from, cohort), weight * decodes)
    took_s = lax.dynamic_slice(paces.took_s, (first,), (ranks,))
    slope_s = lax.dynamic_slice(paces.slope_s, (first,), (ranks,))
    clock, free, busy = one.end_s, [], jnp.zeros(())
    for rank in range(ranks):
        clock = jnp.maximum(clock, now.free_s[rank]) + took_s[rank]
        free.append(clock)
        busy = busy + took_s[rank]
    slot, kv = now.sent % ranks, now.kv + one.growth
    # The cohort at rest, which is empty, changes places with the one that landed, and that one with the flight's.
    resting = write(now.flights.cohort, one.slot, now.at_rest)
    flights = now.flights._replace(
        end_s=write(now.flights.end_s, slot, clock),
        decodes=write(now.flights.decodes, slot, True),
        cohort=write(resting, slot, cohort),
        completing=write(now.flights.completing, slot, -1),
    )
    cohorts = cohorts._replace(
        step=write(cohorts.step, cohort, one.step),
        context=add(cohorts.context, cohort, decodes),
        gap_from=write(cohorts.gap_from, cohort, one.end_s),
    )
    if given.structure.windowed:
        growing = read(cohorts.growing, cohort)
        cohorts = cohorts._replace(window_context=add(cohorts.window_context, cohort, growing))
    return Round(
        clock=one.end_s,
        sent=now.sent + 1,
        landed=now.landed + 1,
        at_rest=read(resting, slot),
        flights=flights,
        free_s=jnp.stack(free),
        cohorts=cohorts,
        paces=paces._replace(
            took_s=lax.dynamic_update_slice(paces.took_s, took_s + slope_s, (first,)),
            steps=add(paces.steps, cohort, -1.0),
        ),
        kv=kv,
        kv_max=jnp.maximum(now.kv_max, kv),
        kv_unit_s=now.kv_unit_s + now.kv * (one.end_s - now.clock),
        busy_s=now.busy_s + busy / ranks,
        experts_touched=now.experts_touched + read(paces.touched, cohort),
        itl_histogram=bins,
    )
