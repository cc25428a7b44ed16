"""Leaping changes nothing: the same times as iteration by iteration, from sums as from the sequences themselves."""

import numpy as np
import pytest

from evaluator.reference import Limits, PoolOutcome, simulate
from tests.reference.build import SECOND, random_scenario, request
from tests.thorough import tried

SEEDS = range(1003, 1003 + tried(24, 1 / 8))  # of the first three two preempt
TIMES = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")
COUNTS = ("replica", "generated", "preemptions", "hit_tokens")
KINDS = {
    "any": {},
    "preempting": {"admission": "on_demand", "prefix_caching": False},
    "swapping": {"admission": "on_demand", "prefix_caching": False, "preemption": "swap", "pipeline_ranks": 1},
    "prefixes": {"prefix_caching": True, "pipeline_ranks": 1},
    "routed": {"replicas": 3},
}


def assert_same(outcome: PoolOutcome, other: PoolOutcome) -> None:
    for name in TIMES:
        times, others = ([getattr(each, name) for each in one.requests] for one in (outcome, other))
        np.testing.assert_allclose(others, times, rtol=1e-12, err_msg=name)
    for name in COUNTS:
        assert [getattr(each, name) for each in outcome.requests] == [getattr(each, name) for each in other.requests]
    assert other.busy_s == pytest.approx(outcome.busy_s, rel=1e-12)
    assert other.kv_unit_s == pytest.approx(outcome.kv_unit_s, rel=1e-11)
    assert other.experts_touched == pytest.approx(outcome.experts_touched, rel=1e-12)
    assert other.iterations == outcome.iterations
    assert other.kv_units_max == outcome.kv_units_max
    assert other.preemptions == outcome.preemptions


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_leaping_changes_nothing(kind, seed):
    scenario = random_scenario(seed, **KINDS[kind])
    exact = scenario.run(tokens=True)
    assert_same(exact, scenario.run(leap=False))
    assert_same(exact, scenario.run())


def test_leaps_are_taken():
    leaps = []
    requests = [request(index, 0.0, 10, 100 + index) for index in range(10)]
    limits = Limits(8, 64, 1000, admission="on_demand", block_tokens=4)
    outcome = simulate(SECOND, "chunked", limits, requests, observe=leaps.append)
    assert sum(each.iterations for each in leaps) == outcome.iterations
    assert len(leaps) < outcome.iterations / 10


def test_the_scenarios_preempt():
    """They would not try much if they did not."""
    outcomes = [random_scenario(seed, **KINDS["preempting"]).run() for seed in SEEDS]
    assert sum(outcome.preemptions > 0 for outcome in outcomes) >= len(SEEDS) / 6
