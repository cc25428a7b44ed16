"""Pools side by side as one station: every job goes to one replica of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.plan import Configuration
from evaluator.plan.phases import group_of_replicas
from evaluator.routing.phases import Asking
from evaluator.stations.contract import ChunkJobs, RequestTimes, Use, by_run, table_shape
from evaluator.stations.stage_steps import Serve
from evaluator.traffic.jobs import Demand, Jobs


def serve_phase(
    configurations: Sequence[Configuration], seeds: Sequence[int], phase: int, pools: Sequence[Serve], jobs: ChunkJobs
) -> tuple[RequestTimes, *tuple[Use, ...]]:
    """Serve the jobs of a chunk at the side number ``phase`` of its configurations, whose pools are served by
    ``pools``.

    Jobs that are not told where to go are told on arrival, in their order. Every pool gets all jobs and serves its own.
    """
    routed = [[_routed(configurations[config], seeds[seed], phase, run_jobs) for seed, run_jobs in enumerate(of_seeds)]
            for config, of_seeds in enumerate(jobs)]  # fmt: skip
    times_of_phase, uses = RequestTimes.empty(table_shape(jobs)), []
    first = np.zeros(len(configurations), dtype=np.int64)  # the number on the side of each pool's first replica
    for number, serve in enumerate(pools):
        of_pool = [
            [_from(run_jobs, int(first[config])) for run_jobs in of_seeds] for config, of_seeds in enumerate(routed)
        ]
        # Jobs of other pools are there with numbers outside of this one's replicas, and are not served.
        times, *use = serve(of_pool)
        uses += use
        if times.hit_tokens is not None and times_of_phase.hit_tokens is None:  # some of the pools have caches
            times_of_phase = replace(times_of_phase, hit_tokens=np.zeros_like(times.hit_tokens))
        counts = np.array(
            [
                configuration.stations[configuration.phases[phase].stations[number]].deployment.ranks
                for configuration in configurations
            ]
        )
        for run, run_jobs in by_run(of_pool):
            mine = run_jobs.id[_mine(run_jobs, int(counts[run[0]]))]
            columns = {name: column[run][mine] for name, column in times.columns().items() if name in _SERVED}
            times_of_phase.put(run, mine, **columns, replica=times.replica[run][mine] + first[run[0]])
        first += counts
    return times_of_phase, *uses


_SERVED = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s", "hit_tokens")


def _mine(jobs: Jobs, replicas: int) -> np.ndarray:
    """Which jobs a pool serves, (job,) boolean: all that nobody has told where to go."""
    if jobs.chosen is None:
        return np.ones(len(jobs), dtype=bool)
    return (jobs.chosen >= 0) & (jobs.chosen < replicas)


def _from(jobs: Jobs, first: int) -> Jobs:
    """The jobs with the replica of a pool instead of the side's: the pool's first one has number ``first`` there."""
    return jobs if jobs.chosen is None else replace(jobs, chosen=jobs.chosen - first)


def _routed(configuration: Configuration, seed: int, phase: int, jobs: Jobs) -> Jobs:
    if jobs.chosen is not None or configuration.status != OK or configuration.phases[phase].replicas is None:
        return jobs
    return replace(jobs, chosen=chosen_replicas(configuration, seed, phase, jobs))


def chosen_replicas(configuration: Configuration, seed: int, phase: int, jobs: Jobs) -> np.ndarray | None:
    """The replica of a side that serves each job, (job,), chosen in the order of the jobs' times.

    None: the side has one pool, whose own router chooses. ``origin`` of the jobs says the group to which they keep.
    """
    where = configuration.phases[phase]
    if where.replicas is None or configuration.status != OK:
        return None
    # Routers that take turns do so in the order in which jobs come, whatever their ids.
    order = jobs.order
    group, apart = None, where.apart(jobs.demand)
    if where.grouped:
        assert jobs.origin is not None
        counts = [
            configuration.stations[number].deployment.ranks for number in configuration.phases[phase - 1].stations
        ]
        groups = max(where.replicas.group) + 1
        group = group_of_replicas(counts, groups)[jobs.origin.replica][order]
    replicas = np.empty(len(jobs), dtype=np.int64)
    session = None if jobs.session is None else jobs.session[order]
    asking = Asking(jobs.id[order], jobs.demand.model[order], group, session, None if apart is None else apart[order])
    replicas[order] = where.assigned(asking, seed)
    return replicas


def dealt_out(configurations: Sequence[Configuration], seeds: Sequence[int], jobs: ChunkJobs) -> list[list[Jobs]]:
    """The jobs that come to prefill pools with mixed pools beside them, each with its replica and what it asks of it.

    Whoever goes to a prefill replica asks for one token there, and leaves the others to the decode side.
    """
    alike: dict[tuple[int, bytes], Demand] = {}  # rates of a sweep that deal out alike share their demand

    def dealt(configuration: Configuration, seed: int, run_jobs: Jobs) -> Jobs:
        first, replicas = configuration.phases[0], chosen_replicas(configuration, seed, 0, run_jobs)
        if replicas is None or first.mixed_from is None:
            return run_jobs
        apart = replicas < first.mixed_from
        key = id(run_jobs.demand), np.packbits(apart).tobytes()
        if key not in alike:
            alike[key] = run_jobs.demand.apart(apart)
        return replace(run_jobs, chosen=replicas, demand=alike[key])

    return [
        [dealt(configuration, seed, run_jobs) for seed, run_jobs in zip(seeds, of_seeds, strict=True)]
        for configuration, of_seeds in zip(configurations, jobs, strict=True)
    ]
