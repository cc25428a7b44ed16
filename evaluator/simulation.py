"""Configurations of one group through the engine: from plan to per-request times and totals."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.cost.batch import attention_area
from evaluator.cost.iteration import BatchStatistics, CostParameters
from evaluator.cost.lanes import stack
from evaluator.cost.memory import kv_units
from evaluator.cost.rates import peak_flops
from evaluator.cost.utilisation import ideal_time
from evaluator.metrics import OK, Outcomes, WeightedGaps, bounds_of
from evaluator.plan.plan import Group, Member, Plan, open_loop
from evaluator.plan.traffics import Load, assign_replicas
from evaluator.scenario import Deployment
from evaluator.stations.engine import histogram
from evaluator.stations.engine.lane import POLICIES, Lane, LaneResult, Policy, Requests
from evaluator.stations.engine.program import Structure, run_lanes

LANES_PER_CALL = 32  # few enough to share two cores evenly, enough to hide the cost of a call
UNLIMITED_USERS = 1 << 30


@dataclass(frozen=True)
class _Slot:
    """A lane of a chunk: which configuration, seed and replica, and which requests it serves."""

    position: int  # of the member in the chunk
    seed: int  # position of the seed
    load: Load
    served: np.ndarray | slice
    replica: int
    users: int  # closed loop: requests in flight


def simulate_chunk(plan: Plan, group: Group, members: list[Member]) -> Outcomes:
    """Run some members of a group over all seeds and replicas. Members that cannot run stay zero."""
    slots = _slots(plan, members)
    shape = (len(members), len(plan.seeds), group.requests)
    times = np.zeros((4, *shape))  # arrival, scheduled, first token, last token
    replica = np.zeros(shape, dtype=np.int32)
    totals = {name: np.zeros(shape[:2]) for name in ("busy_s", "iterations", "experts_touched", "kv_units_max")}
    gaps = np.zeros((*shape[:2], histogram.BINS))
    for slot, result in zip(slots, _run(plan, group, members, slots), strict=True):
        at = (slot.position, slot.seed)
        count = _count(slot)
        arrival = _release_times(slot, slot.users, result, count)
        for row, values in enumerate((arrival, result.scheduled_s, result.first_token_s, result.last_token_s)):
            times[row][at][slot.served] = values[:count]
        replica[at][slot.served] = slot.replica
        for name in ("busy_s", "iterations", "experts_touched"):
            totals[name][at] += getattr(result, name)
        totals["kv_units_max"][at] = max(totals["kv_units_max"][at], result.kv_units_max)
        gaps[at] += result.itl_histogram
    return _outcomes(plan, group, members, times, replica, totals, gaps)


def _slots(plan: Plan, members: list[Member]) -> list[_Slot]:
    slots = []
    for position, member in enumerate(members):
        if member.status != OK:
            continue
        workload, deployment, _ = plan.grid.points[member.config]
        users = workload.arrivals.users if workload.arrivals.process == "closed_loop" else None
        replicas = deployment.replicas
        for number, seed in enumerate(plan.seeds):
            load = plan.traffics.load(workload, seed, deployment.role)
            chosen = assign_replicas(deployment, seed, workload.requests)
            for one in range(replicas):
                served = slice(None) if replicas == 1 else np.flatnonzero(chosen == one)
                share = UNLIMITED_USERS if users is None else _users_of_lane(users, replicas, one)
                slots.append(_Slot(position, number, load, served, one, share))
    return slots


def _count(slot: _Slot) -> int:
    return len(slot.load.compute_tokens) if isinstance(slot.served, slice) else len(slot.served)


def _run(plan: Plan, group: Group, members: list[Member], slots: list[_Slot]) -> list[LaneResult]:
    """The results of all lanes, in calls of one shape; the last is filled up with lanes that have no requests."""
    lanes, requests = _lanes(plan, group, members, slots)
    structure = Structure(group.ring, group.windowed)
    vectorise = jax.default_backend() != "cpu"
    results: list[LaneResult] = []
    for start in range(0, len(slots), LANES_PER_CALL):
        part = slice(start, start + LANES_PER_CALL)
        cut = jax.tree.map(lambda values: _filled(values[part]), (lanes, requests))  # noqa: B023
        found = jax.tree.map(np.asarray, run_lanes(*cut, structure, vectorise))
        results += [LaneResult(*(field[lane] for field in found)) for lane in range(len(slots[part]))]
    return results


def _filled(values: np.ndarray) -> np.ndarray:
    missing = LANES_PER_CALL - len(values)
    if missing == 0:
        return values
    return np.concatenate([values, np.zeros((missing, *values.shape[1:]), values.dtype)])


def _lanes(plan: Plan, group: Group, members: list[Member], slots: list[_Slot]) -> tuple[Lane, Requests]:
    """Struct of arrays, leading axis lane; a lane's requests are in the order of arrival."""
    count, width = len(slots), group.lane_requests + 1
    arrival = np.full((count, width), np.inf)
    tokens = np.zeros((4, count, width), dtype=np.int32)  # compute, prompt, output, KV units
    columns: list[tuple] = []
    for lane, slot in enumerate(slots):
        member = members[slot.position]
        deployment = plan.grid.points[member.config][1]
        load, served, n = slot.load, slot.served, _count(slot)
        arrival[lane, :n] = load.traffic.arrival_s[served]
        kept = (load.compute_tokens, load.traffic.prompt_tokens, load.traffic.output_tokens)
        for row, values in enumerate((*kept, kv_units(member.design.kv, load.kv_tokens))):
            tokens[row, lane, :n] = values[served]
        columns.append(
            (
                *POLICIES[deployment.batching.policy],
                deployment.role == "decode",
                deployment.batching.max_num_seqs,
                member.max_num_batched_tokens,
                member.design.kv.capacity_units,
                member.design.kv.window or 0,
                slot.users,
                n,
                _warmup_of_lane(slot, group.warmup_requests),
            )
        )
    kinds = (bool,) * 4 + (np.float64,) * 4 + (np.int32,) * 3
    fields = [np.array(column, dtype=kind) for column, kind in zip(zip(*columns, strict=True), kinds, strict=True)]
    return Lane(_costs(group, members, slots), Policy(*fields[:3]), *fields[3:]), Requests(arrival, *tokens)


