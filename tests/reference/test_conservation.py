"""What must hold at every moment and for every request, whatever the scenario."""

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from evaluator.reference import Iteration, PoolOutcome
from evaluator.reference.prefix_cache import PrefixCache
from evaluator.reference.replica import Replica
from evaluator.reference.request import Request
from tests.reference.build import Scenario, random_scenario
from tests.thorough import tried

SEEDS = range(2000, 2000 + tried(40, 0.15))


@cache
def traced(seed: int) -> tuple[PoolOutcome, list[Iteration]]:
    """A random scenario after its run, every token of it, and its iterations."""
    log: list[Iteration] = []
    return random_scenario(seed).run(tokens=True, observe=log.append), log


def drafting(scenario: Scenario, rng: np.random.Generator) -> Scenario:
    """The same with drafts, of which some are accepted, and with room for them."""
    drafts, limits = int(rng.integers(1, 5)), scenario.limits
    room = limits.max_num_batched_tokens + limits.max_num_seqs * drafts
    more = -(-drafts // limits.block_tokens)
    wider = replace(limits, drafts=drafts, max_num_batched_tokens=room, kv_units=limits.kv_units + more)
    curves = [(0, *np.cumsum(rng.integers(1, drafts + 2, column[3])).tolist()) for column in scenario.columns]

    def requests() -> list[Request]:
        made = [Request(index, *column) for index, column in enumerate(scenario.columns)]
        for one, curve in zip(made, curves, strict=True):
            one.curve, one.kv_units = curve, one.kv_units + more
        return made

    found = replace(scenario, limits=wider)
    found.requests = requests  # type: ignore[method-assign]
    return found


def check_blocks(replica: Replica) -> None:
    """Every KV unit is free or in use, and the queues know all that is in use."""
    queues, kv = replica.queues, replica.queues.kv
    assert 0 <= kv.free <= kv.capacity
    if isinstance(kv, PrefixCache):
        users = Counter(block for request in queues.running for block in request.blocks)
        assert kv.capacity - kv.free == len(users)
        assert all(kv.users(block) == users[block] for block in range(kv.capacity))
        assert all(len(request.blocks) == request.units for request in queues.running)
    else:
        assert kv.capacity - kv.free == sum(request.units for request in queues.running)
    assert len(queues.running) <= replica.limits.max_num_seqs


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_are_conserved(seed, tokens, monkeypatch):
    finish = Replica.finish

    def finish_and_check(replica, running_batch):
        check_blocks(replica)
        finished = finish(replica, running_batch)
        check_blocks(replica)
        return finished

    monkeypatch.setattr(Replica, "finish", finish_and_check)
    for replica in random_scenario(seed).run(tokens=tokens).replicas:
        assert replica.queues.kv.free == replica.queues.kv.capacity
        assert not replica.queues.running and not replica.queues.waiting
        assert replica.queues.work_tokens == replica.outstanding == 0


@pytest.mark.parametrize("seed", SEEDS[: tried(15)])
def test_blocks_are_conserved_where_drafts_are_verified_and_blocks_found_again(seed, monkeypatch):
    finish = Replica.finish

    def finish_and_check(replica, running_batch):
        finished = finish(replica, running_batch)
        check_blocks(replica)
        return finished

    monkeypatch.setattr(Replica, "finish", finish_and_check)
    outcome = drafting(random_scenario(seed, prefix_caching=True), np.random.default_rng(seed)).run(tokens=True)
    for request in outcome.requests:
        assert len(request.token_s) == request.output_tokens and request.last_token_s < math.inf
    for replica in outcome.replicas:
        assert replica.queues.kv.free == replica.queues.kv.capacity
        assert replica.queues.work_tokens == replica.outstanding == 0
    assert sum(each.decoded_tokens for each in outcome.replicas) >= outcome.replicas[0].decoded


@pytest.mark.parametrize("seed", SEEDS)
def test_time_goes_forward(seed):
    outcome, log = traced(seed)
    shortest = min(each.end_s - each.start_s for each in log)
    for request in outcome.requests:
        assert request.arrival_s <= request.scheduled_s < request.first_token_s <= request.last_token_s < math.inf
        assert request.token_s[0] == request.first_token_s
        assert request.token_s[-1] == request.last_token_s
        assert len(request.token_s) == request.output_tokens
        assert np.all(np.diff(request.token_s) >= shortest * (1 - 1e-12))
    last = max(request.last_token_s for request in outcome.requests)
    for replica in outcome.replicas:
        assert replica.busy_s <= last * (1 + 1e-12)
        assert replica.kv_unit_s <= last * replica.kv_units_max * (1 + 1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_token_is_computed_once_or_lost_by_preemption(seed):
    outcome, log = traced(seed)
    requests = outcome.requests
    prompts, decodes = Counter(), Counter()
    for iteration in log:
        for index, tokens in iteration.chunks:
            prompts[index] += tokens
        decodes.update(iteration.decodes)
    for request in requests:
        if not request.preemptions:
            hit = max(request.hit_tokens - request.cached_tokens, 0)
            assert prompts[request.index] == request.compute_tokens - hit
            assert decodes[request.index] == request.output_tokens - (not request.resident)
        else:
            assert prompts[request.index] + decodes[request.index] >= request.output_tokens


def test_with_reserved_kv_nobody_overtakes():
    for seed in SEEDS:
        scenario = random_scenario(seed, admission="reserve", packing="fcfs", replicas=1)
        scheduled = [request.scheduled_s for request in scenario.run().requests]
        assert scheduled == sorted(scheduled)


def test_the_same_scenario_gives_the_same_times():
    for seed in SEEDS:
        first, second = traced(seed)[0], random_scenario(seed).run(tokens=True)
        assert [request.token_s for request in first.requests] == [request.token_s for request in second.requests]


def test_requests_are_left_as_they_came_for_the_next_run():
    scenario: Scenario = random_scenario(2000)
    assert scenario.requests()[0].token_s == []
