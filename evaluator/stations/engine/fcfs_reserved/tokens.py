"""When tokens come: the first of each request, and the gaps between all of them."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.arrays import Bins, Flag, Float, FloatPerRequest, Int
from evaluator.stations.engine.common.rings import read, write
from evaluator.stations.engine.fcfs_reserved.admission import Intake
from evaluator.stations.engine.fcfs_reserved.lane import Given
from evaluator.stations.engine.fcfs_reserved.state import State


class LoopSteps(NamedTuple):
    """The steps of one trip: the iterations in which decodes take part."""

    count: Int
    first_end_s: Float  # when the first of them ends
    second_end_s: Float  # when the second of them ends, if there is one
    end_s: Float  # when the last of them ends


def first_tokens(first_token_s: FloatPerRequest, start: Int, end: Int, clock: Float) -> FloatPerRequest:
    """The array with ``clock`` as the time of the first token of requests ``start`` .. ``end - 1``."""

    def enter(carry: tuple[Int, FloatPerRequest]) -> tuple[Int, FloatPerRequest]:
        i, times = carry
        return i + 1, write(times, i, clock)

    return lax.while_loop(lambda carry: carry[0] < end, enter, (start, first_token_s))[1]


def enter_gaps(given: Given, state: State, intake: Intake, first_token_s: FloatPerRequest, steps: LoopSteps) -> Bins:
    """The histogram with the gaps that end in the steps of a trip; ``state`` is that before the trip.

    The first gap of a sequence starts at its own first token. That may lie before the end of the last step, where
    decodes waited for prompts in between, so each first gap is entered by itself. All other gaps start at the end of
    the last step. Gaps count from the first token of the first measured request on, those of warm-up requests included.

    Sequences that join in a leap have their first token at the end of its first step and a gap in the second, which is
    then entered by itself.
    """
    weight = jnp.where(state.head > given.limits.measured_from, 1.0, 0.0)

    def enter_first(carry: tuple[Int, Float, Bins]) -> tuple[Int, Float, Bins]:
        i, entered, bins = carry
        if given.branches is None:
            runs = jnp.where(read(given.requests.output_tokens, i) > 1, 1.0, 0.0)
        else:
            runs = read(given.branches.going, i).astype(jnp.float64)
        gap_bin = histogram.bin_of(steps.first_end_s - read(first_token_s, i))
        return i + 1, entered + runs, write(bins, gap_bin, read(bins, gap_bin) + runs * weight)

    moves = steps.count > 0
    end = jnp.where(moves, state.head, state.first_gap)
    start = (state.first_gap, jnp.zeros((), jnp.float64), state.itl_histogram)
    _, entered, bins = lax.while_loop(lambda carry: carry[0] < end, enter_first, start)
    others = jnp.where(moves, weight * (state.decodes - entered), 0.0)
    bins = histogram.enter(bins, steps.first_end_s - state.gap_from, others)
    joins = (intake.joined > 0) & (steps.count > 1)
    running = jnp.where(intake.head > given.limits.measured_from, state.decodes + intake.joined, 0.0)

    def enter_second(carry: tuple[Flag, Bins]) -> tuple[Flag, Bins]:
        return ~carry[0], histogram.enter(carry[1], steps.second_end_s - steps.first_end_s, running)

    # A loop of one trip or none: most trips of the lane do without, and it is cheaper than a masked write.
    _, bins = lax.while_loop(lambda carry: carry[0], enter_second, (joins, bins))
    from_s = jnp.where(joins, steps.second_end_s, steps.first_end_s)
    return histogram.enter_later_steps(bins, steps.count - joins, from_s, steps.end_s, running)
