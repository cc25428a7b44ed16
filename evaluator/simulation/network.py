"""Pools that depend on one another, on the reference: all of them in one event loop, configuration by configuration.

That is so in a closed loop, whose users wait for the last pool; where a router looks at the replicas of several pools;
and under back-pressure from a decode side. What happened is put into the departures of the same stations that the chain
has, so that all that follows is the same. ``one_loop`` does so on the vectorised engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from evaluator.cost.frontend import delay_s
from evaluator.metrics.outcomes import OK
from evaluator.plan import Configuration, LinkPlan, Plan
from evaluator.plan.phases import group_of_replicas
from evaluator.plan.visits import RequestRoutes
from evaluator.reference import Request
from evaluator.reference.network import Clients, run
from evaluator.reference.network import EventStation as Stage
from evaluator.reference.stations.phase import PhaseStation
from evaluator.reference.stations.transfers import Sending, Transfers
from evaluator.simulation.chain import ChainResult, journey_of
from evaluator.simulation.joint_visits import JointResult, LinkTimes, legs_in_one_loop
from evaluator.simulation.phase_runs import PhaseRun, pool_run, side_run, side_served
from evaluator.simulation.routes import RouteFollower, Routes, routes_of
from evaluator.simulation.stages import StepStation
from evaluator.simulation.token_level import Observe
from evaluator.simulation.visits import legs_of_ways
from evaluator.stations.contract import ChunkJobs, each
from evaluator.traffic.jobs import Demand, Jobs
from evaluator.traffic.requests import shared_tokens


@dataclass(frozen=True, eq=False)
class NetworkRun:
    """One configuration under one seed after its run. ``asked`` are its jobs at the LLM, of all visits.

    ``passes`` are the runs of pools for stages, by the number of their station.
    """

    phases: list[PhaseRun]
    links: Transfers | None
    asked: Jobs
    arrival_s: np.ndarray
    ways: Routes | None = None
    passes: dict[int, PhaseRun] = field(default_factory=dict)


def run_network(
    plan: Plan, configurations: Sequence[Configuration], jobs: ChunkJobs, observe: Observe | None = None
) -> ChainResult:
    """What became of the jobs of a chunk, over all seeds."""
    walks = [plan.routes(configuration) if configuration.staged else [] for configuration in configurations]
    runs = {
        at: _run(plan, configurations, walks, at, one, observe)
        for at, one in each(jobs)
        if configurations[at[0]].status == OK
    }
    asked = [
        [runs[config, seed].asked if (config, seed) in runs else one for seed, one in enumerate(of_seeds)]
        for config, of_seeds in enumerate(jobs)
    ]
    station_visits = legs_in_one_loop(configurations, asked, {at: _served(one) for at, one in runs.items()})
    if not configurations[0].staged:
        return journey_of(station_visits)
    return journey_of(legs_of_ways(configurations, walks, jobs, station_visits, runs))


# --- one configuration under one seed


def _run(
    plan: Plan,
    configurations: Sequence[Configuration],
    walks: Sequence[Sequence[RequestRoutes]],
    at: tuple[int, int],
    jobs: Jobs,
    observe: Observe | None,
) -> NetworkRun:
    configuration, seed = configurations[at[0]], plan.seeds[at[1]]
    routes = walks[at[0]][at[1]] if configuration.pipeline is not None else None
    whole = asked = jobs if routes is None else all_visits(configuration, routes, jobs)
    runs: list[PhaseRun] = []
    for phase in configuration.phases:
        if runs:
            asked, _ = whole.after_prefill(whole.ready_s)
        runs.append(side_run(configuration, at, seed, phase, asked, observe))
    links = None
    stages: list[Stage] = [runs[0].phase]
    if len(runs) > 1:
        assert configuration.link is not None
        links = _transfers(configuration, configuration.link, whole, runs[0].phase, runs[1].phase)
        stages += [links, runs[1].phase]
    delivered = partial(_delivered_after, configuration, runs)
    if routes is None:
        first = [runs[0].phase.parts[index] for index in jobs.id.tolist()]
        run(stages, first, configuration.users, delivered)
        return NetworkRun(runs, links, whole, np.zeros(0))
    passes: dict[int, PhaseRun] = {}

    def open_pool(number: int) -> PhaseRun:
        passes[number] = pool_run(configuration, at, seed, number, routes, observe)
        return passes[number]

    def stop(place: int, step: int) -> StepStation:
        return StepStation(configurations, walks, place, step)

    ways = routes_of(routes, stop, at[0], stages, open_pool)
    requests = [Request(index, ready_s, 1, 1, 1, 0) for index, ready_s in enumerate(jobs.ready_s.tolist())]
    last = _last_visits(routes, len(jobs))
    clients = Clients(
        requests, configuration.users, lambda request: delivered(runs[0].phase.parts[last[request.index]])
    )
    run([*stages, *ways.stations.values()], requests, clients=clients, onward=RouteFollower(ways, clients, requests))
    return NetworkRun(runs, links, whole, np.array([one.arrival_s for one in requests]), ways, passes)


def all_visits(configuration: Configuration, routes: RequestRoutes, jobs: Jobs) -> Jobs:
    """The jobs of all visits to the LLM; that of request i at its visit v has the id ``v x requests + i``."""
    role, shared = (
        configuration.phases[0].role,
        shared_tokens(configuration.workload, configuration.stations[0].deployment),
    )
    found = jobs
    for number, visit in enumerate(routes.llm[1:], 1):
        ids = visit.ids
        own = Demand.of(visit.tokens, role, shared)[ids]
        more = Jobs(ids + number * len(jobs), jobs.ready_s[ids], own, jobs.measured[ids])
        found = found.joined(more)
    return found


def _last_visits(routes: RequestRoutes, count: int) -> list[int]:
    """The index of the last visit of each request to the LLM."""
    found = np.arange(count)
    for number, visit in enumerate(routes.llm[1:], 1):
        found[visit.ids] = visit.ids + number * count
    return found.tolist()


def _delivered_after(configuration: Configuration, runs: Sequence[PhaseRun], request: Request) -> float:
    """Seconds from the last token of a request to its user, by the frontend of the pool that it went to first."""
    parts = [each.phase.parts[request.index] for each in runs if request.index in each.phase.parts]
    replicas = np.cumsum(
        [configuration.stations[number].deployment.ranks for number in configuration.phases[0].stations]
    )
    number = configuration.phases[0].stations[int(np.searchsorted(replicas, parts[0].replica, side="right"))]
    output = sum(part.output_tokens for part in parts)
    return float(
        delay_s(configuration.stations[number].frontend, parts[0].first_token_s, parts[-1].last_token_s, output)
    )


def _transfers(
    configuration: Configuration, link: LinkPlan, jobs: Jobs, prefill: PhaseStation, decode: PhaseStation
) -> Transfers:
    tokens = link.tokens(jobs.demand)
    places = dict(zip(jobs.id.tolist(), range(len(jobs)), strict=True))
    kept: dict[int, tuple[list[float], float]] = {}

    def sending(index: int, sender: int, receiver: int | None) -> Sending:
        way = int(link.ways(np.array([sender]), None if receiver is None else np.array([receiver]))[0])
        if way not in kept:
            ways = np.full(len(tokens), way)
            layers = float(np.broadcast_to(link.layers(ways), len(tokens))[0])
            kept[way] = link.service_s(tokens, ways).tolist(), (1.0 - 1.0 / layers) if link.by_layer else 0.0
        service_s, ahead = kept[way]
        return Sending(service_s[places[index]], ahead)

    told = configuration.phases[1].replicas is not None or link.backpressure
    return Transfers(
        prefill,
        decode,
        sending,
        latency_s=link.latency_s,
        one_by_one=link.shared,
        by_layer=link.by_layer,
        backpressure=link.backpressure,
        choose=decode.choose if told else None,
        groups=group_of_replicas(link.senders, link.groups).tolist() if configuration.phases[1].grouped else None,
    )


# --- what became of it


def _served(run: NetworkRun) -> JointResult:
    phases = tuple(map(side_served, run.phases))
    if run.links is None:
        return JointResult(phases, None)
    visits = [run.links.done[index] for index in run.phases[1].jobs.id.tolist()]
    return JointResult(phases, LinkTimes(*np.array(visits, dtype=float).reshape(-1, 3).T))
