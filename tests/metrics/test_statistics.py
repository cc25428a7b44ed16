import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evaluator.metrics.statistics import (
    batch_means,
    mean,
    over_seeds,
    quantile_stderr,
    quantiles,
    seed_stderr,
    summary,
    summary_of_gaps,
    weighted_quantiles,
)

LEVELS = np.array([0.0, 0.5, 0.9, 0.95, 0.99, 1.0])
numbers = st.floats(-1e6, 1e6, allow_subnormal=False)


@given(arrays(np.float64, st.integers(1, 40), elements=numbers))
def test_quantiles_are_those_of_numpy_and_monotone(values):
    got = quantiles(np.sort(values), LEVELS)
    np.testing.assert_allclose(got, np.quantile(values, LEVELS), rtol=1e-12, atol=1e-9)
    assert (np.diff(got) >= -1e-9).all()


@given(arrays(np.float64, st.integers(1, 12), elements=numbers), st.data())
def test_weighted_quantiles_are_those_of_the_repeated_values(values, data):
    weights = data.draw(arrays(np.int64, values.size, elements=st.integers(0, 5)))
    nothing = np.zeros(0)
    # Beside other runs, one of them without any value.
    of_runs = weighted_quantiles([(np.ones(2), np.ones(2)), (values, weights), (nothing, nothing)], LEVELS)
    np.testing.assert_array_equal(of_runs[0], np.ones(LEVELS.size))
    assert np.isnan(of_runs[2]).all()
    if weights.sum() == 0:
        assert np.isnan(of_runs[1]).all()
    else:
        repeated = np.repeat(values, weights)
        np.testing.assert_allclose(of_runs[1], np.quantile(repeated, LEVELS), rtol=1e-12, atol=1e-9)


def test_requests_without_the_latency_are_left_out():
    values = np.array([[1.0, np.nan, 3.0, 2.0], [np.nan] * 4])
    np.testing.assert_array_equal(mean(values), [2.0, np.nan])
    np.testing.assert_array_equal(quantiles(np.sort(values), np.array([0.5, 1.0])), [[2.0, 3.0], [np.nan, np.nan]])


def test_percentiles_are_taken_per_seed_and_then_averaged():
    values = np.array([[[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]])
    got = summary(values, np.array([0.5]))
    assert got.quantiles[0, 0] == pytest.approx((2.0 + 20.0) / 2)
    assert got.mean[0] == pytest.approx((2.0 + 20.0) / 2)
    # Two seeds: standard deviation (ddof 1) of 2 and 20, over sqrt(2).
    assert got.quantiles_stderr[0, 0] == pytest.approx(9.0)
    assert got.mean_stderr[0] == pytest.approx(9.0)


def test_seed_stderr_needs_two_seeds():
    assert np.isnan(seed_stderr(np.ones((3, 1)))).all()


def test_batch_means_by_hand():
    # Four batches of five: means 0, 1, 2, 3; variance 5/3, over 4 batches.
    values = np.repeat([0.0, 1.0, 2.0, 3.0], 5)[None]
    assert seed_stderr(batch_means(values))[0] == pytest.approx(np.sqrt(5 / 3 / 4))
    assert np.isnan(seed_stderr(batch_means(values[:, :9]))).all()


def test_stderr_within_a_run_matches_the_spread_over_runs():
    rng = np.random.default_rng(1)
    values = rng.exponential(size=(400, 1, 2000))
    got = summary(values, np.array([0.5, 0.9, 0.99]))
    np.testing.assert_allclose(got.mean_stderr.mean(), got.mean.std(), rtol=0.15)
    np.testing.assert_allclose(got.quantiles_stderr.mean(axis=0), got.quantiles.std(axis=0), rtol=0.25)


def test_stderr_within_a_run_sees_the_correlation_of_a_queue():
    rng = np.random.default_rng(2)
    noise = rng.normal(size=(200, 4000))
    values = np.zeros_like(noise)
    for place in range(1, noise.shape[1]):
        values[:, place] = 0.9 * values[:, place - 1] + noise[:, place]
    naive = values.std(axis=1).mean() / np.sqrt(values.shape[1])
    spread = values.mean(axis=1).std()
    assert spread > 3 * naive
    np.testing.assert_allclose(seed_stderr(batch_means(values)).mean(), spread, rtol=0.25)
    tail = _error_of_quantiles(values, np.array([0.9])).mean()
    np.testing.assert_allclose(tail, np.quantile(values, 0.9, axis=1).std(), rtol=0.3)


def _error_of_quantiles(values, levels):
    ordered = np.sort(values)
    return quantile_stderr(values, ordered, levels, quantiles(ordered, levels))[0]


def test_stderr_falls_as_one_over_the_root_of_the_requests():
    rng = np.random.default_rng(3)
    sizes = np.array([500, 2000, 8000])
    errors = [summary(rng.exponential(size=(100, 1, n)), np.array([0.9])).quantiles_stderr.mean() for n in sizes]
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.08)


def test_constant_values_have_no_error():
    got = summary(np.ones((1, 1, 100)), LEVELS)
    np.testing.assert_array_equal(got.quantiles, np.ones((1, LEVELS.size)))
    np.testing.assert_array_equal(got.quantiles_stderr, [[np.nan, 0.0, 0.0, 0.0, 0.0, np.nan]])


def test_a_quantile_whose_error_is_not_known_says_so():
    levels = np.array([0.5, 0.9, 0.99])
    few = np.random.default_rng(0).exponential(size=(1, 9))
    assert np.isnan(_error_of_quantiles(few, levels)).all()  # a single batch
    some = np.random.default_rng(0).exponential(size=(1, 50))
    error = _error_of_quantiles(some, levels)[0]
    assert (error[:2] > 0).all()
    assert np.isnan(error[2])  # 0.99 + 0.014: the tail is beyond 50 requests
    many = np.random.default_rng(0).exponential(size=(1, 2000))
    assert (_error_of_quantiles(many, levels) > 0).all()


def test_gaps_are_pooled_over_tokens_within_a_seed():
    gaps = [[(np.array([0.1, 0.5]), np.array([9, 1])), (np.array([0.3]), np.array([2]))]]
    got = summary_of_gaps(gaps, np.array([0.5]))
    assert got.mean[0] == pytest.approx(((0.9 + 0.5) / 10 + 0.3) / 2)
    assert got.quantiles[0, 0] == pytest.approx((0.1 + 0.3) / 2)
    assert got.quantiles_stderr[0, 0] == pytest.approx(0.1)


@pytest.mark.parametrize("shape", [(4, 1), (4, 1, 3)])
def test_one_seed_is_its_own_mean_and_has_no_error(shape):
    values = np.random.default_rng(0).normal(size=shape)
    values[1] = np.nan
    twice = np.repeat(values, 2, axis=1)
    np.testing.assert_array_equal(over_seeds(values), over_seeds(twice))
    assert np.isnan(seed_stderr(values)).all() and seed_stderr(values).shape == over_seeds(values).shape
