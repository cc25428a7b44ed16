"""The search in step: against a search one by one, and against what does not fall steadily."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.search.bisection import Bisection


def solved(limits: np.ndarray, start: np.ndarray, floor: int = -50, ceiling: int = 200, stride: int = 4):
    """(bisection, trials): a number holds up to the limit."""
    shape = np.full(len(limits), 1)
    bisection, trials = Bisection(start, floor * shape, ceiling * shape, stride), 0
    while (rows := bisection.open).size:
        numbers = bisection.next(rows)
        assert ((numbers > bisection.held[rows]) & (numbers < bisection.failed[rows])).all()
        trials += rows.size
        bisection.tell(rows, numbers, numbers <= limits[rows])
    return bisection, trials


def test_the_largest_that_holds_is_found_from_any_start():
    limits, start = (each.ravel() for each in np.meshgrid(np.arange(-53, 204), np.arange(-60, 230, 17)))
    bisection, _ = solved(limits, start)
    np.testing.assert_array_equal(bisection.held, np.clip(limits, -51, 200))
    np.testing.assert_array_equal(bisection.failed, bisection.held + 1)
    np.testing.assert_array_equal(bisection.found, limits >= -50)


def test_a_good_start_saves_trials():
    limits = np.arange(200)
    _, near = solved(limits, limits - 3)
    _, far = solved(limits, limits - 150, floor=-200)
    assert near / len(limits) < 6 < far / len(limits) < 14


def test_what_does_not_fall_steadily_ends_at_a_pair():
    """It holds up to 10, and from 20 to 30 again: either end will do, and it is one of the two."""
    for start in range(0, 40, 3):
        bisection = Bisection(np.array([start]), np.array([0]), np.array([60]), 2)
        while (rows := bisection.open).size:
            numbers = bisection.next(rows)
            bisection.tell(rows, numbers, (numbers <= 10) | ((numbers >= 20) & (numbers <= 30)))
        assert (bisection.held[0], bisection.failed[0]) in ((10, 11), (30, 31))


def test_the_trials_to_come_run_out():
    bisection = Bisection(np.array([5, 90]), np.zeros(2, int), np.full(2, 99), 4)
    left = [bisection.left()]
    while (rows := bisection.open).size:
        numbers = bisection.next(rows)
        bisection.tell(rows, numbers, numbers <= 40)
        left.append(bisection.left())
    assert left[0] > 4 and left[-1] == 0


def test_what_is_closed_is_decided():
    bisection = Bisection(np.array([5, 5]), np.zeros(2, int), np.full(2, 99), 4)
    bisection.tell(np.array([0, 1]), np.array([7, 7]), np.array([True, True]))
    bisection.close(np.array([0]))
    assert bisection.open.tolist() == [1] and bisection.failed.tolist() == [8, 100]


@pytest.mark.parametrize("holds", [True, False])
def test_one_number_takes_one_trial(holds):
    bisection = Bisection(np.array([7]), np.array([3]), np.array([3]), 4)
    assert bisection.next(bisection.open).tolist() == [3]
    bisection.tell(np.array([0]), np.array([3]), np.array([holds]))
    assert not bisection.open.size and bisection.found.tolist() == [holds]