def _costs(group: Group, members: list[Member], slots: list[_Slot]) -> CostParameters:
    costs = [members[slot.position].design.cost for slot in slots]
    stacked = stack([cost for cost in costs if cost is not None], group.rows)
    return jax.tree.map(lambda values: np.ascontiguousarray(np.moveaxis(values, -1, 0)), stacked)


def _users_of_lane(users: int, replicas: int, replica: int) -> int:
    """Users keep to their replica, user u to replica u mod replicas, so that replicas stay independent."""
    return (users - replica + replicas - 1) // replicas


def _warmup_of_lane(slot: _Slot, warmup: int) -> int:
    return warmup if isinstance(slot.served, slice) else int(np.searchsorted(slot.served, warmup))


def _release_times(slot: _Slot, users: int, result: LaneResult, count: int) -> np.ndarray:
    """When each request of a lane is sent: its timestamp, or in a closed loop when the user before it is served."""
    if users >= count:
        return slot.load.traffic.arrival_s[slot.served]
    return np.concatenate([np.zeros(users), np.sort(result.last_token_s[:count])[: count - users]])


def _work(member: Member, load: Load) -> BatchStatistics:
    """Batch statistics of all requests summed over all iterations: the useful work, every prompt computed in one piece."""
    requests, window = load.traffic, member.design.kv.window if member.design.kv else None
    decodes = load.kv_tokens - requests.prompt_tokens
    computed = load.compute_tokens > 0
    start = requests.prompt_tokens - load.compute_tokens
    width = window or 0
    return BatchStatistics(
        *(
            float(np.sum(values))
            for values in (
                decodes,
                attention_area(load.kv_tokens, requests.prompt_tokens),
                attention_area(load.kv_tokens, requests.prompt_tokens, width),
                load.compute_tokens,
                computed,
                attention_area(requests.prompt_tokens, start),
                attention_area(requests.prompt_tokens, start, width),
                requests.prompt_tokens * computed,
                np.minimum(requests.prompt_tokens, load.compute_tokens + max(width - 1, 0)) * computed,
            )
        )
    )


