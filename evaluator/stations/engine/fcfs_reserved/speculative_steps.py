"""Leaps of sequences that get unequal numbers of tokens, because they verify drafts: summed iteration by iteration."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.cost.iteration import BatchStatistics
from evaluator.cost.speculative import SpeculativeCost
from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.leap import batch_time, once
from evaluator.stations.engine.common.rings import in_ring, steps_to_event, tagged_count
from evaluator.stations.engine.fcfs_reserved.admission import Intake
from evaluator.stations.engine.fcfs_reserved.lane import Given
from evaluator.stations.engine.fcfs_reserved.state import State


class Uneven(NamedTuple):
    """Iterations of the same batch whose contexts grow by what its sequences gain in each."""

    count: Int
    first_s: Float  # duration of the first
    second_s: Float  # of the second, were there one
    took_s: Float  # all of them together
    tokens: Float  # output tokens that they give
    window: Float  # what they add to the windowed contexts


def uneven_leap(
    given: Given, state: State, intake: Intake, now: Float, batch: BatchStatistics, repeats: Flag, stalled: Flag
) -> Uneven:
    """As many iterations as pass before the batch changes; one unless it ``repeats``, none if it is empty.

    The leap goes on while the request that might come in has not arrived, and up to the next step with an event.
    ``stalled``: the decodes wait for this iteration and gain nothing.
    """
    cost, accepted, structure = given.cost, intake.accepted, given.structure
    assert isinstance(cost, SpeculativeCost) and accepted is not None
    stuck = (batch.prefill_tokens == 0) & (batch.decodes == 0)
    first_s = once(~stuck, lambda: batch_time(cost, batch))
    token_s, window_s = cost.token_growth(batch.decodes)
    most = jnp.where(repeats, steps_to_event(intake.events, state.step, structure.ring), 1)
    wait_s = jnp.where(intake.waits, intake.next_arrival - now, jnp.inf)

    def gain(count: Int) -> tuple[Float, Float]:
        """What the ``count``-th step of the leap gives, of tokens and of windowed context."""
        step = state.step + count
        cell = in_ring(step, structure.ring)
        window = tagged_count(accepted.window, cell, step) if structure.windowed else jnp.zeros(())
        return tagged_count(accepted.tokens, cell, step), window

    def goes_on(carry: tuple[Int, Float, Float, Float]) -> Flag:
        return (carry[0] < most) & (carry[1] < wait_s)

    def go_on(carry: tuple[Int, Float, Float, Float]) -> tuple[Int, Float, Float, Float]:
        count, took_s, tokens, window = carry
        more, wider = gain(count)
        tokens, window = tokens + more, window + wider
        return count + 1, took_s + (first_s + token_s * tokens + window_s * window), tokens, window

    none = jnp.zeros((), jnp.float64)
    count, took_s, tokens, window = lax.while_loop(goes_on, go_on, (jnp.int32(1), first_s, none, none))
    more, wider = gain(count)
    moves = ~stalled & ~stuck
    second, wider_second = gain(jnp.int32(1))
    return Uneven(
        count=jnp.where(stuck, 0, count),
        first_s=first_s,
        second_s=first_s + token_s * second + window_s * wider_second,
        took_s=jnp.where(stuck, 0.0, took_s),
        tokens=jnp.where(moves, tokens + more, 0.0),
        window=jnp.where(moves, window + wider, 0.0),
    )
