"""The prefill side of a disaggregated deployment: batches of prompts on identical instances. BestServe, algorithm 2."""

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
    prompt_batch,
    when_idle,
)


class _State(NamedTuple):
    head: Array  # first request that waits
    idle_s: Array  # (instance,) when the instance has finished
    scheduled_s: Array  # (request + prompt,)
    finished_s: Array  # (request + prompt,)
    instance: Array  # (request + prompt,)


def padded(requests: ServedRequests, prompts: int) -> ServedRequests:
    """With ``prompts`` more slots that never arrive, so that a window of so many can be read at any request."""
    more = [jnp.full(prompts, fill) for fill in (jnp.inf, 0.0, 1.0, 0.0, 0.0)]
    return ServedRequests(*(jnp.concatenate(pair) for pair in zip(requests, more, strict=True)))


def window(values: Array, first: Array, size: int) -> Array:
    """``size`` values from ``first`` on."""
    return lax.dynamic_slice(values, (first,), (size,))


def spread(values: Array, value: Array, first: Array, size: int) -> Array:
    """``value`` in ``size`` places from ``first`` on.

    Members of a batch are neighbours. The whole window is written, whatever the size of the batch: the next batch
    starts where this one ends, and overwrites the rest.
    """
    return lax.dynamic_update_slice(values, jnp.broadcast_to(value, (size,)).astype(values.dtype), (first,))


def prefill(lane: RequestLane, requests: ServedRequests, structure: RequestLevelStructure) -> Departures:
    """The requests of a lane up to their first token, which is the last that this side gives."""
    slots, size = requests.arrival_s.shape[0], structure.prompts
    given = padded(requests, size)

    def trip(state: _State) -> _State:
        start = jnp.maximum(jnp.min(state.idle_s), given.arrival_s[state.head])
        arrival_s = window(given.arrival_s, state.head, size)
        batch = prompt_batch(lane, arrival_s, window(given.prompt_tokens, state.head, size), start)
        chosen = draw_one(state.idle_s <= start, given.prefill_draw[state.head])
        finish = start + lane.cost.prompts_s(batch)
        return _State(
            head=state.head + batch.requests.astype(jnp.int32),
            idle_s=state.idle_s.at[chosen].set(finish),
            scheduled_s=spread(state.scheduled_s, start, state.head, size),
            finished_s=spread(state.finished_s, finish, state.head, size),
            instance=spread(state.instance, chosen, state.head, size),
        )

    never = jnp.full(slots + size, jnp.inf)
    idle_s = when_idle((structure.instances,), lane.instances)
    nobody = jnp.zeros(slots + size, jnp.int32)
    start = _State(jnp.zeros((), jnp.int32), idle_s, never, never, nobody)
    final = lax.while_loop(lambda state: state.head < lane.requests, trip, start)
    real = jnp.arange(slots) < lane.requests
    scheduled_s, finished_s = (
        jnp.where(real, times[:slots], jnp.inf) for times in (final.scheduled_s, final.finished_s)
    )
    return Departures(scheduled_s, finished_s, finished_s, final.instance[:slots])
