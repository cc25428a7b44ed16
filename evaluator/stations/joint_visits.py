"""Pools that ran in one event loop -> visits to the stations that the chain has, as if one had served after the other.

What follows (``simulation.chain``) is then the same, whichever engine ran the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluator.metrics.use import PoolTotals, Use, WeightedGaps, pooled
from evaluator.plan import Configuration
from evaluator.plan.phases import PhasePools
from evaluator.stations.contract import (
    ChunkJobs,
    JobColumns,
    RequestTimes,
    RunKey,
    Station,
    StationVisit,
    by_run,
    shape_of,
    table_shape,
    use_without_devices,
)
from evaluator.stations.use import add_kept, check_served, use_of
from evaluator.traffic.jobs import Jobs, Origin


@dataclass(frozen=True, eq=False)
class PoolServed:
    """A pool after a run: what its replicas did, and the gaps between the tokens they gave."""

    done: PoolTotals
    gaps: WeightedGaps
    first: int  # number of its first replica in its phase
    alive: np.ndarray | None = None  # of a fleet: from when until when each replica was there, as of ``Use``


@dataclass(frozen=True, eq=False)
class JointResult:
    """One configuration under one seed after its run.

    ``phases``: of each the times and replicas of its jobs, (job,) in the order of the jobs that came there; ``pools``
    of each. ``link``: when each job's KV was there to be sent behind a prefill phase, began to be, and had come.
    """

    phases: tuple[JobColumns, ...]
    pools: tuple[tuple[PoolServed, ...], ...]
    link: JobColumns | None = None


def visits_of_joint_run(
    configurations: Sequence[Configuration], jobs: ChunkJobs, runs: Mapping[RunKey, JointResult]
) -> list[StationVisit]:
    """The visits of the jobs of a chunk to its stations; ``runs`` are those of the configurations that can run."""
    station_visits: list[StationVisit] = []
    for phase in configurations[0].phases:
        # As the chain has it: there the link is a station of its own between both sides, here the
        # loop has run it.
        if phase.number > 0:
            station_visits.append(
                _link_visit(station_visits[-1], configurations, {key: run.link for key, run in runs.items()})
            )
        came = jobs if phase.number == 0 else _sent(station_visits[-1])
        station_visits.append(_phase_visit(configurations, phase, came, runs))
    return station_visits


def _phase_visit(
    configurations: Sequence[Configuration], phase: PhasePools, jobs: ChunkJobs, runs: Mapping[RunKey, JointResult]
) -> StationVisit:
    times = RequestTimes.empty(table_shape(jobs))
    if any("hit_tokens" in run.phases[phase.number] for run in runs.values()):
        times = replace(times, hit_tokens=np.zeros(times.replica.shape, dtype=np.int64))
    for key, run in runs.items():
        times.put(key, jobs[key[0]][key[1]].id, **run.phases[phase.number])
    check_served(configurations, times)
    uses = [_use(configurations, phase, position, jobs, times, runs) for position in range(len(phase.stations))]
    name = configurations[0].stations[phase.stations.start].name if len(uses) == 1 else phase.role.name
    return StationVisit(Station(name, never, phase.role), jobs, times, tuple(uses))


def never(jobs: ChunkJobs) -> tuple[RequestTimes, *tuple[Use, ...]]:
    """In place of a station's service where all is done in the loop."""
    raise AssertionError("this station has served its jobs in the loop of the network")


def _use(
    configurations: Sequence[Configuration],
    phase: PhasePools,
    position: int,
    jobs: ChunkJobs,
    served: RequestTimes,
    runs: Mapping[RunKey, JointResult],
) -> Use:
    """Of the pool at a place in its phase."""
    pools = [
        configuration.stations[configuration.phases[phase.number].stations[position]]
        for configuration in configurations
    ]
    configs, seeds, _ = shape_of(jobs)
    totals = PoolTotals.empty(configs, seeds)
    itl: list[list[WeightedGaps]] = [[pooled([])] * seeds for _ in configurations]
    pool_jobs = [list(of_seeds) for of_seeds in jobs]
    alive: list[list[np.ndarray | None]] = [[None] * seeds for _ in configurations]
    for key, run in runs.items():
        pool, run_jobs = run.pools[phase.number][position], jobs[key[0]][key[1]]
        totals.add(key, pool.done)
        # Replicas are numbered through a phase, and pool by pool here: below 0 and above the pool's number are those
        # of the others.
        chosen = served.replica[key][run_jobs.id].astype(np.int64) - pool.first
        pool_jobs[key[0]][key[1]] = replace(run_jobs, chosen=chosen)
        itl[key[0]][key[1]], alive[key[0]][key[1]] = pool.gaps, pool.alive
    add_kept(pools, jobs, served, totals)
    use = use_of(pools, pool_jobs, totals, itl, served.hit_tokens)
    return replace(use, alive=alive) if any(pool.deployment.autoscaling for pool in pools) else use


def _link_visit(
    before: StationVisit, configurations: Sequence[Configuration], links: Mapping[RunKey, JobColumns | None]
) -> StationVisit:
    """The link behind a prefill side, which requests of one token do not pass."""
    jobs: list[list[Jobs]] = [[] for _ in before.jobs]
    for key, run_jobs in by_run(before.jobs):
        times, ids = before.times, run_jobs.id
        served_s = times.first_token_s[key][ids] - times.scheduled_s[key][ids]
        came = replace(run_jobs, origin=Origin(times.replica[key][ids], served_s))
        # Jobs of one output token are done with their prefill and send nothing (`after_prefill`
        # gives those apart).
        jobs[key[0]].append(came.after_prefill(times.last_token_s[key][ids])[0])
    times_of_link, busy_s = RequestTimes.empty(table_shape(jobs)), np.zeros(shape_of(jobs)[:2])
    for key, run_jobs in by_run(jobs):
        run = links.get(key)
        if run is None:
            continue
        assert run_jobs.origin is not None
        times_of_link.put(key, run_jobs.id, **run, replica=run_jobs.origin.replica)
        latency_s = configurations[key[0]].link.latency_s  # type: ignore[union-attr]
        # A link is busy for as long as it sends; the latency behind it is not.
        busy_s[key] = (run["last_token_s"] - run["scheduled_s"] - latency_s).sum()
    times_of_link.first_token_s[...] = times_of_link.last_token_s
    replicas = np.array(
        [0 if configuration.link is None else configuration.link.replicas for configuration in configurations],
        dtype=float,
    )
    name = next((configuration.link.name for configuration in configurations if configuration.link is not None), "link")
    return StationVisit(Station(name, never), jobs, times_of_link, (use_without_devices(name, jobs, replicas, busy_s),))


def _sent(link: StationVisit) -> ChunkJobs:
    return [
        [run_jobs.at(link.times.last_token_s[config, seed][run_jobs.id]) for seed, run_jobs in enumerate(of_seeds)]
        for config, of_seeds in enumerate(link.jobs)
    ]
