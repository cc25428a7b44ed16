"""Pools side by side as one station: every job goes to one replica of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.plan import Configuration
from evaluator.plan.phases import group_of_replicas
from evaluator.routing.phases import Asking
from evaluator.stations.contract import ChunkJobs, RequestTimes, Use, each, table_shape
from evaluator.stations.stage_steps import Serve
from evaluator.traffic.jobs import Jobs


def serve_side(
    configurations: Sequence[Configuration], seeds: Sequence[int], phase: int, pools: Sequence[Serve], jobs: ChunkJobs
) -> tuple[RequestTimes, *tuple[Use, ...]]:
    """Serve the jobs of a chunk at the side number ``phase`` of its configurations, whose pools are served by
    ``pools``.

    Jobs that are not told where to go are told on arrival, in their order. Every pool gets all jobs and serves its own.
    """
    told = [[_told(configurations[config], seeds[seed], phase, one) for seed, one in enumerate(of_seeds)]
            for config, of_seeds in enumerate(jobs)]  # fmt: skip
    found, uses = RequestTimes.empty(table_shape(jobs)), []
    first = np.zeros(len(configurations), dtype=np.int64)  # the number on the side of each pool's first replica
    for number, serve in enumerate(pools):
        own = [[_from(one, int(first[config])) for one in of_seeds] for config, of_seeds in enumerate(told)]
        times, *use = serve(own)
        uses += use
        counts = np.array([m.stations[m.phases[phase].stations[number]].deployment.ranks for m in configurations])
        for at, one in each(own):
            mine = one.id[_mine(one, int(counts[at[0]]))]
            columns = {name: column[at][mine] for name, column in times.columns().items() if name in _SERVED}
            found.put(at, mine, **columns, replica=times.replica[at][mine] + first[at[0]])
        first += counts
    return found, *uses


_SERVED = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")


def _mine(jobs: Jobs, replicas: int) -> np.ndarray:
    """Which jobs a pool serves, (job,) boolean: all that nobody has told where to go."""
    if jobs.chosen is None:
        return np.ones(len(jobs), dtype=bool)
    return (jobs.chosen >= 0) & (jobs.chosen < replicas)


def _from(jobs: Jobs, first: int) -> Jobs:
    """The jobs with the replica of a pool instead of the side's: the pool's first one has number ``first`` there."""
    return jobs if jobs.chosen is None else replace(jobs, chosen=jobs.chosen - first)


def _told(configuration: Configuration, seed: int, phase: int, jobs: Jobs) -> Jobs:
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
    order = jobs.order
    group = None
    if where.grouped:
        assert jobs.origin is not None
        counts = [
            configuration.stations[number].deployment.ranks for number in configuration.phases[phase - 1].stations
        ]
        groups = max(where.replicas.group) + 1
        group = group_of_replicas(counts, groups)[jobs.origin.replica][order]
    found = np.empty(len(jobs), dtype=np.int64)
    found[order] = where.assigned(Asking(jobs.id[order], jobs.demand.model[order], group), seed)
    return found
