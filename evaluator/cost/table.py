"""The time of an iteration by interpolation between measured ones.

Multilinear on a grid of the quantities of its phase (``evaluator.cost.quantities``). Below the first knot a quantity is
taken as the first knot: less work takes no longer. Beyond the last the outermost cell goes on, which only a set with
``beyond: extend`` lets count.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any, NamedTuple

from evaluator.cost.arrays import Batched, array_namespace
from evaluator.cost.iteration import BatchStatistics
from evaluator.cost.quantities import quantities


class MeasuredGrid(NamedTuple):
    """Measured seconds on a rectangular grid; tuples of floats, NumPy or JAX arrays.

    An axis with one knot is a quantity that the time does not depend on. Along no axis do the seconds fall.
    """

    knots: tuple[Any, ...]  # per axis (knot,): ascending values of its quantity
    seconds: Any  # (cell,) s: the product of all axes flattened, the last one running fastest


class TableCost(NamedTuple):
    """One table, or with a leading ``lane`` axis under vmap many of one shape; ``iteration_time`` calls its methods."""

    prefill: MeasuredGrid
    decode: MeasuredGrid
    log_expert_missed: Batched  # of the model, for the bytes that an iteration moves; 0 without experts
    expert_skew: Batched  # 0: all experts alike

    def time(self, batch: BatchStatistics) -> Batched:
        """Seconds of one iteration; any common shape of the batch."""
        point = quantities(batch)
        # Plain floats, as the reference prices single iterations: one branch is computed, not both.
        if isinstance(self.decode.seconds, tuple):
            return interpolated(self.prefill, point) if point[0] > 0 else interpolated(self.decode, point[2:])
        xp = array_namespace(*point, self.decode.seconds)
        return xp.where(point[0] > 0, interpolated(self.prefill, point), interpolated(self.decode, point[2:]))

    def growth(self, batch: BatchStatistics, window_growing: Batched = 0.0) -> Batched:
        """By how much the next decode of the same sequences takes longer, up to the next knot of the context."""
        return interpolated(self.decode, quantities(batch)[2:], slope=True)

    def steps(self, batch: BatchStatistics) -> Batched:
        """For how many decodes that holds: up to the first whose context is not below the next knot."""
        knots, context = self.decode.knots[1], quantities(batch)[3]
        # A time that does not depend on the context grows by nothing for ever.
        if len(knots) == 1:
            return math.inf
        if isinstance(knots, tuple):
            next_knot = bisect_right(knots, context)
            return math.floor(knots[next_knot] - context) + 1.0 if next_knot < len(knots) else math.inf
        xp = array_namespace(knots, context)
        next_knot = xp.searchsorted(knots, context, side="right")
        ahead = knots[xp.minimum(next_knot, len(knots) - 1)]  # behind the last knot masked below
        return xp.where(next_knot < len(knots), xp.floor(ahead - context) + 1.0, math.inf)


def _cell(knots: Any, x: Batched) -> tuple[Any, Batched, Batched]:
    """The cell that x is in, how far in it x is (0: at or below its start, above 1: beyond the last), its width."""
    last = len(knots) - 2
    if isinstance(knots, tuple):
        cell = min(max(bisect_right(knots, x) - 1, 0), last)
        width = knots[cell + 1] - knots[cell]
        return cell, max((x - knots[cell]) / width, 0.0), width
    xp = array_namespace(knots, x)
    # Clipped into the grid: beyond the last knot the outermost cell goes on, with shares below 0 and above 1.
    cell = xp.clip(xp.searchsorted(knots, x, side="right") - 1, 0, last)
    width = knots[cell + 1] - knots[cell]
    return cell, xp.maximum((x - knots[cell]) / width, 0.0), width


def interpolated(grid: MeasuredGrid, point: tuple[Batched, ...], slope: bool = False) -> Batched:
    """Seconds at a point; with ``slope`` their derivative along the last axis instead."""
    # (flat index, weight) of the corners around the point: every axis that is interpolated doubles them. As the last
    # axis runs fastest, an index grows by times the axis' knots plus the place on it.
    corners: list[tuple[Any, Batched]] = [(0, 1.0)]
    for axis, (knots, x) in enumerate(zip(grid.knots, point, strict=True)):
        differs = slope and axis == len(point) - 1
        if len(knots) == 1:
            if differs:
                return 0.0 * x
            continue
        cell, share, width = _cell(knots, x)
        low, high = 1.0 - share, share
        if differs:
            # Weights of the difference quotient. Below the first knot the time is constant.
            high = (x >= knots[0]) / width
            low = -high
        corners = [
            (index * len(knots) + cell + step, weight * part)
            for index, weight in corners
            for step, part in ((0, low), (1, high))
        ]
    return sum((weight * grid.seconds[index] for index, weight in corners), start=0.0)
