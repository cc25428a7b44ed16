"""Replicas that come and go: what a fleet does at each look, against a static pool and against the fluid limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.reference import Limits, Request, simulate
from evaluator.reference.stations.fleet import ScalingPolicy
from tests.reference.build import linear_cost

COST = linear_cost(1.0, 0.0)  # an iteration takes a second, whoever takes part
LIMITS = Limits(64, 1 << 20, 1 << 20)
POLICY = ScalingPolicy(
    "outstanding", 4.0, least=1, most=10, every_s=5.0, window_s=0.0, cooldown_s=0.0, tolerance=0.0, start_up_s=0.0
)


def asked(times, output=10):
    return [Request(index, float(at), 10, 10, output, 1) for index, at in enumerate(times)]


def run(times, output=10, limits=LIMITS, router="least_outstanding", **changes):
    requests = asked(times, output)
    found = simulate(COST, "continuous", limits, requests, router=router, scaling=replace(POLICY, **changes))
    return requests, found


def fleet_at(outcome, time):
    return sum(begin <= time < end for begin, end in outcome.alive)


def test_as_few_as_most_is_a_static_pool():
    times = np.cumsum(np.random.default_rng(0).exponential(0.5, 300))
    for router in ("round_robin", "least_outstanding"):
        static, fleet = asked(times), asked(times)
        simulate(COST, "continuous", LIMITS, static, replicas=3, router=router)
        found = simulate(
            COST, "continuous", LIMITS, fleet, replicas=3, router=router, scaling=replace(POLICY, least=3, most=3)
        )
        assert [each.last_token_s for each in fleet] == [each.last_token_s for each in static]
        assert [each.replica for each in fleet] == [each.replica for each in static]
        last = max(each.last_token_s for each in fleet)
        assert found.alive == [[times[0], last]] * 3  # no look is paid for behind the last answer


def test_replicas_start_by_the_metric_and_serve_after_their_start_up():
    # 12 requests are there at the first look, 4 on a replica: two more are started, and serve 7 s later.
    requests, found = run([0.0] * 12 + [11.9, 12.1, 12.2, 12.3], output=40, start_up_s=7.0)
    assert [begin for begin, _ in found.alive] == [0.0, 5.0, 5.0, 15.0]  # at 15 s there are 16
    assert [each.replica for each in requests] == [0] * 13 + [1, 2, 1]


def test_replicas_that_stop_answer_what_they_have():
    # Sixteen short answers start three replicas at 5 s; two long ones come to these, and are all that is there at 10 s.
    first = asked([0.0] * 16, output=8)
    long = [Request(16 + number, 6.0, 10, 10, 60, 1) for number in range(2)]
    late = Request(18, 30.0, 10, 10, 4, 1)
    found = simulate(
        COST, "continuous", LIMITS, [*first, *long, late], router="least_outstanding", scaling=replace(POLICY, most=4)
    )
    kept, drained = long  # of as many requests the newest replica goes
    assert [begin for begin, _ in found.alive] == [0.0, 5.0, 5.0, 5.0]
    gone = {replica.index: end for replica, (_, end) in zip(found.replicas, found.alive, strict=True)}
    assert sorted(gone.values()) == [10.0, 10.0, drained.last_token_s, max(kept.last_token_s, drained.last_token_s)]
    assert kept.replica != drained.replica == max(kept.replica, drained.replica)
    assert late.replica == kept.replica  # who drains gets nobody new
    assert drained.last_token_s == pytest.approx(6.0 + 60.0)


def test_who_cools_down_keeps_what_was_wanted_lately():
    times = [0.0] * 20 + [60.0 + second for second in range(200)]
    for cooldown_s in (0.0, 40.0):
        _, found = run(times, output=8, cooldown_s=cooldown_s)
        assert fleet_at(found, 6.0) == 5
        # All 20 are done after 8 s; the look before that wanted five.
        assert (fleet_at(found, 30.0) == 5) == (cooldown_s > 0)
        assert fleet_at(found, 59.0) < 5


def test_no_more_than_there_are_devices_for():
    _, found = run([0.0] * 100, output=30, most=3, limits=replace(LIMITS, max_num_seqs=1))
    times = np.linspace(0, 1000, 500)
    assert max(fleet_at(found, time) for time in times) == 3
    assert {replica.index for replica in found.replicas} == {0, 1, 2}


@pytest.mark.parametrize("metric", ["waiting", "kv"])
def test_other_metrics(metric):
    # One seat: all but one wait. KV: a unit for each, of 16 in all.
    limits = Limits(1, 1 << 20, 1 << 20) if metric == "waiting" else Limits(64, 1 << 20, 16)
    _, found = run([0.0] * 9, output=20, limits=limits, metric=metric, target=4.0 if metric == "waiting" else 0.25)
    assert fleet_at(found, 6.0) == (2 if metric == "waiting" else 3)  # 8 / 4, and (9 / 16) / 0.25


def test_refused_requests_end_a_run_like_answered_ones():
    requests, found = run([0.0] * 40, limits=replace(LIMITS, max_num_seqs=2, max_queued=3), most=2)
    assert any(each.refused for each in requests)
    assert all(np.isfinite(end) for _, end in found.alive)


def test_the_fluid_limit():
    """With looks short against the change of the load there are as many replicas as Little's law asks for: the rate
    at the time x the time in the system / the target, here of a rate that rises and falls between 2 and 10 a second."""
    period, output, target = 1000.0, 10, 2.0
    grid = np.arange(0.0, 3 * period, 0.01)
    rate = 6.0 - 4.0 * np.cos(2 * np.pi * grid / period)
    expected = np.cumsum(rate) * 0.01
    unit = np.cumsum(np.random.default_rng(0).exponential(1.0, int(expected[-1])))
    times = np.interp(unit[unit < expected[-1]], expected, grid)
    requests, found = run(times, output, target=target, most=100, least=2, window_s=20.0, cooldown_s=20.0)
    took_s = np.mean([each.last_token_s - each.arrival_s for each in requests])
    at = np.arange(period, 3 * period, 10.0)  # behind the first rise
    wanted = (6.0 - 4.0 * np.cos(2 * np.pi * at / period)) * took_s / target
    there = np.array([fleet_at(found, time) for time in at])
    # It rounds up, and what was wanted of the last 20 s holds: some more than the limit, in proportion to the noise.
    assert 1.0 <= there.mean() / wanted.mean() < 1.15
    assert np.corrcoef(there, wanted)[0, 1] > 0.97
    assert np.abs(there / wanted - 1.0).mean() < 0.2


def test_a_fleet_follows_the_time_to_the_first_token():
    # One request in 20 s on a seat: the third waits 20 s and more, so that the mean of the look at 40 s is above 8 s.
    limits = replace(LIMITS, max_num_seqs=1)
    requests, found = run([0.0] * 6, output=20, limits=limits, metric="ttft", target=8.0, window_s=0.0, start_up_s=1.0)
    firsts = sorted(each.first_token_s for each in requests)
    assert firsts[:3] == [1.0, 21.0, 41.0]
    # At 5 s the first had waited a second, an eighth of the target: one replica is the least. At 25 s the second had
    # waited 21 s: 21 / 8 replicas for the one that serves. Between first tokens nothing is known, and nothing changes.
    assert [begin for begin, _ in found.alive] == [0.0, 25.0, 25.0, *[begin for begin, _ in found.alive[3:]]]
    assert all(end >= 40.0 for _, end in found.alive[:3])
