"""Cohorts, sequences that decode together: how one joins, how it is taken out, and what KV its next tokens need.

Time is counted in steps of the cohort, each of which adds a token to every member. What will happen to a member follows
from the step at which it joins, so it is entered once in the cohort's rings (``state.Rings``) and not looked at again
until then: at the step after which it leaves, at the step at which its attention window is full, and, with KV on
demand, at each step at which it needs another KV unit.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.kv import units
from evaluator.stations.engine.any_order import prefix_cache
from evaluator.stations.engine.any_order.chains import push, unlink
from evaluator.stations.engine.any_order.lane import Given
from evaluator.stations.engine.any_order.state import State
from evaluator.stations.engine.any_order.uneven import Way, enter_growth, held_tokens, note_units, walk, way_since
from evaluator.stations.engine.common.arrays import Flag, Float, Int, StepBits, StepCounts
from evaluator.stations.engine.common.rings import NONE, add, mark, read, read_once, tagged_add, write


class Member(NamedTuple):
    """A sequence as its cohort counts it."""

    cohort: Int
    step: Int  # of the cohort, now
    last: Int  # the step after which the sequence leaves
    computed: Int  # tokens of its KV at ``step``
    attends: Float  # tokens that it attends to in the next step
    on: Flag  # it is there; where False, all writes are masked


def known_tokens(given: Given, i: Int, generated: Int) -> Float:
    """Prompt and generated tokens: what the next token attends to, itself not counted."""
    return (read(given.requests.prompt_tokens, i) + generated + given.limits.prompts_resident).astype(jnp.float64)


def steps_done(given: Given, state: State) -> Int:
    """Steps of the cohort at rest, where there is no pipeline."""
    return state.cohorts.step[0] if given.structure.cohorts() == 1 else read(state.cohorts.step, state.at_rest)


def join(given: Given, state: State, i: Int, on: Flag, has_kv: bool = False) -> State:
    """A sequence joins the cohort at rest, if ``on``; ``has_kv``: it has the KV of its first token there."""
    sequences, cohort = state.sequences, state.at_rest
    step = read(state.cohorts.step, cohort)
    generated = read_once(sequences.generated, i)
    steps = read(given.requests.output_tokens, i) - generated
    attends, computed = known_tokens(given, i, generated), read_once(sequences.computed, i)
    if state.growth is not None:
        way = way_since(given, state, i, on)._replace(cohort=cohort, step=step)
        steps, gains = enter_growth(given, state.growth, way, attends, 1)
        noted = note_units(given, state.rings.growth, way, has_kv, 1)
        state = state._replace(growth=gains, rings=state.rings._replace(growth=noted))
    last = step + steps
    one = Member(cohort, step, last, computed, attends, on)
    leaving, next_leaving = push(state.rings.leaving, _cell(given, cohort, last, on), state.next_leaving, i, on)
    fresh, next_fresh = push(state.cohorts.fresh, cohort, state.next_fresh, i, on)
    events = _mark(given, state.rings.events, cohort, last, on)
    growth = state.rings.growth
    if given.speculation is None:
        growth = _note_growth(given, growth, one, step + has_kv, 1)
    sequences = sequences._replace(
        cohort=write(sequences.cohort, i, jnp.where(on, cohort, read_once(sequences.cohort, i))),
        since=write(sequences.since, i, jnp.where(on, step, read_once(sequences.since, i))),
    )
    state = state._replace(
        cohorts=state.cohorts._replace(fresh=fresh),
        rings=state.rings._replace(leaving=leaving, events=events, growth=growth),
        sequences=sequences,
        next_leaving=next_leaving,
        next_fresh=next_fresh,
    )
    if state.cache is not None:
        state = state._replace(cache=prefix_cache.enter_due(given, state.cache, i, cohort, step - computed, on))
    return _count(given, state, one, 1)


def _take_off(given: Given, state: State, i: Int, one: Member, generated: Int) -> State:
    """The rings without what a member would still have gained; ``generated`` tokens are there."""
    sequences = state.sequences
    if state.growth is None or sequences.decoded is None or sequences.slots is None:
        growth = _note_growth(given, state.rings.growth, one, one.step, -1)
        return state._replace(rings=state.rings._replace(growth=growth))
    since = way_since(given, state, i, one.on)
    elapsed = one.step - since.step
    slots = jnp.where(one.on, held_tokens(given, since, elapsed), since.slots)
    left = jnp.where(one.on, read(given.requests.output_tokens, i) - generated, 0)
    later = Way(i, one.cohort, one.step, since.first + elapsed, left, one.computed, slots)
    growth = note_units(given, state.rings.growth, later, False, -1)
    decoded = write(sequences.decoded, i, jnp.where(one.on, later.first, since.first))
    return state._replace(
        growth=enter_growth(given, state.growth, later, one.attends, -1)[1],
        rings=state.rings._replace(growth=growth),
        sequences=sequences._replace(decoded=decoded, slots=write(sequences.slots, i, slots)),
    )


def leave(given: Given, state: State, i: Int, on: Flag) -> State:
    """A sequence is taken out of its cohort, if it is in one and ``on``; what it has generated is written down."""
    one, generated, was_fresh = _membership(given, state, i, on)
    state = _take_off(given, state, i, one, generated)
    sequences, cohorts = state.sequences, state.cohorts
    on, cohort = one.on, one.cohort
    leaving, next_leaving = unlink(state.rings.leaving, _cell(given, cohort, one.last, on), state.next_leaving, i, on)
    fresh, next_fresh = unlink(cohorts.fresh, cohort, state.next_fresh, i, was_fresh)
    token_s = jnp.where(on & ~was_fresh, read(cohorts.gap_from, cohort), read_once(sequences.token_s, i))
    state = state._replace(
        cohorts=cohorts._replace(fresh=fresh),
        rings=state.rings._replace(leaving=leaving),
        sequences=sequences._replace(
            generated=write(sequences.generated, i, generated),
            computed=write(sequences.computed, i, one.computed),
            cohort=write(sequences.cohort, i, jnp.where(on, NONE, read_once(sequences.cohort, i))),
            token_s=write(sequences.token_s, i, token_s),
        ),
        next_leaving=next_leaving,
        next_fresh=next_fresh,
    )
    if state.cache is not None:
        state = state._replace(cache=state.cache._replace(due=state.cache.due.remove(i)))
    return _count(given, state, one, -1)


def _membership(given: Given, state: State, i: Int, on: Flag) -> tuple[Member, Int, Flag]:
    """A member as of now, its generated tokens, and whether it has joined since the cohort's last step."""
    sequences = state.sequences
    cohort, generated = read_once(sequences.cohort, i), read_once(sequences.generated, i)
    on = on & (cohort >= 0)
    cohort = jnp.where(on, cohort, 0)
    step, since = read(state.cohorts.step, cohort), read_once(sequences.since, i)
    elapsed = jnp.where(on, step - since, 0)
    steps, gained = read(given.requests.output_tokens, i) - generated, elapsed
    if given.speculation is not None:
        steps, gained = walk(given, way_since(given, state, i, on), elapsed)
    last = since + steps
    generated, computed = generated + gained, read_once(sequences.computed, i) + gained
    return Member(cohort, step, last, computed, known_tokens(given, i, generated), on), generated, on & (elapsed == 0)


