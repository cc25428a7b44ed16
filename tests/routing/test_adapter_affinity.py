"""The router that goes by LoRA adapters: its scores, its choices told from the times of a run, and what it saves."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evaluator.plan import plan
from evaluator.reference import PoolOutcome, Request, simulate
from evaluator.routing import AdapterAffinity
from tests.reference.build import SECOND
from tests.reference.test_adapters import LIMITS, requests
from tests.scenario.build import scenario

PLACES, REPLICAS = 2, 3
SCORES = {
    "active": (1, {1, 2}, set(), 1.0),
    "room for one more": (1, {2}, set(), 0.8),
    "none, as one more waits": (1, {2}, {3}, 0.0),
    "full, and it waits": (1, {2, 3}, {1}, 0.6),
    "active and waiting is one": (1, {2}, {2}, 0.8),
    "full": (1, {2, 3}, {2}, 0.0),
}
CHOICES = {
    "the adapter": (1.0, [0.8, 1.0], [0, 0], [0, 5], 1),
    "not in the longer queue": (1.0, [0.8, 1.0], [0, 1], [0, 5], 0),
    "whatever the queue": (0.0, [0.8, 1.0], [0, 9], [0, 9], 1),
    "a queue between the others": (1.0, [0.0, 1.0, 0.8], [0, 2, 4], [0, 2, 4], 1),
    "of several the fewest requests": (1.0, [1.0, 1.0, 1.0], [2, 2, 2], [4, 3, 3], 1),
}


@pytest.mark.parametrize(("adapter", "active", "waiting", "score"), SCORES.values(), ids=list(SCORES))
def test_scores(adapter, active, waiting, score):
    assert AdapterAffinity().affinity(adapter, active, waiting, PLACES) == score


@pytest.mark.parametrize(("weight", "scores", "waiting", "there", "chosen"), CHOICES.values(), ids=list(CHOICES))
def test_choices(weight, scores, waiting, there, chosen):
    assert AdapterAffinity(queue_weight=weight).choose(scores, waiting, there) == chosen


def served(rows: Any, router: Any, load_s: float = 0.5, **options: Any) -> PoolOutcome:
    limits = replace(LIMITS, max_adapters=PLACES, adapter_load_s=load_s, batch_queue=False)
    return simulate([SECOND], "chunked", limits, requests(*rows), replicas=REPLICAS, router=router, **options)


def random_rows(seed: int, gap_s: float, count: int = 80) -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(seed)
    columns = [np.cumsum(rng.exponential(gap_s, count)), *(rng.integers(1, most, count) for most in (60, 20))]
    return list(zip(*(column.tolist() for column in columns), rng.integers(0, 7, count).tolist(), strict=True))


@pytest.mark.parametrize("gap_s", [0.3, 1.5, 6.0])
def test_every_choice_follows_from_the_times_of_the_run(gap_s):
    """Who ran, waited and had left when a request came is read off the requests when all is over."""
    rule = AdapterAffinity(queue_weight=0.7)
    outcome = served(random_rows(3, gap_s), rule)
    for index, asked in enumerate(outcome.requests):
        there: list[list[Request]] = [
            [
                each
                for each in outcome.requests[:index]
                if each.replica == number and each.last_token_s > asked.arrival_s
            ]
            for number in range(REPLICAS)
        ]
        waiting = [[each for each in some if each.scheduled_s > asked.arrival_s] for some in there]
        scores = []
        for some, late in zip(there, waiting, strict=True):
            running = {each.adapter for each in some if each not in late}
            scores.append(rule.affinity(asked.adapter, running, {each.adapter for each in late}, PLACES))
        chosen = rule.choose(scores, [len(late) for late in waiting], [len(some) for some in there])
        assert asked.replica == chosen, index
    single = served(random_rows(3, gap_s), rule, leap=False).requests
    assert [each.replica for each in outcome.requests] == [each.replica for each in single]
    np.testing.assert_allclose(*([each.last_token_s for each in some] for some in (outcome.requests, single)))


def test_adapters_that_fit_into_all_places_are_loaded_once():
    """Theory: with as many adapters as places on all replicas, a router that knows the places finds every one of them.

    By what runs it knows of none while nobody is served, and deals requests out as by their numbers.
    """
    rows = [(10.0 * at, 10, 2, at % (PLACES * REPLICAS)) for at in range(60)]
    loads = {
        str(router): sum(replica.adapters.loads for replica in served(rows, router).replicas if replica.adapters)
        for router in (AdapterAffinity(sees="places"), AdapterAffinity(), "least_outstanding")
    }
    assert list(loads.values()) == [PLACES * REPLICAS, 60, 60]


def test_affinity_saves_loads():
    """The more of one adapter come at a time, the more are sent to where it runs; all are served."""
    loads, late = {}, {}
    for router in ("least_outstanding", AdapterAffinity(), AdapterAffinity(sees="places")):
        outcome = served(random_rows(5, 3.0, 200), router)
        assert all(each.finished for each in outcome.requests)
        loads[str(router)] = sum(replica.adapters.loads for replica in outcome.replicas if replica.adapters)
        late[str(router)] = np.mean([each.last_token_s - each.arrival_s for each in outcome.requests])
    blind, running, places = loads.values()
    assert places < running < blind, loads
    assert max(list(late.values())[1:]) < next(iter(late.values())), late


CHUNKED, NAMED = "deployment.batching.policy=chunked", "workload.adapters={count: 40}"


def test_it_is_of_more_adapters_than_places():
    overrides = (NAMED, CHUNKED, "deployment.router=adapter_affinity", "deployment.replicas=2")
    (bound,) = plan(scenario(*overrides, "deployment.lora={max_loras: 3}")).configurations
    assert bound.lacking == ("workload.adapters beyond lora.max_loras",) and bound.simulator == "token"
    (free,) = plan(scenario(*overrides, "deployment.lora={max_loras: 40}")).configurations
    assert re.search("^infeasible: router adapter_affinity without more .*; use fewer max_loras, or", free.status)
    (nobody,) = plan(scenario(CHUNKED, "deployment.router=adapter_affinity", "deployment.replicas=2")).configurations
    assert re.search("^infeasible: .* without adapters; use workload.adapters and deployment.lora", nobody.status)
