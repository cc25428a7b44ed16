"""Who waits, and which of them is looked at first; those behind wait, even where they would fit.

First come, first served: arrivals in order, and before them a stack of preempted requests. Least work left: all wait in
the heap, by the tokens that are left to compute and to generate, ties by number.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array
from evaluator.stations.engine.any_order.lane import GeneralLane
from evaluator.stations.engine.any_order.state import Sequences, State, Waiting
from evaluator.stations.engine.common.lane import Requests
from evaluator.stations.engine.common.rings import load, read, write


def next_arrival(given: GeneralLane, requests: Requests, waiting: Waiting) -> Array:
    """When the next request comes that is not here, infinite if none will before another has finished."""
    comes = waiting.arrived < jnp.minimum(waiting.released, given.lane.requests)
    return jnp.where(comes, read(requests.arrival_s, waiting.arrived), jnp.inf)


def head(waiting: Waiting) -> Array:
    """The request that is looked at first, if anybody waits."""
    first = load(waiting.heap, jnp.minimum(waiting.size, 0))
    return jnp.where(waiting.size > 0, first.astype(jnp.int32), waiting.arrived)


def anybody(given: GeneralLane, requests: Requests, state: State) -> Array:
    """Somebody waits."""
    return (state.waiting.size > 0) | (next_arrival(given, requests, state.waiting) <= state.clock)


def arrive(given: GeneralLane, requests: Requests, state: State) -> State:
    """With a rank by work, who has come takes its place in the heap."""

    def comes(waiting: Waiting) -> Array:
        return given.rules.least_work & (next_arrival(given, requests, waiting) <= state.clock)

    def enter(waiting: Waiting) -> Waiting:
        i = waiting.arrived
        return _push(waiting, _work(requests, state.sequences, i), i)._replace(arrived=i + 1)

    return state._replace(waiting=lax.while_loop(comes, enter, state.waiting))


def go_back(given: GeneralLane, requests: Requests, state: State, i: Array) -> State:
    """A preempted request waits again: before all others, or by its work. ``preemptions`` counts it already."""
    work = _work(requests, state.sequences, i)
    rank = jnp.where(given.rules.least_work, work, -state.preemptions)
    return state._replace(waiting=_push(state.waiting, rank, i))


def pop(waiting: Waiting, i: Array) -> Waiting:
    """Without the head, which is ``i``."""
    ranked = waiting.size > 0
    heap, size = waiting.heap, waiting.size - ranked
    moved = load(heap, size + jnp.minimum(i, 0))  # after the head was read

    def smaller_child(heap: Array, place: Array) -> tuple[Array, Array]:
        left = 2 * place + 1
        first, second = load(heap, left), load(heap, left + 1)
        right = (left + 1 < size) & (second < first)
        return left + right, jnp.where(right, second, first)

    def sinks(carry: tuple[Array, Array]) -> Array:
        place, heap = carry
        return (2 * place + 1 < size) & (smaller_child(heap, place)[1] < moved)

    def sink(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        place, heap = carry
        child, value = smaller_child(heap, place)
        return child, write(heap, place, value)

    place, heap = lax.while_loop(sinks, sink, (jnp.int32(0), heap))
    return waiting._replace(heap=write(heap, place, moved), size=size, arrived=waiting.arrived + ~ranked)


def _push(waiting: Waiting, rank: Array, i: Array) -> Waiting:
    """With ``i`` at its rank; ties by number."""
    entry = (rank.astype(jnp.int64) << 32) | i.astype(jnp.int64)

    def rises(carry: tuple[Array, Array]) -> Array:
        place, heap = carry
        return (place > 0) & (load(heap, (place - 1) // 2) > entry)

    def rise(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        place, heap = carry
        parent = (place - 1) // 2
        return parent, write(heap, place, load(heap, parent))

    place, heap = lax.while_loop(rises, rise, (waiting.size, waiting.heap))
    return waiting._replace(heap=write(heap, place, entry), size=waiting.size + 1)


def _work(requests: Requests, sequences: Sequences, i: Array) -> Array:
    """Tokens left to compute and to generate."""
    target = load(sequences.target, i)
    computed = jnp.minimum(load(sequences.computed, i), target)
    return target - computed + read(requests.output_tokens, i) - load(sequences.generated, i)
