"""Closed forms of queueing theory, over several seeds and without the warm-up."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from evaluator.reference import Limits, Request, simulate
from tests.reference.build import SECOND, linear_cost, random_cost

ONE_AT_A_TIME = Limits(1, 1 << 30, 1 << 30)
REQUESTS, WARMUP, SEEDS = 6_000, 1_000, 4


def single_tokens(rng, rate_rps, prompts):
    """Requests of one output token each, at Poisson arrivals."""
    arrival = np.cumsum(rng.exponential(1 / rate_rps, len(prompts)))
    return [
        Request(index, float(at), int(prompt), int(prompt), 1, 1)
        for index, (at, prompt) in enumerate(zip(arrival, prompts, strict=True))
    ]


def mean_wait(cost, rate_rps, draw):
    """Mean over the seeds, and its standard error."""
    waits = []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        requests = single_tokens(rng, rate_rps, draw(rng))
        simulate(cost, "continuous", ONE_AT_A_TIME, requests)
        waits.append(np.mean([each.scheduled_s - each.arrival_s for each in requests[WARMUP:]]))
    return np.mean(waits), np.std(waits, ddof=1) / np.sqrt(SEEDS)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_md1_wait(load):
    wait, error = mean_wait(SECOND, load, lambda rng: np.ones(REQUESTS, int))
    expected = load / (2 * (1 - load))
    assert wait == pytest.approx(expected, rel=0.1)
    assert abs(wait - expected) < 5 * error + 0.01 * expected


def test_mm1_wait():
    """Geometric prompts, so many tokens long that they are as good as exponential."""
    load, mean = 0.6, 1_000
    wait, _ = mean_wait(linear_cost(0.0, 1 / mean), load, lambda rng: rng.geometric(1 / mean, REQUESTS))
    assert wait == pytest.approx(load / (1 - load), rel=0.1)


def test_pollaczek_khinchine_wait():
    """Service times of two kinds, by the length of the prompt."""
    cost, short, long, load = linear_cost(0.0, 1e-3), 200, 2_000, 0.6
    mean, square = (0.75 * short**n + 0.25 * long**n for n in (1, 2))
    rate = load / (mean * 1e-3)
    wait, _ = mean_wait(cost, rate, lambda rng: np.where(rng.random(REQUESTS) < 0.25, long, short))
    assert wait == pytest.approx(rate * square * 1e-6 / (2 * (1 - load)), rel=0.1)


def test_cobham_wait():
    """Waits by priority, without preemption of who is served: W0 / ((1 - s_before) (1 - s_before - s_own)).

    Cobham, Priority assignment in waiting line problems, Operations Research 2 (1954).
    """
    cost, prompts, load = linear_cost(0.0, 1e-3), np.array([300, 900, 1500]), 0.7
    rate = 3 * load / (prompts.sum() * 1e-3)
    waits = np.zeros((SEEDS, 3))
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        # Whoever goes last waits for busy periods, of which a run has few: twice as many requests as elsewhere.
        kinds = rng.integers(0, 3, 2 * REQUESTS)
        requests = single_tokens(rng, rate, prompts[kinds])
        for request, priority in zip(requests, (kinds - 1).tolist(), strict=True):
            request.priority = priority
        simulate(cost, "chunked", replace(ONE_AT_A_TIME, packing="priority"), requests)
        wait = np.array([each.scheduled_s - each.arrival_s for each in requests])[WARMUP:]
        waits[seed] = [wait[kinds[WARMUP:] == kind].mean() for kind in range(3)]
    loads = np.cumsum(rate / 3 * prompts * 1e-3)
    residual = rate / 3 * (prompts**2 * 1e-6).sum() / 2
    expected = residual / ((1 - loads) * (1 - np.append(0, loads[:-1])))
    mean, error = waits.mean(axis=0), waits.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    assert mean == pytest.approx(expected, rel=0.1)
    assert (np.abs(mean - expected) < 5 * error + 0.01 * expected).all()


def test_a_bound_on_who_waits_refuses_as_many_as_erlang_says():
    """M/M/1/N: of arrivals at load a, (1 - a) a^N / (1 - a^(N + 1)) find N = waiting + 1 places taken."""
    load, mean, waiting = 0.9, 1_000, 3
    shares = []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        requests = single_tokens(rng, load, rng.geometric(1 / mean, REQUESTS))
        simulate(linear_cost(0.0, 1 / mean), "continuous", replace(ONE_AT_A_TIME, max_queued=waiting), requests)
        shares.append(np.mean([each.refused for each in requests[WARMUP:]]))
        assert all(each.last_token_s == each.arrival_s for each in requests if each.refused)
    places = waiting + 1
    expected = (1 - load) * load**places / (1 - load ** (places + 1))
    assert np.mean(shares) == pytest.approx(expected, rel=0.05)


def chunked_run(rate_rps, requests=2_000):
    rng = np.random.default_rng(3)
    log = []
    cost = random_cost(rng, experts=False, windowed=False)
    arrival = np.cumsum(rng.exponential(1 / rate_rps, requests))
    prompt, output = rng.integers(1, 300, requests), rng.integers(1, 60, requests)
    served = [
        Request(index, *(column.item() for column in columns), 1)
        for index, columns in enumerate(zip(arrival, prompt, prompt, output, strict=True))
    ]
    limits = Limits(64, 4096, 1 << 30)
    return simulate(cost, "chunked", limits, served, observe=log.append), log


def test_littles_law():
    """Sequences in the batch, over time, are the time that requests spend in it."""
    outcome, log = chunked_run(40.0)
    in_batch = sum((len(each.decodes) + len(each.chunks)) * (each.end_s - each.start_s) for each in log)
    spent = sum(each.last_token_s - each.scheduled_s for each in outcome.requests)
    assert in_batch == pytest.approx(spent, rel=1e-9)


def test_littles_law_of_the_whole_system():
    """Requests that an arrival finds (Poisson arrivals see time averages) are rate times mean latency."""
    outcome, _ = chunked_run(40.0, 6_000)
    arrival, last = (
        np.array([getattr(each, name) for each in outcome.requests]) for name in ("arrival_s", "last_token_s")
    )
    ended = np.searchsorted(np.sort(last), arrival)
    found = np.arange(len(arrival)) - ended
    rate = len(arrival) / arrival[-1]
    assert found[500:].mean() == pytest.approx(rate * (last - arrival)[500:].mean(), rel=0.05)


def test_under_overload_throughput_is_the_capacity_and_waits_grow():
    outcome, _ = chunked_run(1e4)
    assert outcome.busy_s == pytest.approx(max(each.last_token_s for each in outcome.requests), rel=1e-3)
    waits = [each.scheduled_s - each.arrival_s for each in outcome.requests]
    assert np.all(np.diff(waits)[1000:] > -1e-3)


def test_a_replica_never_idles_while_somebody_waits():
    """Two running batches in a row leave a gap only before an arrival."""
    outcome, log = chunked_run(5.0, 300)
    starts = {each.arrival_s for each in outcome.requests}
    for before, after in pairwise(log):
        assert after.start_s == before.end_s or after.start_s in starts
