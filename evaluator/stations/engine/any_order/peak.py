"""LightLLM's admission: who waits comes in if all will fit when they hold most, each going on to its last token."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array
from evaluator.stations.engine.any_order.lane import GeneralLane
from evaluator.stations.engine.any_order.state import State
from evaluator.stations.engine.common.lane import Requests
from evaluator.stations.engine.common.rings import load, read


def _held_and_left(given: GeneralLane, requests: Requests, state: State, i: Array) -> tuple[Array, Array]:
    """Tokens in the KV before the next decode, and decodes to go, int32."""
    sequences = state.sequences
    decodes = load(sequences.group, i) >= 0
    elapsed = jnp.where(decodes, state.groups.step[0] - load(sequences.since, i), 0)
    held = jnp.where(decodes, load(sequences.computed, i) + elapsed, load(sequences.target, i))
    with_prompt = jnp.where(decodes | given.lane.prompts_resident, 0, 1)
    return held, read(requests.output_tokens, i) - load(sequences.generated, i) - elapsed - with_prompt


def enter_end(given: GeneralLane, requests: Requests, state: State, i: Array) -> State:
    """A request that is admitted takes its place among those that run, by the step after which it leaves."""
    chain, left, looks = state.by_end, _held_and_left(given, requests, state, i)[1], given.rules.look_every > 0

    def later(other: Array) -> Array:
        return looks & (other < chain.sentinel) & (_held_and_left(given, requests, state, other)[1] > left)

    last = lax.while_loop(later, lambda other: load(chain.older, other), chain.newest())
    return state._replace(by_end=chain.insert(i, load(chain.newer, last), looks))


def peak_units(given: GeneralLane, requests: Requests, state: State, i: Array, on: Array) -> Array:
    """Most KV tokens that the running requests and ``i`` will hold at once, if ``on``; a unit is a token.

    KV is largest just before a request leaves. With the sequences in order of their remaining tokens, most first, that
    is, for each of them, what it and those before it hold now, plus its remaining tokens for every one of them.
    """
    chain, mine = state.by_end, _held_and_left(given, requests, state, i)

    def count(carry: tuple[Array, ...], held: Array, left: Array, counts: Array) -> tuple[Array, ...]:
        members, total, peak = carry
        members, total = members + counts, total + jnp.where(counts, held, 0)
        return members, total, jnp.where(counts, jnp.maximum(peak, total + members * left), peak)

    def step(carry: tuple[Array, Array, tuple[Array, ...]]) -> tuple[Array, Array, tuple[Array, ...]]:
        other, entered, sums = carry
        theirs = _held_and_left(given, requests, state, other)
        before = ~entered & (theirs[1] <= mine[1])
        sums = count(count(sums, *mine, before), *theirs, True)
        return load(chain.older, other), entered | before, sums

    zero = jnp.zeros((), jnp.int64)
    on = on & (given.rules.look_every > 0)
    first = (chain.newest(), ~on, (zero, zero, zero))
    _, entered, sums = lax.while_loop(lambda carry: on & (carry[0] < chain.sentinel), step, first)
    return count(sums, *mine, ~entered)[2].astype(jnp.float64)
