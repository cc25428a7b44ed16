"""The decode side of a disaggregated deployment: boxes, one per sequence of an instance. BestServe, algorithm 3."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array
from evaluator.stations.request_level.lane import (
    RequestLane,
    RequestLevelStructure,
    ServedRequests,
    draw_one,
    when_idle,
)


class _State(NamedTuple):
    head: Array  # first request that waits
    idle_s: Array  # (instance, box) when the box is free
    finished_s: Array  # (request,)


def pseudo_batch(busy: Array, tau: Array) -> Array:
    """The number of sequences among which a request decodes all the time: BestServe, equation 9.

    In truth the batch changes while the request decodes. The paper takes a share 1 / tau of the batch that the request
    finds (``busy``) and joins, rounded down and at least 1.
    """
    return jnp.maximum(jnp.floor((busy + 1.0) / tau), 1.0)


def busy_boxes(row: Array, now: Array) -> Array:
    """How many boxes of an instance hold a request that has not finished, float64; infinity is no box at all."""
    return jnp.sum((row > now) & (row < jnp.inf)).astype(jnp.float64)


def decode(lane: RequestLane, requests: ServedRequests, structure: RequestLevelStructure) -> Array:
    """When the requests of a lane have their last token, seconds (request,).

    ``requests`` arrive with their first token. Those that want no more have left before, and take no box.
    """

    def trip(state: _State) -> _State:
        request = state.head
        arrival, output = requests.arrival_s[request], requests.output_tokens[request]
        decodes = output > 1.0
        start = jnp.maximum(jnp.min(state.idle_s), arrival)
        chosen = draw_one(jnp.any(state.idle_s <= start, axis=1), requests.decode_draw[request])
        row = state.idle_s[chosen]
        box = jnp.argmin(row)
        together = pseudo_batch(busy_boxes(row, start), lane.tau)
        finish = start + lane.cost.decodes_s(together, requests.prompt_tokens[request], output)
        return _State(
            head=request + 1,
            idle_s=state.idle_s.at[chosen, box].set(jnp.where(decodes, finish, row[box])),
            finished_s=state.finished_s.at[request].set(jnp.where(decodes, finish, arrival)),
        )

    idle_s = when_idle((structure.instances, structure.boxes), lane.instances, lane.max_decodes)
    start = _State(jnp.zeros((), jnp.int32), idle_s, jnp.full(requests.arrival_s.shape[0], jnp.inf))
    return lax.while_loop(lambda state: state.head < lane.requests, trip, start).finished_s
