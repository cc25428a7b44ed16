"""What stations tell of their use: totals of lanes that share a run, and gaps that are put together."""

import numpy as np
import pytest

from evaluator.metrics.statistics import summary_of_gaps
from evaluator.metrics.use import PoolTotals, pooled, side_by_side


def test_every_lane_of_a_run_counts():
    """Replicas of one configuration and seed are lanes of one call, whose places in the table are the same."""
    several = PoolTotals(*(np.arange(1.0, 4.0) for _ in PoolTotals._fields))._replace(peaks=np.zeros((3, 0)))
    totals = PoolTotals.empty(2, 1)
    totals.add((np.array([1, 1, 0]), np.array([0, 0, 0])), several)
    np.testing.assert_array_equal(totals.busy_s[:, 0], [3.0, 1.0 + 2.0])
    np.testing.assert_array_equal(totals.kv_units_max[:, 0], [3.0, 2.0])  # the largest of any replica
    one_by_one = PoolTotals.empty(2, 1)
    for lane, run in enumerate([(1, 0), (1, 0), (0, 0)]):
        one_by_one.add(run, PoolTotals(*(column[lane] for column in several)))
    for together, alone in zip(totals, one_by_one, strict=True):
        np.testing.assert_array_equal(together, alone)


def test_gaps_side_by_side_have_the_statistics_of_pooled_ones():
    parts = [(np.array([0.3, 0.1]), np.array([2.0, 1.0])), (np.zeros(0), np.zeros(0)), (np.array([0.1]), np.ones(1))]
    levels = np.array([0.25, 0.5, 0.9])
    found, wanted = (summary_of_gaps([[join(parts)]], levels) for join in (side_by_side, pooled))
    np.testing.assert_array_equal(found.quantiles, wanted.quantiles)
    assert found.mean == pytest.approx(wanted.mean)
    assert [part.size for part in side_by_side([])] == [0, 0]
