"""Requests that leave with their last token."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import Array
from evaluator.stations.engine.common.lane import Lane, Requests
from evaluator.stations.engine.common.rings import read, write
from evaluator.stations.engine.in_order.state import Structure


class Departures(NamedTuple):
    """What those who leave give back."""

    request: Array  # the next to leave, NOBODY at the end of the list
    count: Array
    context: Array  # tokens that they would attend to in the next step
    window_context: Array
    kv: Array
    last_token_s: Array  # (request + 1,)


def depart(
    lane: Lane, requests: Requests, structure: Structure, next_leaving: Array, first: Array, times: Array, clock: Array
) -> Departures:
    """Walk the list of requests that leave at ``clock``, from ``first`` on; ``times`` are the last tokens so far."""

    def leave(out: Departures) -> Departures:
        i = out.request
        prompt, output, kv = (read(field, i).astype(jnp.float64) for field in requests[2:])
        attends = prompt + output + lane.prompts_resident
        windowed = jnp.minimum(attends, lane.window) if structure.windowed else 0.0
        return Departures(
            read(next_leaving, i),
            out.count + 1,
            out.context + attends,
            out.window_context + windowed,
            out.kv + kv,
            write(out.last_token_s, i, clock),
        )

    zero = jnp.zeros((), jnp.float64)
    start = Departures(first, jnp.int32(0), zero, zero, zero, times)
    return lax.while_loop(lambda out: out.request >= 0, leave, start)
