"""What a chunk of configurations used of a pool: from the totals of its replicas. Without JAX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.cost.batch import attention_area
from evaluator.cost.iteration import BatchStatistics
from evaluator.cost.rates import peak_flops
from evaluator.cost.utilisation import ideal_time
from evaluator.metrics.power import power_law
from evaluator.metrics.use import PoolTotals
from evaluator.plan import Configuration, StationPlan
from evaluator.records import kept_with_record
from evaluator.replica.batched_costs import ideals_of
from evaluator.stations.contract import ChunkJobs, RequestTimes, Use, WeightedGaps, by_run
from evaluator.traffic.jobs import Demand, Jobs


def check_served(configurations: Sequence[Configuration], times: RequestTimes) -> None:
    """RuntimeError where an engine left a job unserved: the plan lets none pass that the limits never admit."""
    for position in np.flatnonzero(~np.isfinite(times.last_token_s).all(axis=(1, 2))).tolist():
        configuration = configurations[position]
        # A request whose KV never fits would wait for ever at the head of its queue; the plan refuses those, and this
        # catches what it overlooks before infinite latencies reach a table.
        if not _may_get_stuck(configuration):
            raise RuntimeError(
                f"configuration {configuration.config}: the {configuration.simulator} engine never admitted a request"
                " that the plan let pass"
            )


def stuck_problem(configuration: Configuration, last_token_s: np.ndarray) -> str | None:
    """Why requests of a run never end, (seed, request), which only the run tells; None where all do.

    vLLM does not serve them either: see ``docs/equality.md``, host memory.
    """
    left = int((~np.isfinite(last_token_s)).sum())
    if not left or not _may_get_stuck(configuration):
        return None
    return (
        f"infeasible: {left:,} requests never end: short of KV, or of host memory for what comes from "
        "kv.offload_tiers, vLLM gets stuck with kv.offload_bytes; use a smaller batching.max_num_seqs, more "
        "tensor_parallel, more or no kv.offload_bytes"
    )


def _may_get_stuck(configuration: Configuration) -> bool:
    return any(station.deployment.kv.offload_bytes for station in configuration.stations)


def accepted(jobs: ChunkJobs, times: RequestTimes) -> ChunkJobs:
    """The jobs that were answered: refused ones used nothing, and what lost ones used was in vain."""
    if times.unanswered is None:
        return jobs
    answered: list[list[Jobs]] = [[] for _ in jobs]
    for run, run_jobs in by_run(jobs):
        answered[run[0]].append(run_jobs.some(np.flatnonzero(~times.unanswered[run][run_jobs.id])))
    return answered


def add_kept(pools: Sequence[StationPlan], jobs: ChunkJobs, times: RequestTimes, totals: PoolTotals) -> None:
    """Count the KV units of shared prefixes, in use on every replica from the first arrival to the last departure."""
    for run, run_jobs in by_run(jobs):
        pool = pools[run[0]]
        if pool.kept_units:
            ready_s, left_s = times.arrival_s[run][run_jobs.id], times.last_token_s[run][run_jobs.id]
            # Engines see the cache without them, as capacity that is not there (``Limits.kv_units``).
            totals.kv_units_max[run] += pool.kept_units
            totals.kv_unit_s[run] += pool.kept_units * pool.deployment.ranks * (left_s.max() - ready_s.min())


def use_of(
    pools: Sequence[StationPlan],
    jobs: ChunkJobs,
    totals: PoolTotals,
    itl: Sequence[Sequence[WeightedGaps]] | None,
    hit_tokens: np.ndarray | None = None,
) -> Use:
    """The use of a pool, which has the same place in all configurations of a chunk. No ``itl``: it is not known.

    ``hit_tokens`` (config, seed, request) are prompt tokens that a prefix cache had, so that nobody computed them.
    """
    hardware = [pool.design.hardware for pool in pools]
    kvs = [None if pool.design.replica is None else pool.design.replica.kv for pool in pools]
    useful, executed = _work(pools, jobs, totals, hit_tokens)
    return Use(
        name=pools[0].name,
        devices=_column(pool.devices for pool in pools),
        replicas=_column(pool.deployment.ranks for pool in pools),
        peak_flops=_column(map(_peak, hardware)),
        peak_bandwidth=_column(device.memory_bandwidth for device in hardware),
        power_w=_column(device.power_w for device in hardware),
        idle_power_w=_column(device.idle_power_w for device in hardware),
        power_law=np.array([power_law(device.architecture) for device in hardware]),
        usd_per_hour=_column(pool.usd_per_device_hour for pool in pools),
        kv_capacity_units=_column(None if kv is None else kv.capacity_units for kv in kvs),
        kv_unit_bytes=_column(None if kv is None else kv.unit_bytes for kv in kvs),
        totals=totals,
        flops=useful[0],
        bytes=useful[1],
        executed_flops=executed[0],
        executed_bytes=executed[1],
        itl=itl,
    )


def _work(
    pools: Sequence[StationPlan], jobs: ChunkJobs, totals: PoolTotals, hit_tokens: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """FLOPs and bytes, (2, config, seed): those that models ask for, and those that kernels execute.

    The ideal times are sums over the pipeline ranks, so they are worth the peaks of one rank's devices.
    """
    useful, executed = (np.zeros((2, *totals.busy_s.shape)) for _ in range(2))
    # Each design once: a sweep over loads has hundreds of configurations of the same one.
    able = {id(pool.design): pool.design.replica for pool in pools if pool.design.replica is not None}
    ideals = dict(zip(able, ideals_of(list(able.values())), strict=True))
    for run, run_jobs in by_run(jobs):
        design = pools[run[0]].design
        if design.replica is None:
            continue
        ideal = ideals[id(design)]
        # Of one rank's stage: sums over pipeline ranks are worth the peak of the devices of one.
        devices = design.rank_devices / design.spec.parallel.pipeline
        window = design.replica.kv.window
        # What a prefix cache had nobody computed, nor on a decode side what came from elsewhere; where a router told
        # jobs to several pools, each has its own; all other configurations share the work of their traffic.
        computes = not pools[run[0]].role.prompt_resident
        if (hit_tokens is not None and computes) or run_jobs.chosen is not None:
            mine = _served(pools[run[0]], run_jobs)
            demand = run_jobs.demand[mine]
            if hit_tokens is not None and computes:
                demand = demand.with_hits(hit_tokens[run][run_jobs.id[mine]])
            work = work_of(demand, window)
        else:
            work = useful_work(run_jobs.demand, window)
        counts = totals.iterations[run], totals.experts_touched[run]
        reading = _reading(work, totals, run)
        peak, bandwidth = _peak(design.hardware), design.hardware.memory_bandwidth
        useful[0][run] = ideal_time(ideal.compute, work) * peak * devices
        useful[1][run] = ideal_time(ideal.memory, reading, *counts) * bandwidth * devices
        if ideal.executed_compute is ideal.compute:
            executed[0][run], executed[1][run] = useful[0][run], useful[1][run]
        else:
            executed[0][run] = ideal_time(ideal.executed_compute, work, *counts) * peak * devices
            executed[1][run] = ideal_time(ideal.executed_memory, reading, *counts) * bandwidth * devices
    return useful, executed


def _reading(work: BatchStatistics, totals: PoolTotals, run: tuple[int, int]) -> BatchStatistics:
    """The work as memory sees it: with drafts a context is read once for all tokens that an iteration gives."""
    if not totals.decoded[run]:
        return work
    # Iterations over the tokens that they gave: the part of the contexts that was really read.
    share = totals.decoded[run] / totals.decoded_tokens[run]
    return work._replace(
        decode_context=share * work.decode_context, decode_window_context=share * work.decode_window_context
    )


def _served(pool: StationPlan, jobs: Jobs) -> np.ndarray:
    """The positions of the jobs of this pool: of those that were told where to go, or of all."""
    if jobs.chosen is None:
        return np.arange(len(jobs))
    return np.flatnonzero((jobs.chosen >= 0) & (jobs.chosen < pool.deployment.ranks))


def _column(values: Iterable[float | None]) -> np.ndarray:
    """Floats, NaN for None."""
    return np.array(list(values), dtype=float)


def _peak(hardware: Hardware) -> float:
    """MFU is stated against the dense 16-bit peak; work in narrower types counts by the time it would take there."""
    return peak_flops(hardware.peak_flops, "bf16")


# --- the useful work of jobs: what the model must compute and move for them, for MFU and MBU


@kept_with_record(64)
def useful_work(demand: Demand, window: int | None) -> BatchStatistics:
    """``work_of``, kept with the demand for all configurations that share it."""
    return work_of(demand, window)


def work_of(demand: Demand, window: int | None) -> BatchStatistics:
    """Batch statistics of all jobs summed over all iterations, every prompt computed in one piece."""
    prompt, width = demand.prompt_tokens, window or 0
    computed = demand.compute_tokens > 0
    # Chunks of a prompt attend to all before them, so that the area of a prompt is the same in one piece or in many;
    # only the context that is read again by each chunk is more than what is useful.
    start = prompt - demand.compute_tokens
    # The first computed token sees `width - 1` tokens before it; what lies before that is never read. Without a
    # window no layer has this row.
    read = np.minimum(prompt, demand.compute_tokens + max(width - 1, 0))
    totals = BatchStatistics(
        decodes=demand.kv_tokens - prompt,
        decode_context=_decode_area(demand),
        decode_window_context=_decode_area(demand, width),
        prefill_tokens=demand.compute_tokens,
        prefill_sequences=computed,
        prefill_area=attention_area(prompt, start),
        prefill_window_area=attention_area(prompt, start, width),
        prefill_context=prompt * computed,
        prefill_window_context=read * computed,
    )
    return BatchStatistics(*(float(np.sum(values)) for values in totals))


def _decode_area(demand: Demand, window: int | None = None) -> np.ndarray:
    """Tokens that the decodes of each job attend to, summed over its branches: (job,) or (job, branch)."""
    if demand.branch_tokens is None:
        return attention_area(demand.kv_tokens, demand.prompt_tokens, window)
    prompt, sampled = demand.prompt_tokens[:, None], np.where(demand.compute_tokens > 0, 1, 0)[:, None]
    computed = np.maximum(demand.branch_tokens - sampled, 0)
    return attention_area(prompt + computed, prompt, window)
