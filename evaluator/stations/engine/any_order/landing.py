"""The end of an iteration, or of a leap over iterations of the same batch: tokens, gaps between them, departures."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.any_order import prefix_cache
from evaluator.stations.engine.any_order.chains import turned
from evaluator.stations.engine.any_order.cohorts import join, known_tokens, leave
from evaluator.stations.engine.any_order.lane import Given
from evaluator.stations.engine.any_order.preemption import own_units
from evaluator.stations.engine.any_order.state import Line, State, Waiting
from evaluator.stations.engine.any_order.uneven import held_tokens, way_since
from evaluator.stations.engine.any_order.waiting import answer, deliver, seen_s
from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.rings import NONE, add, read, read_once, tagged_count, unmark, write


class Measured(NamedTuple):
    """Of several replicas that run together, another one may end the warm-up while this one is within a leap."""

    since_s: Float  # the first token of the first measured request, if it is there
    steps: Int  # how many of the steps after the first end later


class Landing(NamedTuple):
    """A batch that has come to its end."""

    cohort: Int  # whose decodes were in it
    steps: Int  # that the cohort took; 0 without decodes, or if no batch has ended
    first_end_s: Float  # end of the first of them
    end_s: Float  # end of the last
    completing: Int  # list of requests whose prompts are complete
    measured: Measured | None = None  # of several replicas


def land(given: Given, state: State, landing: Landing) -> State:
    """The clock has reached the landing's end: its tokens are handed out, and finished requests leave.

    Gaps count from the first token of the first measured request on, as in the other program.
    """
    if landing.measured is None:
        first_token_s = read_once(state.sequences.first_token_s, given.limits.measured_from)
        weight = first_weight = jnp.where(first_token_s < jnp.inf, 1.0, 0.0)
    else:
        weight = jnp.where(landing.measured.since_s < landing.end_s, 1.0, 0.0)
        first_weight = jnp.where(landing.measured.since_s < landing.first_end_s, 1.0, 0.0)
    state = _enter_gaps(given, state, landing, first_weight)
    state = _take_steps(given, state, landing)
    state = _depart(given, state, landing)
    if given.structure.pipeline_ranks > 1:
        state = _come_to_rest(given, state, landing)
    return _complete_prompts(given, state, landing, weight)


def _enter_gaps(given: Given, state: State, landing: Landing, weight: Float) -> State:
    """The histogram with the gaps that end in the steps of a landing.

    A sequence that has joined since the cohort's last step has a gap of its own, from its own last token; if its prompt
    was resident it has no token yet, and its first one comes now. All other gaps start at the end of the last step.
    """
    cohort, cohorts, steps = landing.cohort, state.cohorts, landing.steps
    moves, at = steps > 0, given.first_bin()

    def enter_first(carry: tuple[State, Int, Float]) -> tuple[State, Int, Float]:
        state, i, count = carry
        sequences = state.sequences
        first = read_once(sequences.first_token_s, i)
        resident = first == jnp.inf
        gap_s = landing.first_end_s - read_once(sequences.token_s, i)
        bins = histogram.enter(state.itl_histogram, gap_s, jnp.where(resident, 0.0, weight), at)
        first_token_s = write(sequences.first_token_s, i, jnp.where(resident, landing.first_end_s, first))
        state = state._replace(itl_histogram=bins, sequences=sequences._replace(first_token_s=first_token_s))
        return state, read_once(state.next_fresh, i), count + 1.0

    start = (state, jnp.where(moves, read(cohorts.fresh, cohort), NONE), jnp.zeros(()))
    state, _, count = lax.while_loop(lambda carry: carry[1] >= 0, enter_first, start)
    cohorts, decodes = state.cohorts, read(state.cohorts.decodes, cohort)
    gap_from, fresh = read(cohorts.gap_from, cohort), read(cohorts.fresh, cohort)
    others = jnp.where(moves, weight * (decodes - count), 0.0)
    bins = histogram.enter(state.itl_histogram, landing.first_end_s - gap_from, others, at)
    if landing.measured is None:
        bins = histogram.enter_later_steps(bins, steps, landing.first_end_s, landing.end_s, weight * decodes)
    else:
        mean_s = (landing.end_s - landing.first_end_s) / jnp.maximum(steps - 1, 1)
        bins = histogram.enter(bins, mean_s, decodes * landing.measured.steps, at)
    # The count makes the write below depend on the loop, which starts from what it overwrites (``common.rings``).
    done = moves & (count >= 0.0)
    return state._replace(
        itl_histogram=bins,
        cohorts=cohorts._replace(
            gap_from=write(cohorts.gap_from, cohort, jnp.where(moves, landing.end_s, gap_from)),
            fresh=write(cohorts.fresh, cohort, jnp.where(done, NONE, fresh)),
        ),
    )


def _take_steps(given: Given, state: State, landing: Landing) -> State:
    """The cohort's sums after its steps: every member has a token more with each."""
    cohort, cohorts = landing.cohort, state.cohorts
    grown = landing.steps.astype(jnp.float64)
    step = read(cohorts.step, cohort) + landing.steps
    if state.growth is not None:
        return _gain(given, state, landing, step)
    cohorts = cohorts._replace(
        step=write(cohorts.step, cohort, step),
        context=add(cohorts.context, cohort, grown * read(cohorts.decodes, cohort)),
    )
    if given.structure.windowed:
        cell = cohort * given.structure.ring + step % given.structure.ring
        full = jnp.where(grown > 0, tagged_count(state.rings.crossing, cell, step), 0.0)
        cohorts = cohorts._replace(
            window_context=add(cohorts.window_context, cohort, grown * read(cohorts.growing, cohort)),
            growing=add(cohorts.growing, cohort, -full),
        )
    return state._replace(cohorts=cohorts)


