"""LightLLM's admission: a request is admitted if the KV suffices at the future peak of the batch.

Every sequence holds a KV token more with each decode, until it leaves and frees all of it. LightLLM admits a request
only if at no future moment the running requests and the new one would hold more than the capacity, each of them going
on to its last token (``_can_add_new_req`` in LightLLM's router; there by ``max_new_tokens``). KV is counted by the
token.

The peak is just before some request leaves. With the sequences in order of their remaining decodes, most first, the KV
just before the m-th leaves is what the first m hold now, plus m times the decodes that the m-th has left. The running
requests are kept in that order (``State.by_end``), so that one walk along them finds the largest.

Without a pipeline that order never changes. In a pipeline each decode group has its tokens at the ends of its own
batches, so that of two requests now the one and now the other has more to go: the order is nearly kept, and mended when
somebody looks.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Array, Flag, Float, Int
from evaluator.stations.engine.common.rings import read, read_once
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.state import State


def _held_and_left(given: Given, state: State, i: Int) -> tuple[Int, Int]:
    """Tokens in the KV before the next decode, and decodes to go."""
    sequences = state.sequences
    decode_group = read_once(sequences.decode_group, i)
    decodes = decode_group >= 0
    # Of a decode group that is under way in a pipeline the step counts that has ended, as in the reference.
    step = read(state.decode_groups.step, jnp.maximum(decode_group, 0))
    elapsed = jnp.where(decodes, step - read_once(sequences.since, i), 0)
    held = jnp.where(decodes, read_once(sequences.computed, i) + elapsed, read_once(sequences.target, i))
    with_prompt = jnp.where(decodes | given.limits.prompts_resident, 0, 1)  # the first token comes with the prompt
    output = read(given.requests.output_tokens, i)
    return held, output - read_once(sequences.generated, i) - elapsed - with_prompt


def enter_end(given: Given, state: State, i: Int) -> State:
    """A request that is admitted takes its place in ``by_end``, by the decodes it has left.

    Without a pipeline the order of those in it never changes, since each step takes one decode from all of them.
    """
    chain, sentinel = state.by_end, state.replica.sentinel
    left, looks = _held_and_left(given, state, i)[1], given.rules.look_every > 0

    def later(other: Int) -> Flag:
        return looks & (other < sentinel) & (_held_and_left(given, state, other)[1] > left)

    last = lax.while_loop(later, lambda other: read_once(chain.older, other), chain.newest(sentinel))
    return state._replace(by_end=chain.insert(i, read_once(chain.newer, last), looks))


def mend_order(given: Given, state: State, on: Flag) -> State:
    """Of a pipeline: ``by_end`` in its order again, if ``on``; by insertion, since few are out of their places."""
    sentinel = state.replica.sentinel

    def place(carry: tuple[State, Int]) -> tuple[State, Int]:
        state, i = carry
        chain, left = state.by_end, _held_and_left(given, state, i)[1]
        following, before = read_once(chain.newer, i), read_once(chain.older, i)

        # All that are older than ``i`` are in order: it goes in front of those of them that have more to go.
        def later(other: Int) -> Flag:
            return (other < sentinel) & (_held_and_left(given, state, other)[1] > left)

        last = lax.while_loop(later, lambda other: read_once(chain.older, other), before)
        moves = last != before
        behind = jnp.where(moves, read_once(chain.newer, last), i)
        # Masked: whoever stays is taken out and put in front of whom it was in front of.
        chain = chain.remove(i).insert(i, jnp.where(moves, behind, following), True)
        return state._replace(by_end=chain), following

    start = (state, state.by_end.oldest(sentinel))
    return lax.while_loop(lambda carry: on & (carry[1] < sentinel), place, start)[0]


def peak_units(given: Given, state: State, i: Int, on: Flag) -> Float:
    """Most KV tokens that the running requests and ``i`` will hold at once, if ``on``; a unit is a token."""
    chain, sentinel, mine = state.by_end, state.replica.sentinel, _held_and_left(given, state, i)

    def count(sums: tuple[Array, ...], held: Int, left: Int, counts: Flag) -> tuple[Array, ...]:
        """One more sequence, if ``counts``, with at most as many decodes left as those counted so far."""
        members, total, peak = sums
        members, total = members + counts, total + jnp.where(counts, held, 0)
        return members, total, jnp.where(counts, jnp.maximum(peak, total + members * left), peak)

    def step(carry: tuple[Int, Flag, tuple[Array, ...]]) -> tuple[Int, Flag, tuple[Array, ...]]:
        other, entered, sums = carry
        theirs = _held_and_left(given, state, other)
        before = ~entered & (theirs[1] <= mine[1])  # the new request's place is in front of this one
        sums = count(count(sums, *mine, before), *theirs, True)
        return read_once(chain.older, other), entered | before, sums

    zero = jnp.zeros((), jnp.int64)
    on = on & (given.rules.look_every > 0)
    first = (chain.newest(sentinel), ~on, (zero, zero, zero))
    _, entered, sums = lax.while_loop(lambda carry: on & (carry[0] < sentinel), step, first)
    return count(sums, *mine, ~entered)[2].astype(jnp.float64)
