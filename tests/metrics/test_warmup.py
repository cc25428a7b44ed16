"""The transient of a run: found where there is one, left alone where there is none."""

from __future__ import annotations

import numpy as np

from evaluator.metrics import quantile_levels, summarise
from evaluator.metrics.warmup import transient
from tests.metrics.build import changed, outcomes

LEVELS = quantile_levels(())


def test_a_burst_at_the_start_is_cut():
    values = np.random.default_rng(0).normal(1.0, 0.1, (50, 1, 1000))
    values[..., :237] += 5.0
    cut, settled = transient(values, 100)
    assert settled.all() and (cut >= 237).all() and (cut <= 240).mean() > 0.3 and (cut < 350).all()


def test_values_that_only_fluctuate_are_left_alone():
    cut, settled = transient(np.random.default_rng(0).exponential(1.0, (400, 1, 1000)), 100)
    assert settled.all() and (cut == 100).mean() > 0.95


def test_what_does_not_settle_says_so():
    values = np.random.default_rng(0).normal(0.0, 0.1, (50, 1, 1000)) + np.linspace(5.0, 0.0, 1000)
    assert not transient(values, 0)[1].any()


def test_too_few_requests_have_no_transient():
    cut, settled = transient(np.array([[[9.0] * 10 + [1.0] * 50]]), 5)
    assert (cut.item(), settled.item()) == (5, True)


def test_statistics_start_behind_it():
    """One run of two begins with a burst; the statistics of the other are those that it has alone."""
    whole = outcomes(2, 1, 1000, load=0.3, warmup=50, finds_warmup=np.ones(2, dtype=bool))
    burst = whole.times.last_token_s.copy()
    burst[0, 0, :200] += 1000.0
    found = summarise(_with(whole, burst), LEVELS)
    plain = summarise(whole, LEVELS)
    kept = summarise(_with(whole, burst, finds_warmup=np.zeros(2, dtype=bool)), LEVELS)
    assert kept["e2e_s_mean"][0] > 100 and found["e2e_s_mean"][0] < 1.1 * plain["e2e_s_mean"][0]
    for name in found:
        np.testing.assert_array_equal(found[name][1], plain[name][1], err_msg=name)


def _with(whole, last_token_s, **changes):

    return changed(whole, last_token_s=last_token_s, **changes)