def _gain(given: Given, state: State, landing: Landing, step: Int) -> State:
    """The same with drafts after one step, or none: every member has what it gained."""
    cohort, cohorts, growth = landing.cohort, state.cohorts, state.growth
    assert growth is not None
    moves, cell = landing.steps > 0, cohort * given.structure.ring + step % given.structure.ring
    tokens = jnp.where(moves, tagged_count(growth.tokens, cell, step), 0.0)
    decodes = jnp.where(moves, read(cohorts.decodes, cohort), 0.0)
    cohorts = cohorts._replace(
        step=write(cohorts.step, cohort, step),
        context=add(cohorts.context, cohort, tokens),
    )
    if given.structure.windowed:
        wider = jnp.where(moves, tagged_count(growth.window, cell, step), 0.0)
        cohorts = cohorts._replace(window_context=add(cohorts.window_context, cohort, wider))
    growth = growth._replace(decoded=growth.decoded + decodes, decoded_tokens=growth.decoded_tokens + tokens)
    return state._replace(cohorts=cohorts, growth=growth)


def _depart(given: Given, state: State, landing: Landing) -> State:
    """The members that leave after the cohort's last step have their last token."""
    cohort, ring = landing.cohort, given.structure.ring
    slot = read(state.cohorts.step, cohort) % ring
    cell = cohort * ring + slot

    def depart(carry: tuple[State, Int]) -> tuple[State, Int]:
        state, i = carry
        attends = known_tokens(given, i, read(given.requests.output_tokens, i))
        held = _held(given, state, i, landing.steps > 0)
        cohorts = state.cohorts._replace(
            decodes=add(state.cohorts.decodes, cohort, -1.0), context=add(state.cohorts.context, cohort, -attends)
        )
        if given.structure.windowed:
            attended = -jnp.minimum(attends, given.limits.window)
            cohorts = cohorts._replace(window_context=add(cohorts.window_context, cohort, attended))
        sequences = state.sequences._replace(cohort=write(state.sequences.cohort, i, NONE))
        state = state._replace(cohorts=cohorts, sequences=sequences)
        if state.cache is not None:
            state = state._replace(cache=state.cache._replace(due=state.cache.due.remove(i)))
        return _finish(given, state, i, landing.end_s, True, held), read_once(state.next_leaving, i)

    first = jnp.where(landing.steps > 0, read_once(state.rings.leaving, cell), NONE)
    if state.cache is not None:  # the order in which blocks come free decides which are taken first
        next_leaving, first = turned(state.next_leaving, first)
        state = state._replace(next_leaving=next_leaving)
    state, end = lax.while_loop(lambda carry: carry[1] >= 0, depart, (state, first))
    rings = state.rings
    left = jnp.where(landing.steps > 0, end, read_once(rings.leaving, cell))  # NONE after the walk: an empty list
    rings = rings._replace(leaving=write(rings.leaving, cell, left))
    if given.structure.pipeline_ranks == 1:
        rings = rings._replace(events=unmark(rings.events, given.structure.event(cohort, slot)))
    return state._replace(rings=rings)


def _come_to_rest(given: Given, state: State, landing: Landing) -> State:
    """The cohort of a batch from the pipeline may be taken by the next batch.

    If the cohort at rest is empty, the two change places. Otherwise the members join the cohort at rest one by one, in
    order of admission.
    """
    moved, here = landing.cohort, state.at_rest
    lands = landing.steps > 0
    empty = read(state.cohorts.decodes, here) == 0
    slot = state.landed % given.structure.pipeline_ranks
    swap = lands & empty
    state = state._replace(
        at_rest=jnp.where(swap, moved, here),
        flights=state.flights._replace(cohort=write(state.flights.cohort, slot, jnp.where(swap, here, moved))),
    )

    def move(carry: tuple[State, Int]) -> tuple[State, Int]:
        state, i = carry
        mine = read_once(state.sequences.cohort, i) == moved
        state = leave(given, state, i, mine)
        token_s = jnp.where(mine, landing.end_s, read_once(state.sequences.token_s, i))
        sequences = state.sequences._replace(token_s=write(state.sequences.token_s, i, token_s))
        state = join(given, state._replace(sequences=sequences), i, mine)
        return state, read_once(state.running.newer, i)

    def left(carry: tuple[State, Int]) -> Flag:
        state, i = carry
        return lands & ~empty & (i < state.running.sentinel) & (read(state.cohorts.decodes, moved) > 0)

    return lax.while_loop(left, move, (state, state.running.oldest()))[0]


