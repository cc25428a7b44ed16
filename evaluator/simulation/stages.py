"""The stages around the LLM as stations of the chain: a station for each of their steps.

A step serves the requests whose pipeline passes its stage; the others pass it in no time. Where a step has several
queues side by side, each is served as if it were a configuration of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluator.metrics.use import Use
from evaluator.plan import Configuration
from evaluator.plan.route import BEFORE, BETWEEN, RequestRoutes, StagePlan
from evaluator.simulation.prefetch import Times, begun_ahead, telling
from evaluator.stages import Batched, Delay, Pass, Served, Shipped
from evaluator.stations.batch import BatchServers, serve_in_batches
from evaluator.stations.contract import (
    ChunkJobs,
    JobColumns,
    RequestTimes,
    RunKey,
    Station,
    alike_runs,
    by_id,
    by_run,
    passed_on,
    ready_times,
    shape_of,
    table_shape,
)
from evaluator.stations.delay import serve_delayed
from evaluator.stations.queue import serve_in_turn
from evaluator.stations.stage_steps import Serve, StepStation, on_pool
from evaluator.traffic.jobs import Demand, Jobs

NOBODY = np.zeros(0, dtype=np.int64)

Row = tuple[RunKey, NDArray[np.int64]]
"""A configuration and seed, and the positions of some of its jobs."""


def stage_stations(
    configurations: Sequence[Configuration],
    all_routes: Sequence[Sequence[RequestRoutes]],
    where: str,
    pool: Callable[[int], Serve],
) -> list[Station]:
    """The stations of the stages that stand there, ``where`` as of ``StagePlan``.

    ``pool`` gives the engine's pool of a number.
    """
    pipeline = configurations[0].pipeline
    stations: list[Station] = []
    sent_s: Times = {}
    for stage_number, stage in enumerate(pipeline.stages if pipeline is not None else ()):
        if stage.where == where:
            steps = [
                _station(
                    stage,
                    StepStation(
                        configurations,
                        all_routes,
                        stage_number,
                        number,
                        None if step.station is None else pool(step.station),
                    ),
                )
                for number, step in enumerate(stage.steps)
            ]
            # The first stage begins when requests are sent anyway: only later ones can be ahead of their turn.
            if (
                stations
                and where == BEFORE
                and any(routes.ahead(stage_number) for seeds in all_routes for routes in seeds)
            ):
                stations[0] = telling(stations[0], sent_s)
                steps = begun_ahead(steps, sent_s, partial(_is_ahead, all_routes, stage_number))
            stations += steps
    return stations


def _is_ahead(all_routes: Sequence[Sequence[RequestRoutes]], stage: int, key: RunKey) -> bool:
    return all_routes[key[0]][key[1]].ahead(stage)


def _station(stage: StagePlan, step_station: StepStation) -> Station:
    run = _RUN[step_station.planned(0).kind]
    return Station(
        step_station.label,
        lambda jobs: _serve(step_station, run, jobs),
        streams=stage.kind.streams(stage.parameters),
        stage=stage.name,
        between=stage.where == BETWEEN,
        waits=run is not _delayed,
    )


def _serve(step_station: StepStation, run: Run, jobs: ChunkJobs) -> tuple[RequestTimes, Use]:
    """Those who come here are served, queue by queue."""
    rows = [_rows(step_station, key, run_jobs) for key, run_jobs in by_run(jobs)]
    queues = max(map(len, rows), default=1)
    everybody = all(len(row) == 1 and row[0] is None for row in rows)
    if everybody:
        served, use = run(step_station, jobs, 1)
        return by_id(jobs, served), on_pool(step_station, use)
    seeds = len(jobs[0])
    by_queue: list[list[Jobs]] = [
        [run_jobs.some(NOBODY) for run_jobs in jobs[row // queues]] for row in range(len(jobs) * queues)
    ]
    for (key, run_jobs), row in zip(by_run(jobs), rows, strict=True):
        for queue, positions in enumerate(row):
            by_queue[key[0] * queues + queue][key[1]] = run_jobs if positions is None else run_jobs.some(positions)
    # Each queue is a row of its own in the order of its jobs: tables by id would be as wide as all requests for each.
    served, use = run(step_station, by_queue, queues)
    times = RequestTimes.empty(table_shape(jobs))
    visited = np.zeros(times.arrival_s.shape, dtype=bool)
    for (key, run_jobs), row in zip(by_run(jobs), rows, strict=True):
        here_s = run_jobs.ready_s  # who passes by leaves at once
        times.put(key, run_jobs.id, arrival_s=here_s, scheduled_s=here_s, first_token_s=here_s, last_token_s=here_s)
        for queue, _ in enumerate(row):
            source = key[0] * queues + queue, key[1]
            ids = by_queue[source[0]][source[1]].id
            columns = {name: served[name][source][: len(ids)] for name in served if name != "arrival_s"}
            times.put(key, ids, **columns)
            visited[key][ids] = True
    # Queues of a configuration were served as rows of their own; together they are its servers' busy time.
    busy_s = use.totals.busy_s.reshape(len(jobs), queues, seeds).sum(axis=1)
    totals = use.totals.rows(slice(None, None, queues))._replace(busy_s=busy_s)
    # Figures of a configuration stand once for each of its queues: every n-th row is one of each.
    whole: dict[str, Any] = {
        name: value[::queues] for name, value in vars(use).items() if isinstance(value, np.ndarray)
    }
    queues_of = np.zeros(len(jobs))
    for (key, _), row in zip(by_run(jobs), rows, strict=True):
        queues_of[key[0]] = max(queues_of[key[0]], len(row))
    use = replace(use, **{**whole, "totals": totals, "replicas": whole["replicas"] * queues_of})
    return replace(times, visited=visited), on_pool(step_station, use)


def _rows(step_station: StepStation, key: RunKey, jobs: Jobs) -> list[NDArray[np.int64] | None]:
    """The positions of the jobs in each queue; None: all of them."""
    visited, queue = step_station.visited(key), getattr(step_station.step(key), "queue", None)
    if visited is None and queue is None:
        return [None]
    visits = np.ones(len(jobs), dtype=bool) if visited is None else visited[jobs.id]
    if queue is None:
        return [np.flatnonzero(visits)]
    numbers = np.asarray(queue)[jobs.id]
    return [np.flatnonzero(visits & (numbers == number)) for number in range(int(np.max(queue, initial=0)) + 1)]


# --- how each kind of step is served; ``queues`` rows of the jobs are of one configuration


Run = Callable[[StepStation, ChunkJobs, int], tuple[JobColumns, Use]]


def _by_job(step_station: StepStation, jobs: ChunkJobs, queues: int, values: Callable[[Any], ArrayLike]) -> np.ndarray:
    """A figure of the step, (config, seed, job)."""
    values_of_jobs = np.zeros(shape_of(jobs))
    for (row, seed), queue_jobs in by_run(jobs):
        value = np.asarray(values(step_station.step((row // queues, seed))), dtype=np.float64)
        # A figure for all, or one for each request by its id.
        values_of_jobs[row, seed, : len(queue_jobs)] = value if value.ndim == 0 else value[queue_jobs.id]
    return values_of_jobs


def _delayed(step_station: StepStation, jobs: ChunkJobs, queues: int) -> tuple[JobColumns, Use]:
    return serve_delayed(step_station.label, jobs, _by_job(step_station, jobs, queues, lambda step: step.seconds))


def _in_turn(step_station: StepStation, jobs: ChunkJobs, queues: int) -> tuple[JobColumns, Use]:
    count = np.array([step_station.servers(row // queues) for row in range(len(jobs))], dtype=np.int64)
    return serve_in_turn(
        step_station.label, jobs, _by_job(step_station, jobs, queues, lambda step: step.seconds), count
    )


def _batched(step_station: StepStation, jobs: ChunkJobs, queues: int) -> tuple[JobColumns, Use]:
    servers = []
    for row in range(len(jobs)):
        # Batches are sized by the pool and not by the draws, so that the first seed says it for all.
        step: Batched = step_station.step((row // queues, 0))
        seconds = np.asarray(step.seconds, dtype=np.float64)
        servers.append(BatchServers(seconds, step_station.servers(row // queues), step.max_wait_s))
    return serve_in_batches(step_station.label, jobs, servers)


def _shipped(step_station: StepStation, jobs: ChunkJobs, queues: int) -> tuple[JobColumns, Use]:
    took_s = _by_job(step_station, jobs, queues, lambda step: np.asarray(step.bytes) / step.bandwidth)
    configs = range(len(jobs) // queues)
    faster = np.repeat([step_station.factor(config, "link_bandwidth") for config in configs], queues)
    slower = [
        step_station.step((config, 0)).latency_s * step_station.factor(config, "link_latency") for config in configs
    ]
    shared = np.repeat([step_station.step((config, 0)).shared for config in configs], queues)
    took_s /= faster[:, None, None]
    # A shared link is a queue with one server; latency comes on top and occupies nobody.
    columns, use = serve_in_turn(step_station.label, jobs, took_s, np.ones(len(jobs), dtype=np.int64))
    if not shared.all():
        alone, _ = serve_delayed(step_station.label, jobs, took_s)
        columns = _chosen(shared, columns, alone)
    left_s = columns["last_token_s"] + np.repeat(slower, queues)[:, None, None]
    return columns | {"first_token_s": left_s, "last_token_s": left_s}, use


def _chosen(first: np.ndarray, columns: JobColumns, other: JobColumns) -> JobColumns:
    """What ``columns`` say of the configurations where ``first`` (config,), else what ``other`` do."""
    names = ("scheduled_s", "first_token_s", "last_token_s")
    return columns | {name: np.where(first[:, None, None], columns[name], other[name]) for name in names}


def _passed(step_station: StepStation, jobs: ChunkJobs, queues: int) -> tuple[JobColumns, Use]:
    """Through the engine's pool, in which a request is as many jobs as it has sequences."""
    assert step_station.serve is not None
    asked = [
        [_passes(step_station, (config, seed), run_jobs) for seed, run_jobs in enumerate(of_seeds)]
        for config, of_seeds in enumerate(jobs)
    ]
    served, *uses = step_station.serve(asked)
    columns: JobColumns = {name: np.zeros(shape_of(jobs), kind) for name, kind in _COLUMNS.items()}
    for alike in alike_runs(asked):
        runs, sequences = tuple(np.transpose(alike.runs)), step_station.step(alike.runs[0]).sequences
        passes = {name: alike.of(getattr(served, name)) for name in _COLUMNS}
        if sequences > 1:
            passes = _of_requests({name: values.reshape(len(values), -1, sequences) for name, values in passes.items()})
        for name, values in passes.items():
            columns[name][*runs, : values.shape[-1]] = values
    scheduled_s, left_s, replica = columns.values()
    return passed_on(ready_times(jobs), scheduled_s, left_s, replica), replace(uses[0], itl=None)


