"""How far a leap is at some time: to the iteration, also where one ends just then."""

from __future__ import annotations

import numpy as np

from evaluator.cost.iteration import BatchStatistics
from evaluator.device import configure
from evaluator.stations.engine.preemptive.iteration import LaunchedBatch

STEPS = 100


def flights_of(start_s, first_s, slope_s):
    zero = np.zeros_like(start_s)
    sums = BatchStatistics(*(zero,) * len(BatchStatistics._fields))
    return LaunchedBatch(start_s, zero, zero + STEPS, first_s, slope_s, zero, zero.astype(int), sums)


def test_the_iteration_under_way():
    """At the very end of an iteration it has ended; a moment before, it is under way; a moment after, the next one."""
    configure()
    rng = np.random.default_rng(0)
    count = 500
    first_s = 10 ** rng.uniform(-4, 0, count)
    slope_s = first_s * rng.choice([0.0, 1e-9, 1e-4, 1e-2], count)
    running_batches = flights_of(rng.choice([0.0, 1.0, 1e4], count), first_s, slope_s)
    for number in (1, 2, 7, STEPS - 1):
        end_s = np.asarray(running_batches.end_of(float(number)))
        near = 1e-7 * np.asarray(first_s)  # less than what rounding might leave in doubt
        for time_s, under_way, done in (
            (end_s, number, number),
            (np.nextafter(end_s, 0), number, number - 1),
            (end_s - near, number, number - 1),
            (np.nextafter(end_s, np.inf), number + 1, number),
            (end_s + near, number + 1, number),
        ):
            np.testing.assert_array_equal(running_batches.under_way(time_s), under_way)
            np.testing.assert_array_equal(running_batches.done(time_s), done)


def test_before_the_start_and_after_the_end():
    configure()
    running_batches = flights_of(np.array([1.0]), np.array([1.0]), np.array([0.0]))
    assert (running_batches.under_way(0.5).item(), running_batches.done(0.5).item()) == (1, 0)
    assert (running_batches.under_way(1e6).item(), running_batches.done(1e6).item()) == (STEPS, STEPS)
    never = running_batches._replace(iterations=np.array([0.0]))  # none was ever sent
    assert never.under_way(2.0).item() == 1
