"""What every station takes and gives: the jobs of a chunk go in, the times of their requests and the use come out.

A chunk is some configurations under all seeds of their workload. Jobs are in any order and known by their id, the row
of their request in tables: whatever the order in which jobs leave, the times of one station are looked up by id, and
those of the last token are when the jobs come to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from evaluator.metrics.outcomes import RequestTimes
from evaluator.metrics.power import PowerLaw
from evaluator.metrics.use import PoolTotals, Use, WeightedGaps, pooled
from evaluator.traffic.jobs import Demand, Jobs
from evaluator.traffic.roles import Role

ChunkJobs = Sequence[Sequence[Jobs]]
"""[config][seed]; also of configurations that cannot run, whose jobs an engine passes over."""

RunKey = tuple[int, int]
"""A configuration of a chunk and a seed, by their positions."""

Gaps = Sequence[Sequence[WeightedGaps]]
"""[config][seed]"""

__all__ = [
    "AlikeRuns",
    "ChunkJobs",
    "Gaps",
    "JobColumns",
    "RequestTimes",
    "RunKey",
    "Station",
    "StationVisit",
    "Use",
    "WeightedGaps",
    "alike_runs",
    "by_id",
    "by_run",
    "in_turn",
    "order_of",
    "out_of_turn",
    "passed_on",
    "ready_times",
    "runs_by",
    "shape_of",
    "table_shape",
    "use_without_devices",
    "whole_table",
]


@dataclass(frozen=True, eq=False)
class Station:
    """A step of a request's way: ``serve`` takes the jobs of a chunk to their times and to its use.

    Where several pools stand side by side there is a use of each, and replicas are numbered pool after pool.

    ``role`` is that of an engine's pool, None for a station that gives no tokens. Behind the last engine ``streams``
    says what such a station does to an answer: it passes on every token as it comes, later by what it takes (a delay),
    or it holds the answer until it is whole (a queue). ``sends`` says of jobs that leave a prefill side, or the stages
    behind it, which replica of the decode side serves them, where that is chosen before they get there; they are known
    by their configuration and seed. ``deals`` says of jobs that come which replica serves them and what they then ask,
    where pools of several roles stand side by side. ``stage``: the stage of the pipeline of which this is a step.
    ``between``: it stands between prefill and decode. ``waits``: a job may wait for others there.
    """

    name: str
    serve: Callable[[ChunkJobs], tuple[RequestTimes, *tuple[Use, ...]]]
    role: Role | None = None
    streams: bool = False
    sends: Callable[[tuple[int, int], Jobs], np.ndarray | None] | None = None
    deals: Callable[[ChunkJobs], ChunkJobs] | None = None
    stage: str | None = None
    between: bool = False
    waits: bool = True


@dataclass(frozen=True, eq=False)
class StationVisit:
    """One visit to a station: the jobs that came, their times, and what they used of its devices."""

    station: Station
    jobs: ChunkJobs
    times: RequestTimes
    uses: tuple[Use, ...]
    number: int = 0  # of several visits to the LLM, which one

    @cached_property
    def alike(self) -> list[AlikeRuns]:
        """Its runs, those with the same requests together."""
        return alike_runs(self.jobs)

    @property
    def itl(self) -> Gaps | None:
        """Gaps between the tokens that it gave, of all its pools."""
        gaps = [use.itl for use in self.uses if use.itl is not None]
        if len(gaps) < 2:
            return gaps[0] if gaps else None
        return [[pooled(parts) for parts in zip(*seeds, strict=True)] for seeds in zip(*gaps, strict=True)]


def use_without_devices(name: str, jobs: ChunkJobs, servers: np.ndarray, busy_s: np.ndarray) -> Use:
    """Of a station that costs nothing and keeps no KV: ``servers`` (config,) work ``busy_s`` (config, seed)."""
    configs, seeds, _ = shape_of(jobs)
    config, run = np.zeros(configs), np.zeros((configs, seeds))
    totals = PoolTotals.empty(configs, seeds)._replace(busy_s=busy_s)
    # Peaks, power, price and KV are 0 and not NaN: they are summed over stations, and such a station adds nothing.
    law = np.zeros((configs, len(PowerLaw._fields)))
    return Use(name, config, servers, *(config,) * 4, law, *(config,) * 3, totals, *(run,) * 4)


def shape_of(jobs: ChunkJobs) -> tuple[int, int, int]:
    """(configs, seeds, jobs): the most of any configuration."""
    seeds = max((len(config) for config in jobs), default=0)
    return len(jobs), seeds, max((len(run_jobs) for config in jobs for run_jobs in config), default=0)


def by_run(jobs: ChunkJobs) -> list[tuple[tuple[int, int], Jobs]]:
    """Every configuration and seed that runs: its place in arrays (config, seed), its jobs."""
    return [((config, seed), run_jobs) for config, seeds in enumerate(jobs) for seed, run_jobs in enumerate(seeds)]


@dataclass(frozen=True, eq=False)
class AlikeRuns:
    """Runs of a chunk in which the same requests come and ask the same, as under the rates of a sweep.

    What is known of their jobs is one array (run, job), so that a chunk of hundreds of runs is a few operations of
    NumPy.
    """

    runs: list[RunKey]
    jobs: list[Jobs]

    @property
    def demand(self) -> Demand:
        """What the jobs of each of the runs ask."""
        return self.jobs[0].demand

    @cached_property
    def ready_s(self) -> np.ndarray:
        """When they come, (run, job)."""
        return np.stack([jobs.ready_s for jobs in self.jobs])

    @property
    def one_seed(self) -> bool:
        """Whether all runs are under one seed."""
        return len({seed for _, seed in self.runs}) == 1

    def of(self, table: np.ndarray) -> np.ndarray:
        """What a table by id has of the jobs, (run, job); to be read, since it may be a part of the table.

        The table is (config, seed, request), or (seed, request) where it is the same for all configurations and the
        runs are those of one seed; then there is one run.
        """
        rows = _flat(table)[self._rows(table)]
        return rows[:, self._columns] if isinstance(self._columns, slice) else np.take(rows, self._columns, axis=1)

    def put(self, table: np.ndarray, values: np.ndarray) -> None:
        """Write what is known of the jobs, (run, job), into a table as of ``of``."""
        rows = self._rows(table)
        if isinstance(rows, np.ndarray) and isinstance(self._columns, np.ndarray):
            rows = rows[:, None]
        assert table.flags.c_contiguous  # else ``_flat`` is a copy, and what is written to it lost
        _flat(table)[rows, self._columns] = values

    @property
    def are_first(self) -> bool:
        """Whether their jobs are the first requests of the table, in that order: most often all of it."""
        return isinstance(self._columns, slice)

    @cached_property
    def _columns(self) -> np.ndarray | slice:
        """The ids of the jobs; a slice, by which NumPy copies nothing, where they are the first requests."""
        return slice(0, len(self.jobs[0])) if whole_table(self.jobs[0]) else self.jobs[0].id

    @cached_property
    def _numbers(self) -> np.ndarray:
        """Of each run those of its configuration and of its seed, (2, run)."""
        return np.array(self.runs, dtype=np.int64).reshape(-1, 2).T

    def _rows(self, table: np.ndarray) -> np.ndarray | slice:
        """The rows of the runs; a slice where they are all that there are."""
        config, seed = self._numbers
        if table.ndim == 2:
            return slice(seed[0], seed[0] + 1)
        rows, count = config * table.shape[1] + seed, table.shape[0] * table.shape[1]
        return slice(None) if len(rows) == count and (rows == np.arange(count)).all() else rows


def _flat(table: np.ndarray) -> np.ndarray:
    return table.reshape(prod(table.shape[:-1]), table.shape[-1])  # not -1, which an empty table refuses


def alike_runs(jobs: ChunkJobs) -> list[AlikeRuns]:
    """All runs of a chunk, those with the same requests together."""
    # By identity: configurations share the ids and the demand of a seed, and both are made once where jobs go on.
    return runs_by(lambda _, run_jobs: (id(run_jobs.id), id(run_jobs.demand)), by_run(jobs))


def runs_by(kind_of: Callable[[RunKey, Jobs], Hashable], runs: Iterable[tuple[RunKey, Jobs]]) -> list[AlikeRuns]:
    """Runs, those of one kind together, which must have the same requests."""
    kinds: dict[Hashable, AlikeRuns] = {}
    for run, run_jobs in runs:
        alike = kinds.setdefault(kind_of(run, run_jobs), AlikeRuns([], []))
        alike.runs.append(run)
        alike.jobs.append(run_jobs)
    return list(kinds.values())


def table_shape(jobs: ChunkJobs) -> tuple[int, int, int]:
    """(configs, seeds, requests) of tables by id: rows up to the largest id of any configuration."""
    configs, seeds, _ = shape_of(jobs)
    # By identity: configurations share the array of ids of a seed, and a chunk has hundreds of configurations.
    distinct = {id(run_jobs.id): run_jobs.id for _, run_jobs in by_run(jobs)}
    return configs, seeds, max((int(ids.max(initial=-1)) + 1 for ids in distinct.values()), default=0)


def whole_table(jobs: Jobs) -> bool:
    """Whether all requests are there, in their order: then the position of a job is its id."""
    return bool((jobs.id == np.arange(len(jobs))).all())


JobColumns = dict[str, np.ndarray]
"""Columns of ``RequestTimes`` in the order of the jobs, (config, seed, job)."""


def by_id(jobs: ChunkJobs, served: JobColumns) -> RequestTimes:
    """The times of jobs by their ids: columns are not copied where that is the same, as it most often is."""
    # Most configurations share the arrays of a seed, each of which is looked at once.
    distinct = {id(run_jobs.id): run_jobs for _, run_jobs in by_run(jobs)}
    if all(map(whole_table, distinct.values())):
        return RequestTimes(**served)
    shape = table_shape(jobs)
    tables = {name: np.zeros(shape, dtype=values.dtype) for name, values in served.items()}
    for run, run_jobs in by_run(jobs):
        for name, values in served.items():
            tables[name][run][run_jobs.id] = values[run][: len(run_jobs)]
    return RequestTimes(**tables)


def passed_on(ready_s: np.ndarray, scheduled_s: np.ndarray, left_s: np.ndarray, replica: np.ndarray) -> JobColumns:
    """Of a station that gives no tokens, so that the first and the last token leave it with the job."""
    return {
        "arrival_s": ready_s,
        "scheduled_s": scheduled_s,
        "first_token_s": left_s,
        "last_token_s": left_s,
        "replica": replica,
    }


def ready_times(jobs: ChunkJobs, rest: float = 0.0) -> np.ndarray:
    """``ready_s`` of all jobs, (config, seed, job); ``rest`` where a configuration and seed has fewer."""
    ready_s = np.full(shape_of(jobs), rest)
    for run, run_jobs in by_run(jobs):
        ready_s[run][: len(run_jobs)] = run_jobs.ready_s
    return ready_s


def order_of(jobs: ChunkJobs) -> np.ndarray | None:
    """Places of the jobs in a flat array (config, seed, job), in the order in which they come, (config, seed, job):
    those of one time by their ids. None where all of them are in that order.

    Where a configuration and seed has fewer jobs the rest stands behind them.
    """
    if all(isinstance(run_jobs.order, slice) for _, run_jobs in by_run(jobs)):
        return None
    shape = shape_of(jobs)
    order = np.arange(prod(shape)).reshape(shape)
    for run, run_jobs in by_run(jobs):
        # The rest keeps its own places, so that the row stays a permutation.
        order[run][: len(run_jobs)] = order[run][run_jobs.order]
    return order


def in_turn(values: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    """Values (config, seed, job) by ``order_of`` the jobs."""
    # Runs one behind the other: a third of the time of ``take_along_axis``, which looks up an index of each axis.
    return values if order is None else np.take(values, order)


def out_of_turn(values: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    """Values by ``order_of`` the jobs, as the jobs stand."""
    if order is None:
        return values
    back = np.empty(values.shape, values.dtype)
    back.reshape(-1)[order] = values
    return back
