"""Leaps: runs of iterations of the same batch, whose times are summed in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import (
    BatchStatistics,
    CostParameters,
    IterationCost,
    iteration_time,
    prefill_attention_time,
)
from evaluator.cost.quantities import PEAKS, holds_everywhere
from evaluator.stations.engine.common.arrays import Flag, Float, Peaks

UNBOUNDED = 1e9
"""Iterations: more than any leap makes, still an int32."""


class Leap(NamedTuple):
    """Iterations of the same batch, each longer than the one before by the same time, because contexts grow."""

    iterations: Float
    first_s: Float  # duration of the first
    slope_s: Float  # by how much each is longer than the one before

    def duration_s(self) -> Float:
        """All of them together."""
        count = self.iterations
        return count * self.first_s + 0.5 * self.slope_s * count * (count - 1.0)


def iterations_until(wait_s: Float, first_s: Float, slope_s: Float) -> Float:
    """How many iterations of a leap begin before ``wait_s`` has passed, or one less where rounding leaves a doubt.

    It is the smallest k with ``k first_s + slope_s k (k - 1) / 2 >= wait_s``. One too few costs another trip, one too
    many would be wrong. The root of the quadratic is taken in the form in which nothing cancels.
    """
    b = first_s - 0.5 * slope_s
    root = 2.0 * wait_s / (b + jnp.sqrt(b * b + 2.0 * slope_s * wait_s))
    return jnp.ceil(root - 1e-6)


def batch_time(cost: IterationCost, batch: BatchStatistics) -> Float:
    """Seconds of one iteration; a trip without prompts does not compute the time of their attention.

    A branch costs about as much as one attention operator. So it is there only for models with several (full and
    windowed), where it makes a lane 5 % faster; under ``vmap`` both sides are computed.
    """
    if not isinstance(cost, CostParameters) or len(cost.prefill_rows.flop) + len(cost.prefill_window_rows.flop) < 2:
        return iteration_time(cost, batch)
    attention_s = lax.cond(
        batch.prefill_tokens > 0, lambda: prefill_attention_time(cost, batch), lambda: jnp.zeros((), jnp.float64)
    )
    return iteration_time(cost, batch, attention_s)


Numbers = TypeVar("Numbers")


def once(on: Flag, compute: Callable[[], Numbers]) -> Numbers:
    """What is computed if ``on``, else 0, floats; at one point of the program.

    XLA repeats the sum of an iteration's operators in each computation that uses the time, and computes it once where
    it stands in a conditional (see ``rings.read_once``).
    """

    def floats() -> Numbers:
        return jax.tree.map(lambda value: jnp.asarray(value, jnp.float64), compute())

    return lax.cond(on, floats, lambda: jax.tree.map(jnp.zeros_like, jax.eval_shape(floats)))


def no_peaks(cost: IterationCost) -> Peaks:
    """The peaks of a lane before its first iteration; the roofline has none, because it holds for any batch."""
    return jnp.zeros(0 if holds_everywhere(cost) else len(PEAKS))
