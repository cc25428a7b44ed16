"""Replicas that fail and come back: known outages by hand, and drawn ones against theory."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from evaluator.reference import Limits, Request, simulate
from evaluator.reference.failures import FailurePolicy
from evaluator.reference.kv import CountedKv
from evaluator.reference.prefix_cache import PrefixCache
from evaluator.reference.stations.fleet import ScalingPolicy
from tests.reference.build import SECOND, linear_cost, random_scenario
from tests.reference.test_leap import assert_same
from tests.thorough import tried

LIMITS = Limits(64, 1 << 20, 1 << 20)
ONE_AT_A_TIME = Limits(1, 1 << 30, 1 << 30)
RESENDS = FailurePolicy(tries=10**9, keeps=True, noticed_after_s=0.0, start_up_s=0.0)
LOSES = replace(RESENDS, tries=1, keeps=False)


def asked(times, output=10):
    return [Request(index, float(at), 10, 10, output, 1) for index, at in enumerate(times)]


def run(requests, failures, limits=LIMITS, cost=SECOND, **options):
    return simulate(cost, "continuous", limits, requests, failures=failures, **options)


def answers(requests):
    return [(each.replica, each.first_token_s, each.last_token_s, each.lost) for each in requests]


def test_who_is_at_a_replica_that_fails_is_sent_to_another_one():
    # An iteration is a second: ten tokens take ten. Replica 0 is down from 3.5 to 20 s, and noticed at 5.5 s.
    requests = asked([0.0, 0.1, 4.0, 6.0])
    failures = replace(RESENDS, noticed_after_s=2.0, outages=[[(3.5, 20.0)], []])
    outcome = run(requests, failures, replicas=2, router="round_robin")
    # The third is sent to the one that is down, since nobody knows; the first has three tokens, and begins anew. Behind
    # the batch of the other replica that is under way they have their first tokens, for which its decodes stand still.
    assert answers(requests) == [
        (1, 7.1, 16.1, False),
        (1, 1.1, 11.1, False),
        (1, 7.1, 16.1, False),
        (1, 7.1, 16.1, False),
    ]
    assert [each.tries for each in requests] == [2, 1, 2, 1]
    assert outcome.up == [[0.0, 3.5], [0.0, pytest.approx(16.1)]]


def test_who_is_lost_says_when_its_user_hears_of_it():
    requests = asked([0.0, 0.1, 4.0, 6.0])
    run(requests, replace(LOSES, noticed_after_s=2.0, outages=[[(3.5, 20.0)], []]), replicas=2, router="round_robin")
    assert [(each.lost, each.last_token_s) for each in requests[::2]] == [(True, 5.5), (True, 5.5)]
    assert not requests[1].lost and not requests[3].lost and requests[3].replica == 1


def test_requests_wait_at_the_router_while_nobody_serves_or_are_lost():
    outages = [[(2.5, 10.0)]]
    kept, lost = asked([0.0, 3.0, 30.0]), asked([0.0, 3.0, 30.0])
    run(kept, replace(RESENDS, start_up_s=5.0, outages=outages))
    assert answers(kept) == [(0, 16.0, 25.0, False), (0, 16.0, 25.0, False), (0, 31.0, 40.0, False)]
    run(lost, replace(LOSES, start_up_s=5.0, outages=outages))
    assert [(each.lost, each.last_token_s, each.replica) for each in lost] == [
        (True, 2.5, 0), (True, 3.0, -1), (False, 40.0, 0)
    ]  # fmt: skip


def test_a_replica_that_is_back_before_anybody_noticed_has_lost_what_it_had():
    requests = asked([0.0, 4.0])
    run(requests, replace(RESENDS, noticed_after_s=60.0, outages=[[(2.5, 6.0)]]))
    assert answers(requests) == [(0, 7.0, 16.0, False), (0, 7.0, 16.0, False)]


def test_tries_come_to_an_end():
    outages = [[(at + 0.5, at + 1.0) for at in range(0, 40, 2)]]  # no ten tokens fit between two of them
    requests = asked([0.0])
    run(requests, replace(RESENDS, tries=4, outages=outages))
    assert requests[0].lost and requests[0].tries == 4 and requests[0].last_token_s == 6.5


def test_caches_are_empty_after_a_failure():
    limits = replace(LIMITS, prefix_caching=True, block_tokens=2)
    requests = asked([0.0, 20.0, 60.0], output=2)
    for request in requests:
        request.content, request.kv_units = (1, 2, 3, 4), 6
    outcome = run(requests, replace(RESENDS, outages=[[(40.0, 50.0)]]), limits)
    assert [each.hit_tokens for each in requests] == [0, 8, 0]
    # Of the one that is gone only the totals are left, since each cache would be megabytes for the rest of the run.
    assert [type(replica.queues.kv) for replica in outcome.replicas] == [CountedKv, PrefixCache]


def test_without_failures_it_is_a_static_pool():
    times = np.cumsum(np.random.default_rng(0).exponential(0.5, 200))
    for router in ("round_robin", "least_work", "random"):
        static, fleet = asked(times), asked(times)
        simulate(SECOND, "continuous", LIMITS, static, replicas=3, router=router)
        run(fleet, RESENDS, replicas=3, router=router)
        assert answers(static) == answers(fleet)


# --- drawn


def drawn(policy, mtbf_s, mttr_s, seed=0):
    return replace(policy, mtbf_s=mtbf_s, mttr_s=mttr_s, draws=lambda slot: np.random.default_rng([seed, slot]))


def test_replicas_serve_their_mean_share_of_the_time():
    """Up / (up + repair + start-up), of alternating renewals."""
    requests = asked([0.0, 10_000.0], output=1)
    outcome = run(requests, replace(drawn(LOSES, 8.0, 3.0), start_up_s=1.0), replicas=2, router="round_robin")
    up = sum(end - begin for begin, end in outcome.up) / (2 * 10_000)
    # The variance of the share over n cycles, by the delta method.
    cycles, whole = 2 * 10_000 / 12, 12.0
    error = math.sqrt((8.0**2 * (4.0 / whole) ** 2 + 3.0**2 * (8.0 / whole) ** 2) / cycles) / whole
    assert abs(up - 8 / 12) < 4 * error and error < 0.02


def single_tokens(rng, rate_rps, prompts):
    arrival = np.cumsum(rng.exponential(1 / rate_rps, len(prompts)))
    rows = enumerate(zip(arrival.tolist(), prompts.tolist(), strict=True))
    return [Request(index, at, prompt, prompt, 1, 1) for index, (at, prompt) in rows]


def sojourn_with_restarts(rate, service, fails, repair):
    """M/D/1 whose server fails at any time and begins the service anew, repairs exponential.

    A service takes, with its repairs, the completion time of Gaver (J. R. Statist. Soc. B 24, 1962, preemptive repeat
    identical): k interrupted tries, geometric, of a truncated exponential and a repair each. Who comes to an empty
    system may find it down, with chance f / (rate + f + 1 / repair), for a repair more: the exceptional first service
    of Welch (Operations Research 12, 1964).
    """
    once = math.exp(-fails * service)
    tries = np.array([(1 - once) / once, (1 - once) / once**2])  # mean, variance
    cut = 1 / fails - service * once / (1 - once)
    cut_square = 2 / fails**2 - (service**2 + 2 * service / fails) * once / (1 - once)
    mean = service + tries[0] * (cut + repair)
    variance = tries[0] * (cut_square - cut**2 + repair**2) + tries[1] * (cut + repair) ** 2
    square, down = variance + mean**2, fails / (rate + fails + 1 / repair)
    first, first_square = mean + down * repair, square + down * (2 * mean * repair + 2 * repair**2)
    idle = (1 - rate * mean) / (1 - rate * mean + rate * first)
    waits = rate * square / (2 * (1 - rate * mean))
    waits += rate * (first_square - square) / (2 * (1 - rate * mean + rate * first))
    return waits + mean * (1 - idle) + first * idle


def test_services_that_begin_anew_take_what_gaver_says():
    rate, fails, repair = 0.4, 0.1, 2.0
    found = []
    for seed in range(4):
        requests = single_tokens(np.random.default_rng(seed), rate, np.ones(1500, int))
        run(requests, drawn(RESENDS, 1 / fails, repair, seed), ONE_AT_A_TIME)
        found.append(np.mean([each.last_token_s - each.arrival_s for each in requests[150:]]))
    expected = sojourn_with_restarts(rate, 1.0, fails, repair)
    assert np.mean(found) == pytest.approx(expected, rel=0.08)
    assert expected > 1.5 * sojourn_with_restarts(rate, 1.0, 1e-6, repair)


def test_as_many_are_lost_as_leave_with_a_catastrophe():
    """M/M/1 that failures empty: with z the smaller root of m z^2 - (a + m + f) z + a = 0 it is busy z of its time.

    Kumar and Arivudainambi, Transient solution of an M/M/1 queue with catastrophes, Computers & Mathematics with
    Applications 40 (2000). Every repair ends with an empty system, as every failure does there, so that up times are
    alike; who comes in a repair is lost.
    """
    rate, fails, repair, tokens = 0.8, 0.05, 6.0, 1000
    shares = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        requests = single_tokens(rng, rate, rng.geometric(1 / tokens, 2000))
        run(requests, drawn(LOSES, 1 / fails, repair, seed), ONE_AT_A_TIME, linear_cost(0.0, 1 / tokens))
        shares.append(np.mean([each.lost for each in requests]))
    whole = rate + 1.0 + fails
    busy = (whole - math.sqrt(whole**2 - 4 * rate)) / 2
    up = 1 / fails / (1 / fails + repair)
    assert np.mean(shares) == pytest.approx(1 - up * busy / rate, rel=0.05)


def test_leaping_changes_nothing_and_nobody_is_forgotten():
    broke = 0
    for seed in range(2003, 2003 + tried(40, 1 / 4)):
        kind = {"replicas": 3} if seed % 2 else {"prefix_caching": True, "pipeline_ranks": 1}
        scenario = random_scenario(seed, requests=20, **kind)
        scenario.options["users"] = None
        requests = scenario.run().requests
        took_s = max(each.last_token_s for each in requests) - requests[0].arrival_s
        policy = LOSES if seed % 3 == 0 else replace(RESENDS, tries=3)
        failures = replace(drawn(policy, took_s / 6, took_s / 15, seed), noticed_after_s=took_s / 40)
        exact, leaps = scenario.run(tokens=True, failures=failures), scenario.run(failures=failures)
        assert_same(exact, leaps)
        np.testing.assert_allclose(leaps.up, exact.up, rtol=1e-12)
        assert exact.busy_s <= sum(end - begin for begin, end in exact.up) * (1 + 1e-12)
        for one, other in zip(exact.requests, leaps.requests, strict=True):
            assert (one.lost, one.tries) == (other.lost, other.tries)
            assert one.arrival_s <= one.scheduled_s <= one.first_token_s <= one.last_token_s < math.inf
            assert one.lost or len(one.token_s) == one.output_tokens
            broke += one.lost or one.tries > 1
    assert broke > 20


# --- with an autoscaler


def test_a_fleet_that_scales_replaces_what_fails():
    scaling = ScalingPolicy(
        "outstanding", 4.0, least=1, most=10, every_s=5.0, window_s=0.0, cooldown_s=10.0, tolerance=0.0, start_up_s=2.0
    )
    rng = np.random.default_rng(5)
    requests = asked(np.cumsum(rng.exponential(0.4, 400)), output=20)
    failures = replace(drawn(replace(RESENDS, tries=3), 60.0, 10.0), noticed_after_s=1.0, start_up_s=2.0)
    outcome = run(requests, failures, scaling=scaling, router="least_outstanding")
    assert all(each.lost or each.generated == 20 for each in requests) and any(each.tries > 1 for each in requests)
    there, up = (sum(end - begin for begin, end in spans) for spans in (outcome.alive, outcome.up))
    assert 0.5 * there < up < there and len(outcome.up) > len(outcome.alive)
    last = max(each.last_token_s for each in requests)
    assert max(end for _, end in outcome.alive + outcome.up) <= last
    at = np.linspace(0, last, 500)
    counts = [sum(begin <= time < end for begin, end in outcome.alive) for time in at]
    assert max(counts) <= 10 and min(counts[5:-5]) >= 1
