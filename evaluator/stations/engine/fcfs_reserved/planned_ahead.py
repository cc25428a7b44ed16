"""A replica that plans its next batch before the tokens of the one under way are known: vLLM's default.

When which batch is planned and starts, and where vLLM does it, is explained in ``preemptive.asynchronous``. In this
program requests come in in their order and nobody is sent back, so that three things change and all else stays:

* ``State.clock`` is when the next batch is planned. It starts at that time or when the batch under way has ended, and
  all its tokens count from there; an arrival is looked at when a batch is planned, an iteration earlier;
* a request whose last token comes with a batch holds its seat and its KV while the next batch is planned, and its user
  sends the next request after that. What they hold are three sums (``PlannedBatch``), taken off one trip later;
* a leap goes on for one iteration more after an arrival, because the next iteration is planned already; and it has one
  iteration if a request may come in as soon as those have left.

A batch of nothing takes no time, and the next one is planned when the batch under way has ended, as in vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp

from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.leap import Leap

if TYPE_CHECKING:
    from evaluator.stations.engine.fcfs_reserved.departures import DepartureQueue


class PlannedBatch(NamedTuple):
    """The batch that was planned last, and the requests that have their last token with it."""

    end_s: Float  # when it ends
    sequences: Float  # whose last token it gives: the seats that they hold
    requests: Int  # of which no sequence is left
    kv: Float  # units that they hold

    def with_departures(self, end_s: Float, out: DepartureQueue) -> PlannedBatch:
        """The batch that was planned after it."""
        return PlannedBatch(end_s, out.count.astype(jnp.float64), out.requests, out.kv)


def nothing_planned() -> PlannedBatch:
    """Of an idle lane at time 0."""
    zero = jnp.zeros((), jnp.float64)
    return PlannedBatch(zero, zero, jnp.int32(0), zero)


def next_planned_s(start_s: Float, end_s: Float, leap: Leap, iterations: Float, stuck: Flag) -> Float:
    """When the next batch is planned: when all of a trip's ``iterations`` but the last, which is the leap's where there
    are several, have ended."""
    last_s = leap.first_s + leap.slope_s * (leap.iterations - 1.0)
    return jnp.where(stuck, jnp.inf, jnp.where(iterations > 1, end_s - last_s, start_s))
