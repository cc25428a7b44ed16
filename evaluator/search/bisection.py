"""Many searches for the largest whole number that holds, in step with one another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]


class Bisection:
    """For each search (search,), the largest number from ``floor`` to ``ceiling`` of which ``tell`` says that it holds.

    A search begins at ``start``, goes on in strides that double until one number holds and a higher one does not, and
    halves the gap between the two. ``held`` is below the floor where nothing has held, ``failed`` above the ceiling
    where nothing has failed. A number may hold though a lower one does not: the gap that is halved always has a lower
    end that holds and an upper end that does not, so that the search ends at one such pair of neighbours, and does not
    see what holds above it.
    """

    def __init__(self, start: Whole, floor: Whole, ceiling: Whole, stride: int) -> None:
        self.start, self.floor, self.ceiling = np.clip(start, floor, ceiling), floor, ceiling
        # Sentinels outside the range stand for "nothing yet", so that a search is over when the two are neighbours,
        # whether it ended inside the range or at one of its ends.
        self.held, self.failed = floor - 1, ceiling + 1
        self._stride = np.full(len(start), stride, dtype=np.int64)

    @property
    def open(self) -> Whole:
        """The searches that are not decided yet."""
        return np.flatnonzero(self.failed - self.held > 1)

    @property
    def found(self) -> NDArray[np.bool_]:
        """Where a number holds."""
        return self.held >= self.floor

    def next(self, searches: Whole, guess: NDArray[np.float64] | None = None) -> Whole:
        """The number that each of these searches has to try, strictly between what holds and what does not.

        ``guess`` (search,) is about the largest that holds, NaN where nobody knows: it takes the place of a stride or
        half of the gap.
        """
        held, failed, stride = self.held[searches], self.failed[searches], self._stride[searches]
        some_hold, some_fail = held >= self.floor[searches], failed <= self.ceiling[searches]
        # Only one kind is known so far: go on in its direction, in strides that double, so that a start that is far
        # off costs the logarithm of the distance.
        onwards = np.where(some_hold, held + stride, np.where(some_fail, failed - stride, self.start[searches]))
        # Only while one side is open: with both known the step is half of the gap, and neither before the first
        # trial is anything learnt about the distance.
        self._stride[searches] = np.where(some_hold ^ some_fail, 2 * stride, stride)
        chosen = np.where(some_hold & some_fail, (held + failed) // 2, onwards)
        if guess is not None:
            # Within the range first: a guess may be as far away as no whole number is.
            near = np.floor(np.clip(np.nan_to_num(guess), self.floor[searches], self.ceiling[searches]))
            chosen = np.where(np.isnan(guess), chosen, near.astype(np.int64))
        return np.clip(chosen, held + 1, failed - 1)

    def tell(self, searches: Whole, tried: Whole, holds: NDArray[np.bool_]) -> None:
        """What came of the numbers tried."""
        self.held[searches] = np.where(holds, tried, self.held[searches])
        self.failed[searches] = np.where(holds, self.failed[searches], tried)

    def close(self, searches: Whole) -> None:
        """Decide these searches as they stand: nothing above what holds is looked at any more."""
        self.failed[searches] = self.held[searches] + 1

    def left(self) -> int:
        """About how many trials are still to come, for a report of progress."""
        rows = self.open
        both = (self.held >= self.floor)[rows] & (self.failed <= self.ceiling)[rows]
        # Without a bracket the strides are still growing: four of them is a guess.
        gap = np.where(both, (self.failed - self.held)[rows], 4 * self._stride[rows])
        return int(np.ceil(np.log2(np.maximum(gap, 2))).sum() + (~both).sum())
