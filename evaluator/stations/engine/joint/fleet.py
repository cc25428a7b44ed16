"""Which replicas are there where they come and go: what the loop remembers of them, and who of them is sent requests.

A replica is a slot that is used again and again: what has drained is as empty as what was never there, so that nothing
but its own counters of iterations is set back when it starts. Serving replicas stand in the order in which they were
started, as in ``reference.stations.fleet``: a router takes the first of several with as little, and of several with as
few requests the last one stops. That order is the number of the span (``common.lane.Spans``) that a slot has now.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import (
    Array,
    Flag,
    FlagPerReplica,
    Float,
    FloatPerReplica,
    Int,
    IntPerReplica,
)
from evaluator.stations.engine.common.lane import Spans
from evaluator.stations.engine.common.rings import read, write
from evaluator.stations.engine.preemptive.lane import Given

FREE, STARTS, SERVES, DRAINS = range(4)
"""What a slot is in."""
_LAST = 1 << 30  # behind all spans


class FleetState(NamedTuple):
    """Of an autoscaler and its replicas; looks have cells of rings, the n-th ``n % cells``."""

    condition: IntPerReplica  # FREE, ...
    span: IntPerReplica  # the row of ``spans`` of the replica that is in the slot
    ready_s: FloatPerReplica  # when it serves; infinite if it does not start
    spans: Spans
    turn: Int  # requests sent since the serving replicas were others
    look_s: Float  # the next look
    next_s: Float  # that, or when the next replica serves
    looks: Int  # so far
    looked_s: Array  # float64 (look,): when
    total: Array  # float64 (look,): the metric, summed over the serving replicas or, of TTFT, over requests
    weight: Array  # float64 (look,): 1, or how many requests
    wanted: Array  # int32 (look,): replicas
    came_tokens: Float  # of the requests that were sent since the last look: prompt tokens to compute, or outputs

    def serving(self) -> FlagPerReplica:
        """Who is sent requests."""
        return self.condition == SERVES

    def first_of(self, some: FlagPerReplica) -> Int:
        """Of some replicas the one that was started first."""
        return jnp.argmin(jnp.where(some, self.span, _LAST)).astype(jnp.int32)

    def newest_of(self, some: FlagPerReplica) -> Int:
        """Of some replicas the one that was started last."""
        return jnp.argmax(jnp.where(some, self.span, -1)).astype(jnp.int32)

    def in_turn(self) -> Int:
        """The replica whose turn it is, the first one first whenever the serving ones have changed."""
        serving = self.serving()
        turn = self.turn % serving.sum(dtype=jnp.int32)

        # The least span up to which there are more than ``turn`` serving replicas, by halves of all spans. Not by a
        # sort: XLA compiles no loop whole that has one inside (``device.WHOLE_LOOPS``), so that every operation of the
        # event loop would be a call.
        def halve(_: Int, bounds: tuple[Int, Int]) -> tuple[Int, Int]:
            low, high = bounds
            middle = (low + high) // 2
            enough = (serving & (self.span <= middle)).sum(dtype=jnp.int32) > turn
            return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

        last = lax.fori_loop(0, _LAST.bit_length(), halve, (jnp.int32(0), jnp.int32(_LAST)))[1]
        return jnp.argmax(serving & (self.span == last)).astype(jnp.int32)

    def left(self, r: Int, now: Float, empty: Flag) -> FleetState:
        """After a batch of replica r has ended, whether nobody is left there or not: who drains is gone then."""
        gone = empty & (read(self.condition, r) == DRAINS)
        return self.without(r, now, gone)

    def without(self, r: Int, now: Float, on: Flag) -> FleetState:
        """Replica r is no longer paid for, if ``on``."""
        row = jnp.where(on, read(self.span, r), self.spans.gone_s.shape[0] - 1)  # else the padding row
        return self._replace(
            condition=write(self.condition, r, jnp.where(on, FREE, read(self.condition, r))),
            ready_s=write(self.ready_s, r, jnp.where(on, jnp.inf, read(self.ready_s, r))),
            spans=self.spans._replace(gone_s=write(self.spans.gone_s, row, now)),
        )


def initial_fleet(given: Given) -> FleetState | None:
    """The fewest replicas serve; None where replicas do not come and go."""
    fleet, cells = given.together.fleet, given.structure.looks
    if fleet is None:
        return None
    replicas, number = given.structure.replicas, jnp.int32(0)
    numbers = jnp.arange(replicas, dtype=jnp.int32)
    # As many rows as requests, and the replicas that there are at once: more are started only where the metric swings
    # without arrivals; the last row is for writes that are not wanted.
    rows = given.requests.arrival_s.shape[0] + replicas + 1
    first = jnp.arange(rows, dtype=jnp.int32) < fleet.least
    return FleetState(
        condition=jnp.where(numbers < fleet.least, SERVES, FREE).astype(jnp.int32),
        span=numbers,
        ready_s=jnp.full(replicas, jnp.inf),
        spans=Spans(fleet.least, jnp.where(first, fleet.begin_s, jnp.inf), jnp.full(rows, jnp.inf)),
        turn=number,
        look_s=fleet.begin_s + fleet.every_s,
        next_s=fleet.begin_s + fleet.every_s,
        looks=number,
        looked_s=jnp.full(cells, -jnp.inf),
        total=jnp.zeros(cells),
        weight=jnp.zeros(cells),
        wanted=jnp.zeros(cells, jnp.int32),
        came_tokens=jnp.zeros(()),
    )
