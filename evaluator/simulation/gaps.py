"""Gaps between tokens, exactly, from the iterations that an observer of the reference is told of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evaluator.reference import Iteration
from evaluator.stations.contract import WeightedGaps


class Gaps:
    """Collects the gaps between successive tokens of every request, also those inside a leap.

    All branches of a request have their last tokens at the same time, so that one number says when; each has its gaps.

    In a leap all members get a token with every iteration, so its later iterations are one gap each for all of them;
    before the first they may have waited for different times.
    """

    def __init__(self, requests: int) -> None:
        self._last = np.full(requests, np.nan)  # when each request got its last token
        self._first: list[tuple[float, np.ndarray]] = []  # time, gaps of the members
        self._leaps: list[tuple[float, float, float, int, int]] = []  # start, first_s, slope_s, iterations, members

    def add(self, iteration: Iteration) -> None:
        """After an iteration, or a leap."""
        if iteration.decodes:
            configurations = np.array(iteration.decodes)
            now = iteration.end_s
            if iteration.iterations > 1:
                leap = (
                    iteration.start_s,
                    iteration.first_s,
                    iteration.slope_s,
                    iteration.iterations,
                    len(configurations),
                )
                self._leaps.append(leap)
                now = iteration.start_s + iteration.first_s
            self._first.append((now, now - self._last[configurations]))
            self._last[configurations] = iteration.end_s
        if iteration.completed:
            configurations = np.array(iteration.completed)
            self._first.append(
                (iteration.end_s, iteration.end_s - self._last[configurations])
            )  # NaN but after a preemption
            self._last[configurations] = iteration.end_s

    def after(self, since_s: float) -> WeightedGaps:
        """The gaps before tokens that came after a time."""
        columns = [(gaps[~np.isnan(gaps)], 1.0) for now, gaps in self._first if now > since_s]
        values, weights = [gaps for gaps, _ in columns], [np.full(len(gaps), weight) for gaps, weight in columns]
        for start, first, slope, iterations, configurations in self._leaps:
            step = np.arange(1, iterations)
            ends = start + (step + 1) * first + 0.5 * slope * step * (step + 1)
            inside = (first + slope * step)[ends > since_s]
            values.append(inside)
            weights.append(np.full(len(inside), float(configurations)))
        return pooled([(one, weight) for one, weight in zip(values, weights, strict=True)])


def pooled(parts: Sequence[WeightedGaps]) -> WeightedGaps:
    """All gaps together, equal ones once."""
    if not parts:
        return np.zeros(0), np.zeros(0)
    values, weights = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
    if not len(values):
        return values, weights
    order = values.argsort()
    values, weights = values[order], weights[order]
    begins = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return values[begins], np.add.reduceat(weights, begins)
