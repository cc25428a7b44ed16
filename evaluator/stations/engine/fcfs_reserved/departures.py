"""Requests, or branches of them, that leave with their last token."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Array, Float, FloatPerRequest, Int
from evaluator.stations.engine.common.rings import NONE, in_ring, read, write
from evaluator.stations.engine.fcfs_reserved.admission import Intake
from evaluator.stations.engine.fcfs_reserved.kv_on_demand import KvGrowth, end_decode
from evaluator.stations.engine.fcfs_reserved.lane import Given


class DepartureQueue(NamedTuple):
    """Sums over the requests that leave, to be taken off the lane's state."""

    branch: Int  # the next to leave, NONE at the end of the list; a request without branches is its own
    count: Int  # sequences
    requests: Int  # of which no sequence is left
    context: Float  # tokens that they would attend to in the next step
    window_context: Float
    kv: Float
    last_token_s: FloatPerRequest
    kv_steps: Array | None  # KV on demand: ``KvGrowth.steps`` without them


def depart(
    given: Given, intake: Intake, growth: KvGrowth | None, step: Int, times: FloatPerRequest, clock: Float
) -> DepartureQueue:
    """Walk the list of requests that leave at ``clock`` after ``step`` steps; ``times`` are the last tokens so far."""
    requests, limits, next_leaving = given.requests, given.limits, intake.next_leaving
    first = read(intake.leaving, in_ring(step, given.structure.ring))

    def leave(out: DepartureQueue) -> DepartureQueue:
        i = out.branch // given.cells
        prompt, output, kv = (read(field, i).astype(jnp.float64) for field in requests[2:])
        ends: Int | bool = True
        if given.branches is not None:
            columns = given.branches.tokens, given.branches.kv_units
            output, kv = (read(field, out.branch).astype(jnp.float64) for field in columns)
            ends = out.branch % given.cells == given.cells - 1
        attends = prompt + output + limits.prompts_resident
        windowed = jnp.minimum(attends, limits.window) if given.structure.windowed else 0.0
        return DepartureQueue(
            read(next_leaving, out.branch),
            out.count + 1,
            out.requests + ends,
            out.context + attends,
            out.window_context + windowed,
            out.kv + kv,
            write(out.last_token_s, i, clock),
            None if out.kv_steps is None else end_decode(given, out.kv_steps, i, step, output),
        )

    if growth is not None:
        # The condition always holds. It makes the writes to ``kv_steps`` wait for the leap's look at them: without it
        # XLA copies that array on every trip (``common.rings``), which makes a lane a tenth slower.
        first = jnp.where(growth.asked >= 0.0, first, NONE)
    zero = jnp.zeros((), jnp.float64)
    kv_steps = None if growth is None else growth.steps
    start = DepartureQueue(first, jnp.int32(0), jnp.int32(0), zero, zero, zero, times, kv_steps)
    return lax.while_loop(lambda out: out.branch >= 0, leave, start)
