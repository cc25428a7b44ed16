"""Slots -> the engine's arrays, and the engine's calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from evaluator.cost.iteration import IterationCost
from evaluator.cost.memory import units_of
from evaluator.device import OF_LOOPS, QUICKLY, accelerated, bounded, compiled
from evaluator.kv_managers import MANAGERS
from evaluator.plan import StationGroup, StationPlan
from evaluator.plan.scaling import scaling_target, start_up_s
from evaluator.plan.simulators import (
    goes_by_work,
    grows_by_blocks,
    in_any_order,
    on_demand,
    ring_bytes,
    routed_by,
    swaps,
    worth_optimising,
)
from evaluator.plan.station import swap_space, watermark_units
from evaluator.policies import policy
from evaluator.policies.token_ratio import ratios
from evaluator.replica.batched_costs import costs_of as replica_costs
from evaluator.scenario.autoscaling import METRICS, TREND
from evaluator.simulation.request_dependencies import (
    PoolJobs,
    by_prefix,
    cache_shape,
    contents_of,
    events_of,
    session_turns_of,
)
from evaluator.simulation.routing_tables import tables_of_pool
from evaluator.speculation import keys
from evaluator.stations.engine import LaneLimits, LaneResult, Requests, decisions, fcfs_reserved, joint, preemptive
from evaluator.stations.engine.common.packed import pack
from evaluator.stations.engine.common.speculation import Speculation
from evaluator.stations.engine.preemptive import CacheShape, KvUnits, Rules
from evaluator.stations.lane_jobs import LaneJobs
from evaluator.traffic.jobs import branch_units, prompt_units, shared_units
from evaluator.traffic.waiting_order import aged, priorities

LANES_PER_CALL = 32
"""Few enough to share two cores evenly, enough to hide the cost of a call. An accelerator takes
as long for one lane as for thousands: all devices have equal shares of all lanes."""
REQUESTS_PER_CALL = 1 << 20
"""Slots of all lanes of a call, some 100 bytes each: long traces go in calls of fewer lanes."""
ACCELERATED_REQUESTS_PER_CALL = 1 << 24
"""The same on each accelerator: 1.7 GB, of which every thread of a sweep may have as many there."""
RING_BYTES_PER_CALL = 8 << 30
"""Of the rings of all lanes of a call on an accelerator, where all lanes have them at a time."""
CACHE_CELLS_PER_CALL = 1 << 27
"""Numbers in the prefix caches of all lanes of a call, 4 bytes each; one lane has them at a time."""


class LanesOfCall(NamedTuple):
    """What one call of a program gives."""

    numbers: np.ndarray  # (lane,): of the lanes, among those that were asked for
    result: LaneResult  # NumPy, with a leading axis (lane,)

    def some(self, chosen: np.ndarray) -> LanesOfCall:
        """Of some of the lanes, bool (lane,)."""
        return self if chosen.all() else LanesOfCall(self.numbers[chosen], _of_lanes(self.result, chosen))


def run_lanes(
    group: StationGroup, pools: Sequence[StationPlan], lanes: list[LaneJobs], most: int = LANES_PER_CALL
) -> list[LaneResult]:
    """The results of all lanes, in their order; see ``run_calls``."""
    results: dict[int, LaneResult] = {}
    for call in run_calls(group, pools, lanes, most):
        results.update(zip(call.numbers.tolist(), _by_lane(call.result, len(call.numbers)), strict=True))
    return [results[number] for number in range(len(lanes))]


def run_calls(
    group: StationGroup, pools: Sequence[StationPlan], lanes: list[LaneJobs], most: int = LANES_PER_CALL, room: int = 1
) -> Iterator[LanesOfCall]:
    """The results of all lanes, call after call, so that the tables of one call at a time are in memory.

    ``pools`` are those of the configurations of the chunk, by position; ``most``: lanes of a call. Where KV is taken on
    demand, all lanes first run as if it never ran short; those that did short run again in the general program. Where a
    router hears late of caches, those in which more was to be heard than there is room for run again with more
    ``room``.
    """
    short: list[int] = []
    for some, result in _run_once(group, pools, lanes, most, room):
        numbers = np.arange(some.start, some.stop)
        if result.ran_short is None or not result.ran_short.any():
            yield LanesOfCall(numbers, result)
            continue
        # A lane that never ran short took KV just as the general program would have given it.
        ample = np.flatnonzero(np.logical_not(result.ran_short))
        short += np.delete(numbers, ample).tolist()
        if ample.size:
            yield LanesOfCall(numbers[ample], _of_lanes(result, ample))
    if short:
        general = replace(group, key=in_any_order(group.key))
        for call in run_calls(general, pools, [lanes[number] for number in short], most, 4 * room):
            yield LanesOfCall(np.array(short)[call.numbers], call.result)


def _run_once(
    group: StationGroup, pools: Sequence[StationPlan], lanes: list[LaneJobs], most: int, room: int
) -> Iterator[tuple[slice, LaneResult]]:
    """The results of all lanes of the group's program, by calls."""
    cache = _cache_shape(group, pools, lanes, room) if group.key.cached and lanes else None
    if group.key.preemptive and any(policy(pool.deployment.batching.policy).drain_first for pool in pools):
        # A request that has its KV may then wait beside prompts that are computed alone: its growth is noted by step.
        group = replace(group, block_tokens=0)
    run, size = program_of(group, cache), lanes_per_call(group, len(lanes), most, cache)
    ranks, rows = costs_of(group, [pools[lane.position] for lane in lanes])
    costs: Any = pack(ranks)  # once for all calls; it stands for the tuple

    def given(some: slice) -> tuple[Any, Requests]:
        part = lanes[some]
        serving = [pools[lane.position] for lane in part]
        costs_of_lanes = jax.tree.map(lambda values: values[rows[some]], costs)
        return _lanes(group, serving, part, costs_of_lanes), _requests(group, serving, part)

    return _calls(run, given, len(lanes), size)


