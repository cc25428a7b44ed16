"""What the loop of a lane carries from trip to trip."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.arrays import (
    Bins,
    Float,
    FloatPerRequest,
    Int,
    IntPerBranch,
    Peaks,
    StepBits,
    StepCounts,
    StepLists,
)
from evaluator.stations.engine.common.leap import no_peaks
from evaluator.stations.engine.common.rings import NONE, WORD
from evaluator.stations.engine.common.speculation import AcceptedTokens, nothing_accepted
from evaluator.stations.engine.fcfs_reserved.kv_on_demand import KvGrowth, nothing_taken
from evaluator.stations.engine.fcfs_reserved.lane import Given
from evaluator.stations.engine.fcfs_reserved.planned_ahead import PlannedBatch, nothing_planned


class State(NamedTuple):
    """A lane between two trips."""

    clock: Float  # end of the last batch; planned ahead, when the next one is planned
    head: Int  # head of the waiting queue: the first request whose prompt is not completely computed
    progress: Float  # prompt tokens of the head already computed
    step: Int  # steps done
    decodes: Float  # running sequences that have their first token
    context: Float  # tokens that they attend to in the next step, summed
    window_context: Float  # the same in windowed layers
    window_growing: Float  # decodes whose windowed context still grows
    kv: Float  # KV units reserved or, on demand, in use; with those of ``PlannedBatch``
    released: Int  # closed loop: requests sent so far
    gap_from: Float  # end of the last step, where the next gap between tokens starts
    first_gap: Int  # requests from here to the head have no second token yet
    busy_s: Float
    iterations: Float
    kv_max: Float
    kv_unit_s: Float  # units in use, integrated over time, as far as it does not follow from the requests' times
    experts_touched: Float
    peaks: Peaks
    events: StepBits  # steps at whose end the batch changes
    leaving: StepLists  # branches that leave at the end of a step; ``next_leaving`` has the links
    crossing: StepCounts  # decodes whose window is full at that step; a single cell without windowed layers
    next_leaving: IntPerBranch
    scheduled_s: FloatPerRequest
    first_token_s: FloatPerRequest
    last_token_s: FloatPerRequest
    itl_histogram: Bins
    accepted: AcceptedTokens | None = None  # None where every decode gives one token
    kv_growth: KvGrowth | None = None  # None where KV is reserved
    planned: PlannedBatch | None = None  # None: a batch is planned when the one before has ended


def initial_state(given: Given) -> State:
    """An idle lane at time 0."""
    slots, ring = given.requests.arrival_s.shape[0], given.structure.ring
    zero, number = jnp.zeros((), jnp.float64), jnp.zeros((), jnp.int32)
    never = jnp.full(slots, jnp.inf)
    return State(
        clock=zero, head=number, progress=zero, step=number, decodes=zero, context=zero, window_context=zero,
        window_growing=zero, kv=zero, released=given.limits.users, gap_from=zero, first_gap=number, busy_s=zero,
        iterations=zero, kv_max=zero, kv_unit_s=zero, experts_touched=zero,
        peaks=no_peaks(given.cost),
        events=jnp.zeros(ring // WORD, jnp.uint64),
        leaving=jnp.full(ring + 1, NONE, jnp.int32),
        crossing=jnp.zeros(ring + 1 if given.structure.windowed else 1, jnp.int64),
        next_leaving=jnp.full(slots * given.cells, NONE, jnp.int32),
        scheduled_s=never, first_token_s=never, last_token_s=never,
        itl_histogram=jnp.zeros(histogram.BINS),
        accepted=None if given.speculation is None else nothing_accepted(ring + 1, given.structure.windowed),
        kv_growth=None if given.on_demand is None else nothing_taken(given),
        planned=nothing_planned() if given.structure.asynchronous else None,
    )  # fmt: skip