def _count(given: Given, state: State, one: Member, sign: int) -> State:
    """A sequence is added to (``sign`` 1) or taken off (-1) the sums of its cohort."""
    cohorts, rings, on, amount = state.cohorts, state.rings, one.on, jnp.where(one.on, 1.0 * sign, 0.0)
    cohorts = cohorts._replace(
        decodes=add(cohorts.decodes, one.cohort, amount),
        context=add(cohorts.context, one.cohort, amount * one.attends),
    )
    if not given.structure.windowed:
        return state._replace(cohorts=cohorts)
    window = given.limits.window
    if given.speculation is not None:
        windowed = add(cohorts.window_context, one.cohort, amount * jnp.minimum(one.attends, window))
        return state._replace(cohorts=cohorts._replace(window_context=windowed))
    grows = on & (one.attends < window)
    full = jnp.minimum(one.step + (window - one.attends).astype(jnp.int32), one.last)  # its last step at most
    cohorts = cohorts._replace(
        window_context=add(cohorts.window_context, one.cohort, amount * jnp.minimum(one.attends, window)),
        growing=add(cohorts.growing, one.cohort, jnp.where(grows, 1.0 * sign, 0.0)),
    )
    rings = rings._replace(
        crossing=tagged_add(rings.crossing, _cell(given, one.cohort, full, grows), full, sign),
        # An event of a sequence that was taken out stays: it ends a leap early, which costs a trip and is still exact.
        events=_mark(given, rings.events, one.cohort, full, grows) if sign > 0 else rings.events,
    )
    return state._replace(cohorts=cohorts, rings=rings)


def _note_growth(given: Given, growth: StepCounts, one: Member, start: Int, count: int) -> StepCounts:
    """The ring with ``count`` times the KV units that a sequence needs from the step ``start`` on, up to its last.

    Only the steps at which its tokens begin a new block are visited.
    """
    rules, ring = given.rules, given.structure.ring
    block = jnp.maximum(rules.kv.block_tokens.astype(jnp.int32), 1)  # 0 in a lane of zeros that fills up a call
    ahead = -(one.computed + start - one.step) % block

    def enter(carry: tuple[Int, Float, StepCounts]) -> tuple[Int, Float, StepCounts]:
        at, before, counts = carry
        after = units(rules.kv, (one.computed + at - one.step + 1).astype(jnp.float64))
        more = count * (after - before).astype(jnp.int64)
        return at + block, after, tagged_add(counts, one.cohort * ring + at % ring, at, more)

    first = start + ahead
    held = units(rules.kv, (one.computed + first - one.step).astype(jnp.float64))
    end = jnp.where(one.on, one.last, one.step)
    stop = jnp.where(rules.on_demand & ~given.every_token_takes_a_unit(), end, start)
    return lax.while_loop(lambda carry: carry[0] < stop, enter, (first, held, growth))[2]


def _mark(given: Given, events: StepBits, cohort: Int, step: Int, on: Flag) -> StepBits:
    """The ring with an event at ``step``, if ``on``; a pipeline, which looks at every step (``rounds``), keeps none."""
    return mark(events, given.structure.event(cohort, step), on) if given.structure.pipeline_ranks == 1 else events


def _cell(given: Given, cohort: Int, step: Int, on: Flag) -> Int:
    """Where a cohort's step is in the rings, if ``on``; else the padding cell."""
    structure = given.structure
    return jnp.where(on, cohort * structure.ring + step % structure.ring, structure.cohorts() * structure.ring)