def _cache_shape(group: StationGroup, pools: Sequence[StationPlan], lanes: list[LaneJobs], room: int) -> CacheShape:
    at_pools = _at_pools(pools, lanes)
    most = 1 if group.key.replicas == 1 else max(pool.deployment.ranks for pool in pools)
    shape = cache_shape(at_pools, most, group.key.guesses)
    return shape._replace(events=room * events_of(at_pools)) if group.key.late else shape


def _at_pools(pools: Sequence[StationPlan], lanes: Sequence[LaneJobs]) -> list[PoolJobs]:
    return [PoolJobs(pools[lane.position], lane.jobs, lane.served) for lane in lanes]


def lanes_per_call(group: StationGroup, lanes: int, most: int = LANES_PER_CALL, cache: CacheShape | None = None) -> int:
    """How many of the ``lanes`` of a group go in one call."""
    key = group.key
    # Branches have cells of their own, as many as the program for each request.
    requests = group.lane_requests * key.branches
    size = min(most, REQUESTS_PER_CALL // requests)
    devices = 1
    if accelerated():
        devices = jax.local_device_count()
        share = -(-lanes // devices)
        # Up to eighths of a power of two, so that calls of all chunks have few shapes: each of them is compiled.
        eighth = max(1, (1 << share.bit_length()) // 8)
        size = min(-(-share // eighth) * eighth, ACCELERATED_REQUESTS_PER_CALL // requests)
        rings = ring_bytes(key.replicas, group.ring, key.pipeline_ranks, key.windowed, key.drafts > 0)
        size = min(size, RING_BYTES_PER_CALL // rings)
    if cache is not None:
        cells = (3 * cache.texts + 9 * cache.blocks) * cache.replicas  # as ``block_runs.Runs`` has them
        cells += cache.names * group.key.replicas * key.guesses  # ``joint.sent_blocks``
        # One lane's cache at a time on a CPU, but arrays of all lanes of a call are made and cleared, also of those
        # that only fill it up.
        size = min(size, CACHE_CELLS_PER_CALL // cells)
    return max(1, size) * devices


def results_of(
    run: Callable[..., Any], given: Callable[[slice], tuple[Any, ...]], lanes: int, size: int
) -> Iterator[Any]:
    """The result of every lane in NumPy, lane after lane, from calls of ``run`` with ``size`` lanes each.

    ``given`` says what the engine is given of some of the lanes.
    """
    for some, result in _calls(run, given, lanes, size):
        yield from _by_lane(result, some.stop - some.start)


def _calls(
    run: Callable[..., Any], given: Callable[[slice], tuple[Any, ...]], lanes: int, size: int
) -> Iterator[tuple[slice, Any]]:
    """Which lanes a call has, and their results. Calls have one shape, for another one compiles anew: the last is
    filled up with lanes without requests."""
    for start in range(0, lanes, size):
        some = slice(start, min(start + size, lanes))
        # Zeros as lanes: no requests, so that their loops end at once.
        inputs = given(some)
        if some.stop - some.start < size:
            inputs = jax.tree.map(lambda values: _filled(values, size), inputs)
        yield some, _of_lanes(jax.tree.map(np.asarray, run(*inputs)), slice(0, some.stop - some.start))


def _of_lanes(result: Any, lanes: slice | np.ndarray) -> Any:
    return jax.tree.map(lambda values: values[lanes], result)


def _by_lane(result: Any, lanes: int) -> Iterator[Any]:
    arrays, fields = jax.tree.flatten(result)
    for lane in range(lanes):
        yield jax.tree.unflatten(fields, [values[lane] for values in arrays])


def program_of(group: StationGroup, cache: CacheShape | None = None) -> Callable[[Any, Requests], Any]:
    """The compiled program of a group: lanes and requests to results."""
    # On a CPU lanes go one after the other through ``lax.map``, so that each does its own number of iterations; under
    # ``vmap`` all of them would do as many as the longest (``engine.common.lane.over_lanes``).
    vectorise = accelerated()
    which = group.key
    if not which.preemptive:
        simple = fcfs_reserved.Structure(group.ring, which.windowed, group.block_tokens, which.asynchronous)
        first = fcfs_reserved.run_lanes
        if not vectorise:
            first = compiled(first, OF_LOOPS, "structure", "vectorise")
        return partial(bounded(first), structure=simple, vectorise=vectorise)
    structure = preemptive.Structure(
        group.ring, group.key.windowed, which.pipeline_ranks, which.peaks, which.replicas, which.frontend,
        which.lockstep, cache,
        which.pools, which.phases, which.route_at_first_token, which.kv_reservation, which.asynchronous,
        MANAGERS[which.kv_manager] if which.kv_manager else None,
        group.block_tokens if grows_by_blocks(which) else 0,
        group.looks,
        which.kv_seen,
        which.admits_first,
        0 if group.routes is None else group.routes.servers,
        which.preempts,
        which.by_work,
        which.admits_decodes,
    )  # fmt: skip
    run = preemptive.run_lanes if structure.alone else joint.run_lanes
    requests = group.requests_of_program
    if not vectorise:
        quickly = requests is not None and not worth_optimising(which, requests)
        run = compiled(run, QUICKLY if quickly else OF_LOOPS, "structure", "vectorise")
    return partial(bounded(run), structure=structure, vectorise=vectorise)


def _filled(values: np.ndarray, size: int) -> np.ndarray:
    """``values`` (lane, ...) with zeros behind, ``size`` lanes in all."""
    missing = size - len(values)
    if missing == 0:
        return values
    return np.concatenate([values, np.zeros((missing, *values.shape[1:]), values.dtype)])


def _requests(group: StationGroup, serving: list[StationPlan], lanes: list[LaneJobs]) -> Requests:
    # One cell more than requests: masked writes go to the last one.
    width = group.lane_requests + 1
    arrival = np.full((len(lanes), width), np.inf)
    tokens = np.zeros((4, len(lanes), width), dtype=np.int32)
    for row, lane in zip(arrival, lanes, strict=True):
        row[: lane.count] = lane.jobs.ready_s[lane.served]
    for numbers, lane, pool in _alike(serving, lanes):
        demand = lane.jobs.demand
        columns = (demand.compute_tokens, demand.prompt_tokens, demand.output_tokens, pool.held_units(demand))
        for table, values in zip(tokens, columns, strict=True):
            table[numbers, : lane.count] = values[lane.served]
    return Requests(arrival, *tokens)


def _alike(serving: list[StationPlan], lanes: list[LaneJobs]) -> Iterable[tuple[list[int], LaneJobs, StationPlan]]:
    """Lanes that ask the same of the same pool, whenever it comes, such as the rates of a sweep: their numbers, and one
    of them with its pool."""
    kinds: dict[Hashable, tuple[list[int], LaneJobs, StationPlan]] = {}
    for number, (lane, pool) in enumerate(zip(lanes, serving, strict=True)):
        # A slice is of jobs in their order; another choice of some is the lane's own.
        kind = (
            (id(lane.jobs.demand), id(pool), lane.served.start, lane.count)
            if isinstance(lane.served, slice)
            else number
        )
        kinds.setdefault(kind, ([], lane, pool))[0].append(number)
    return kinds.values()


def _lanes(group: StationGroup, serving: list[StationPlan], lanes: list[LaneJobs], costs: Any) -> Any:
    limits = limits_of(serving)._replace(
        users=np.array([lane.users for lane in lanes], dtype=np.int32),
        requests=np.array([lane.count for lane in lanes], dtype=np.int32),
        measured_from=np.array([lane.measured_from for lane in lanes], dtype=np.int32),
    )
    if not group.key.preemptive:
        branches, speculation = _branches(group, serving, lanes), _speculation(group, serving, lanes)
        on_demand = _on_demand(group, serving, lanes) if group.key.on_demand else None
        return fcfs_reserved.Lane(costs, limits, branches, speculation, on_demand)
    content = None
    if group.key.cached:
        at_pools = [[PoolJobs(pool, lane.jobs, lane.served)] for lane, pool in zip(lanes, serving, strict=True)]
        content = contents_of(at_pools, group.lane_requests + 1, agents=group.key.agents)
    session_turns = None
    if group.key.session_turns:
        requests, users = [(lane.jobs, lane.served) for lane in lanes], [lane.users for lane in lanes]
        session_turns = session_turns_of(requests, users, group.lane_requests + 1, group.key.agents)
    return preemptive.Lane(
        costs,
        limits,
        rules_of(serving),
        _shared_units(group, serving, lanes),
        content,
        session_turns,
        _speculation(group, serving, lanes),
        None if group.key.replicas == 1 else _cluster(group, serving, lanes),
        _host_memory(serving) if group.key.swapping else None,
        _new_tokens(serving) if group.key.token_ratio else None,
        _priorities(group, serving, lanes) if group.key.priorities else None,
    )


def _shared_units(group: StationGroup, serving: list[StationPlan], lanes: list[LaneJobs]) -> np.ndarray:
    """KV units of each request's prefix that its replica keeps for all, (lane, request + 1)."""
    shared = np.zeros((len(lanes), group.lane_requests + 1), dtype=np.int32)
    for numbers, lane, pool in _alike(serving, lanes):
        shared[numbers, : lane.count] = shared_units(lane.jobs.demand, pool.design.ready.kv)[lane.served]
    return shared


def _on_demand(group: StationGroup, serving: list[StationPlan], lanes: list[LaneJobs]) -> fcfs_reserved.OnDemand:
    rules, shared = rules_of(serving), _shared_units(group, serving, lanes)
    prompts = np.zeros_like(shared)
    for numbers, lane, pool in _alike(serving, lanes):
        units = prompt_units(lane.jobs.demand, pool.design.ready.kv, pool.role.prompt_resident)
        prompts[numbers, : lane.count] = units[lane.served]
    return fcfs_reserved.OnDemand(
        rules.whole_kv,
        rules.watermark_units,
        rules.full_prompt,
        rules.kv,
        block_units=np.where(rules.kv.full > 0, 1.0, 0.0),  # models that only keep states take no more with tokens
        prompt_units=np.maximum(prompts - shared, 0),
        shared_units=shared,
    )


def _priorities(group: StationGroup, serving: list[StationPlan], lanes: list[LaneJobs]) -> np.ndarray:
    """The order in which requests go that wait, (lane, request + 1): the rank of each one's priority in its lane."""
    ranks = np.zeros((len(lanes), group.lane_requests + 1), dtype=np.int32)
    for row, lane, pool in zip(ranks, lanes, serving, strict=True):
        batching = pool.deployment.batching
        priority = priorities(lane.jobs, lane.served, batching, lane.draws)
        if priority is not None:
            # Predicted lengths are no integers, and with what waiting counts there is no largest one.
            priority = aged(priority, lane.jobs.ready_s[lane.served], batching)
            row[: lane.count] = np.unique(priority, return_inverse=True)[1]
    return ranks


def _host_memory(serving: list[StationPlan]) -> preemptive.HostMemory:
    """Where preempted requests of each lane go; no room where they are computed anew."""
    spaces = [swap_space(pool) if swaps(pool.deployment) else (-1.0, 0.0) for pool in serving]  # (room, seconds a unit)
    return preemptive.HostMemory(*np.array(spaces, dtype=float).T)


def _new_tokens(serving: list[StationPlan]) -> preemptive.NewTokenRules:
    """How each lane expects answers to go on, of those that admit by that."""
    rows = [(*ratios(batching.schedule_conservativeness), batching.max_prefill_tokens) for batching in
            (pool.deployment.batching for pool in serving)]  # fmt: skip
    return preemptive.NewTokenRules(*np.array(rows, dtype=float).T)


def _branches(group: StationGroup, serving: list[StationPlan], lanes: list[LaneJobs]) -> fcfs_reserved.Branches | None:
    """The branches of the requests, as many cells for each as the program has; None where all are one sequence."""
    most = group.key.branches
    if most == 1:
        return None
    tokens = np.zeros((2, len(lanes), group.lane_requests + 1, most), dtype=np.int32)
    for number, (lane, pool) in enumerate(zip(lanes, serving, strict=True)):
        demand = lane.jobs.demand
        assert demand.branch_tokens is not None
        for row, values in enumerate((demand.branch_tokens, branch_units(demand, pool.design.ready.kv))):
            branches = values[lane.served][:, -most:]  # cells in front are empty
            tokens[row, number, : lane.count, most - branches.shape[1] :] = branches
    # 0: the request has such a branch. 1: it decodes, as the first token comes with the prompt.
    sequences, going = ((tokens[0] > least).sum(axis=-1, dtype=np.int32) for least in (0, 1))
    lengths, units = tokens.reshape(2, len(lanes), -1)
    return fcfs_reserved.Branches(lengths, units, sequences, going)


def _speculation(group: StationGroup, serving: list[StationPlan], lanes: list[LaneJobs]) -> Speculation | None:
    """What decodes draft, up to as many as the program has; None where they draft nothing."""
    most = group.key.drafts
    if not most:
        return None
    chances, draw_keys = np.zeros((len(lanes), most)), np.zeros((len(lanes), group.lane_requests + 1), dtype=np.uint32)
    for number, (lane, pool) in enumerate(zip(lanes, serving, strict=True)):
        assert pool.speculative is not None
        chances[number, : pool.drafts] = pool.speculative.chances
        # By the request's id, so that a request has the same luck in every configuration and on every replica.
        draw_keys[number, : lane.count] = keys(lane.draws, lane.jobs.id[lane.served])
    return Speculation(chances, np.array([pool.drafts for pool in serving], dtype=float), draw_keys)


def _cluster(group: StationGroup, serving: list[StationPlan], lanes: list[LaneJobs]) -> preemptive.Cluster:
    """The replicas of each lane, which run together."""
    deployments = [pool.deployment for pool in serving]
    tables = [tables_of_pool(lane, pool, group) for lane, pool in zip(lanes, serving, strict=True)]
    router = jax.tree.map(lambda *values: np.stack(values), *tables)
    return preemptive.Cluster(
        replicas=np.array([deployment.ranks for deployment in deployments], dtype=np.int32),
        router=router._replace(by_prefix=by_prefix(group, [*map(routed_by, deployments)])),
        ranks=np.array([pool.lockstep for pool in serving], dtype=np.int32) if group.key.lockstep else None,
        fleet=_fleets(serving, lanes) if group.key.scales else None,
        max_queued=np.array([pool.deployment.batching.max_queued_requests for pool in serving], dtype=float)
        if group.key.sheds
        else None,
    )


def _fleets(serving: list[StationPlan], lanes: list[LaneJobs]) -> preemptive.Fleet:
    """How the replicas of each lane come and go."""
    rows = []
    for pool, lane in zip(serving, lanes, strict=True):
        scaling = pool.deployment.autoscaling
        assert scaling is not None
        # Users of a closed loop begin at 0; as many as there are requests are an open loop (``reference.simulate``).
        opens = lane.users >= lane.count and lane.count
        begin_s = float(lane.jobs.ready_s[lane.served][0]) if opens else 0.0
        begin_s = begin_s if lane.jobs.begin_s is None else lane.jobs.begin_s
        lower = -1.0 if scaling.lower is None else scaling.lower
        rows.append(
            (METRICS.index(scaling.metric), scaling_target(pool), scaling.min_replicas, scaling.every_s,
             scaling.window_s, scaling.cooldown_s, scaling.tolerance, start_up_s(pool), begin_s, lower,
             scaling.predictor == TREND)
        )  # fmt: skip
    others = {"metric": np.int32, "least": np.int32, "trend": bool}
    kinds = preemptive.Fleet(*(others.get(name, float) for name in preemptive.Fleet._fields))
    return preemptive.Fleet(
        *(np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True))
    )


Told = TypeVar("Told")


def once_each(tell: Callable[[list[StationPlan]], Told]) -> Callable[[list[StationPlan]], Told]:
    """A function of pools to arrays (pool,), asked once for each of the pools: rates of a sweep share theirs."""

    @wraps(tell)
    def of_all(serving: list[StationPlan]) -> Told:
        distinct = {id(pool): pool for pool in serving}
        places = dict(zip(distinct, range(len(distinct)), strict=True))
        rows = np.array([places[id(pool)] for pool in serving], dtype=np.int64)
        of_all_pools: Told = jax.tree.map(lambda values: values[rows], tell(list(distinct.values())))
        return of_all_pools

    return of_all


@once_each
def limits_of(serving: list[StationPlan]) -> LaneLimits:
    """The limits of a replica of each pool, (pool,); what is said of requests is left at 0."""
    deployments = [pool.deployment for pool in serving]
    kvs = [pool.design.ready.kv for pool in serving]
    # System prompts that stay in the cache are nobody's, and never free.
    free = [kv.capacity_units - pool.kept_units for kv, pool in zip(kvs, serving, strict=True)]
    policies = [policy(deployment.batching.policy) for deployment in deployments]
    budgets = [
        pool.max_num_batched_tokens if record.token_budget else np.inf
        # Without a budget (Orca) the batch is bounded by its sequences.
        for record, pool in zip(policies, serving, strict=True)
    ]
    none = np.zeros(len(serving), dtype=np.int32)
    return LaneLimits(
        policy=decisions(policies),
        prompts_resident=np.array([pool.role.prompt_resident for pool in serving]),
        max_num_seqs=np.array([deployment.batching.max_num_seqs for deployment in deployments], dtype=float),
        max_num_batched_tokens=np.array(budgets, dtype=float),
        kv_units=np.array(free, dtype=float),
        window=np.array([kv.window or 0 for kv in kvs], dtype=float),
        users=none,
        requests=none,
        measured_from=none,
    )


@once_each
def rules_of(serving: list[StationPlan]) -> Rules:
    """The scheduling rules of each pool, (pool,)."""

    def column(values: Iterable[object], kind: type = float) -> np.ndarray:
        return np.array(list(values), dtype=kind)

    deployments = [pool.deployment for pool in serving]
    policies = [policy(deployment.batching.policy) for deployment in deployments]
    kvs = [pool.design.ready.kv for pool in serving]
    batchings = [deployment.batching for deployment in deployments]
    frontends = [pool.frontend for pool in serving]
    return Rules(
        on_demand=column(map(on_demand, deployments), bool),
        whole_kv=column((record.whole_kv for record in policies), bool),
        watermark_units=column(map(watermark_units, deployments, kvs)),
        full_prompt=column((deployment.kv.full_prompt for deployment in deployments), bool),
        # 0 means that there is no threshold, as vLLM has it.
        long_prefill_tokens=column(batching.long_prefill_token_threshold or np.inf for batching in batchings),
        least_work=column(map(goes_by_work, deployments), bool),
        look_every=column((record.look_every for record in policies), np.int32),
        kv=KvUnits(*map(column, zip(*map(units_of, kvs), strict=True))),
        frontend_s=column(frontend.frontend_s for frontend in frontends),
        lookahead_steps=column(frontend.lookahead_steps for frontend in frontends),
    )


def costs_of(group: StationGroup, serving: list[StationPlan]) -> tuple[tuple[IterationCost, ...], np.ndarray]:
    """The costs of each pipeline rank, with a leading axis of the distinct replicas; and the replica of each lane.

    The rates of a sweep share one replica, whose costs are put into arrays once.
    """
    replicas = {id(pool.design.ready): pool.design.ready for pool in serving}
    places = dict(zip(replicas, range(len(replicas)), strict=True))
    rows = np.array([places[id(pool.design.ready)] for pool in serving], dtype=np.int64)
    batched = replica_costs(list(replicas.values()), group.rows) if replicas else ()
    # Axes of operators and knots are in front of that of replicas. Most costs have one of them or none.
    return jax.tree.map(lambda values: np.ascontiguousarray(_last_first(values)), batched), rows


def _last_first(values: np.ndarray) -> np.ndarray:
    return values.T if values.ndim < 3 else np.moveaxis(values, -1, 0)
