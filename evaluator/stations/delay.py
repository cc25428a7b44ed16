"""A station in which every job stays for a time of its own and none waits for another: a hop, a lookup, a copy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evaluator.stations.contract import (
    ChunkJobs,
    JobColumns,
    RequestTimes,
    Station,
    Use,
    by_id,
    by_run,
    passed_on,
    ready_times,
    shape_of,
    use_without_devices,
)
from evaluator.traffic.jobs import Jobs

Times = Callable[[int, Jobs], np.ndarray | float]
"""Seconds that each job of a configuration, known by its position in the chunk, takes: (job,) or one number."""


def delay(name: str, times: Times) -> Station:
    """The station. Tokens that pass it after the last engine are all later by the same time."""

    def serve(jobs: ChunkJobs) -> tuple[RequestTimes, Use]:
        served, use = serve_delayed(name, jobs, times_of(jobs, times))
        return by_id(jobs, served), use

    return Station(name, serve, streams=True)


def times_of(jobs: ChunkJobs, times: Times) -> np.ndarray:
    """The times of all jobs, (config, seed, job); 0 where a configuration and seed has fewer jobs."""
    times_s = np.zeros(shape_of(jobs))
    for run, run_jobs in by_run(jobs):
        times_s[run][: len(run_jobs)] = times(run[0], run_jobs)
    return times_s


def serve_delayed(name: str, jobs: ChunkJobs, took_s: np.ndarray) -> tuple[JobColumns, Use]:
    """Serve the jobs of a chunk; ``took_s`` as of ``times_of``."""
    ready_s = ready_times(jobs)
    left_s = ready_s + took_s
    # Nobody waits: scheduled on arrival, at replica 0 of a station that has none.
    served = passed_on(ready_s, ready_s, left_s, np.zeros(ready_s.shape, dtype=np.int32))
    return served, use_without_devices(name, jobs, np.ones(len(jobs)), took_s.sum(axis=-1))
