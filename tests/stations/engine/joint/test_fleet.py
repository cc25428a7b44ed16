"""Whose turn it is among replicas that come and go, against a sorted list."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evaluator.device import configure
from evaluator.stations.engine.common.lane import Spans
from evaluator.stations.engine.joint.fleet import SERVES, FleetState


@jax.jit
def in_turn(condition, span, turn):
    nothing = jnp.zeros(1)
    spans = Spans(jnp.int32(0), nothing, nothing)
    return FleetState(condition, span, nothing, spans, turn, *[nothing] * 8).in_turn()


def test_serving_replicas_take_turns_in_the_order_in_which_they_were_started():
    configure()
    rng = np.random.default_rng(0)
    for _ in range(50):
        condition = rng.integers(SERVES + 2, size=8).astype(np.int32)
        condition[rng.integers(8)] = SERVES
        span = rng.choice([*range(40), (1 << 30) - 1], size=8, replace=False).astype(np.int32)
        serving = sorted(np.flatnonzero(condition == SERVES), key=lambda r: span[r])
        turn = int(rng.integers(100))
        assert int(in_turn(condition, span, jnp.int32(turn))) == serving[turn % len(serving)]
