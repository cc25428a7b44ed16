"""Whether a run was long enough, against M/D/1 below, near and above its limit."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.metrics import quantile_levels, summarise
from evaluator.metrics.steady import drifts, growth, passages
from tests.metrics.build import fifo, outcomes

LEVELS = quantile_levels(())
SEEDS = 200


def single_server(load, requests, warmup=None, **changes):
    """As many runs of an M/D/1 as there are configurations, each under one seed."""
    warmup = requests // 10 if warmup is None else warmup
    measured = (np.arange(requests) >= warmup) & (np.arange(requests) < requests - requests // 10)
    return outcomes(SEEDS, 1, requests, load, 0, measured=measured, **changes)


@pytest.mark.parametrize(
    ("load", "requests", "least", "most"),
    [(0.3, 1000, 0.9, 1.0), (0.7, 1000, 0.8, 1.0), (0.7, 100_000 // 10, 0.9, 1.0), (1.2, 1000, 0.0, 0.0),
     (1.05, 10_000, 0.0, 0.05)],
)  # fmt: skip
def test_the_share_of_runs_that_are_steady(load, requests, least, most):
    found = summarise(single_server(load, requests), LEVELS)["steady"].mean()
    assert least <= found <= most


@pytest.mark.parametrize(("load", "most"), [(0.5, 0.0), (0.8, 0.02), (0.9, 0.05)])
def test_stable_queues_are_seldom_called_saturated(load, most):
    assert summarise(single_server(load, 1000), LEVELS)["saturated"].mean() <= most


@pytest.mark.parametrize(("load", "requests"), [(1.2, 1000), (1.1, 4000), (1.05, 10_000)])
def test_overload_is_seen(load, requests):
    assert summarise(single_server(load, requests), LEVELS)["saturated"].mean() >= 0.95


def test_near_its_limit_a_queue_is_not_steady_before_long():
    """At load 0.98 the queue remembers thousands of requests: a run of 1,000 fluctuates and drifts, a long one not."""
    short, long = (summarise(single_server(0.98, requests), LEVELS)["steady"].mean() for requests in (1000, 20_000))
    assert short < 0.75 and long > short


def test_a_system_that_fills_without_a_queue_is_not_steady():
    """Infinitely many servers, and passages of nearly half the run: nothing waits, and the window is too short."""
    arrival = np.cumsum(np.random.default_rng(0).exponential(1.0, (4, 1, 1000)), axis=-1)
    times = {
        "arrival_s": arrival,
        "scheduled_s": arrival,
        "first_token_s": arrival + 100.0,
        "last_token_s": arrival + 400.0,
    }
    found = summarise(outcomes(4, 1, 1000, **times), LEVELS)
    assert not found["steady"].any() and not found["saturated"].any()
    times["last_token_s"] = arrival + 110.0
    assert summarise(outcomes(4, 1, 1000, **times), LEVELS)["steady"].all()


def test_an_overload_behind_the_first_wait_is_seen():
    """The second of two stations serves half of what comes: nobody waits at the first, and passages fill the window."""
    arrival = np.cumsum(np.random.default_rng(0).exponential(1.0, (4, 1, 1000)), axis=-1)
    left = fifo(arrival, np.full_like(arrival, 2.0)) + 2.0
    times = {"arrival_s": arrival, "scheduled_s": arrival, "first_token_s": arrival, "last_token_s": left}
    found = summarise(outcomes(4, 1, 1000, warmup=100, **times), LEVELS)
    assert found["saturated"].all() and not found["steady"].any()


def test_a_wait_that_grows_at_a_later_station_is_seen_before_the_window_is_long():
    """The second of two stations is offered 1.2 times what it serves, and its passages take a third of the window."""
    arrival = np.cumsum(np.random.default_rng(0).exponential(1.0, (4, 1, 1000)), axis=-1)
    began = fifo(arrival, np.full_like(arrival, 1.2))
    left = began + 300.0
    times = {"arrival_s": arrival, "scheduled_s": arrival, "first_token_s": arrival, "last_token_s": left}
    assert not summarise(outcomes(4, 1, 1000, warmup=100, **times), LEVELS)["saturated"].any()  # a batch may be filling
    found = summarise(outcomes(4, 1, 1000, warmup=100, **times, later_wait_s=began - arrival), LEVELS)
    assert found["saturated"].all() and not found["steady"].any()


def test_clients_who_are_held_up_are_told():
    """They ask for one request per second and send at 0.8, or 0.95, because they wait for answers."""
    arrival = np.arange(1000.0)[None, None] / np.array([0.8, 0.95])[:, None, None]
    times = {"arrival_s": arrival, "scheduled_s": arrival, "first_token_s": arrival, "last_token_s": arrival + 1.0}
    found = summarise(outcomes(2, 1, 1000, asked_rps=np.ones(2), **times), LEVELS)
    assert found["steady"].tolist() == [False, True]


def test_growth_counts_requests():
    """A server half as fast as its arrivals: of those that come in the second half, every other one stays."""
    arrival = np.arange(1000.0)[None, None]
    left = 2.0 * np.arange(1000.0)[None, None] + 2.0
    grown, by_chance = growth(arrival, left, 100)
    assert grown.item() == pytest.approx(0.5 * 450 * 0.9, abs=2) and grown > by_chance
    assert passages(arrival, np.full(arrival.shape, 30.0), 100).item() == pytest.approx(899 / 30)


def test_a_trend_is_seen_and_noise_is_not():
    noise = np.random.default_rng(0).normal(size=(100, 1, 1000))
    assert drifts(noise).mean() < 0.05
    assert drifts(noise + np.linspace(0.0, 1.0, 1000)).all() and drifts(noise - np.linspace(0.0, 1.0, 1000)).all()
    assert not drifts(noise[..., :20]).any()  # too few to tell
    assert not drifts(1.0 + 1e-9 * np.linspace(0.0, 1.0, 1000)[None, None]).any()  # rounding


def test_a_batch_is_steady():
    at_once = np.zeros((2, 1, 100))
    start = fifo(at_once, np.ones_like(at_once))
    times = {"arrival_s": at_once, "scheduled_s": start, "first_token_s": start + 0.5, "last_token_s": start + 1.0}
    found = summarise(
        outcomes(2, 1, 100, warmup=0, open_loop=np.zeros(2, bool), one_batch=np.ones(2, bool), **times), LEVELS
    )
    assert found["steady"].all() and not found["saturated"].any()
    np.testing.assert_allclose(found["throughput_rps"], 1.0)


@pytest.mark.parametrize("requests", [1, 2, 100])
def test_the_first_users_of_a_closed_loop_are_no_batch(requests):
    """All requests are the first of their users, or the only one of a rate: nothing is known of a state."""
    at_once = np.zeros((2, 1, requests))
    start = fifo(at_once, np.ones_like(at_once))
    times = {"arrival_s": at_once, "scheduled_s": start, "first_token_s": start + 0.5, "last_token_s": start + 1.0}
    found = summarise(outcomes(2, 1, requests, warmup=0, open_loop=np.array([False, True]), **times), LEVELS)
    assert not found["steady"].any()
