"""Data-parallel ranks of one replica: their iterations start together and end with the slowest."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.reference import Limits, simulate
from tests.reference.build import SECOND, random_cost, random_scenario, request
from tests.reference.test_leap import assert_same
from tests.thorough import tried

KINDS = {
    "any": {"prefix_caching": False},
    "preempting": {"admission": "on_demand", "prefix_caching": False},
    "swapping": {"admission": "on_demand", "prefix_caching": False, "preemption": "swap"},
    "prefixes": {"prefix_caching": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(tried(16, 1 / 8)))
def test_leaping_changes_nothing(kind, seed):
    """A leap ends where another rank gets ahead, so that its time is a sum of what the slowest rank takes each time."""
    scenario = random_scenario(2000 + seed, replicas=4, pipeline_ranks=1, **KINDS[kind])
    ranks = 2 + 2 * (seed % 2)
    exact = scenario.run(tokens=True, lockstep=ranks)
    assert_same(exact, scenario.run(leap=False, lockstep=ranks))
    assert_same(exact, scenario.run(lockstep=ranks))


def test_leaps_end_where_another_rank_gets_ahead():
    """One long context that grows slowly, many short ones that grow faster together."""
    cost = random_cost(np.random.default_rng(5), experts=True, windowed=False)
    cost = cost._replace(spread_s=0.0, unsplit_s=0.0, join_s=0.0, decode_s=0.0, sequence_s=0.0, context_s=1e-6)
    limits = Limits(64, 4096, 10000, block_tokens=4)
    found = []
    for leap in (True, False):
        requests = [request(0, 0.0, 4000, 400), *(request(index, 0.0, 100, 400) for index in range(1, 20))]
        iterations = []
        outcome = simulate(cost, "continuous", limits, requests, replicas=2, lockstep=2, leap=leap,
                           router="round_robin", observe=iterations.append)  # fmt: skip
        found.append((outcome, iterations))
    (quick, leaps), (exact, _) = found
    assert_same(exact, quick)
    assert len(leaps) < exact.iterations / 4


@pytest.mark.parametrize("seed", range(tried(6, 0.5)))
def test_ranks_that_do_the_same_are_one(seed):
    """Equal batches on all ranks take as long as the cost says of each; batches are padded to none but themselves."""
    rng = np.random.default_rng(seed)
    cost, limits = random_cost(rng, experts=True, windowed=False), Limits(8, 64, 400, block_tokens=4)
    arrival_s = np.cumsum(rng.exponential(0.05, 30)).tolist()
    lengths = rng.integers(1, 60, (30, 2)).tolist()
    one = [request(at, time_s, *pair) for at, (time_s, pair) in enumerate(zip(arrival_s, lengths, strict=True))]
    three = [request(3 * at + copy, one[at].arrival_s, *lengths[at]) for at in range(30) for copy in range(3)]
    alone = simulate(cost, "chunked", limits, one)
    together = simulate(cost, "chunked", limits, three, replicas=3, lockstep=3)
    for copy in range(3):
        times = [each.last_token_s for each in together.requests[copy::3]]
        np.testing.assert_allclose(times, [each.last_token_s for each in alone.requests], rtol=1e-9)
    assert together.iterations == 3 * alone.iterations
    assert together.busy_s == pytest.approx(3 * alone.busy_s)
    assert together.experts_touched == pytest.approx(3 * alone.experts_touched)


def test_an_arrival_at_an_idle_rank_waits_for_the_iteration_under_way():
    """Each iteration takes a second: the second request comes in the middle of one and starts with the next."""
    requests = [request(0, 0.0, 10, 20), request(1, 3.5, 10, 3)]
    limits = Limits(8, 64, 1000, block_tokens=4)
    simulate(SECOND, "chunked", limits, requests, replicas=2, lockstep=2)
    assert [each.replica for each in requests] == [0, 1]
    assert (requests[1].scheduled_s, requests[1].first_token_s, requests[1].last_token_s) == (4.0, 5.0, 7.0)
    assert requests[0].last_token_s == 20.0
    apart = [request(0, 0.0, 10, 20), request(1, 3.5, 10, 3)]
    simulate(SECOND, "chunked", limits, apart, replicas=2)
    assert apart[1].scheduled_s == 3.5


def test_a_replica_waits_for_its_own_ranks_only():
    requests = [request(at, 0.5 * at, 10, 3) for at in range(4)]
    simulate(SECOND, "chunked", Limits(8, 64, 1000, block_tokens=4), requests, replicas=4, lockstep=2)
    assert [each.scheduled_s for each in requests] == [0.0, 1.0, 1.0, 2.0]


def test_all_ranks_are_busy_and_those_with_work_iterate():
    requests = [request(0, 0.0, 10, 20)]
    outcome = simulate(SECOND, "chunked", Limits(8, 64, 1000, block_tokens=4), requests, replicas=4, lockstep=4)
    assert outcome.iterations == 20
    assert outcome.busy_s == pytest.approx(80.0)


@pytest.mark.parametrize("seed", range(tried(8)))
def test_in_a_pipeline_leaping_changes_nothing(seed):
    scenario = random_scenario(3000 + seed, 20, replicas=4, pipeline_ranks=2 + seed % 2, prefix_caching=False)
    exact = scenario.run(tokens=True, lockstep=2)
    assert_same(exact, scenario.run(lockstep=2))


def test_batches_pass_a_pipeline_together():
    """Two pipeline ranks of a second each: what is sent together goes on together, and dummy batches go with it."""
    requests = [request(0, 0.0, 10, 3), request(1, 0.5, 10, 2)]
    limits, iterations = Limits(8, 64, 1000, block_tokens=4), []
    simulate([SECOND, SECOND], "chunked", limits, requests, replicas=2, lockstep=2, observe=iterations.append)
    assert [(each.replica, each.start_s, each.end_s) for each in iterations] == [
        (0, 0.0, 2.0), (1, 1.0, 3.0), (0, 2.0, 4.0), (1, 3.0, 5.0), (0, 4.0, 6.0),
    ]  # fmt: skip
    assert [each.last_token_s for each in requests] == [6.0, 5.0]


@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_do_the_same_are_one_in_a_pipeline(seed):
    rng = np.random.default_rng(seed)
    costs = [random_cost(rng, experts=experts, windowed=False) for experts in (True, False)]
    limits, arrival_s = Limits(8, 64, 400, block_tokens=4), np.cumsum(rng.exponential(0.05, 30)).tolist()
    lengths = rng.integers(1, 60, (30, 2)).tolist()
    one = [request(at, time_s, *pair) for at, (time_s, pair) in enumerate(zip(arrival_s, lengths, strict=True))]
    two = [request(2 * at + copy, one[at].arrival_s, *lengths[at]) for at in range(30) for copy in range(2)]
    alone = simulate(costs, "chunked", limits, one)
    together = simulate(costs, "chunked", limits, two, replicas=2, lockstep=2)
    for copy in range(2):
        times = [each.last_token_s for each in together.requests[copy::2]]
        np.testing.assert_allclose(times, [each.last_token_s for each in alone.requests], rtol=1e-9)
    assert together.busy_s == pytest.approx(2 * alone.busy_s)
