import numpy as np
import pytest

from evaluator.metrics.saturation import drift, noise, saturated
from tests.metrics.build import fifo


def calls(load, runs=400, requests=1000, warmup=100):
    """Fraction of M/D/1 runs, unit service, that are called saturated."""
    rng = np.random.default_rng(int(1000 * load))
    arrival = np.cumsum(rng.exponential(1.0 / load, (runs, requests)), axis=-1)
    wait = fifo(arrival, np.ones_like(arrival)) - arrival
    return saturated(arrival[:, warmup:], wait[:, warmup:]).reshape(-1, 4)


@pytest.mark.parametrize(("load", "most"), [(0.5, 0.0), (0.8, 0.0), (0.9, 0.01), (0.95, 0.08)])
def test_a_stable_queue_is_rarely_called_saturated(load, most):
    assert calls(load).mean() <= most


@pytest.mark.parametrize(("load", "least"), [(1.1, 0.9), (1.2, 1.0), (1.5, 1.0)])
def test_an_overloaded_queue_is_called_saturated(load, least):
    assert calls(load).mean() >= least


def test_four_seeds_decide_together():
    assert (calls(1.1).mean(axis=1) >= 0.5).all()
    assert (calls(0.95).mean(axis=1) >= 0.5).mean() <= 0.02


def test_the_drift_of_an_overloaded_queue_is_the_excess_load():
    arrival = np.arange(1.0, 1001.0)[None]
    wait = fifo(arrival, np.full_like(arrival, 1.25)) - arrival
    assert drift(arrival, wait)[0] == pytest.approx(0.25)
    assert saturated(arrival, wait)[0]


def test_the_scale_of_time_does_not_matter():
    rng = np.random.default_rng(0)
    arrival = np.cumsum(rng.exponential(1.0, (1, 500)), axis=-1)
    wait = fifo(arrival, np.full_like(arrival, 1.3)) - arrival
    for scale in (1e-6, 1.0, 1e6):
        assert saturated(scale * arrival, scale * wait)[0]


@pytest.mark.parametrize("rate_rps", [1e200, 1e300, 1e305])
def test_arrivals_at_practically_one_instant_saturate(rate_rps):
    arrival = np.random.default_rng(0).exponential(1.0, (2, 500)).cumsum(axis=-1) / rate_rps
    wait = fifo(arrival, np.ones_like(arrival)) - arrival
    assert saturated(arrival, wait).all()


def test_a_burst_that_drains_is_not_saturation():
    arrival = np.r_[np.arange(300.0), 300 + np.arange(300) * 0.2, 360 + np.arange(900) * 2.0][None]
    wait = fifo(arrival, np.full_like(arrival, 0.8)) - arrival
    assert wait.max() > 100
    assert not saturated(arrival, wait)[0]


def test_too_few_or_simultaneous_requests_are_not_called_saturated():
    assert not saturated(np.arange(5.0)[None], np.arange(5.0)[None])[0]
    assert not saturated(np.zeros((1, 100)), np.arange(100.0)[None])[0]


def test_bursty_arrivals_need_a_larger_drift():
    rng = np.random.default_rng(0)
    assert noise(np.cumsum(rng.exponential(1.0, 900)))[()] == pytest.approx(1 / 30, rel=0.15)
    assert noise(np.cumsum(rng.gamma(1 / 9, 9.0, 900)))[()] == pytest.approx(3 / 30, rel=0.3)
