"""When tokens come: the first of each request, and the gaps between all of them."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array
from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.lane import Lane, Requests
from evaluator.stations.engine.common.rings import read, write
from evaluator.stations.engine.in_order.state import State


class Leap(NamedTuple):
    """The iterations of one trip."""

    iterations: Array  # float64
    steps: Array  # int32, those in which decodes take part
    first_end: Array  # when the first of them ends
    clock: Array  # when the last of them ends
    took_s: Array


def first_tokens(first_token_s: Array, start: Array, end: Array, clock: Array) -> Array:
    """The array with ``clock`` as the time of the first token of requests start .. end - 1."""

    def enter(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        i, times = carry
        return i + 1, write(times, i, clock)

    return lax.while_loop(lambda carry: carry[0] < end, enter, (start, first_token_s))[1]


def enter_gaps(lane: Lane, requests: Requests, state: State, first_token_s: Array, leap: Leap) -> Array:
    """The histogram with the gaps that end in the steps of a leap.

    The first gap of a sequence starts at its own first token, which may lie before the end of the last step where
    decodes waited for prompts: it is entered by itself. All other gaps start at the end of the last step. Gaps count
    from the first token of the first measured request on, whosever they are.
    """
    weight = jnp.where(state.head > lane.measured_from, 1.0, 0.0)

    def enter_first(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, entered, bins = carry
        runs = jnp.where(read(requests.output_tokens, i) > 1, 1.0, 0.0)
        at = histogram.bin_of(leap.first_end - read(first_token_s, i))
        return i + 1, entered + runs, write(bins, at, read(bins, at) + runs * weight)

    moves = leap.steps > 0
    end = jnp.where(moves, state.head, state.first_gap)
    start = (state.first_gap, jnp.zeros((), jnp.float64), state.itl_histogram)
    _, entered, bins = lax.while_loop(lambda carry: carry[0] < end, enter_first, start)
    at = histogram.bin_of(leap.first_end - state.gap_from)
    bins = write(bins, at, read(bins, at) + jnp.where(moves, weight * (state.decodes - entered), 0.0))
    more = jnp.maximum(leap.steps - 1, 0).astype(jnp.float64)
    at = histogram.bin_of((leap.clock - leap.first_end) / jnp.maximum(more, 1.0))
    return write(bins, at, read(bins, at) + weight * more * state.decodes)
