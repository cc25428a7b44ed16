"""Routers that know the prefix caches late, or only what they have sent: their knowledge recomputed, and its limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from evaluator.reference import PoolOutcome, Request
from evaluator.reference.block_pool import PrefixNames
from evaluator.reference.network import run
from evaluator.reference.prefix_knowledge import RouterMemory, SentBlocks
from evaluator.reference.replica import Replica
from evaluator.reference.routing import Choose, chooser
from evaluator.reference.stations.pool import PoolStation
from evaluator.routing import PrefixApproximate, PrefixAware
from tests.reference.build import SECOND, Scenario, random_scenario, request
from tests.thorough import tried

REPLICAS = 3


@dataclass(frozen=True)
class Told(PrefixAware):
    """Knows the caches by their events, with whatever delay."""

    exact = False


def same(one: PoolOutcome, other: PoolOutcome) -> None:
    """Every request on the same replica at the same times."""
    assert [each.replica for each in one.requests] == [each.replica for each in other.requests]
    for name in ("arrival_s", "first_token_s", "last_token_s"):
        pair = ([getattr(each, name) for each in outcome.requests] for outcome in (one, other))
        np.testing.assert_allclose(*pair, rtol=1e-9)


def cached_scenario(seed: int) -> Scenario:
    return random_scenario(seed, prefix_caching=True, replicas=REPLICAS, pipeline_ranks=1, router="random")


def middle_s(case: Scenario, share: float) -> float:
    """A part of what a request takes in the middle, so that delays of any scenario matter."""
    requests = case.run(router=PrefixAware(threshold=0.05)).requests
    return share * float(np.median([each.last_token_s - each.arrival_s for each in requests])) + 1e-9


# --- late: recomputed from the whole caches, noted after everything that happened


class Noted(PoolStation):
    """Notes what every cache has after whatever happens at a replica, one iteration at a time."""

    def __init__(self, replicas: Sequence[Replica], choose: Choose) -> None:
        super().__init__(replicas, choose)
        self.notes: list[tuple[float, list[dict[Any, int]]]] = []

    def note(self, now: float) -> None:
        pools = [replica.queues.kv.pool for replica in self.replicas]
        self.notes.append((now, [{name: len(held) for name, held in pool._blocks_named.items()} for pool in pools]))

    def finish(self, now: float) -> list[Request]:
        leaving = super().finish(now)
        self.note(now)
        return leaving

    def launch(self, now: float) -> None:
        super().launch(now)
        self.note(now)

    def as_of(self, now: float, delay_s: float) -> list[dict[Any, int]]:
        seen = [caches for when, caches in self.notes if when + delay_s <= now]
        return seen[-1] if seen else [{} for _ in self.replicas]


def by_notes(case: Scenario, rule: PrefixAware) -> PoolOutcome:
    """The run of a scenario, iteration by iteration, under a router that looks into those notes."""
    block, requests = case.limits.block_tokens, case.requests()
    replicas = [
        Replica(index, case.cost, case.policy, case.limits, window=case.options["window"], leap=False)
        for index in range(REPLICAS)
    ]
    sent: list[tuple[float, int, list[Any]]] = []

    def names(which: Replica, asked: Request, tokens: int) -> list[Any]:
        return list(which.queues.kv.pool.first_names(asked, tokens // block))

    def choose(asked: Request, now: float) -> Replica:
        shares, known = [], []
        for number, (which, cache) in enumerate(zip(replicas, station.as_of(now, rule.events_delay_s), strict=True)):
            ttl_s = -math.inf if rule.predicted_ttl_s is None else rule.predicted_ttl_s
            predicted = {
                name for at, to, told in sent if to == number and now < at + ttl_s for name in told
                if not isinstance(name, tuple)  # nobody else can find it
            }  # fmt: skip
            whole = 0
            for name in names(which, asked, asked.target - 1):
                if name not in cache and name not in predicted:
                    break
                whole += 1
            shares.append(whole * block / asked.prompt_tokens)
            known.append(sum(cache.values()) + len(predicted))
        chosen = rule.choose([each.outstanding for each in replicas], shares, known)
        sent.append((now, chosen, names(replicas[chosen], asked, asked.prompt_tokens)))
        return replicas[chosen]

    station = Noted(replicas, choose)
    run([station], requests, case.options["users"])
    return PoolOutcome(requests, replicas)


@pytest.mark.parametrize("seed", range(tried(24, 0.3)))
def test_late_knowledge_is_what_the_caches_had(seed):
    """Over leaps and evictions, whatever the scheduler: the caches as they were so long ago, block by block."""
    case = cached_scenario(seed)
    rng = np.random.default_rng(seed)
    delay_s = middle_s(case, rng.choice([0.01, 0.3, 2.0]))
    predicted = None if rng.random() < 0.5 else middle_s(case, rng.choice([0.3, 2.0]))
    rule = PrefixAware(threshold=0.05, imbalance=8, events_delay_s=delay_s, predicted_ttl_s=predicted)
    same(case.run(router=rule), by_notes(case, rule))


@pytest.mark.parametrize("seed", range(tried(12, 0.3)))
def test_without_a_delay_events_tell_what_is_there(seed):
    case = cached_scenario(seed)
    exact = case.run(router=PrefixAware(threshold=0.05, imbalance=8))
    same(case.run(router=Told(threshold=0.05, imbalance=8)), exact)


def test_who_never_hears_counts_requests():
    """With news that come too late there is nothing but the queues to go by."""
    case = cached_scenario(0)
    never = case.run(router=PrefixAware(threshold=0.0, events_delay_s=1e12))
    same(never, case.run(router="least_outstanding"))


# --- approximate: recomputed from all that was ever sent


def by_history(rule: PrefixApproximate, replicas: Sequence[Replica]) -> Choose:
    """The router as a search through everything that it has sent, from the end."""
    block, table = replicas[0].limits.block_tokens, PrefixNames()
    sent: list[tuple[float, int, list[Any]]] = []

    def remembered(number: int, now: float) -> set[Any]:
        kept: dict[Any, float] = {}
        most = replicas[number].limits.kv_units if rule.memory_blocks is None else rule.memory_blocks
        for at, to, names in reversed(sent):
            for name in reversed(names if to == number else []):
                if len(kept) < most:
                    kept.setdefault(name, at)
        return {name for name, at in kept.items() if rule.ttl_s is None or now < at + rule.ttl_s}

    def choose(asked: Request, now: float) -> Replica:
        names = list(table.first(asked, asked.prompt_tokens // block))
        having = [remembered(number, now) for number in range(len(replicas))]
        anywhere = [any(name in blocks for blocks in having) for name in names]
        first = names[: anywhere.index(False)] if False in anywhere else names
        shares = [sum(name in blocks for name in first) * block / asked.prompt_tokens for blocks in having]
        chosen = rule.choose([each.outstanding for each in replicas], shares, [len(blocks) for blocks in having])
        sent.append((now, chosen, names))
        return replicas[chosen]

    return choose


@pytest.mark.parametrize("seed", range(tried(24, 0.3)))
def test_what_is_remembered_is_what_was_sent_last(seed):
    case = cached_scenario(seed)
    rng = np.random.default_rng(seed)
    most = [None, 1, 2, 5, 60][rng.integers(5)]
    ttl_s = None if rng.random() < 0.5 else middle_s(case, rng.choice([0.3, 3.0]))
    rule = PrefixApproximate(threshold=0.02, imbalance=8, memory_blocks=most, ttl_s=ttl_s)
    requests = case.requests()
    replicas = [
        Replica(index, case.cost, case.policy, case.limits, window=case.options["window"])
        for index in range(REPLICAS)
    ]  # fmt: skip
    run([PoolStation(replicas, by_history(rule, replicas))], requests, case.options["users"])
    same(case.run(router=rule), PoolOutcome(requests, replicas))


def one_by_one(turns: int = 60) -> list[Request]:
    """Prompts of one of four texts, of whatever length, each served before the next comes."""
    rng = np.random.default_rng(5)
    texts = [tuple(rng.integers(0, 3, 20).tolist()) for _ in range(4)]
    return [
        # Of 4 tokens a block, and one more: the last token is computed anyhow, so that a whole block less is found.
        request(index, 100.0 * index, 4 * int(blocks) + 1, 1, content=texts[int(which)])
        for index, (blocks, which) in enumerate(zip(rng.integers(1, 20, turns), rng.integers(0, 4, turns), strict=True))
    ]


def test_who_forgets_nothing_knows_caches_that_evict_nothing():
    """Theory: of prompts that are served one by one the router has sent what the caches have, if both keep all."""
    limits = replace(cached_scenario(0).limits, kv_units=10_000, block_tokens=4, max_num_batched_tokens=2048)
    case = Scenario([SECOND], "chunked", replace(limits, max_num_seqs=8, watermark_units=0), [], {"replicas": REPLICAS})

    def served(router: Any) -> PoolOutcome:
        made = Scenario(case.cost, case.policy, case.limits, [], {"replicas": REPLICAS, "router": router})
        made.requests = one_by_one  # type: ignore[method-assign]
        return made.run()

    exact = served(PrefixAware(threshold=0.2))
    assert sum(each.hit_tokens for each in exact.requests) > 0
    assert len({each.replica for each in exact.requests}) == REPLICAS
    for router in (
        PrefixApproximate(threshold=0.2, memory_blocks=10**9),
        PrefixApproximate(threshold=0.2),
        PrefixAware(threshold=0.2, events_delay_s=50.0),  # all is told before the next request comes
    ):
        same(served(router), exact)
    forgetful = served(PrefixApproximate(threshold=0.2, memory_blocks=1))
    assert [each.replica for each in forgetful.requests] != [each.replica for each in exact.requests]


def test_the_oldest_blocks_of_a_prompt_are_forgotten_first():
    """By sending and not by asking, the beginning of a prompt before its end; the time of a block is that of the last
    request that had it."""
    memory = SentBlocks(most=3, ttl_s=10.0)
    memory.add([1, 2, 3], 0.0)
    assert [memory.has(name, 5.0) for name in (1, 2, 3)] == [True] * 3
    memory.add([4, 2], 5.0)
    assert [memory.has(name, 9.0) for name in (1, 2, 3, 4)] == [False, True, True, True]
    assert [memory.has(name, 10.0) for name in (2, 3)] == [True, False]
    assert memory.known(10.0) == 2
    assert memory.known(15.0) == 0


def test_a_larger_memory_knows_all_that_a_smaller_one_knows():
    """The inclusion property of an LRU, and of longer times to live (Mattson et al., 1970)."""
    rng = np.random.default_rng(7)
    sizes = [SentBlocks(most=most) for most in (1, 3, 10, 40)]
    times = [SentBlocks(ttl_s=ttl_s) for ttl_s in (0.5, 2.0, 9.0)]
    for now in np.cumsum(rng.exponential(1.0, 200)).tolist():
        sent = [(text, place) for text in [int(rng.integers(6))] for place in range(rng.integers(1, 9))]
        for memories in (sizes, times):
            for memory in memories:
                memory.add(sent, now)
            known = [{(t, p) for t in range(6) for p in range(9) if each.has((t, p), now)} for each in memories]
            assert all(fewer <= more for fewer, more in itertools.pairwise(known))
            assert [len(names) for names in known] == [memory.known(now) for memory in memories]


def test_a_router_remembers_replicas_that_others_join():
    """Of a fleet it is made anew whenever the replicas that serve change, with what it knew of those that stay."""
    case = cached_scenario(1)
    pool = [Replica(index, case.cost, case.policy, case.limits) for index in range(3)]
    rule, memory = PrefixApproximate(threshold=0.0), RouterMemory()
    block = case.limits.block_tokens
    first, second, third = (request(n, float(n), 3 * block + 1, 1, block=block, content=(7, 8, 9)) for n in range(3))
    assert chooser(rule, pool[:1], memory=memory)(first, 0.0) is pool[0]
    assert chooser(rule, pool[::-1], memory=memory)(second, 1.0) is pool[0]
    assert chooser(rule, pool[::-1])(third, 2.0) is pool[2]


@pytest.mark.parametrize("rule", [PrefixApproximate(), PrefixAware(events_delay_s=1.0)])
def test_a_router_forgets_replicas_that_have_gone(rule):
    """Their caches could not be freed, of which there is one for each failure."""
    case = cached_scenario(1)
    pool, memory = [Replica(index, case.cost, case.policy, case.limits) for index in range(3)], RouterMemory()
    chooser(rule, pool[:2], memory=memory)
    assert set(memory.of_replica) == set(pool[:2])
    chooser(rule, pool[1:], memory=memory)
    assert set(memory.of_replica) == set(pool[1:])
    listening = [replica.queues.kv.pool.hears is not None for replica in pool]
    assert listening == [False, *[isinstance(rule, PrefixAware)] * 2]