_COLUMNS: Mapping[str, Any] = {"scheduled_s": float, "last_token_s": float, "replica": np.int32}


def _of_requests(passes: JobColumns) -> JobColumns:
    """Of the sequences of requests, (run, job, sequence), what becomes of the requests, (run, job).

    A request goes on with the last of its sequences, and on the replica of that one.
    """
    last = passes["last_token_s"].argmax(axis=-1)[..., None]
    of_last = {name: np.take_along_axis(values, last, axis=-1)[..., 0] for name, values in passes.items()}
    return of_last | {"scheduled_s": passes["scheduled_s"].min(axis=-1)}


def _passes(step_station: StepStation, key: RunKey, jobs: Jobs) -> Jobs:
    step: Pass = step_station.step(key)
    if step.sequences == 1:  # the same arrays, so that runs stay alike
        return Jobs(jobs.id, jobs.ready_s, _asked(step_station, key, jobs.id), jobs.measured)
    sequence = np.arange(step.sequences)
    return Jobs(
        (jobs.id[:, None] * step.sequences + sequence).ravel(),
        np.repeat(jobs.ready_s, step.sequences),
        _asked(step_station, key, jobs.id),
        np.repeat(jobs.measured, step.sequences),
    )


def _asked(step_station: StepStation, key: RunKey, ids: NDArray[np.int64]) -> Demand:
    """What jobs ask of the pool, in their order."""
    routes = step_station.all_routes[key[0]][key[1]]
    visit = routes.first[step_station.place]
    demand, sequences = routes.asked(visit, step_station.number), step_station.step(key).sequences
    # Most often all come in the order of the plan, whose demand, with all that is kept with it, serves as it is.
    if np.array_equal(ids, visit.ids):
        return demand
    order = np.searchsorted(visit.ids, ids)[:, None] * sequences + np.arange(sequences)
    return demand[order.ravel()]


_RUN: Mapping[type, Run] = {Delay: _delayed, Served: _in_turn, Batched: _batched, Shipped: _shipped, Pass: _passed}