def _outcomes(
    plan: Plan,
    group: Group,
    members: list[Member],
    times: np.ndarray,
    replica: np.ndarray,
    totals: dict[str, np.ndarray],
    gaps: np.ndarray,
) -> Outcomes:
    points = [plan.grid.points[member.config] for member in members]
    deployments = [deployment for _, deployment, _ in points]
    shape = times.shape[1:]
    tokens = np.zeros((3, *shape), dtype=np.int64)  # prompt, output, cached
    flops, moved, kv_mean, kv_max = np.zeros((4, *shape[:2]))
    makespan = times[3].max(axis=-1)
    for position, (member, (workload, deployment, _)) in enumerate(zip(members, points, strict=True)):
        if member.status != OK:
            continue
        built = member.design
        for seed in range(shape[1]):
            at = (position, seed)
            load = plan.traffics.load(workload, plan.seeds[seed], deployment.role)
            requests = load.traffic
            tokens[:, position, seed] = requests.prompt_tokens, requests.output_tokens, requests.cached_tokens
            work = _work(member, load)
            device_rates = (_bf16(built.hardware) * built.devices, built.hardware.memory_bandwidth * built.devices)
            flops[at] = ideal_time(built.compute, work) * device_rates[0]
            moved[at] = device_rates[1] * ideal_time(
                built.memory, work, totals["iterations"][at], totals["experts_touched"][at]
            )
            capacity = built.kv.capacity_units
            held = kv_units(built.kv, load.kv_tokens) @ (times[3][at] - times[1][at])
            kv_mean[at] = held / (capacity * deployment.replicas * makespan[at])
            kv_max[at] = totals["kv_units_max"][at] / capacity
    hardware = [member.design.hardware for member in members]
    column = lambda values: np.array(list(values), dtype=float)  # noqa: E731
    return Outcomes(
        *times,
        prompt_tokens=tokens[0],
        output_tokens=tokens[1],
        cached_tokens=tokens[2],
        measured=np.arange(group.requests) >= group.warmup_requests,
        busy_s=totals["busy_s"],
        makespan_s=makespan,
        flops=flops,
        bytes=moved,
        kv_used_mean=kv_mean,
        kv_used_max=kv_max,
        iterations=totals["iterations"],
        preemptions=np.zeros(shape[:2]),
        replicas=column(deployment.replicas for deployment in deployments),
        devices=column(m.design.devices * d.replicas for m, d in zip(members, deployments, strict=True)),
        peak_flops=column(_bf16(device) for device in hardware),
        peak_bandwidth=column(device.memory_bandwidth for device in hardware),
        power_w=column(device.power_w for device in hardware),
        idle_power_w=column(np.nan if h.idle_power_w is None else h.idle_power_w for h in hardware),
        usd_per_hour=column(_price(d, h) for d, h in zip(deployments, hardware, strict=True)),
        open_loop=np.array([open_loop(workload) for workload, _, _ in points]),
        status=np.array([member.status for member in members]),
        engine=np.array(["iteration"] * len(members)),
        provenance=np.array([member.design.provenance for member in members]),
        objectives=bounds_of([slo for _, _, slo in points]),
        itl=[[_weighted(gaps[position, seed]) for seed in range(shape[1])] for position in range(len(members))],
        replica=replica,
    )


def _bf16(hardware: Hardware) -> float:
    """MFU is stated against the dense 16-bit peak; work in narrower types counts by the time it would take there."""
    return peak_flops(hardware.peak_flops, "bf16")


def _price(deployment: Deployment, hardware: Hardware) -> float:
    price = deployment.usd_per_device_hour
    price = hardware.usd_per_hour if price is None else price
    return np.nan if price is None else price


def _weighted(bins: np.ndarray) -> WeightedGaps:
    there = np.flatnonzero(bins)
    return histogram.bin_middles()[there], bins[there]
