"""A chunk of configurations on the reference, one after the other, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from evaluator.cost.memory import KvLayout, kv_units
from evaluator.metrics import OK, Outcomes, WeightedGaps
from evaluator.plan.checks import watermark_units
from evaluator.plan.engines import is_coupled
from evaluator.plan.plan import Group, Member, Plan
from evaluator.reference import Iteration, Limits, Outcome, Request, simulate
from evaluator.scenario import Deployment
from evaluator.simulation.gaps import Gaps, pooled
from evaluator.simulation.gathered import Gathered, outcomes
from evaluator.simulation.slots import Slot, pool_slot, slots
from evaluator.traffic.loads import Load, held_units

Observe = Callable[[Slot, Iteration], None]


def run_tokens(plan: Plan, group: Group, members: list[Member], observe: Observe | None = None) -> Outcomes:
    """Run members of a group over all seeds. The rows of members that cannot run hold zeros.

    Runs of alike iterations are leapt over: times, gaps between tokens and totals are the same as token by token.
    ``observe`` is called after every iteration, or leap; request numbers are those within the slot.
    """
    gathered = Gathered.empty(len(members), len(plan.seeds), group.requests)
    gaps: list[list[list[WeightedGaps]]] = [[[] for _ in plan.seeds] for _ in members]
    for slot in _slots(plan, members):
        served = _serve(plan, members[slot.position], slot, group.warmup_requests, observe)
        gaps[slot.position][slot.seed].append(_add(gathered, slot, *served))
    return outcomes(plan, group, members, gathered, [[pooled(parts) for parts in seeds] for seeds in gaps])


def _slots(plan: Plan, members: list[Member]) -> Iterator[Slot]:
    """One for every replica where they are independent, as on the vectorised engine; else one for all of them."""
    for position, member in enumerate(members):
        if member.status != OK:
            continue
        if is_coupled(*plan.grid.points[member.config][:2]):
            yield from (pool_slot(plan, member, position, number) for number in range(len(plan.seeds)))
        else:
            yield from slots(plan, members, position)


def _serve(
    plan: Plan, member: Member, slot: Slot, warmup: int, observe: Observe | None
) -> tuple[Outcome, WeightedGaps]:
    _, deployment, _ = plan.grid.points[member.config]
    replica = member.design.ready
    requests = _requests(slot, replica.kv)
    gaps = Gaps(len(requests))

    def watch(iteration: Iteration) -> None:
        gaps.add(iteration)
        if observe is not None:
            observe(slot, iteration)

    outcome = simulate(
        replica.pipeline_ranks,
        deployment.batching.policy,
        limits_of(deployment, member, slot.load),
        requests,
        replicas=deployment.replicas if slot.replica < 0 else 1,
        router=deployment.router if slot.replica < 0 else "round_robin",
        seed=plan.seeds[slot.seed],
        users=slot.users if slot.users < slot.count else None,
        window=replica.kv.window,
        observe=watch,
    )
    first = slot.warmup(warmup)
    since = requests[first].first_token_s if first < len(requests) else math.inf
    return outcome, gaps.after(since)


def limits_of(deployment: Deployment, member: Member, load: Load) -> Limits:
    """The limits of one replica as the reference takes them."""
    batching, kv, layout = deployment.batching, deployment.kv, member.design.ready.kv
    swap_bandwidth = kv.swap_bandwidth if kv.preemption == "swap" else None
    change = member.design.change
    if swap_bandwidth and change and change.input == "link_bandwidth":
        swap_bandwidth *= change.factor
    return Limits(
        max_num_seqs=batching.max_num_seqs,
        max_num_batched_tokens=member.max_num_batched_tokens,
        kv_units=layout.capacity_units,
        admission=kv.admission,
        block_tokens=layout.block_tokens,
        units_of_blocks=_units_of_blocks(layout, load),
        watermark_units=watermark_units(deployment, layout),
        preemption=kv.preemption,
        swap_units=math.inf if kv.swap_bytes is None else kv.swap_bytes // layout.unit_bytes,
        swap_unit_s=layout.unit_bytes / swap_bandwidth if swap_bandwidth else 0.0,
        long_prefill_token_threshold=batching.long_prefill_token_threshold,
        packing=batching.packing,
    )


def _units_of_blocks(kv: KvLayout, load: Load) -> Callable[[int], int] | None:
    """Units of a sequence of so many blocks; None where a unit is a block."""
    if kv.window is None and kv.bytes_per_sequence == 0:
        return None
    most = load.demand.extremes.sequence // kv.block_tokens + 3
    return kv_units(kv, np.arange(most) * kv.block_tokens).tolist().__getitem__


def _requests(slot: Slot, kv: KvLayout) -> list[Request]:
    demand = slot.load.demand
    lengths = demand.tokens.prompt_tokens, demand.tokens.output_tokens
    columns = (slot.load.arrival_s, demand.compute_tokens, *lengths, held_units(demand, kv))
    rows = zip(*(column[slot.served].tolist() for column in columns), strict=True)
    return [Request(index, *row) for index, row in enumerate(rows)]


def _add(gathered: Gathered, slot: Slot, outcome: Outcome, gaps: WeightedGaps) -> WeightedGaps:
    at, served, requests = slot.at, slot.served, outcome.requests
    for name in ("arrival_s", "scheduled_s", "first_token_s", "last_token_s"):
        getattr(gathered, name)[at][served] = [getattr(request, name) for request in requests]
    gathered.replica[at][served] = [request.replica for request in requests] if slot.replica < 0 else slot.replica
    for name in ("busy_s", "iterations", "experts_touched", "preemptions", "kv_unit_s"):
        getattr(gathered, name)[at] += getattr(outcome, name)
    gathered.kv_units_max[at] = max(gathered.kv_units_max[at], outcome.kv_units_max)
    gathered.peaks[at] = np.maximum(gathered.peaks[at], outcome.peaks)
    return gaps
