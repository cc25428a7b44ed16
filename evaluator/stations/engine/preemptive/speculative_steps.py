"""Members of a decode group that get unequal numbers of tokens, because they verify drafts.

What a member gains in each of its decode iterations is entered in a ring when it joins (``common.speculation``), and,
with KV on demand, the units that each iteration needs. A member that is taken out has what is still to come taken off
again; what it has gained by then is counted by walking through its iterations once more. Nothing is leapt over: such
decode groups go step by step.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evaluator.cost.kv import units
from evaluator.stations.engine.common.arrays import Flag, Float, Int, StepCounts
from evaluator.stations.engine.common.rings import read, read_each, tagged_add_each
from evaluator.stations.engine.common.speculation import AT_ONCE, AcceptedTokens, Gains, Speculation, over_gains
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.state import State


class SpeculativePath(NamedTuple):
    """Decode iterations that a member has before it, from a step of its decode group on."""

    i: Int
    decode_group: Int
    step: Int  # of the decode group, before the first of them
    first: Int  # number of the first of them, of all decode iterations of the request
    left: Int  # output tokens to come; 0: there are none
    computed: Int  # tokens of its KV before the first of them
    slots: Int  # of KV that it holds then: after a batch that rejected drafts more than those


class PathGain(NamedTuple):
    """A way once it is walked."""

    iterations: Int  # until the last token is there
    gained: Int  # tokens that so many iterations as were asked for give


def walk_path(given: Given, path: SpeculativePath, steps: Int) -> PathGain:
    """The whole way, and what the first ``steps`` of it give."""

    def enter(gains: Gains, gained: Int) -> Int:
        return gained + jnp.sum(jnp.where(gains.ahead < steps, gains.tokens(), 0), dtype=jnp.int32)

    return PathGain(*over_gains(_speculation(given), path.i, path.first, path.left, enter, jnp.int32(0)))


def enter_accepted(
    given: Given, accepted: AcceptedTokens, path: SpeculativePath, attends: Float, sign: int
) -> tuple[Int, AcceptedTokens]:
    """(iterations, the rings with what a member gains on its way, or with ``sign`` -1 without it).

    ``attends``: tokens that it attends to in the first of them.
    """
    first = path.step + 1  # tokens come when the step is over, units are needed when it begins (``note_units``)

    def enter(gains: Gains, accepted: AcceptedTokens) -> AcceptedTokens:
        step = first + gains.ahead[0]
        return accepted.enter(gains, given.structure.cell(path.decode_group, step), step, attends, given.window(), sign)

    lead = first & (AT_ONCE - 1)
    return over_gains(_speculation(given), path.i, path.first, path.left, enter, accepted, lead)


def note_units(given: Given, noted: StepCounts, path: SpeculativePath, has_kv: Flag | bool, sign: int) -> StepCounts:
    """The ring with the KV units that each iteration of a member needs more than the one before, on demand.

    ``has_kv``: it holds those of the first iteration already. Each needs slots for all tokens that it verifies, of
    which it keeps those that are accepted.
    """
    if not given.structure.preempts:  # nobody takes KV on demand, and the ring has no cells
        return noted
    slots, held = path.computed + given.rows(1.0), units(given.rules.kv, path.slots.astype(jnp.float64))

    def enter(gains: Gains, carry: tuple[Float, StepCounts]) -> tuple[Float, StepCounts]:
        last, noted = carry
        # Never fewer: slots of drafts that were rejected are kept for the tokens behind.
        needs = jnp.maximum(units(given.rules.kv, slots + gains.before), held)
        after = jnp.where(gains.ahead < 0, held, needs)
        more = after - jnp.append(last, after[:-1])
        has = (gains.tokens() == 0) | ((gains.ahead == 0) & has_kv)
        step = path.step + gains.ahead[0]
        cell = given.structure.cell(path.decode_group, step)
        more = sign * jnp.where(has, 0.0, more).astype(jnp.int64)
        return after[-1], tagged_add_each(noted, cell, step, more)

    left = jnp.where(given.on_demand(), path.left, 0)
    lead = path.step & (AT_ONCE - 1)
    return over_gains(_speculation(given), path.i, path.first, left, enter, (held, noted), lead)[1][1]


def held_tokens(given: Given, path: SpeculativePath, taken: Int) -> Int:
    """Slots that a member holds once ``taken`` iterations of its way have their KV."""
    drafts = _speculation(given).drafts.astype(jnp.int32)
    before = walk_path(given, path, jnp.maximum(taken - 1, 0)).gained
    return jnp.where(taken > 0, path.computed + before + 1 + drafts, path.slots)


def path_since(given: Given, state: State, i: Int, on: Flag) -> SpeculativePath:
    """The way of a member since it joined its decode group, if ``on``."""
    sequences = state.sequences
    assert sequences.decoded is not None and sequences.slots is not None
    generated, since, first, decode_group, computed, slots = read_each(
        i, sequences.generated, sequences.since, sequences.decoded, sequences.decode_group, sequences.computed,
        sequences.slots,
    )  # fmt: skip
    left = jnp.where(on, read(given.requests.output_tokens, i) - generated, 0)
    return SpeculativePath(i, jnp.maximum(decode_group, 0), since, first, left, computed, jnp.maximum(slots, computed))


def _speculation(given: Given) -> Speculation:
    assert given.speculation is not None
    return given.speculation
