"""A chunk of configurations: run its lanes and gather what they give by configuration, seed and request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.cost.rates import peak_flops
from evaluator.cost.utilisation import ideal_time
from evaluator.metrics import OK, Outcomes, WeightedGaps, bounds_of
from evaluator.plan.plan import Group, Member, Plan, open_loop
from evaluator.plan.traffics import held_units
from evaluator.scenario import Deployment
from evaluator.simulation.frontend import client_times
from evaluator.simulation.lanes import run_slots
from evaluator.simulation.slots import Slot, slots
from evaluator.simulation.work import useful_work
from evaluator.stations.engine import LaneResult, histogram


@dataclass(frozen=True)
class _Gathered:
    """Per-request times (config, seed, request) and totals (config, seed) over the replicas."""

    arrival_s: np.ndarray
    scheduled_s: np.ndarray
    first_token_s: np.ndarray
    last_token_s: np.ndarray
    replica: np.ndarray
    busy_s: np.ndarray
    iterations: np.ndarray
    experts_touched: np.ndarray
    kv_units_max: np.ndarray  # of any replica
    itl_histogram: np.ndarray  # (config, seed, bin)

    @staticmethod
    def empty(configs: int, seeds: int, requests: int) -> _Gathered:
        times = [np.zeros((configs, seeds, requests)) for _ in range(4)]
        replica = np.zeros((configs, seeds, requests), dtype=np.int32)
        totals = [np.zeros((configs, seeds)) for _ in range(4)]
        arrays: list[np.ndarray] = [*times, replica, *totals, np.zeros((configs, seeds, histogram.BINS))]
        return _Gathered(*arrays)

    def add(self, slot: Slot, result: LaneResult) -> None:
        at, served, count = slot.at, slot.served, slot.count
        self.arrival_s[at][served] = _release_times(slot, result)
        self.scheduled_s[at][served] = result.scheduled_s[:count]
        self.first_token_s[at][served] = result.first_token_s[:count]
        self.last_token_s[at][served] = result.last_token_s[:count]
        self.replica[at][served] = slot.replica
        self.busy_s[at] += result.busy_s
        self.iterations[at] += result.iterations
        self.experts_touched[at] += result.experts_touched
        self.kv_units_max[at] = max(self.kv_units_max[at], result.kv_units_max)
        self.itl_histogram[at] += result.itl_histogram


def simulate_chunk(plan: Plan, group: Group, members: list[Member]) -> Outcomes:
    """Run members of a group over all seeds and replicas. The rows of members that cannot run hold zeros."""
    gathered = _Gathered.empty(len(members), len(plan.seeds), group.requests)
    lanes = slots(plan, members)
    for slot, result in zip(lanes, run_slots(plan, group, members, lanes), strict=True):
        gathered.add(slot, result)
    return _outcomes(plan, group, members, gathered)


def _release_times(slot: Slot, result: LaneResult) -> np.ndarray:
    """When each request is sent: at its timestamp, or in a closed loop when the request ``users`` before it is done."""
    if slot.users >= slot.count:
        return slot.load.arrival_s[slot.served]
    done = np.sort(result.last_token_s[: slot.count])
    return np.concatenate([np.zeros(slot.users), done[: slot.count - slot.users]])


def _outcomes(plan: Plan, group: Group, members: list[Member], gathered: _Gathered) -> Outcomes:
    points = [plan.grid.points[member.config] for member in members]
    deployments = [deployment for _, deployment, _ in points]
    hardware = [member.design.hardware for member in members]
    makespan = gathered.last_token_s.max(axis=-1) - gathered.arrival_s.min(axis=-1)
    use = _use(plan, members, gathered, makespan)
    prompt, output, cached = _tokens(plan, members, gathered.arrival_s.shape)
    first_token, last_token = _as_clients_see(members, gathered, output)
    return Outcomes(
        arrival_s=gathered.arrival_s,
        scheduled_s=gathered.scheduled_s,
        first_token_s=first_token,
        last_token_s=last_token,
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=cached,
        measured=np.arange(group.requests) >= group.warmup_requests,
        busy_s=gathered.busy_s,
        makespan_s=makespan,
        iterations=gathered.iterations,
        preemptions=np.zeros_like(makespan),
        **use,
        replicas=_column(deployment.replicas for deployment in deployments),
        devices=_column(m.design.devices * d.replicas for m, d in zip(members, deployments, strict=True)),
        peak_flops=_column(_peak(device) for device in hardware),
        peak_bandwidth=_column(device.memory_bandwidth for device in hardware),
        power_w=_column(device.power_w for device in hardware),
        idle_power_w=_column(device.idle_power_w for device in hardware),
        usd_per_hour=_column(_price(d, h) for d, h in zip(deployments, hardware, strict=True)),
        open_loop=np.array([open_loop(workload) for workload, _, _ in points]),
        status=np.array([member.status for member in members]),
        engine=np.array(["iteration"] * len(members)),
        provenance=np.array([member.design.provenance for member in members]),
        objectives=bounds_of([slo for _, _, slo in points]),
        itl=[[_weighted(bins) for bins in seeds] for seeds in gathered.itl_histogram],
        replica=gathered.replica,
    )


def _as_clients_see(members: list[Member], gathered: _Gathered, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and last tokens (config, seed, request) with what a calibration says requests pay around the engine."""
    first, last = gathered.first_token_s.copy(), gathered.last_token_s.copy()
    for position, member in enumerate(members):
        if member.status == OK:
            around = member.design.calibration
            first[position], last[position] = client_times(around, first[position], last[position], output[position])
    return first, last


