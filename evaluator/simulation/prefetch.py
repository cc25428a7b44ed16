"""Stages that begin when the client sends, beside the stages before them: a prefetch.

A station of the chain sees its jobs when they come to it. The first station of all tells when they were sent; that is
when the steps of such a stage begin, and behind the last of them a request goes on as soon as it has passed the stages
before, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from evaluator.metrics.use import Use
from evaluator.stations.contract import ChunkJobs, RequestTimes, RunKey, Station, by_run

Times = dict[RunKey, NDArray[np.float64]]
"""Seconds by configuration and seed, (request,)."""


def telling(station: Station, sent_s: Times) -> Station:
    """The first station of a chain, which notes when its jobs come."""

    def serve(jobs: ChunkJobs) -> tuple[RequestTimes, *tuple[Use, ...]]:
        # Served first, so that the times are there when later stages look them up.
        sent_s.update(_by_request(jobs))
        return station.serve(jobs)

    return replace(station, serve=serve)


def begun_ahead(stations: Sequence[Station], sent_s: Times, ahead: Callable[[RunKey], bool]) -> list[Station]:
    """The steps of a stage that begins when its jobs were sent, where ``ahead`` says so of a configuration and seed.

    The last of them serves until the request goes on.
    """
    came_s: Times = {}

    def first(jobs: ChunkJobs) -> tuple[RequestTimes, *tuple[Use, ...]]:
        came_s.update(_by_request(jobs))
        # Only where it is ahead: of one station, some configurations of a chunk may prefetch and others not.
        return stations[0].serve(_coming_at(jobs, {run: sent_s[run] for run in came_s if ahead(run)}))

    steps = [replace(stations[0], serve=first), *stations[1:]]
    serve_last = steps[-1].serve

    def last(jobs: ChunkJobs) -> tuple[RequestTimes, *tuple[Use, ...]]:
        times, *uses = serve_last(jobs)
        left_s = times.last_token_s.copy()
        for run, run_jobs in by_run(jobs):
            # The prefetch may be done before the stages in front of it are: then the request still waits for those.
            left_s[run][run_jobs.id] = np.maximum(left_s[run][run_jobs.id], came_s[run][run_jobs.id])
        return replace(times, first_token_s=left_s, last_token_s=left_s), *uses

    steps[-1] = replace(steps[-1], serve=last)
    return steps


def _by_request(jobs: ChunkJobs) -> Times:
    """When the jobs come, by their ids."""
    came_s: Times = {}
    for run, run_jobs in by_run(jobs):
        came_s[run] = np.zeros(int(run_jobs.id.max(initial=-1)) + 1)
        came_s[run][run_jobs.id] = run_jobs.ready_s
    return came_s


def _coming_at(jobs: ChunkJobs, times: Times) -> ChunkJobs:
    """The jobs with other times of coming, where there are some."""
    return [
        [
            run_jobs.at(times[config, seed][run_jobs.id]) if (config, seed) in times else run_jobs
            for seed, run_jobs in enumerate(seeds)
        ]
        for config, seeds in enumerate(jobs)
    ]
