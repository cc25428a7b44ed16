"""The decode side of a disaggregated deployment: boxes, one per sequence of an instance. BestServe, algorithm 3."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array
from evaluator.stations.request_level.lane import (
    Departures,
    RequestLane,
    RequestLevelStructure,
    ServedRequests,
    draw_one,
    least_at,
    when_idle,
)


class _State(NamedTuple):
    head: Array  # first request that waits
    idle_s: Array  # (instance, box) when the box is free
    scheduled_s: Array  # (request,)
    next_token_s: Array  # (request,)
    finished_s: Array  # (request,)
    instance: Array  # (request,)


def pseudo_batch(busy: Array, tau: Array) -> Array:
    """The number of sequences among which a request decodes all the time: BestServe, equation 9.

    In truth the batch changes while the request decodes. The paper takes a share 1 / tau of the batch that the request
    finds (``busy``) and joins, rounded down and at least 1.
    """
    return jnp.maximum(jnp.floor((busy + 1.0) / tau), 1.0)


def busy_boxes(row: Array, now: Array) -> Array:
    """How many boxes of an instance hold a request that has not finished, float64; infinity is no box at all."""
    return jnp.sum((row > now) & (row < jnp.inf)).astype(jnp.float64)


def decode(lane: RequestLane, requests: ServedRequests, structure: RequestLevelStructure) -> Departures:
    """The requests of a lane from their second token on, which come evenly spaced.

    ``requests`` arrive with their first token, which ``output_tokens`` counts. Those that want no more have left
    before, and take no box.
    """

    def trip(state: _State) -> _State:
        request = state.head
        arrival, output = requests.arrival_s[request], requests.output_tokens[request]
        decodes = output > 1.0
        start = jnp.maximum(jnp.min(state.idle_s), arrival)
        chosen = draw_one(jnp.any(state.idle_s <= start, axis=1), requests.decode_draw[request])
        row = state.idle_s[chosen]
        box = least_at(row)
        together = pseudo_batch(busy_boxes(row, start), lane.tau)
        took_s = lane.cost.decodes_s(together, requests.prompt_tokens[request], output)
        finish, gap_s = start + took_s, took_s / jnp.maximum(output - 1.0, 1.0)
        return _State(
            head=request + 1,
            idle_s=state.idle_s.at[chosen, box].set(jnp.where(decodes, finish, row[box])),
            scheduled_s=state.scheduled_s.at[request].set(jnp.where(decodes, start, arrival)),
            next_token_s=state.next_token_s.at[request].set(jnp.where(decodes, start + gap_s, arrival)),
            finished_s=state.finished_s.at[request].set(jnp.where(decodes, finish, arrival)),
            instance=state.instance.at[request].set(chosen),
        )

    idle_s = when_idle((structure.instances, structure.boxes), lane.instances, lane.max_decodes)
    slots = requests.arrival_s.shape[0]
    never, nobody = jnp.full(slots, jnp.inf), jnp.zeros(slots, jnp.int32)
    start = _State(jnp.zeros((), jnp.int32), idle_s, never, never, never, nobody)
    final = lax.while_loop(lambda state: state.head < lane.requests, trip, start)
    return Departures(final.scheduled_s, final.next_token_s, final.finished_s, final.instance)
