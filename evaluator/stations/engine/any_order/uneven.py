"""Members of a cohort that get unequal numbers of tokens, because they verify drafts.

What a member gains in each of its decode iterations is entered in a ring when it joins (``common.speculation``), and,
with KV on demand, the units that each iteration needs. A member that is taken out has what is still to come taken off
again; what it has gained by then is counted by walking through its iterations once more. Nothing is leapt over: such
cohorts go step by step.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.kv import units
from evaluator.stations.engine.any_order.lane import Given
from evaluator.stations.engine.any_order.state import State
from evaluator.stations.engine.common.arrays import Flag, Float, Int, StepCounts
from evaluator.stations.engine.common.rings import read, read_once, tagged_add
from evaluator.stations.engine.common.speculation import Growth, Speculation, tokens_given


class Way(NamedTuple):
    """Decode iterations that a member has before it, from a step of its cohort on."""

    i: Int
    cohort: Int
    step: Int  # of the cohort, before the first of them
    first: Int  # number of the first of them, of all decode iterations of the request
    left: Int  # output tokens to come; 0: there are none
    computed: Int  # tokens of its KV before the first of them
    slots: Int  # of KV that it holds then: after a batch that rejected drafts more than those


class Walked(NamedTuple):
    """A way once it is walked."""

    iterations: Int  # until the last token is there
    gained: Int  # tokens that so many iterations as were asked for give


def walk(given: Given, way: Way, steps: Int) -> Walked:
    """The whole way, and what the first ``steps`` of it give."""

    def go_on(carry: tuple[Int, Int, Int]) -> tuple[Int, Int, Int]:
        ahead, left, gained = carry
        gain = _gain(given, way, ahead, left)
        return ahead + 1, left - gain, gained + jnp.where(ahead < steps, gain, 0)

    start = (jnp.int32(0), way.left, jnp.int32(0))
    iterations, _, gained = lax.while_loop(lambda carry: carry[1] > 0, go_on, start)
    return Walked(iterations, gained)


def enter_growth(given: Given, growth: Growth, way: Way, attends: Float, sign: int) -> tuple[Int, Growth]:
    """(iterations, the rings with what a member gains on its way, or with ``sign`` -1 without it).

    ``attends``: tokens that it attends to in the first of them.
    """
    windowed, window = given.structure.windowed, given.limits.window

    def enter(carry: tuple[Int, Int, Float, Growth]) -> tuple[Int, Int, Float, Growth]:
        ahead, left, attends, growth = carry
        gain = _gain(given, way, ahead, left)
        step = way.step + ahead + 1
        cell = way.cohort * given.structure.ring + step % given.structure.ring
        growth = growth._replace(tokens=tagged_add(growth.tokens, cell, step, sign * gain.astype(jnp.int64)))
        after = attends + gain
        if windowed:
            more = (jnp.minimum(after, window) - jnp.minimum(attends, window)).astype(jnp.int64)
            growth = growth._replace(window=tagged_add(growth.window, cell, step, sign * more))
        return ahead + 1, left - gain, after, growth

    start = (jnp.int32(0), way.left, attends, growth)
    iterations, _, _, growth = lax.while_loop(lambda carry: carry[1] > 0, enter, start)
    return iterations, growth


def note_units(given: Given, noted: StepCounts, way: Way, has_kv: Flag | bool, sign: int) -> StepCounts:
    """The ring with the KV units that each iteration of a member needs more than the one before, on demand.

    ``has_kv``: it holds those of the first iteration already. Each needs slots for all tokens that it verifies, of
    which it keeps those that are accepted.
    """
    ring, rows = given.structure.ring, given.rows(1.0)

    def enter(carry: tuple[Int, Int, Float, Float, StepCounts]) -> tuple[Int, Int, Float, Float, StepCounts]:
        ahead, left, computed, before, noted = carry
        gain = _gain(given, way, ahead, left)
        after = jnp.maximum(units(given.rules.kv, computed + rows), before)
        more = jnp.where(has_kv & (ahead == 0), 0.0, after - before)
        step = way.step + ahead
        noted = tagged_add(noted, way.cohort * ring + step % ring, step, sign * more.astype(jnp.int64))
        return ahead + 1, left - gain, computed + gain, after, noted

    left = jnp.where(given.rules.on_demand, way.left, 0)
    held = units(given.rules.kv, way.slots.astype(jnp.float64))
    start = (jnp.int32(0), left, way.computed.astype(jnp.float64), held, noted)
    return lax.while_loop(lambda carry: carry[1] > 0, enter, start)[-1]


def held_tokens(given: Given, way: Way, taken: Int) -> Int:
    """Slots that a member holds once ``taken`` iterations of its way have their KV."""
    drafts = _speculation(given).drafts.astype(jnp.int32)
    before = walk(given, way, jnp.maximum(taken - 1, 0)).gained
    return jnp.where(taken > 0, way.computed + before + 1 + drafts, way.slots)


def way_since(given: Given, state: State, i: Int, on: Flag) -> Way:
    """The way of a member since it joined its cohort, if ``on``."""
    sequences = state.sequences
    assert sequences.decoded is not None and sequences.slots is not None
    left = jnp.where(on, read(given.requests.output_tokens, i) - read_once(sequences.generated, i), 0)
    since, first = read_once(sequences.since, i), read_once(sequences.decoded, i)
    cohort, computed = jnp.maximum(read_once(sequences.cohort, i), 0), read_once(sequences.computed, i)
    return Way(i, cohort, since, first, left, computed, jnp.maximum(read_once(sequences.slots, i), computed))


def _gain(given: Given, way: Way, ahead: Int, left: Int) -> Int:
    return jnp.minimum(tokens_given(_speculation(given), way.i, way.first + ahead), left)


def _speculation(given: Given) -> Speculation:
    assert given.speculation is not None
    return given.speculation