def _complete_prompts(given: Given, state: State, landing: Landing, weight: Float) -> State:
    """Requests whose prompts are complete have a token: their first, or after a preemption one that ends a gap."""
    end_s = landing.end_s

    def complete(carry: tuple[State, Int]) -> tuple[State, Int]:
        state, i = carry
        sequences = state.sequences
        before = read_once(sequences.generated, i)
        generated, token_s = before + 1, read_once(sequences.token_s, i)
        gaps = jnp.where(before > 0, weight, 0.0)
        first_token_s = jnp.minimum(read_once(sequences.first_token_s, i), end_s)
        state = state._replace(
            itl_histogram=histogram.enter(state.itl_histogram, end_s - token_s, gaps, given.first_bin()),
            sequences=sequences._replace(
                generated=write(sequences.generated, i, generated),
                first_token_s=write(sequences.first_token_s, i, first_token_s),
                token_s=write(sequences.token_s, i, jnp.where(generated > 0, end_s, token_s)),
            ),
        )
        if state.tally is not None:
            state = state._replace(tally=state.tally._replace(completed=state.tally.completed + 1.0))
        ends = generated == read(given.requests.output_tokens, i)
        held = _held(given, state, i, ends & False)
        state = join(given, state, i, ~ends)
        return _finish(given, state, i, end_s, ends, held), read_once(state.next_completing, i)

    completing = landing.completing
    if state.cache is not None:
        next_completing, completing = turned(state.next_completing, completing)
        state = state._replace(next_completing=next_completing)
    return lax.while_loop(lambda carry: carry[1] >= 0, complete, (state, completing))[0]


def _held(given: Given, state: State, i: Int, decodes: Flag) -> Int | Float:
    """KV units of a request that has its last token, of a decode iteration or of its prompt's last chunk.

    On demand drafts may have taken slots that its last iteration did not fill, or that it never came to take.
    """
    reserved = given.kv_units(i)
    if given.speculation is None:
        return reserved
    way = way_since(given, state, i, decodes)
    elapsed = jnp.where(decodes, read(state.cohorts.step, way.cohort) - way.step, 0)
    tokens = held_tokens(given, way, elapsed)
    taken = own_units(given, i, tokens.astype(jnp.float64))
    return jnp.where(given.rules.on_demand, taken, reserved.astype(jnp.float64))


def _finish(given: Given, state: State, i: Int, end_s: Float, on: Flag, held: Int | Float) -> State:
    """A request has its last token, if ``on``: it gives back its seat, and its KV, of which it ``held`` such units."""
    last_token_s = read_once(state.sequences.last_token_s, i)
    if state.tally is not None:
        whole = known_tokens(given, i, read(given.requests.output_tokens, i))
        left_context = state.tally.left_context + jnp.where(on, whole, 0.0)
        state = state._replace(tally=state.tally._replace(left_context=left_context))
    if state.cache is None:
        state = state._replace(kv=state.kv - jnp.where(on, held, 0))
    else:
        state = prefix_cache.release(given, state, i, on)
    if state.calendar is not None:
        first_s = read_once(state.sequences.first_token_s, i)
        state = state._replace(calendar=answer(given, state.calendar, i, first_s, end_s, on))
    return state._replace(
        sequences=state.sequences._replace(
            last_token_s=write(state.sequences.last_token_s, i, jnp.where(on, end_s, last_token_s))
        ),
        running=state.running.remove(i, on),
        by_end=state.by_end.remove(i, on) if given.structure.peaks else state.by_end,
        running_count=state.running_count - on,
        finished=state.finished + on,
        **_told_of(given, state, i, end_s, on),
    )


def _told_of(given: Given, state: State, i: Int, end_s: Float, on: Flag) -> dict[str, Any]:
    """What changes in the state because a request is done: its user is told, or the station that comes next."""
    if state.listed is not None:
        return {"listed": state.listed.push(i, on)}
    return {"waiting": _released(given, state, i, end_s, on)}


def _released(given: Given, state: State, i: Int, end_s: Float, on: Flag) -> Waiting | Line:
    """Of a closed loop: a user may send the next request, at once or when the frontend has delivered the answer."""
    waiting = state.waiting
    if isinstance(waiting, Line) and given.structure.frontend:
        first_s, output = read_once(state.sequences.first_token_s, i), read(given.requests.output_tokens, i)
        return deliver(waiting, seen_s(given.rules, first_s, end_s, output), on)
    return waiting._replace(released=waiting.released + on)