def _use(plan: Plan, members: list[Member], gathered: _Gathered, makespan: np.ndarray) -> dict[str, np.ndarray]:
    """Useful FLOPs and bytes, mean and largest fraction of the KV cache: (config, seed)."""
    use = {name: np.zeros_like(makespan) for name in ("flops", "bytes", "kv_used_mean", "kv_used_max")}
    for position, member in enumerate(members):
        if member.status != OK:
            continue
        workload, deployment, _ = plan.grid.points[member.config]
        replica, hardware, devices = member.design.ready, member.design.hardware, member.design.devices
        for seed, number in enumerate(plan.seeds):
            at = position, seed
            demand = plan.traffics.demand(workload, number, deployment.role)
            work = useful_work(demand, replica.kv.window)
            counts = gathered.iterations[at], gathered.experts_touched[at]
            use["flops"][at] = ideal_time(replica.compute, work) * _peak(hardware) * devices
            use["bytes"][at] = ideal_time(replica.memory, work, *counts) * hardware.memory_bandwidth * devices
            held = held_units(demand, replica.kv) @ (gathered.last_token_s[at] - gathered.scheduled_s[at])
            use["kv_used_mean"][at] = held / (replica.kv.capacity_units * deployment.replicas * makespan[at])
            use["kv_used_max"][at] = gathered.kv_units_max[at] / replica.kv.capacity_units
    return use


def _tokens(plan: Plan, members: list[Member], shape: tuple[int, ...]) -> np.ndarray:
    """Prompt, output and cached tokens, (3, config, seed, request)."""
    tokens = np.zeros((3, *shape), dtype=np.int64)
    for position, member in enumerate(members):
        workload, deployment, _ = plan.grid.points[member.config]
        for seed, number in enumerate(plan.seeds):
            requests = plan.traffics.demand(workload, number, deployment.role).tokens
            tokens[:, position, seed] = requests.prompt_tokens, requests.output_tokens, requests.cached_tokens
    return tokens


def _column(values: Iterable[float | None]) -> np.ndarray:
    """Floats, NaN for None."""
    return np.array(list(values), dtype=float)


def _peak(hardware: Hardware) -> float:
    """MFU is stated against the dense 16-bit peak; work in narrower types counts by the time it would take there."""
    return peak_flops(hardware.peak_flops, "bf16")


def _price(deployment: Deployment, hardware: Hardware) -> float | None:
    return hardware.usd_per_hour if deployment.usd_per_device_hour is None else deployment.usd_per_device_hour


def _weighted(bins: np.ndarray) -> WeightedGaps:
    there = np.flatnonzero(bins)
    return histogram.bin_middles()[there], bins[there]
