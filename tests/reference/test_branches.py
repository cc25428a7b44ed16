"""Requests that decode on several branches: what they take, when they end, and that nothing of them is lost."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from evaluator.cost.batch import decode_batch, prefill_batch
from evaluator.cost.iteration import iteration_time
from evaluator.reference import Limits, Request, simulate
from evaluator.reference.replica import Replica
from tests.reference.build import SECOND, Scenario, half_windowed, random_cost, random_scenario
from tests.reference.test_leap import assert_same
from tests.thorough import tried

SEEDS = range(3000, 3000 + tried(24))
POLICIES = ("static", "continuous", "chunked", "mixed", "sarathi", "orca")


@dataclass
class Branching(Scenario):
    """A scenario whose requests have branches: ``lengths`` of each request, ascending."""

    lengths: tuple[tuple[int, ...], ...] = ()

    def requests(self) -> list[Request]:
        found = super().requests()
        for request, lengths in zip(found, self.lengths, strict=True):
            request.branches, request.output_tokens = lengths, lengths[-1]
            request.branch_units = units_of(request, lengths, self.limits)
            request.kv_units = sum(request.branch_units)
        return found


def units_of(request: Request, lengths: tuple[int, ...], limits: Limits) -> tuple[int, ...]:
    """KV units freed as each branch ends: nothing is shared where half of the layers are windowed."""
    block, prompt = limits.block_tokens, request.prompt_tokens
    ends = [-(-(prompt + length - 1 + request.resident) // block) for length in lengths]
    if limits.units_of_blocks is not None:
        return tuple(map(half_windowed, ends))
    shared = prompt // block
    own = [end - shared for end in ends]
    return (*own[:-1], own[-1] + shared)


def branching(seed: int, most: int = 4, **fixed) -> Branching:
    """A random scenario in which requests have up to ``most`` branches."""
    rng = np.random.default_rng([seed, 1])
    policy = fixed.pop("policy", POLICIES[seed % len(POLICIES)])
    base = random_scenario(seed, policy=policy, prefix_caching=False, preemption="recompute", **fixed)
    output = [column[3] for column in base.columns]
    drawn = rng.integers(1, max(output) + 1, (len(output), most))
    lengths = tuple(
        tuple(sorted(row[: rng.integers(1, most + 1)])) for row in np.minimum(drawn, rng.integers(1, 200)).tolist()
    )
    block, hybrid = base.limits.block_tokens, base.limits.units_of_blocks is not None
    found = Branching(base.cost, policy, base.limits, base.columns, base.options, lengths)
    requests = found.requests()
    computed = max(request.prompt_tokens + sum(request.branches) + most for request in requests)
    largest = max(request.kv_units for request in requests)
    capacity = int(largest * rng.uniform(1, 1.5))
    seats = base.limits.max_num_seqs + most - 1
    budget = base.limits.max_num_batched_tokens + most - 1
    found.limits = replace(
        base.limits, kv_units=capacity, max_num_seqs=seats,
        max_num_batched_tokens=budget if policy in ("chunked", "sarathi") else max(budget, computed + seats),
        watermark_units=int(rng.integers(0, capacity - largest + 1)),
        units_of_branch=(lambda prompt, tokens: half_windowed(-(-tokens // block))) if hybrid else None,
        units_of_prefix=(lambda prompt: 0) if hybrid else None,
    )  # fmt: skip
    return found


@pytest.mark.parametrize("admission", ["reserve", "on_demand"])
@pytest.mark.parametrize("seed", SEEDS)
def test_leaping_changes_nothing(seed, admission):
    given = branching(seed, admission=admission)
    exact = given.run(tokens=True)
    assert_same(exact, given.run(leap=False))
    assert_same(exact, given.run())


def test_the_scenarios_preempt():
    runs = [branching(seed, admission="on_demand").run() for seed in SEEDS]
    assert sum(run.preemptions > 0 for run in runs) >= len(SEEDS) / 6


@pytest.mark.parametrize("admission", ["reserve", "on_demand"])
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost(seed, admission, monkeypatch):
    finish = Replica.finish

    def finish_and_check(replica, running_batch):
        finished = finish(replica, running_batch)
        queues = replica.queues
        assert queues.kv.capacity - queues.kv.free == sum(request.units for request in queues.running)
        assert queues.seats == sum(_width(request) for request in queues.running) <= replica.limits.max_num_seqs
        return finished

    monkeypatch.setattr(Replica, "finish", finish_and_check)
    outcome = branching(seed, admission=admission).run(tokens=True)
    for request in outcome.requests:
        assert len(request.token_s) == request.output_tokens == max(request.branches)
        assert request.last_token_s == request.token_s[-1] < np.inf
    for replica in outcome.replicas:
        queues = replica.queues
        assert queues.kv.free == queues.kv.capacity
        assert queues.seats == queues.work_tokens == queues.output_tokens == queues.context_tokens == 0
        assert not queues.running and not queues.decoding and not queues.decoding.growing


def _width(request: Request) -> int:
    return request.width if request.group is None else request.width_at(request.group.generated(request))


@pytest.mark.parametrize("branches", [1, 2, 8])
def test_branches_of_equal_length_take_the_time_of_a_batch(branches):
    """On an idle replica: the prompt once, then as many sequences as branches, by the cost model."""
    cost, prompt, output = random_cost(np.random.default_rng(4), experts=True, windowed=True), 70, 30
    request = Request(0, 0.0, prompt, prompt, output, 10_000, branches=(output,) * branches)
    request.branch_units = (1250,) * branches
    outcome = simulate(cost, "chunked", Limits(8, 512, 10_000), [request], window=50)
    steps = [iteration_time(outcome.replicas[0].pipeline.costs[0], prefill_batch(1, prompt, 50))]
    steps += [iteration_time(cost, decode_batch(branches, float(prompt + done), 50)) for done in range(1, output)]
    assert outcome.requests[0].last_token_s == pytest.approx(np.sum(steps), rel=1e-12)


def test_a_branch_leaves_its_seat_and_its_blocks():
    """Blocks of 4 and a prompt of 10: two shared blocks, and a copy of the third for every branch."""
    request = Request(0, 0.0, 10, 10, 7, 0, branches=(2, 7))
    request.branch_units = units_of(request, (2, 7), Limits(8, 64, 100, block_tokens=4))
    assert request.branch_units == (1, 4)  # 11 tokens, and 16
    request.kv_units = 5
    other = Request(1, 0.0, 4, 4, 5, 2)
    log = []
    limits = Limits(2, 64, 100, block_tokens=4)
    outcome = simulate(SECOND, "chunked", limits, [request, other], tokens=True, observe=log.append)
    assert [each.kv_units for each in log] == [5, 5, 6, 6, 6, 6, 6]
    assert [each.decodes for each in log] == [(), (0, 0), (0,), (0, 1), (0, 1), (0, 1), (0, 1)]
    assert other.scheduled_s == 2.0  # the second branch's seat was taken until then
    assert outcome.requests[0].token_s == [1, 2, 3, 4, 5, 6, 7]


def test_kv_on_demand_is_copied_with_the_first_write():
    """The prompt's third block is one until its branches write into it; then each has its own."""
    request = Request(0, 0.0, 10, 10, 7, 0, branches=(2, 4, 7))
    log = []
    limits = Limits(8, 64, 100, admission="on_demand", block_tokens=4)
    simulate(SECOND, "chunked", limits, [request], tokens=True, observe=log.append)
    assert [each.kv_units for each in log] == [3, 5, 4, 6, 4, 4, 4]  # 10 tokens, 11 on three, 12, 13 on two, 14 on one


def test_all_branches_are_computed_anew_after_a_preemption():
    """The prompt once, then the tokens of each branch behind it, as sequences of their own."""
    request = Request(0, 0.0, 10, 10, 7, 0, branches=(2, 7, 7))
    request.generated = 3
    request.restart()
    assert request.target == 10 + 2 * 3
    assert request.spans(0, 16) == [(0, 10), (10, 13), (10, 13)]
    assert request.spans(4, 12) == [(4, 10), (10, 12)]
    assert request.spans(12, 15) == [(12, 13), (10, 12)]
