"""Which requests count, and throughput without the drain."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.metrics import quantile_levels, summarise
from evaluator.metrics.window import Window
from tests.metrics.build import outcomes

LEVELS = quantile_levels(())


def test_both_ends_are_cut_without_a_copy():
    measured = (np.arange(10) >= 2) & (np.arange(10) < 9)
    window, values = Window.of(measured), np.arange(10.0)[None, None]
    assert np.shares_memory(window.cut(values), values)
    assert (window.start, window.end, window.count) == (2, 9, 7)
    assert (window.total(values).item(), window.least(values).item(), window.largest(values).item()) == (35, 2, 8)


def test_a_later_start_blanks():
    window, values = Window.of(np.arange(6) >= 1, np.array([[3]])), np.arange(6.0)[None, None]
    np.testing.assert_array_equal(window.cut(values), [[[np.nan, np.nan, 3, 4, 5]]])
    assert (window.count.item(), window.total(values).item(), window.least(values).item()) == (3, 12, 3)


@pytest.mark.parametrize("requests", [500, 5000])
def test_throughput_does_not_depend_on_the_length_of_the_run(requests):
    """Passages of 50 s at one request per second: the drain would take a tenth of 500 s, and a hundredth of 5,000."""
    arrival = np.arange(float(requests))[None, None]
    times = {"arrival_s": arrival, "scheduled_s": arrival, "first_token_s": arrival, "last_token_s": arrival + 50.0}
    found = summarise(outcomes(1, 1, requests, warmup=100, **times), LEVELS)
    assert found["throughput_rps"].item() == pytest.approx(1.0, rel=0.01)
    assert found["output_tok_per_s"].item() == pytest.approx(11.0, rel=0.01)
    assert found["total_tok_per_s"].item() == pytest.approx(111.0, rel=0.01)


def test_a_run_in_which_nothing_ends_before_the_last_arrival_counts_to_its_end():
    arrival = np.arange(4.0)[None, None]
    times = {"arrival_s": arrival, "scheduled_s": arrival, "first_token_s": arrival, "last_token_s": arrival + 50.0}
    found = summarise(outcomes(1, 1, 4, warmup=0, **times), LEVELS)
    assert found["throughput_rps"].item() == pytest.approx(4 / 53)


@pytest.mark.parametrize("warmup", [0, 50])
def test_requests_that_come_at_once_all_count(warmup):
    """An offline run of 1,000 requests in 100 s is 10 requests/s, whichever of them the statistics leave out."""
    at_once, ended = np.zeros((1, 1, 1000)), np.arange(1.0, 1001.0)[None, None] / 10.0
    times = {"arrival_s": at_once, "scheduled_s": at_once, "first_token_s": ended - 0.05, "last_token_s": ended}
    found = summarise(outcomes(1, 1, 1000, warmup=warmup, **times), LEVELS)
    assert found["throughput_rps"].item() == pytest.approx(10.0)
    assert found["output_tok_per_s"].item() == pytest.approx(110.0)


@pytest.mark.parametrize("requests", [30, 34, 37, 40])
def test_a_closed_loop_counts_whole_cycles(requests):
    """Ten users in step, whose waves of 8 s end together: 10/8 requests/s, wherever in a wave the run ends."""
    begun = (np.arange(requests) // 10 * 8.0 + np.arange(requests) % 10 * 0.125)[None, None]
    times = {"arrival_s": begun, "scheduled_s": begun, "first_token_s": begun, "last_token_s": begun + 8.0}
    shape = {"open_loop": np.zeros(1, bool), "users": np.full(1, 10)}
    found = summarise(outcomes(1, 1, requests, warmup=12, **times, **shape), LEVELS)
    assert found["throughput_rps"].item() == pytest.approx(10 / 8, rel=1e-9)
    assert found["throughput_rps"].item() * found["e2e_s_mean"].item() == pytest.approx(10, rel=1e-9)
    assert found["output_tok_per_s"].item() == pytest.approx(11 * 10 / 8, rel=1e-9)


def test_a_closed_loop_of_less_than_a_cycle_counts_what_there_is():
    begun = np.array([0.0, 0.0, 8.0])[None, None]
    times = {"arrival_s": begun, "scheduled_s": begun, "first_token_s": begun, "last_token_s": begun + 8.0}
    shape = {"open_loop": np.zeros(1, bool), "users": np.full(1, 2)}
    found = summarise(outcomes(1, 1, 3, warmup=2, **times, **shape), LEVELS)
    assert found["throughput_rps"].item() == pytest.approx(1 / 8)
