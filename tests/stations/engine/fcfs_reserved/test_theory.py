"""The engine against what queueing theory says, over several seeds and with the warm-up cut.

Single-token outputs and one sequence at a time make a replica a single FIFO server whose service time is that of one
prompt: M/D/1 for prompts of one length, M/M/1 for exponential ones, M/G/1 for others.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from evaluator.stations.engine import LaneResult
from evaluator.stations.engine.fcfs_reserved import run_lanes
from tests.stations.engine.fcfs_reserved.build import (
    POLICIES,
    Case,
    build,
    constant_cost,
    random_cases,
    run_engine,
)

SEEDS = 24
REQUESTS = 12_000
WARMUP = 2_000
SERVICE_S = 0.25
LOADS = (0.3, 0.6, 0.8)
PROMPTS = {"deterministic": (100,), "two kinds": (20, 180)}
EXPONENTIAL = ()
EXPONENTIAL_MEAN = 1_000
"""Tokens: so many that geometric prompts are as good as exponential ones, to 0.1 %."""


def single_server(seed: int, load: float, prompts: tuple[int, ...]) -> Case:
    """Poisson arrivals at a server whose mean service takes SERVICE_S; the prompts are equally likely."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(SERVICE_S / load, REQUESTS))
    prompt = rng.choice(prompts, REQUESTS) if prompts else rng.geometric(1 / EXPONENTIAL_MEAN, REQUESTS)
    cost = constant_cost(token_s=float(SERVICE_S / (np.mean(prompts) if prompts else EXPONENTIAL_MEAN)))
    return build(cost, "continuous", arrival, prompt, np.ones(REQUESTS, int), max_num_seqs=1)


@cache
def served(load: float, prompts: tuple[int, ...]) -> list[tuple[Case, LaneResult]]:
    cases = [single_server(seed, load, prompts) for seed in range(SEEDS)]
    return list(zip(cases, run_engine(cases), strict=True))


def waits(load: float, prompts: tuple[int, ...]) -> np.ndarray:
    """(seed, request) without the warm-up."""
    return np.array([result.scheduled_s - case.arrival_s for case, result in served(load, prompts)])[:, WARMUP:]


def assert_within_chance(per_seed: np.ndarray, expected: float) -> None:
    """The mean over seeds lies within four standard errors, and those are small enough to say something."""
    error = per_seed.std(ddof=1) / np.sqrt(len(per_seed))
    assert error < 0.04 * expected
    assert abs(per_seed.mean() - expected) < 4 * error


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("prompts", PROMPTS.values(), ids=list(PROMPTS))
def test_mean_wait_of_a_single_server(load, prompts):
    """Pollaczek and Khinchine: W = lambda E[S^2] / (2 (1 - rho)); rho s / (2 (1 - rho)) for M/D/1."""
    square = np.mean((SERVICE_S / np.mean(prompts) * np.array(prompts)) ** 2)
    expected = load / SERVICE_S * square / (2 * (1 - load))
    if len(prompts) == 1:
        assert expected == pytest.approx(load * SERVICE_S / (2 * (1 - load)))
    assert_within_chance(waits(load, prompts).mean(axis=1), expected)


@pytest.mark.parametrize("load", LOADS)
def test_waits_of_exponential_services(load):
    """M/M/1: W = rho s / (1 - rho), and P(W > t) = rho exp(-(1 - rho) t / s)."""
    wait, relaxation_s = waits(load, EXPONENTIAL), SERVICE_S / (1 - load)
    assert_within_chance(wait.mean(axis=1), load * relaxation_s)
    for times in (0.25, 0.5, 1.0):
        assert_within_chance((wait > times * relaxation_s).mean(axis=1), load * np.exp(-times))


@pytest.mark.parametrize("load", LOADS)
def test_poisson_arrivals_see_time_averages(load):
    """A request finds the server busy with the probability that it is: rho."""
    assert_within_chance((waits(load, (100,)) > 0).mean(axis=1), load)


