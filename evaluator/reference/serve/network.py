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
from evaluator.metrics.use import PoolTotals
from evaluator.plan import Configuration, LinkPlan, Plan, StationPlan
from evaluator.plan.phases import group_of_replicas
from evaluator.plan.route import RequestRoutes
from evaluator.reference import PoolOutcome, Request
from evaluator.reference.network import EventStation as Stage
from evaluator.reference.network import run
from evaluator.reference.replica import Replica
from evaluator.reference.serve.phases import PhaseRun, fleet_start, phase_run, phase_served, pool_run
from evaluator.reference.serve.pool import Observe, followers
from evaluator.reference.serve.routes import RouteFollower, Routes, routes_of
from evaluator.reference.stations.phase import PhaseStation
from evaluator.reference.stations.transfers import Sending, Transfers
from evaluator.stations.contract import ChunkJobs, StationVisit, by_run
from evaluator.stations.joint_visits import JointResult, visits_of_joint_run
from evaluator.stations.route_visits import RouteRun, all_visits, visits_by_route
from evaluator.stations.stage_steps import StepStation
from evaluator.traffic.jobs import Demand, Jobs
from evaluator.traffic.requests import Tokens


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
    routed = {key: _on_routes(configurations[key[0]], ran) for key, ran in runs.items()}
    return visits_by_route(configurations, all_routes, jobs, station_visits, routed)


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


def _on_routes(configuration: Configuration, run: NetworkRun) -> RouteRun:
    """Of requests on routes of their own."""
    assert run.step_routes is not None
    visits = [visit if isinstance(visit, int) else visit.told() for visit in run.step_routes.step_visits]
    passes = {
        number: (PoolTotals.of(PoolOutcome([], list(ran.pools[0]))), _computed(configuration.stations[number], ran))
        for number, ran in run.passes.items()
    }
    return RouteRun(run.arrival_s, visits, passes)


def _computed(pool: StationPlan, of_run: PhaseRun) -> Jobs:
    """The passes that a pool computed."""
    prompt = np.array([part.prompt_tokens for part in of_run.phase.parts.values()], dtype=np.int64)
    none = np.zeros_like(prompt)
    demand = Demand.of(Tokens(prompt, none + 1, none, none, none), pool.role)
    return Jobs(np.arange(len(prompt)), none.astype(float), demand, none.astype(bool))
