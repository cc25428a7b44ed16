"""What a chunk of configurations gave, by configuration, seed and request, as outcomes. Without JAX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.cost.fitted import verdict
from evaluator.cost.quantities import PEAKS
from evaluator.cost.rates import peak_flops
from evaluator.cost.utilisation import ideal_time
from evaluator.metrics import OK, Outcomes, WeightedGaps, bounds_of
from evaluator.plan.plan import Group, Member, Plan, open_loop
from evaluator.scenario import Deployment
from evaluator.simulation.frontend import client_times
from evaluator.simulation.work import useful_work


@dataclass(frozen=True)
class Gathered:
    """Per-request times (config, seed, request) and totals (config, seed) over the replicas."""

    arrival_s: np.ndarray
    scheduled_s: np.ndarray
    first_token_s: np.ndarray
    last_token_s: np.ndarray
    replica: np.ndarray
    busy_s: np.ndarray
    iterations: np.ndarray
    experts_touched: np.ndarray
    preemptions: np.ndarray
    kv_units_max: np.ndarray  # of any replica
    kv_unit_s: np.ndarray  # units in use, integrated over time
    peaks: np.ndarray  # (config, seed, quantity): largest of ``quantities.PEAKS``, under a fitted cost

    @staticmethod
    def empty(configs: int, seeds: int, requests: int) -> Gathered:
        """Zeros, to be filled."""
        times = [np.zeros((configs, seeds, requests)) for _ in range(4)]
        replica = np.zeros((configs, seeds, requests), dtype=np.int32)
        arrays: list[np.ndarray] = [*times, replica, *(np.zeros((configs, seeds)) for _ in range(6))]
        arrays.append(np.zeros((configs, seeds, len(PEAKS))))
        return Gathered(*arrays)

    def check(self, members: list[Member]) -> None:
        """RuntimeError where an engine left a request unserved: the plan lets none pass that the limits never admit."""
        for member, last_token_s in zip(members, self.last_token_s, strict=True):
            if not np.isfinite(last_token_s).all():
                raise RuntimeError(
                    f"configuration {member.config}: the {member.engine} engine never admitted a request"
                    " that the plan let pass"
                )


def outcomes(
    plan: Plan, group: Group, members: list[Member], gathered: Gathered, itl: Sequence[Sequence[WeightedGaps]]
) -> Outcomes:
    """What the metrics are taken of. The rows of members that cannot run hold zeros. Errors: as ``Gathered.check``."""
    gathered.check(members)
    points = [plan.grid.points[member.config] for member in members]
    deployments = [deployment for _, deployment, _ in points]
    hardware = [member.design.hardware for member in members]
    makespan = gathered.last_token_s.max(axis=-1) - gathered.arrival_s.min(axis=-1)
    use = _use(plan, members, gathered, makespan)
    prompt, output, cached = _tokens(plan, members, gathered.arrival_s.shape)
    first_token, last_token = _as_clients_see(members, gathered, output)
    judged = [_judged(member, gathered.peaks[position].max(axis=0)) for position, member in enumerate(members)]
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
        preemptions=gathered.preemptions,
        **use,
        replicas=_column(deployment.replicas for deployment in deployments),
        devices=_column(m.design.devices * d.replicas for m, d in zip(members, deployments, strict=True)),
        peak_flops=_column(_peak(device) for device in hardware),
        peak_bandwidth=_column(device.memory_bandwidth for device in hardware),
        power_w=_column(device.power_w for device in hardware),
        idle_power_w=_column(device.idle_power_w for device in hardware),
        usd_per_hour=_column(_price(d, h) for d, h in zip(deployments, hardware, strict=True)),
        open_loop=np.array([open_loop(workload) for workload, _, _ in points]),
        status=np.array([status for status, _ in judged]),
        engine=np.array([member.engine for member in members]),
        provenance=np.array([provenance for _, provenance in judged]),
        objectives=bounds_of([slo for _, _, slo in points]),
        itl=itl,
        replica=gathered.replica,
    )


def _judged(member: Member, peaks: np.ndarray) -> tuple[str, str]:
    """Status and provenance: of a cost fitted to measured iterations, whether the run kept to their range."""
    if member.status != OK:
        return member.status, member.design.provenance
    problem, provenance = verdict(member.design.calibration, member.design.ready.fit, peaks)
    return OK if problem is None else f"unsupported: {problem}", provenance


def _as_clients_see(members: list[Member], gathered: Gathered, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and last tokens (config, seed, request) with what a calibration says requests pay around the engine."""
    first, last = gathered.first_token_s.copy(), gathered.last_token_s.copy()
    for position, member in enumerate(members):
        if member.status == OK:
            around = member.design.calibration
            first[position], last[position] = client_times(around, first[position], last[position], output[position])
    return first, last


def _use(plan: Plan, members: list[Member], gathered: Gathered, makespan: np.ndarray) -> dict[str, np.ndarray]:
    """Useful FLOPs and bytes, mean and largest fraction of the KV cache: (config, seed).

    The ideal times are sums over the pipeline ranks, so they are worth the peaks of one rank's devices.
    """
    use = {name: np.zeros_like(makespan) for name in ("flops", "bytes", "kv_used_mean", "kv_used_max")}
    for position, member in enumerate(members):
        if member.status != OK:
            continue
        workload, deployment, _ = plan.grid.points[member.config]
        replica, hardware = member.design.ready, member.design.hardware
        devices = member.design.devices / len(replica.pipeline_ranks)
        for seed, number in enumerate(plan.seeds):
            at = position, seed
            demand = plan.traffics.demand(workload, number, deployment.role)
            work = useful_work(demand, replica.kv.window)
            counts = gathered.iterations[at], gathered.experts_touched[at]
            use["flops"][at] = ideal_time(replica.compute, work) * _peak(hardware) * devices
            use["bytes"][at] = ideal_time(replica.memory, work, *counts) * hardware.memory_bandwidth * devices
            held = gathered.kv_unit_s[at]
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
