"""Guesses of the goodput: they lead to it in few trials, and never to another one."""

from __future__ import annotations

import numpy as np
import pytest

import evaluator
from evaluator.search import goodput
from evaluator.search.bisection import Bisection
from evaluator.search.interpolation import MOST_FIRST, guess, leaders_of
from tests.search.build import axes, scenario

STEP = float(np.log1p(0.02))


def trials_of(ratios_at, start: int, floor: int = -400, ceiling: int = 400) -> tuple[int, int]:
    """The largest point that holds, of one search by guesses, and its trials; ``ratios_at`` gives (objective,)."""
    bisection = Bisection(np.array([start]), np.array([floor]), np.array([ceiling]), 8)
    tried: dict[int, np.ndarray] = {}
    while bisection.open.size:
        points = np.array(sorted(tried))
        ratios = np.array([tried[point] for point in points.tolist()])
        places = (bisection.held[0], bisection.failed[0], floor, start)
        point = guess(points * STEP, ratios, *(place * STEP for place in places)) / STEP if tried else np.nan
        chosen = int(bisection.next(np.array([0]), np.array([point]))[0])
        assert chosen not in tried
        tried[chosen] = ratios_at(chosen)
        bisection.tell(np.array([0]), np.array([chosen]), np.array([(tried[chosen] <= 1.0).all()]))
    return int(bisection.held[0]), len(tried)


@pytest.mark.parametrize("start", [-20, -3, 0, 4, 15])
@pytest.mark.parametrize("alone", [0.1, 0.5, 0.9])
def test_a_queue_takes_four_trials(alone, start):
    """A latency of ``alone`` / (1 - load), which is at its bound at a load of 1 - ``alone``."""
    limit = round(float(np.log(1.0 - alone)) / STEP + 0.5) - 1  # the highest point that holds

    def ratios(point: int) -> np.ndarray:
        load = np.exp(point * STEP)
        return np.array([alone / (1.0 - load) if load < 1.0 else 1e3])

    held, trials = trials_of(ratios, limit + start)
    assert abs(held - limit) <= 1 and ratios(held) <= 1.0 < ratios(held + 1)
    assert trials <= 6


def test_the_first_objective_that_is_missed_counts():
    def ratios(point: int) -> np.ndarray:
        return np.array([0.6 * np.exp(point * STEP), 0.95 * np.exp(0.1 * point * STEP), np.nan])

    held, trials = trials_of(lambda point: ratios(point)[:2], 0)
    assert held == int(np.log(1 / 0.6) / STEP) and trials <= 6
    at = np.array([0.0, 0.4])
    both = guess(at, np.array([ratios(round(x / STEP)) for x in at]), 0.4, 8.0, -8.0, 0.0)
    assert both == guess(at, np.array([ratios(round(x / STEP))[:2] for x in at]), 0.4, 8.0, -8.0, 0.0)


@pytest.mark.filterwarnings("error")
def test_an_endless_latency_takes_the_longest_step():
    assert guess(np.array([1.0]), np.array([[np.inf, 0.5]]), -np.inf, 1.0, -9.0, 1.0) == 1.0 - MOST_FIRST


def test_what_no_rate_meets_is_over_at_the_floor():
    held, trials = trials_of(lambda point: np.array([1.1 + 0.3 * np.exp(point * STEP)]), 0)
    assert held == -401 and trials == 3


@pytest.mark.parametrize("seed", range(20))
def test_any_latencies_come_to_an_end_at_a_pair(seed):
    """Latencies that rise and fall by chance, or jump: guesses may lead astray, the gap closes all the same."""
    rng = np.random.default_rng(seed)
    noise = np.exp(rng.normal(0.0, 0.3, 801))
    held, trials = trials_of(
        lambda point: np.array([np.exp(0.02 * point) * noise[point + 400]]), int(rng.integers(-99, 99))
    )
    at = {point: np.exp(0.02 * point) * noise[point + 400] for point in (held, held + 1)}
    assert at[held] <= 1.0 < at[held + 1] and trials < 30


def test_leaders_are_in_the_middle_of_their_groups():
    shape = (4, 3, 5)
    steps = np.stack(np.unravel_index(np.arange(60), shape), axis=-1)
    leaders = leaders_of(steps, first=4)
    assert (leaders < 0).sum() == 4
    for design in np.flatnonzero(leaders >= 0):
        assert steps[design, 0] == steps[leaders[design], 0]
    # Behind one another at most axis by axis: nobody waits for long, and nobody for good.
    depth = np.zeros(60, dtype=int)
    for _ in range(3):
        depth = np.where(leaders < 0, 0, depth[leaders] + 1)
    assert depth.max() == 2
    assert (leaders_of(steps, first=13) < 0).all() and (leaders_of(steps[:3], first=4) < 0).all()


def test_guesses_change_no_result(monkeypatch):
    """The same goodputs, and the same runs at them, as where each design halves its gap from the closed form's rate."""
    sweep = axes(deployment__tensor_parallel=[1, 2, 8], deployment__batching__max_num_seqs=[4, 8, 64])
    slo = {"ttft": {"p90": "300ms"}, "tpot": {"p90": "6.5ms"}}
    monkeypatch.setattr(goodput, "FIRST", 3)
    guessed = evaluator.optimize(scenario(sweep=sweep, slo=slo))
    monkeypatch.setattr(goodput, "guess", lambda *_: np.nan)
    monkeypatch.setattr(goodput, "FIRST", 1000)
    halved = evaluator.optimize(scenario(sweep=sweep, slo=slo))
    rates = guessed["goodput_rps"].values
    assert (rates > 0.0).any() and (rates == 0.0).any()  # both kinds of search are here
    for name in (
        "goodput_rps",
        "goodput_high_rps",
        "search_status",
        "goodput_limit",
        "ttft_s",
        "tpot_s",
        "throughput_rps",
    ):
        np.testing.assert_array_equal(guessed[name].values, halved[name].values, err_msg=name)
    found = rates > 0.0
    for name in ("goodput_rps_stderr", "goodput_rps_model_error"):
        np.testing.assert_allclose(guessed[name].values[found], halved[name].values[found], rtol=1.0, err_msg=name)