@pytest.mark.parametrize("load", LOADS)
def test_littles_law(load):
    """Requests in the system, seen at regular times, against the arrival rate times the time that each spends in it."""
    for case, result in served(load, (100,))[:8]:
        arrival, last = case.arrival_s, np.sort(result.last_token_s)
        times = np.linspace(arrival[WARMUP], arrival[-1], 400_000)
        inside = np.searchsorted(arrival, times) - np.searchsorted(last, times)
        rate = (REQUESTS - WARMUP) / (times[-1] - times[0])
        spent = (result.last_token_s - case.arrival_s)[WARMUP:].mean()
        assert inside.mean() == pytest.approx(rate * spent, rel=0.01)


def test_the_server_is_busy_for_the_work_that_there_is():
    """Work conservation: exactly the service times, and idle only while nobody waits (Lindley's recursion)."""
    for case, result in served(0.8, PROMPTS["two kinds"]):
        service = case.cost.token_s * case.prompt_tokens
        before = np.cumsum(service) - service
        start = np.maximum.accumulate(case.arrival_s - before) + before
        assert result.totals.busy_s == pytest.approx(service.sum(), rel=1e-12)
        np.testing.assert_allclose(result.scheduled_s, start, rtol=1e-11)
        np.testing.assert_allclose(result.last_token_s, start + service, rtol=1e-11)


def test_error_falls_with_the_square_root_of_the_requests():
    """The standard deviation of a run's mean wait over seeds falls as 1 / sqrt(requests)."""
    lengths = np.array([150, 600, 2_400, 9_600])
    wait = waits(0.3, (100,))
    spread = [wait[:, :length].mean(axis=1).std(ddof=1) for length in lengths]
    slope = np.polyfit(np.log(lengths), np.log(spread), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.15)


@pytest.mark.parametrize("policy", POLICIES)
def test_fluid_limit_under_overload(policy):
    """Far above the capacity the replica is never idle and request i leaves when i requests' work is done."""
    batch, outputs, requests = 16, 40, 1_600
    arrival = np.arange(requests) * 1e-4
    cost = constant_cost(iteration_s=0.01, token_s=1e-5)
    case = build(cost, policy, arrival, np.full(requests, 50), np.full(requests, outputs), max_num_seqs=batch)
    (result,) = run_engine([case])
    last = np.sort(result.last_token_s)
    assert result.totals.busy_s == pytest.approx(last[-1] - arrival[0], rel=1e-9)
    # Full batches but for the first and the last; some policies compute prompts in iterations of their own.
    assert 1.0 <= result.totals.iterations / (requests / batch * outputs) < 1.1
    drift = np.polyfit(np.arange(requests), last, 1)[0]
    assert drift == pytest.approx(last[-1] / requests, rel=0.02)


def test_throughput_at_saturation_is_the_batch_over_the_iteration():
    """With decodes alone (prompts resident) all iterations hold the full batch but for the last ones."""
    batch, outputs, requests = 16, 40, 1_600
    cost = constant_cost(iteration_s=0.01, sequence_s=1e-4)
    case = build(
        cost, "continuous", np.zeros(requests), np.full(requests, 50), np.full(requests, outputs),
        max_num_seqs=batch, resident=True,
    )  # fmt: skip
    (result,) = run_engine([case])
    assert result.totals.iterations == requests * outputs / batch
    assert result.totals.busy_s == pytest.approx(requests * outputs / batch * (0.01 + batch * 1e-4), rel=1e-12)


def test_one_compilation_for_each_structure():
    """Rates, limits, lengths, policies and costs are traced: what differs only in them shares one program."""
    for windowed in (False, True):
        cases, sizes = random_cases(False, windowed, 12), set()
        for some in (cases[:6], cases[6:]):
            run_engine(some)
            sizes.add(run_lanes._cache_size())
        assert len(sizes) == 1
