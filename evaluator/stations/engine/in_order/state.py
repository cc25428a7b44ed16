"""What the loop of a lane carries from trip to trip."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evaluator.cost.iteration import Array, CostParameters, IterationCost
from evaluator.cost.quantities import PEAKS
from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.lane import Lane
from evaluator.stations.engine.common.rings import WORD

NOBODY = -1


class Structure(NamedTuple):
    """What is compiled in: everything else is traced."""

    ring: int  # steps in the rings, a power of two above the longest output
    windowed: bool  # the model has sliding-window layers


class State(NamedTuple):
    """A lane between two trips. Scalars are float64 (times, token and sequence counts) or int32 (requests, steps)."""

    clock: Array
    head: Array  # first request whose prompt is not completely computed
    progress: Array  # prompt tokens of the head already computed
    step: Array  # steps done
    decodes: Array  # running sequences
    context: Array  # tokens that they attend to in the next step, summed
    window_context: Array
    window_growing: Array  # decodes whose windowed context still grows
    kv: Array  # KV units reserved
    released: Array  # closed loop: requests sent so far
    gap_from: Array  # end of the last step, where the next gap between tokens starts
    first_gap: Array  # requests from here to the head have no second token yet
    busy_s: Array
    iterations: Array
    kv_max: Array
    experts_touched: Array
    peaks: Array  # (quantity,) as of ``quantities.PEAKS``, of a fitted cost; (0,) of the roofline
    events: Array  # (ring / 64,) uint64
    leaving: Array  # (ring + 1,) int32, the last cell takes writes that are not meant
    crossing: Array  # (ring + 1,) int64, tagged counts of decodes whose window is full at that step
    next_leaving: Array  # (request + 1,) int32
    scheduled_s: Array  # (request + 1,)
    first_token_s: Array
    last_token_s: Array
    itl_histogram: Array  # (bin,)


def no_peaks(cost: IterationCost) -> Array:
    """No iteration yet."""
    return jnp.zeros(0 if isinstance(cost, CostParameters) else len(PEAKS))


def initial_state(lane: Lane, slots: int, structure: Structure) -> State:
    """An idle lane at time 0 with room for ``slots`` requests, the padding among them."""
    zero, number = jnp.zeros((), jnp.float64), jnp.zeros((), jnp.int32)
    never = jnp.full(slots, jnp.inf)
    return State(
        clock=zero, head=number, progress=zero, step=number, decodes=zero, context=zero, window_context=zero,
        window_growing=zero, kv=zero, released=lane.users, gap_from=zero, first_gap=number, busy_s=zero,
        iterations=zero, kv_max=zero, experts_touched=zero,
        peaks=no_peaks(lane.cost),
        events=jnp.zeros(structure.ring // WORD, jnp.uint64),
        leaving=jnp.full(structure.ring + 1, NOBODY, jnp.int32),
        crossing=jnp.zeros(structure.ring + 1 if structure.windowed else 1, jnp.int64),
        next_leaving=jnp.full(slots, NOBODY, jnp.int32),
        scheduled_s=never, first_token_s=never, last_token_s=never,
        itl_histogram=jnp.zeros(histogram.BINS),
    )  # fmt: skip
