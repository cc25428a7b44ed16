"""How many iterations of a batch pass before it changes, if nobody arrives."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.leap import UNBOUNDED
from evaluator.stations.engine.common.rings import read
from evaluator.stations.engine.preemptive.batch import Scheduled
from evaluator.stations.engine.preemptive.lane import Given
from evaluator.stations.engine.preemptive.preemption import growth_at
from evaluator.stations.engine.preemptive.program import alike_iterations
from evaluator.stations.engine.preemptive.state import State


def until_change(given: Given, state: State, batch: Scheduled) -> Float:
    """With KV on demand, they end before the step that finds too little."""
    most = alike_iterations(given, state, batch, jnp.float64(UNBOUNDED))
    step, on_demand = read(state.decode_groups.step, state.schedulable), given.rules.on_demand

    def fits(carry: tuple[Int, Float]) -> Flag:
        ahead, kv = carry
        return on_demand & (ahead < most) & (kv + growth_at(given, state, step + ahead) <= given.limits.kv_units)

    def go_on(carry: tuple[Int, Float]) -> tuple[Int, Float]:
        ahead, kv = carry
        return ahead + 1, kv + growth_at(given, state, step + ahead)

    ahead, _ = lax.while_loop(fits, go_on, (jnp.int32(1), state.kv))
    return jnp.where(on_demand, ahead, most).astype(jnp.float64)
