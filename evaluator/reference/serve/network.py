"""Pools that depend on one another, on the reference: all of them in one event loop, configuration by configuration.

That is so in a closed loop, whose users wait for the last pool; where a router looks at the replicas of several pools;
and under back-pressure from a decode side. What happened is told as visits to the same stations that the chain has,
so that all that follows is the same. ``simulation.joint_pools`` does so on the vectorised engine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate

import numpy as np

from evaluator.cost.frontend import delay_s
from evaluator.metrics.outcomes import OK
from evaluator.metrics.use import PoolTotals, Use
from evaluator.plan import Configuration, LinkPlan, Plan, StationPlan
from evaluator.plan.phases import group_of_replicas
from evaluator.plan.route import BETWEEN, RequestRoutes
from evaluator.reference import PoolOutcome, Request
from evaluator.reference.network import EventStation as Stage
from evaluator.reference.network import run
from evaluator.reference.replica import Replica
from evaluator.reference.serve.phases import PhaseRun, fleet_start, phase_run, phase_served, pool_run
from evaluator.reference.serve.pool import Observe, followers
from evaluator.reference.serve.routes import RouteFollower, Routes, StepVisits, routes_of
from evaluator.reference.stations.phase import PhaseStation
from evaluator.reference.stations.transfers import Sending, Transfers
from evaluator.stages import Delay
from evaluator.stations.contract import (
    ChunkJobs,
    RequestTimes,
    Station,
    StationVisit,
    by_run,
    shape_of,
    table_shape,
    use_without_devices,
)
from evaluator.stations.joint_visits import JointResult, never, visits_of_joint_run
from evaluator.stations.stage_steps import StepStation, on_pool
from evaluator.stations.use import use_of
from evaluator.traffic.jobs import Demand, Jobs
from evaluator.traffic.requests import Tokens, shared_tokens


@dataclass(frozen=True, eq=False)
class NetworkRun:
    """One configuration under one seed after its run. ``asked`` are its jobs at the LLM, of all visits.

    ``passes`` are the runs of pools for stages, by the number of their station.
    """

    phases: list[PhaseRun]
    links: Transfers | None
    asked: Jobs
    arrival_s: np.ndarray
    step_routes: Routes | None = None
    passes: dict[int, PhaseRun] = field(default_factory=dict)


def run_network(
    plan: Plan, configurations: Sequence[Configuration], jobs: ChunkJobs, observe: Observe | None = None
) -> list[StationVisit]:
    """What became of the jobs of a chunk, over all seeds: visits to the stations that the chain has."""
    all_routes = [plan.routes(configuration) if configuration.staged else [] for configuration in configurations]
    runs = {
        key: _run(plan, configurations, all_routes, key, run_jobs, observe)
        for key, run_jobs in by_run(jobs)
        if configurations[key[0]].status == OK
    }
    # A configuration that did not run has no visits beyond the first.
    asked = [
        [runs[config, seed].asked if (config, seed) in runs else run_jobs for seed, run_jobs in enumerate(of_seeds)]
        for config, of_seeds in enumerate(jobs)
    ]
    station_visits = visits_of_joint_run(configurations, asked, {key: _served(ran) for key, ran in runs.items()})
    if not configurations[0].staged:
        return station_visits
    return visits_by_route(configurations, all_routes, jobs, station_visits, runs)


# --- one configuration under one seed


def _run(
    plan: Plan,
    configurations: Sequence[Configuration],
    all_routes: Sequence[Sequence[RequestRoutes]],
    key: tuple[int, int],
    jobs: Jobs,
    observe: Observe | None,
) -> NetworkRun:
    configuration, seed = configurations[key[0]], plan.seeds[key[1]]
    routes = all_routes[key[0]][key[1]] if configuration.pipeline is not None else None
    whole = asked = jobs if routes is None else all_visits(configuration, routes, jobs)
    runs: list[PhaseRun] = []
    fleets = fleet_start(configuration, whole)
    for phase in configuration.phases:
        if runs:
            # The times are those of the prefill side and stand for nothing here: on the network a request comes to
            # the decode side when its transfer ends.
            asked, _ = _all_apart(configuration, whole).after_prefill(whole.ready_s)
        runs.append(phase_run(configuration, key, seed, phase, asked, fleets, observe))
    links = None
    stages: list[Stage] = [runs[0].phase]
    if len(runs) > 1:
        assert configuration.link is not None
        links = _transfers(configuration, configuration.link, whole, runs[0].phase, runs[1].phase)
        stages += [links, runs[1].phase]
        if configuration.phases[0].mixed_from is not None:
            _forget_whole(configuration.phases[0].mixed_from, runs[0].phase, runs[1].phase)
    first_pools = configuration.phases[0].stations
    # Replicas are numbered over all pools of the phase: the first cumulated count above is the pool's.
    upto = list(accumulate(configuration.stations[number].deployment.ranks for number in first_pools))
    delivered = partial(_delivered_after, configuration, runs, upto)
    follows = followers(jobs, slice(None))
    if routes is None:
        first = [runs[0].phase.parts[index] for index in jobs.id.tolist()]
        run(stages, first, configuration.users, delivered, follows)
        runs, whole = _as_dealt(configuration, runs, whole)
        return NetworkRun(runs, links, whole, np.zeros(0))
    passes: dict[int, PhaseRun] = {}

    def open_pool(number: int) -> PhaseRun:
        passes[number] = pool_run(configuration, key, seed, number, observe)
        return passes[number]

    def step_station(stage: int, step: int) -> StepStation:
        return StepStation(configurations, all_routes, stage, step)

    step_routes = routes_of(routes, step_station, key[0], stages, open_pool)
    # On routes of their own requests only say who they are; what they ask of a station is in that station's parts.
    requests = [Request(index, ready_s, 1, 1, 1, 0) for index, ready_s in enumerate(jobs.ready_s.tolist())]
    last = _last_visits(routes, len(jobs))
    run(
        [*stages, *step_routes.stations.values()],
        requests,
        configuration.users,
        lambda request: delivered(runs[0].phase.parts[last[request.index]]),
        follows,
        onward=lambda clients: RouteFollower(step_routes, clients, requests),
    )
    runs, whole = _as_dealt(configuration, runs, whole)
    return NetworkRun(runs, links, whole, np.array([request.arrival_s for request in requests]), step_routes, passes)


def _all_apart(configuration: Configuration, jobs: Jobs) -> Jobs:
    """The jobs as if all went to prefill and decode pools, where there are mixed ones beside these."""
    if configuration.phases[0].mixed_from is None:
        return jobs
    return replace(jobs, demand=jobs.demand.apart(True))


def _forget_whole(mixed_from: int, prefill: PhaseStation, decode: PhaseStation) -> None:
    """Whoever comes to a mixed replica beside prefill pools has no part on the decode side."""
    choose, parts = prefill.choose, decode.parts
    assert isinstance(parts, dict)

    def chosen(request: Request, now: float, group: int | None = None) -> Replica:
        replica = choose(request, now, group)
        if replica.index >= mixed_from:
            parts.pop(request.index, None)
            request.held = False  # its KV goes nowhere
        return replica

    prefill.choose = chosen


def _as_dealt(configuration: Configuration, runs: list[PhaseRun], jobs: Jobs) -> tuple[list[PhaseRun], Jobs]:
    """After a run with mixed pools beside prefill pools: who came to the decode side, and what each asked of the
    first."""
    mixed_from = configuration.phases[0].mixed_from
    if mixed_from is None:
        return runs, jobs
    first, decode = runs
    apart = np.array([first.phase.parts[index].replica < mixed_from for index in jobs.id.tolist()], dtype=bool)
    came = np.array([index in decode.phase.parts for index in decode.jobs.id.tolist()], dtype=bool)
    jobs = replace(jobs, demand=jobs.demand.apart(apart))
    return [replace(first, jobs=jobs), replace(decode, jobs=decode.jobs.some(np.flatnonzero(came)))], jobs


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


def _last_visits(routes: RequestRoutes, count: int) -> list[int]:
    """The index of the last visit of each request to the LLM."""
    last = np.arange(count)
    for number, visit in enumerate(routes.llm[1:], 1):
        last[visit.ids] = visit.ids + number * count
    return last.tolist()


def _delivered_after(
    configuration: Configuration, runs: Sequence[PhaseRun], upto: Sequence[int], request: Request
) -> float:
    """Seconds from the last token of a request to its user, by the frontend of the pool that it went to first.

    ``upto``: of each pool of the first phase the replicas up to its last.
    """
    parts = [served.phase.parts[request.index] for served in runs if request.index in served.phase.parts]
    number = configuration.phases[0].stations[bisect_right(upto, parts[0].replica)]
    output = sum(part.output_tokens for part in parts)
    return float(
        delay_s(configuration.stations[number].frontend, parts[0].first_token_s, parts[-1].last_token_s, output)
    )


def _transfers(
    configuration: Configuration, link: LinkPlan, jobs: Jobs, prefill: PhaseStation, decode: PhaseStation
) -> Transfers:
    tokens = link.tokens(jobs.demand)
    places = dict(zip(jobs.id.tolist(), range(len(jobs)), strict=True))
    # A transfer's time depends on the link between two pools and on the request: the times of all requests over one
    # link are one array, made when that link is first used.
    of_ways: dict[int, tuple[list[float], float]] = {}

    def sending(index: int, sender: int, receiver: int | None) -> Sending:
        way = int(link.ways(np.array([sender]), None if receiver is None else np.array([receiver]))[0])
        if way not in of_ways:
            ways = np.full(len(tokens), way)
            layers = float(np.broadcast_to(link.layers(ways), len(tokens))[0])
            of_ways[way] = link.service_s(tokens, ways).tolist(), (1.0 - 1.0 / layers) if link.by_layer else 0.0
        service_s, ahead = of_ways[way]
        place = places[index]
        # With its KV reservation a request learns what the cache there has of its prompt; without back-pressure
        # nobody asks before the KV is sent, all of it.
        hit = decode.parts[index].hit_tokens
        if not hit:
            return Sending(service_s[place], ahead)
        missing = np.minimum(tokens[[place]], decode.parts[index].prompt_tokens - hit)
        return Sending(float(link.service_s(missing, np.array([way]))[0]), ahead)

    routed = configuration.phases[1].replicas is not None or link.backpressure
    return Transfers(
        prefill,
        decode,
        sending,
        latency_s=link.latency_s,
        one_by_one=link.shared,
        by_layer=link.by_layer,
        backpressure=link.backpressure,
        choose=decode.choose if routed else None,
        groups=group_of_replicas(link.senders, link.groups).tolist() if configuration.phases[1].grouped else None,
    )


# --- what became of it


def _served(run: NetworkRun) -> JointResult:
    phases, pools = zip(*map(phase_served, run.phases), strict=True)
    if run.links is None:
        return JointResult(phases, pools)
    visits = [run.links.done[index] for index in run.phases[1].jobs.id.tolist()]
    ready_s, started_s, left_s = np.array(visits, dtype=float).reshape(-1, 3).T
    return JointResult(phases, pools, {"arrival_s": ready_s, "scheduled_s": started_s, "last_token_s": left_s})


# --- requests on routes of their own, as the visits of a chain: one after the other


def visits_by_route(
    configurations: Sequence[Configuration],
    all_routes: Sequence[Sequence[RequestRoutes]],
    jobs: ChunkJobs,
    llm: Sequence[StationVisit],
    runs: dict[tuple[int, int], NetworkRun],
) -> list[StationVisit]:
    """All visits in their order: those to the stages, and between them those to the LLM, ``llm``."""
    if not runs:  # no configuration of the chunk can run
        return list(llm)
    numbers = max(len(ran.step_routes.step_visits) for ran in runs.values() if ran.step_routes is not None)
    # Where each request stands while its visits are told in order: from the time at which it really came, which in a
    # closed loop is known after the run alone.
    now_s = {key: ran.arrival_s.copy() for key, ran in runs.items()}
    visits: list[StationVisit] = []
    reported: set[tuple[int, int]] = set()
    longest = max(runs.values(), key=lambda ran: len(ran.step_routes.step_visits) if ran.step_routes is not None else 0)
    answer, later = 0, list[StationVisit]()  # of the last visit to the LLM, the stations that are still to come
    for number in range(numbers):
        kind = longest.step_routes.step_visits[number]  # type: ignore[union-attr]
        if isinstance(kind, int):
            visits += [_llm_visit(llm_visit, answer, jobs, now_s) for llm_visit in later]
            visits.append(_llm_visit(llm[0], kind, jobs, now_s))
            answer, later = kind, list(llm[1:])
            continue
        step_station = StepStation(configurations, all_routes, kind.place, kind.step)
        if step_station.stage(0).where != BETWEEN:
            visits += [_llm_visit(llm_visit, answer, jobs, now_s) for llm_visit in later]
            later = []
        step_visits: dict[tuple[int, int], StepVisits] = {
            key: ran.step_routes.step_visits[number]  # type: ignore[union-attr, misc]
            for key, ran in runs.items()
            if number < len(ran.step_routes.step_visits)  # type: ignore[union-attr]
        }
        first = (kind.place, kind.step) not in reported
        reported.add((kind.place, kind.step))
        visits.append(_step_visit(step_station, jobs, step_visits, runs, now_s, first))
    return visits + [_llm_visit(llm_visit, answer, jobs, now_s) for llm_visit in later]


def _llm_visit(
    llm_visit: StationVisit, number: int, jobs: ChunkJobs, now_s: dict[tuple[int, int], np.ndarray]
) -> StationVisit:
    """One visit to a station of the LLM, of all visits to it; the first tells of the use."""
    visit_jobs: list[list[Jobs]] = [[] for _ in jobs]
    for key, run_jobs in by_run(llm_visit.jobs):
        count = len(jobs[key[0]][key[1]])
        # Ids of visit v are ``v x requests + i``: take those of this visit, and give them the ids of their requests.
        some = run_jobs.some(np.flatnonzero(run_jobs.id // count == number))
        visit_jobs[key[0]].append(replace(some, id=some.id - number * count))
    times = RequestTimes.empty(table_shape(visit_jobs))
    if llm_visit.times.hit_tokens is not None:
        times = replace(times, hit_tokens=np.zeros(times.replica.shape, dtype=np.int64))
    for key, run_jobs in by_run(visit_jobs):
        shifted = run_jobs.id + number * len(jobs[key[0]][key[1]])  # the ids by which the LLM knew this visit
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
    step_visits: dict[tuple[int, int], StepVisits],
    runs: dict[tuple[int, int], NetworkRun],
    now_s: dict[tuple[int, int], np.ndarray],
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
        step_visit = step_visits[key]
        for request in step_visit.ids.tolist():
            came_s, began_s, left_s, replica = step_visit.times(request)
            times.put(key, request, arrival_s=came_s, scheduled_s=began_s, first_token_s=left_s, last_token_s=left_s)
            times.put(key, request, replica=replica)
            visited[key][request] = True
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


def _step_use(step_station: StepStation, jobs: ChunkJobs, runs: dict[tuple[int, int], NetworkRun]) -> Use:
    """What a step used in all its visits; where stages share a pool, the first of them tells of it."""
    number = step_station.planned(0).station
    if number is not None:
        pools = [configuration.stations[number] for configuration in step_station.configurations]
        totals = PoolTotals.empty(*shape_of(jobs)[:2])
        pool_jobs = [list(of_seeds) for of_seeds in jobs]
        for key, ran in runs.items():
            totals.add(key, PoolTotals.of(PoolOutcome([], list(ran.passes[number].pools[0]))))
            pool_jobs[key[0]][key[1]] = _computed(pools[key[0]], ran.passes[number])
        return replace(use_of(pools, pool_jobs, totals, None), name=step_station.label)
    busy_s = np.zeros(shape_of(jobs)[:2])
    for key, ran in runs.items():
        assert ran.step_routes is not None
        busy_s[key] = sum(
            step_visit.busy_s
            for step_visit in ran.step_routes.step_visits
            if isinstance(step_visit, StepVisits) and step_visit.of(step_station)
        )
    servers = np.array([float(step_station.all_servers(config)) for config in range(len(step_station.configurations))])
    return on_pool(step_station, use_without_devices(step_station.label, jobs, servers, busy_s))


def _computed(pool: StationPlan, of_run: PhaseRun) -> Jobs:
    """The passes that a pool computed."""
    prompt = np.array([part.prompt_tokens for part in of_run.phase.parts.values()], dtype=np.int64)
    none = np.zeros_like(prompt)
    demand = Demand.of(Tokens(prompt, none + 1, none, none, none), pool.role)
    return Jobs(np.arange(len(prompt)), none.astype(float), demand, none.astype(bool))
