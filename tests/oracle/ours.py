"""The project's reference on a case of the oracle: its log, iteration by iteration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evaluator.cost.iteration import CostParameters
from evaluator.reference import Iteration, Limits, Request, simulate
from evaluator.reference.data_parallel import RankBalance
from evaluator.reference.grouped_kv import KvGroup
from evaluator.reference.host_cache import HostLimits
from evaluator.reference.network import run
from evaluator.reference.offload_stores import StoreLimits
from evaluator.reference.replica import Replica
from evaluator.reference.stations.phase import PhaseStation
from evaluator.reference.stations.pool import PoolStation
from evaluator.reference.stations.transfers import Sending, Transfers
from tests.oracle.cases import ITERATION_TICKS, TICK_S, Case, Log, Step, apart
from tests.reference.build import linear_cost


def cost_of(case: Case) -> list[CostParameters]:
    """The time of an iteration on every pipeline rank: a second, and a tick for each token computed."""
    return [linear_cost(iteration_s=ITERATION_TICKS * TICK_S, token_s=TICK_S)] * case.pipeline_ranks


def limits_of(case: Case) -> Limits:
    """The case's limits as the reference takes them."""
    return Limits(
        max_num_seqs=case.max_num_seqs,
        max_num_batched_tokens=case.max_num_batched_tokens,
        kv_units=case.blocks,
        admission="on_demand",
        block_tokens=case.block_tokens,
        watermark_units=case.watermark_blocks,
        long_prefill_token_threshold=case.long_prefill_token_threshold,
        prefix_caching=case.prefix_caching,
        drafts=case.drafts,
        batch_queue=True,
        asynchronous=case.asynchronous,
        full_prompt=case.full_prompt,
        packing="priority" if case.priority else "fcfs",
        host=_host_of(case) if case.host_blocks else None,
        max_adapters=case.max_loras,
        kv_groups=tuple(map(_group, case.groups)),
    )


def _host_of(case: Case) -> HostLimits:
    stores = tuple(StoreLimits(blocks, ticks * TICK_S, latency * TICK_S) for blocks, ticks, latency in case.stores)
    copies = (case.store_ticks * TICK_S, case.load_ticks * TICK_S)
    return HostLimits(case.host_blocks, case.host_prompts_only, *copies, stores=stores)


def _group(number: int) -> KvGroup:
    return KvGroup(window=abs(number) if abs(number) > 1 else None, state=number == -1, chunked=number < -1)


def requests_of(case: Case) -> list[Request]:
    """The case's requests, fresh."""
    found = []
    for index, ask in enumerate(case.requests):
        held = ask.prompt_tokens + ask.output_tokens - 1 + case.drafts
        request = Request(
            index, ask.arrival_ticks * TICK_S, ask.prompt_tokens, ask.prompt_tokens, ask.output_tokens,
            -(-held // case.block_tokens), ask.content, priority=ask.priority, curve=ask.curve,
            adapter=ask.adapter,
        )  # fmt: skip
        found.append(request)
    return found


def serve(case: Case) -> Log:
    """All iterations of a case on the reference."""
    if case.prefill_blocks:
        return _serve_apart(case)
    ranks: dict[str, Any] = {}
    if case.lockstep:
        ranks = {"replicas": case.data_parallel, "lockstep": case.data_parallel, "router": "round_robin"}
    elif case.data_parallel > 1:
        ranks = {"replicas": case.data_parallel, "router": RankBalance(case.stats_ms)}
    return log_of(cost_of(case), "chunked", limits_of(case), requests_of(case), 1 + case.drafts, **ranks)


def log_of(cost: Any, policy: str, limits: Limits, requests: list[Request], decode_tokens: int, **more: Any) -> Log:
    """All iterations of the reference on these requests."""
    iterations: list[Iteration] = []
    simulate(cost, policy, limits, requests, tokens=True, observe=iterations.append, **more)
    # Of ranks in lockstep those with a dummy batch are told as well.
    in_order = sorted((each for each in iterations if each.decodes or each.chunks), key=lambda each: each.start_s)
    return Log(
        tuple(step_of(limits.kv_units, decode_tokens, each) for each in in_order),
        tuple(ticks_of(request.first_token_s) for request in requests),
        tuple(ticks_of(request.last_token_s) for request in requests),
    )


def _serve_apart(case: Case) -> Log:
    """The same where a prefill side computes prompts, and a decode side their last token again and all others."""
    iterations: tuple[list[Iteration], list[Iteration]] = [], []
    alone, cost = limits_of(case), cost_of(case)
    capacities = (case.prefill_blocks, case.blocks)
    limits = [replace(alone, kv_units=blocks, kv_reserved=side == 1) for side, blocks in enumerate(capacities)]
    pools = [
        PoolStation([Replica(0, cost, "chunked", limits[side], tokens=True, observe=seen.append)], _first)
        for side, seen in enumerate(iterations)
    ]
    prompts = [replace(each, output_tokens=1) for each in requests_of(case)]
    answers = requests_of(case)
    for each in answers:
        each.computed = each.prompt_tokens - 1  # until it is preempted: then it computes its prompt itself
    sides = [
        PhaseStation(pool, dict(enumerate(parts)), lambda request, now, group=None, pool=pool: pool.replicas[0])
        for pool, parts in zip(pools, (prompts, answers), strict=True)
    ]
    transfers = Transfers(
        *sides,
        lambda index, *_: Sending(
            (answers[index].prompt_tokens - answers[index].hit_tokens) * case.transfer_ticks * TICK_S, 0.0
        ),
        latency_s=0.0, one_by_one=case.one_by_one, by_layer=False, backpressure=True, choose=sides[1].choose,
        groups=None,
    )  # fmt: skip
    run([sides[0], transfers, sides[1]], requests_of(case))
    return apart(
        [[step_of(limits[side].kv_units, 1, each) for each in seen] for side, seen in enumerate(iterations)],
        tuple(ticks_of(request.first_token_s) for request in answers),
        tuple(ticks_of(request.last_token_s) for request in answers),
    )


def _first(request: Request, now: float) -> Replica:
    raise AssertionError("the phase chooses")


def ticks_of(time_s: float) -> int:
    """A time as the oracle counts it; -1: never."""
    return -1 if time_s == float("inf") else round(time_s / TICK_S)


def step_of(blocks: int, decode_tokens: int, iteration: Iteration) -> Step:
    """What is compared of an iteration; ``blocks``: of the cache."""
    tokens = dict.fromkeys(iteration.decodes, decode_tokens) | dict(iteration.chunks)
    return Step(
        ticks_of(iteration.start_s),
        ticks_of(iteration.end_s),
        tuple(sorted(tokens.items())),
        iteration.preempted,
        tuple(sorted(iteration.cached)),
        blocks - iteration.planned_units,
        tuple(sorted(iteration.loaded)),
        iteration.host_blocks,
    )
