"""Requests that went routes of their own in one event loop -> the visits that a chain of stations would have had.

What follows (``simulation.chain``) is then the same, whichever engine ran the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from evaluator.metrics.use import PoolTotals, Use
from evaluator.plan import Configuration
from evaluator.plan.route import BETWEEN, Position, RequestRoutes
from evaluator.stages import Delay
from evaluator.stations.contract import (
    ChunkJobs,
    RequestTimes,
    RunKey,
    Station,
    StationVisit,
    by_run,
    shape_of,
    table_shape,
    use_without_devices,
)
from evaluator.stations.joint_visits import never
from evaluator.stations.stage_steps import StepStation, on_pool
from evaluator.stations.use import use_of
from evaluator.traffic.jobs import Demand, Jobs
from evaluator.traffic.requests import shared_tokens


@dataclass(frozen=True, eq=False)
class StepVisit:
    """One step of one visit to a stage after a run: the requests that came, and their times, (request,) in their order.

    They came when they had left the place before.
    """

    place: int  # of the stage
    step: int
    ids: NDArray[np.int64]
    scheduled_s: NDArray[np.float64]
    left_s: NDArray[np.float64]
    replica: NDArray[np.int64] | int
    busy_s: float  # seconds of its servers

    def of(self, step_station: StepStation) -> bool:
        """Whether it is a visit to this step."""
        return (self.place, self.step) == (step_station.place, step_station.number)


@dataclass(frozen=True, eq=False)
class RouteRun:
    """One configuration under one seed after its run.

    ``sent_s`` (request,): when clients sent the requests. ``visits`` to steps in their order, and numbers of those to
    the LLM. ``passes``: what a pool for stages did, and the passes that it computed, by the number of its station.
    """

    sent_s: NDArray[np.float64]
    visits: Sequence[StepVisit | int]
    passes: Mapping[int, tuple[PoolTotals, Jobs]] = field(default_factory=dict)


def all_visits(configuration: Configuration, routes: RequestRoutes, jobs: Jobs) -> Jobs:
    """The jobs of all visits to the LLM; that of request i at its visit v has the id ``v x requests + i``."""
    role = configuration.phases[0].asked
    shared = shared_tokens(configuration.workload, configuration.stations[0].deployment)
    visits = jobs
    for number, visit in enumerate(routes.llm[1:], 1):
        ids = visit.ids
        demand = Demand.of(visit.tokens, role, shared)[ids]
        # Ids of visits follow those of all requests, so that one station knows every visit of a request by a number of
        # its own.
        more = Jobs(ids + number * len(jobs), jobs.ready_s[ids], demand, jobs.measured[ids])
        visits = visits.joined(more)
    return visits


_ABSENT = -1  # in place of a visit's number: nobody comes


def visits_by_route(
    configurations: Sequence[Configuration],
    all_routes: Sequence[Sequence[RequestRoutes]],
    jobs: ChunkJobs,
    llm: Sequence[StationVisit],
    runs: Mapping[RunKey, RouteRun],
) -> list[StationVisit]:
    """All visits in their order: those to the stages, and between them those to the LLM, ``llm``."""
    if not runs:  # no configuration of the chunk can run
        return list(llm)
    # Where each request stands while its visits are told in order: from the time at which it really came, which in a
    # closed loop is known after the run alone.
    now_s = {key: ran.sent_s.copy() for key, ran in runs.items()}
    visits: list[StationVisit] = []
    reported: set[tuple[int, int]] = set()
    later: list[StationVisit] = []  # stations of the last visit to the LLM that are still to come
    answers, numbers = 0, dict[RunKey, int]()  # visits to the LLM, and of the last one its number in each run
    for kind, of_runs in _side_by_side(all_routes, runs):
        if kind is None:
            visits += [_llm_visit(llm_visit, answers - 1, numbers, jobs, now_s) for llm_visit in later]
            numbers = {key: visit for key, visit in of_runs.items() if isinstance(visit, int)}
            visits.append(_llm_visit(llm[0], answers, numbers, jobs, now_s))
            answers, later = answers + 1, list(llm[1:])
            continue
        step_station = StepStation(configurations, all_routes, *kind)
        if step_station.stage(0).where != BETWEEN:
            visits += [_llm_visit(llm_visit, answers - 1, numbers, jobs, now_s) for llm_visit in later]
            later = []
        step_visits = {key: visit for key, visit in of_runs.items() if isinstance(visit, StepVisit)}
        visits.append(_step_visit(step_station, jobs, step_visits, runs, now_s, first=kind not in reported))
        reported.add(kind)
    return visits + [_llm_visit(llm_visit, answers - 1, numbers, jobs, now_s) for llm_visit in later]


def _side_by_side(
    all_routes: Sequence[Sequence[RequestRoutes]], runs: Mapping[RunKey, RouteRun]
) -> list[tuple[tuple[int, int] | None, dict[RunKey, StepVisit | int]]]:
    """The visits of all runs in one order, each with the runs that have it: (stage, step), or None for the LLM.

    Runs whose requests go back less often lack visits in the middle, so that a visit is known by where it is in the
    pipeline and not by how many were before.
    """
    aligned: dict[tuple[Position, int, int], dict[RunKey, StepVisit | int]] = {}
    for key, ran in runs.items():
        places = [
            (visit.position, -1 if visit.stage is None else visit.stage, step)
            for visit in all_routes[key[0]][key[1]].visits
            for step in range(1 if visit.work is None else len(visit.work.steps))
        ]
        for place, visit in zip(places, ran.visits, strict=True):
            aligned.setdefault(place, {})[key] = visit
    return [(None if place[1] < 0 else place[1:], of_runs) for place, of_runs in sorted(aligned.items())]


def _llm_visit(
    llm_visit: StationVisit,
    number: int,
    numbers: Mapping[RunKey, int],
    jobs: ChunkJobs,
    now_s: dict[RunKey, np.ndarray],
) -> StationVisit:
    """One visit to a station of the LLM, the ``number``-th of all; the first tells of the use.

    ``numbers``: which visit of a run it is, where the run has it.
    """
    visit_jobs: list[list[Jobs]] = [[] for _ in jobs]
    for key, run_jobs in by_run(llm_visit.jobs):
        count = len(jobs[key[0]][key[1]])
        # Of a configuration that cannot run there are the jobs of the first visit.
        own = numbers.get(key, _ABSENT) if key in now_s else number
        # Ids of visit v are ``v x requests + i``: take those of this visit, and give them the ids of their requests.
        some = run_jobs.some(np.flatnonzero(run_jobs.id // count == own))
        visit_jobs[key[0]].append(replace(some, id=some.id - own * count))
    times = RequestTimes.empty(table_shape(visit_jobs))
    if llm_visit.times.hit_tokens is not None:
        times = replace(times, hit_tokens=np.zeros(times.replica.shape, dtype=np.int64))
    for key, run_jobs in by_run(visit_jobs):
        own = numbers.get(key, number)
        shifted = run_jobs.id + own * len(jobs[key[0]][key[1]])  # the ids by which the LLM knew this visit
        times.put(
            key, run_jobs.id, **{name: column[key][shifted] for name, column in llm_visit.times.columns().items()}
        )
        visit_jobs[key[0]][key[1]] = run_jobs.at(times.arrival_s[key][run_jobs.id])
        if key in now_s:
            now_s[key][run_jobs.id] = times.last_token_s[key][run_jobs.id]
    return replace(llm_visit, jobs=visit_jobs, times=times, uses=llm_visit.uses if number == 0 else (), number=number)


def _step_visit(
    step_station: StepStation,
    jobs: ChunkJobs,
    step_visits: Mapping[RunKey, StepVisit],
    runs: Mapping[RunKey, RouteRun],
    now_s: dict[RunKey, np.ndarray],
    first: bool,
) -> StationVisit:
    """Of one step of one visit; its first visit tells of the use."""
    times = RequestTimes.empty(table_shape(jobs))
    visited = np.zeros(times.arrival_s.shape, dtype=bool)
    visit_jobs = [list(of_seeds) for of_seeds in jobs]
    for key, run_jobs in by_run(jobs):
        if key not in runs:
            continue
        here_s = now_s[key][run_jobs.id]  # who passes the step by comes and leaves at once
        times.put(key, run_jobs.id, arrival_s=here_s, scheduled_s=here_s, first_token_s=here_s, last_token_s=here_s)
        visit_jobs[key[0]][key[1]] = run_jobs.at(here_s)
        if key not in step_visits:
            continue
        step = step_visits[key]
        times.put(key, step.ids, scheduled_s=step.scheduled_s, first_token_s=step.left_s, last_token_s=step.left_s)
        times.put(key, step.ids, replica=step.replica)
        visited[key][step.ids] = True
        now_s[key][run_jobs.id] = times.last_token_s[key][run_jobs.id]
    # None where all requests stop there, as the chain says it: the gaps between tokens that it holds are then known
    # (``simulation.chain``).
    all_came = all(visited[key][run_jobs.id].all() for key, run_jobs in by_run(jobs) if key in runs)
    stage = step_station.stage(0)
    station = Station(
        step_station.label,
        never,
        streams=stage.kind.streams(stage.parameters),
        stage=stage.name,
        between=stage.where == BETWEEN,
        waits=step_station.planned(0).kind is not Delay,
    )
    uses = (_step_use(step_station, jobs, runs),) if first else ()
    return StationVisit(station, visit_jobs, replace(times, visited=None if all_came else visited), uses)


def _step_use(step_station: StepStation, jobs: ChunkJobs, runs: Mapping[RunKey, RouteRun]) -> Use:
    """What a step used in all its visits; where stages share a pool, the first of them tells of it."""
    number = step_station.planned(0).station
    if number is not None:
        pools = [configuration.stations[number] for configuration in step_station.configurations]
        totals = PoolTotals.empty(*shape_of(jobs)[:2])
        pool_jobs = [list(of_seeds) for of_seeds in jobs]
        for key, ran in runs.items():
            done, pool_jobs[key[0]][key[1]] = ran.passes[number]
            totals.add(key, done)
        return replace(use_of(pools, pool_jobs, totals, None), name=step_station.label)
    busy_s = np.zeros(shape_of(jobs)[:2])
    for key, ran in runs.items():
        busy_s[key] = sum(
            visit.busy_s for visit in ran.visits if isinstance(visit, StepVisit) and visit.of(step_station)
        )
    servers = np.array([float(step_station.all_servers(config)) for config in range(len(step_station.configurations))])
    return on_pool(step_station, use_without_devices(step_station.label, jobs, servers, busy_s))
