"""What every station takes and gives: the jobs of a chunk go in, their departures and the use of the station come out.

A chunk is some configurations under all seeds of their workload. Jobs are in any order and known by their id; the
departures are in the order of the jobs, whatever the order in which the jobs leave. So the departures of one station,
taken as they are, are the times at which the jobs come to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.metrics.use import PoolTotals, Use, WeightedGaps
from evaluator.traffic.jobs import Jobs
from evaluator.traffic.roles import Role

ChunkJobs = Sequence[Sequence[Jobs]]
"""[config][seed]; also of configurations that cannot run, whose jobs an engine passes over."""

__all__ = [
    "ChunkJobs",
    "RequestTimes",
    "Station",
    "Use",
    "WeightedGaps",
    "each",
    "order_of",
    "ready_times",
    "shape_of",
    "use_without_devices",
]

TIMES = ("ready_s", "scheduled_s", "first_token_s", "last_token_s")


@dataclass(frozen=True, eq=False)
class RequestTimes:
    """When the jobs of a chunk were served, float64 (config, seed, job) in seconds, in the order of the jobs.

    Where a configuration and seed has fewer jobs than others the rest is 0. ``ready_s`` is that of the jobs, but in a
    closed loop, where the station itself finds out when a user sends the next request.
    """

    ready_s: np.ndarray
    scheduled_s: np.ndarray  # the service starts
    first_token_s: np.ndarray  # of a station that gives no tokens: the departure
    last_token_s: np.ndarray  # the departure
    replica: np.ndarray  # int32: which replica served it
    hit_tokens: np.ndarray | None = None  # int64: prompt tokens found in a prefix cache; None: there is none
    visited: np.ndarray | None = None  # bool: False for jobs that only passed by; None: all were served

    @staticmethod
    def empty(jobs: ChunkJobs) -> RequestTimes:
        """Zeros, to be filled."""
        shape = shape_of(jobs)
        arrays: list[np.ndarray] = [np.zeros(shape) for _ in TIMES]
        arrays.append(np.zeros(shape, dtype=np.int32))
        return RequestTimes(*arrays)


@dataclass(frozen=True, eq=False)
class Station:
    """A step of a request's way: ``serve`` takes the jobs of a chunk to their departures and to its use.

    Where several pools stand side by side there is a use of each, and replicas are numbered pool after pool.

    ``role`` is that of an engine's pool, None for a station that gives no tokens. Behind the last engine ``streams``
    says what such a station does to an answer: it passes on every token as it comes, later by what it takes (a delay),
    or it holds the answer until it is whole (a queue). ``sends`` says of jobs that leave a prefill side, known by their
    configuration and seed, which replica of the decode side serves them, where that is chosen before they get there.
    ``stage``: the stage of the pipeline of which this is a step. ``waits``: a job may wait for others there.
    """

    name: str
    serve: Callable[[ChunkJobs], tuple[RequestTimes, *tuple[Use, ...]]]
    role: Role | None = None
    streams: bool = False
    sends: Callable[[tuple[int, int], Jobs], np.ndarray | None] | None = None
    stage: str | None = None
    waits: bool = True


def use_without_devices(name: str, jobs: ChunkJobs, servers: np.ndarray, busy_s: np.ndarray) -> Use:
    """Of a station that costs nothing and keeps no KV: ``servers`` (config,) work ``busy_s`` (config, seed)."""
    configs, seeds, _ = shape_of(jobs)
    config, run = np.zeros(configs), np.zeros((configs, seeds))
    totals = PoolTotals.empty(configs, seeds)._replace(busy_s=busy_s)
    return Use(name, config, servers, *(config,) * 7, totals, run, run)


def shape_of(jobs: ChunkJobs) -> tuple[int, int, int]:
    """(configs, seeds, jobs): the most of any configuration."""
    seeds = max((len(config) for config in jobs), default=0)
    return len(jobs), seeds, max((len(one) for config in jobs for one in config), default=0)


def each(jobs: ChunkJobs) -> list[tuple[tuple[int, int], Jobs]]:
    """Every configuration and seed that runs: its place in arrays (config, seed), its jobs."""
    return [((config, seed), one) for config, seeds in enumerate(jobs) for seed, one in enumerate(seeds)]


def ready_times(jobs: ChunkJobs, rest: float = 0.0) -> np.ndarray:
    """``ready_s`` of all jobs, (config, seed, job); ``rest`` where a configuration and seed has fewer."""
    found = np.full(shape_of(jobs), rest)
    for at, one in each(jobs):
        found[at][: len(one)] = one.ready_s
    return found


def order_of(jobs: ChunkJobs) -> np.ndarray:
    """Positions of the jobs in the order in which they come, (config, seed, job): those of one time by their ids.

    Where a configuration and seed has fewer jobs the rest stands behind them.
    """
    shape = shape_of(jobs)
    found = np.empty(shape, dtype=np.int64)
    found[...] = np.arange(shape[-1])
    for at, one in each(jobs):
        found[at][: len(one)] = found[at][one.order]
    return found
