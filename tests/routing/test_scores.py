"""Routers by prefixes that go by llm-d's scores: the sums, choices told from the times of a run, and what is known."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.plan import Configuration, plan
from evaluator.reference import PoolOutcome
from evaluator.routing import PrefixApproximate, PrefixAware
from evaluator.routing.scores import PrefixScores, highest
from tests.reference.build import random_scenario
from tests.scenario.build import scenario
from tests.thorough import tried

CHOICES = {
    "the prefix": (PrefixScores(), [0.0, 0.9], [0, 0], [0.1, 0.1], [0, 5], 1),
    "not where more wait": (PrefixScores(), [0.0, 0.6], [0, 3], [0.1, 0.1], [0, 5], 0),
    "nor where the KV is full": (PrefixScores(queue=0), [0.2, 0.6], [0, 0], [0.1, 0.9], [0, 5], 0),
    "a queue between the others": (PrefixScores(prefix=0, kv=0), [0, 0, 0], [4, 2, 1], [0, 0, 0], [0, 0, 9], 2),
    "queues that are alike": (PrefixScores(prefix=0), [0, 0], [3, 3], [0.5, 0.4], [0, 9], 1),
    "of several the fewest requests": (PrefixScores(), [0.5, 0.5, 0.5], [1, 1, 1], [0.2] * 3, [4, 3, 3], 1),
}


@pytest.mark.parametrize(("scores", "share", "waiting", "used", "there", "chosen"), CHOICES.values(), ids=list(CHOICES))
def test_choices(scores, share, waiting, used, there, chosen):
    assert scores.choose(share, waiting, used, there) == chosen


def times_of(outcome: PoolOutcome) -> np.ndarray:
    return np.array([(each.replica, each.first_token_s, each.last_token_s) for each in outcome.requests])


@pytest.mark.parametrize("seed", range(tried(16)))
def test_leaps_change_nothing(seed):
    case = random_scenario(seed, prefix_caching=True, replicas=3, pipeline_ranks=1, router="random")
    for router in (
        PrefixAware(scores=PrefixScores()),
        PrefixAware(scores=PrefixScores(), events_delay_s=1e-3),
        PrefixApproximate(scores=PrefixScores()),
    ):
        leaping, stepping = (times_of(case.run(router=router, leap=leap)) for leap in (True, False))
        np.testing.assert_allclose(leaping, stepping, rtol=1e-9)


def test_the_queue_alone_is_told_by_the_times_of_the_run():
    """Weight of queues alone: the fewest that wait, of several the fewest requests, read off when all is over."""
    rule = PrefixAware(scores=PrefixScores(prefix=0, kv=0))
    case = random_scenario(4, prefix_caching=True, replicas=3, pipeline_ranks=1, router=rule, admission="reserve")
    requests = [each for each in case.run(users=None).requests if not each.preemptions]
    assert len(requests) == len(case.columns)
    for index, asked in enumerate(requests):
        earlier = [each for each in requests[:index] if each.last_token_s > asked.arrival_s]
        there = [[each for each in earlier if each.replica == number] for number in range(3)]
        waiting = [sum(each.scheduled_s > asked.arrival_s for each in some) for some in there]
        assert asked.replica == min(range(3), key=lambda n: (waiting[n], len(there[n]))), index


def test_what_is_left_to_the_reference():
    cached = ("deployment.kv.prefix_caching=true", "workload.sessions={turns: 3}")

    def planned(router: str, *more: str) -> Configuration:
        (configuration,) = plan(scenario(f"deployment.router={router}", *cached, *more)).configurations
        return configuration

    scored, late = "{prefix_aware: {scores: {}}}", "{prefix_aware: {scores: {kv: 0}, events_delay_s: 1s}}"
    pools = "deployment={pools: {a: {role: mixed, replicas: 1}, b: {role: mixed, replicas: 1}}, replicas: null}"
    for router, why in {
        scored: "router prefix_aware that guesses or goes by scores over several pools",
        late: "router prefix_aware that knows late over several pools",
        "prefix_approximate": "router prefix_approximate that guesses or goes by scores over several pools",
    }.items():
        assert planned(router).lacking == planned(router, "deployment.replicas=2").lacking == (), router
        assert planned(router, pools).lacking == (why,)
    assert str(planned(late).stations[0].deployment.router) == "prefix_aware by scores 3:2:0, 1 s late"


def test_scores_that_differ_in_their_last_bits_are_alike():
    """Shares that add up to the same: the sum is another in its last bits, and the fewest requests decide."""
    assert 0.1 + 0.2 > 0.3
    assert highest([0.1 + 0.2, 0.3], [5, 1]) == 1 and highest([0.3, 0.1 + 0.2], [1, 1]) == 0
    assert highest([0.3 + 1e-6, 0.3], [5, 1]) == 0 and highest([0.0, 0.0], [2, 1]) == 1
