"""Pools that depend on one another, on the reference: all of them in one event loop, configuration by configuration.

That is so in a closed loop, whose users wait for the last pool; where a router looks at the replicas of several pools;
and under back-pressure from a decode side. What happened is put into the departures of the same stations that the chain
has, so that all that follows is the same. ``one_loop`` does so on the vectorised engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from evaluator.cost.memory import kv_units
from evaluator.metrics.outcomes import OK
from evaluator.metrics.use import WeightedGaps
from evaluator.plan import LinkPlan, Member, Plan
from evaluator.plan.engines import routed_by
from evaluator.plan.sides import SidePlan, group_of_replicas
from evaluator.plan.walked import Walked
from evaluator.reference import Iteration, Outcome, Request
from evaluator.reference.lockstep import in_lockstep
from evaluator.reference.network import Clients, run
from evaluator.reference.network import Station as Stage
from evaluator.reference.replica import Replica
from evaluator.reference.routing import chooser
from evaluator.reference.side_routing import SideRouter
from evaluator.reference.stations.pool import Pool
from evaluator.reference.stations.side import Choose, Side
from evaluator.reference.stations.transfers import Sending, Transfers
from evaluator.routing import stream
from evaluator.simulation.chain import Journey, journey_of
from evaluator.simulation.drafts import curve_of
from evaluator.simulation.frontend import delay_s
from evaluator.simulation.gaps import Gaps, pooled
from evaluator.simulation.legs import LinkServed, PoolServed, Served, SideServed, legs_in_one_loop
from evaluator.simulation.slots import OPEN_LOOP, Slot
from evaluator.simulation.stages import Stop
from evaluator.simulation.tokens import Observe, branches_of, limits_of
from evaluator.simulation.visits import legs_of_ways
from evaluator.simulation.ways import Itinerary, Ways, ways_of
from evaluator.speculation import keys
from evaluator.stations.contract import ChunkJobs, each
from evaluator.traffic.jobs import Demand, Jobs, branch_units, shared_units
from evaluator.traffic.requests import Tokens, shared_tokens


@dataclass(frozen=True, eq=False)
class SideRun:
    """A side after a run: its jobs, its replicas by pool, and the gaps between the tokens that each replica gave."""

    jobs: Jobs
    side: Side
    pools: tuple[list[Replica], ...]
    gaps: tuple[Gaps, ...]


@dataclass(frozen=True, eq=False)
class NetworkRun:
    """One configuration under one seed after its run. ``asked`` are its jobs at the LLM, of all visits.

    ``passes`` are the runs of pools for stages, by the number of their station.
    """

    sides: list[SideRun]
    links: Transfers | None
    asked: Jobs
    arrival_s: np.ndarray
    ways: Ways | None = None
    passes: dict[int, SideRun] = field(default_factory=dict)


def run_network(plan: Plan, members: Sequence[Member], jobs: ChunkJobs, observe: Observe | None = None) -> Journey:
    """What became of the jobs of a chunk, over all seeds."""
    walks = [plan.walked(member) if member.staged else [] for member in members]
    runs = {at: _run(plan, members, walks, at, one, observe) for at, one in each(jobs) if members[at[0]].status == OK}
    asked = [
        [runs[config, seed].asked if (config, seed) in runs else one for seed, one in enumerate(of_seeds)]
        for config, of_seeds in enumerate(jobs)
    ]
    legs = legs_in_one_loop(members, asked, {at: _served(one) for at, one in runs.items()})
    if not members[0].staged:
        return journey_of(legs)
    return journey_of(legs_of_ways(members, walks, jobs, legs, runs))


# --- one configuration under one seed


def _run(
    plan: Plan,
    members: Sequence[Member],
    walks: Sequence[Sequence[Walked]],
    at: tuple[int, int],
    jobs: Jobs,
    observe: Observe | None,
) -> NetworkRun:
    member, seed = members[at[0]], plan.seeds[at[1]]
    walked = walks[at[0]][at[1]] if member.pipeline is not None else None
    whole = asked = jobs if walked is None else _all_visits(member, walked, jobs)
    runs: list[SideRun] = []
    for side in member.sides:
        if runs:
            asked, _ = whole.after_prefill(whole.ready_s)
        runs.append(_side_run(member, at, seed, side, asked, observe))
    links = None
    stages: list[Stage] = [runs[0].side]
    if len(runs) > 1:
        assert member.link is not None
        links = _transfers(member, member.link, whole, runs[0].side, runs[1].side)
        stages += [links, runs[1].side]
    delivered = partial(_delivered_after, member, runs)
    if walked is None:
        first = [runs[0].side.parts[index] for index in jobs.id.tolist()]
        run(stages, first, member.users, delivered)
        return NetworkRun(runs, links, whole, np.zeros(0))
    passes: dict[int, SideRun] = {}

    def open_pool(number: int) -> SideRun:
        passes[number] = _pool_run(member, at, seed, number, walked, observe)
        return passes[number]

    def stop(place: int, step: int) -> Stop:
        return Stop(members, walks, place, step)

    ways = ways_of(walked, stop, at, stages, open_pool)
    requests = [Request(index, ready_s, 1, 1, 1, 0) for index, ready_s in enumerate(jobs.ready_s.tolist())]
    last = _last_visits(walked, len(jobs))
    clients = Clients(requests, member.users, lambda request: delivered(runs[0].side.parts[last[request.index]]))
    run([*stages, *ways.stations.values()], requests, clients=clients, onward=Itinerary(ways, clients, requests))
    return NetworkRun(runs, links, whole, np.array([one.arrival_s for one in requests]), ways, passes)


def _all_visits(member: Member, walked: Walked, jobs: Jobs) -> Jobs:
    """The jobs of all visits to the LLM; that of request i at its visit v has the id ``v x requests + i``."""
    role, shared = member.sides[0].role, shared_tokens(member.workload, member.stations[0].deployment)
    found = jobs
    for number, visit in enumerate(walked.llm[1:], 1):
        ids = visit.ids
        own = Demand.of(visit.tokens, role, shared)[ids]
        more = Jobs(ids + number * len(jobs), jobs.ready_s[ids], own, jobs.measured[ids])
        found = found.joined(more)
    return found


def _last_visits(walked: Walked, count: int) -> list[int]:
    """The index of the last visit of each request to the LLM."""
    found = np.arange(count)
    for number, visit in enumerate(walked.llm[1:], 1):
        found[visit.ids] = visit.ids + number * count
    return found.tolist()


def _pool_run(
    member: Member, at: tuple[int, int], seed: int, number: int, walked: Walked, observe: Observe | None
) -> SideRun:
    """A pool for stages, ready to run; its parts come with the visits."""
    station, none = member.stations[number], np.zeros(0, dtype=np.int64)
    nobody = Demand.of(Tokens(none, none, none, none, none), station.role)
    jobs = Jobs(none, none.astype(float), nobody, none.astype(bool))
    slot = Slot(*at, -1, jobs, slice(0, 0), 0, OPEN_LOOP, number)
    built, limits = station.design.ready, limits_of(station, nobody)
    replicas = [
        Replica(
            index, built.pipeline_ranks, station.deployment.batching.policy, limits,
            window=built.kv.window, observe=None if observe is None else partial(observe, slot),
        )
        for index in range(station.deployment.ranks)
    ]  # fmt: skip
    router = chooser(routed_by(station.deployment), replicas, seed, number)

    def choose(request: Request, now: float, group: int | None = None) -> Replica:
        request.kv_units = int(kv_units(built.kv, request.prompt_tokens))
        return router(request, now)

    in_lockstep(replicas, station.lockstep)
    return SideRun(jobs, Side(Pool(replicas, choose), {}, choose), (replicas,), ())


def _delivered_after(member: Member, runs: Sequence[SideRun], request: Request) -> float:
    """Seconds from the last token of a request to its user, by the frontend of the pool that it went to first."""
    parts = [each.side.parts[request.index] for each in runs if request.index in each.side.parts]
    replicas = np.cumsum([member.stations[number].deployment.ranks for number in member.sides[0].stations])
    number = member.sides[0].stations[int(np.searchsorted(replicas, parts[0].replica, side="right"))]
    output = sum(part.output_tokens for part in parts)
    calibration = member.stations[number].design.calibration
    return float(delay_s(calibration, parts[0].first_token_s, parts[-1].last_token_s, output))


def _side_run(
    member: Member, at: tuple[int, int], seed: int, side: SidePlan, jobs: Jobs, observe: Observe | None
) -> SideRun:
    slot = Slot(*at, -1, jobs, slice(0, len(jobs)), len(jobs), member.users or OPEN_LOOP, side.stations.start)
    pools: list[list[Replica]] = []
    gaps: list[Gaps] = []
    rooms = side.role.prompt_resident and member.link is not None and member.link.backpressure
    for number in side.stations:
        station = member.stations[number]
        built, limits = station.design.ready, replace(limits_of(station, jobs.demand), rooms=rooms)
        own = [Gaps(_until(jobs)) for _ in range(station.deployment.ranks)]
        pools.append(
            [
                Replica(
                    index, built.pipeline_ranks, station.deployment.batching.policy, limits,
                    window=built.kv.window, observe=partial(_watch, of_replica, observe, slot),
                )
                for index, of_replica in enumerate(own, len(gaps))
            ]
        )  # fmt: skip
        gaps += own
        in_lockstep(pools[-1], station.lockstep)
    replicas = [replica for pool in pools for replica in pool]
    choose = _choose(member, seed, side, jobs, replicas)
    return SideRun(jobs, Side(Pool(replicas, choose), _parts(jobs), choose), tuple(pools), tuple(gaps))


def _until(jobs: Jobs) -> int:
    """All ids of the jobs are below it."""
    return int(jobs.id.max(initial=-1)) + 1


def _watch(gaps: Gaps, observe: Observe | None, slot: Slot, iteration: Iteration) -> None:
    gaps.add(iteration)
    if observe is not None:
        observe(slot, iteration)


def _parts(jobs: Jobs) -> dict[int, Request]:
    """Requests by their ids. How much KV one takes, and each of its branches, is known with its pool."""
    demand = jobs.demand
    columns = (jobs.ready_s, demand.compute_tokens, demand.prompt_tokens, demand.output_tokens, np.zeros_like(jobs.id))
    rows = zip(jobs.id.tolist(), *(column.tolist() for column in columns), strict=True)
    found = {index: Request(index, *row) for index, *row in rows}
    known = None if jobs.sharing is None else jobs.sharing.session
    if known is not None:  # the ids of later visits follow those of all requests (``_all_visits``)
        for request in found.values():
            request.session = int(known[request.index % len(known)])
    if demand.branch_tokens is not None:
        branches = branches_of(demand.branch_tokens, demand.branch_tokens)
        for request, (lengths, _) in zip(found.values(), branches, strict=True):
            request.branches = lengths
    return found


def _choose(member: Member, seed: int, side: SidePlan, jobs: Jobs, replicas: Sequence[Replica]) -> Choose:
    """The router of a side; a request learns from its pool how much KV it takes there."""
    pools = [member.stations[number] for number in side.stations]
    pool_of = np.repeat(np.arange(len(pools)), [pool.deployment.ranks for pool in pools]).tolist()
    places = dict(zip(jobs.id.tolist(), range(len(jobs)), strict=True))
    units = [pool.held_units(jobs.demand).tolist() for pool in pools]
    drawn = list(keys(seed, jobs.id))
    shared = [shared_units(jobs.demand, pool.design.ready.kv).tolist() for pool in pools]
    tokens = jobs.demand.branch_tokens
    branches = [
        branches_of(tokens, branch_units(jobs.demand, pool.design.ready.kv)) for pool in pools if tokens is not None
    ]
    router: Callable[..., Replica]  # of one pool without groups, of a side with them
    if side.replicas is None:
        router = chooser(side.router, replicas, seed, side.stations.start)
    else:
        models = np.zeros(_until(jobs), dtype=np.int64)
        models[jobs.id] = jobs.demand.model
        router = SideRouter(side.replicas, side.router, replicas, models.tolist(), stream(seed, side.number))

    def choose(request: Request, now: float, group: int | None = None) -> Replica:
        replica = router(request, now, *(() if group is None else (group,)))
        pool, place = pool_of[replica.index], places[request.index]
        request.kv_units, request.shared_units = int(units[pool][place]), int(shared[pool][place])
        request.curve = curve_of(pools[pool], drawn[place], request.output_tokens)
        if branches:
            request.branches, request.branch_units = branches[pool][place]
        return replica

    return choose


def _transfers(member: Member, link: LinkPlan, jobs: Jobs, prefill: Side, decode: Side) -> Transfers:
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

    told = member.sides[1].replicas is not None or link.backpressure
    return Transfers(
        prefill,
        decode,
        sending,
        latency_s=link.latency_s,
        one_by_one=link.shared,
        by_layer=link.by_layer,
        backpressure=link.backpressure,
        choose=decode.choose if told else None,
        groups=group_of_replicas(link.senders, link.groups).tolist() if member.sides[1].grouped else None,
    )


# --- what became of it


def _served(run: NetworkRun) -> Served:
    sides = tuple(map(_side_served, run.sides))
    if run.links is None:
        return Served(sides, None)
    visits = [run.links.done[index] for index in run.sides[1].jobs.id.tolist()]
    return Served(sides, LinkServed(*np.array(visits, dtype=float).reshape(-1, 3).T))


def _side_served(run: SideRun) -> SideServed:
    parts = [run.side.parts[index] for index in run.jobs.id.tolist()]
    ready_s, scheduled_s, first_s, last_s = (
        np.array([getattr(part, name) for part in parts], dtype=float)
        for name in ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")
    )
    replica = np.array([part.replica for part in parts], dtype=np.int64)
    found = SideServed(ready_s, scheduled_s, first_s, last_s, replica, ())
    return replace(found, pools=tuple(_pool_served(run, replicas, found) for replicas in run.pools))


def _pool_served(run: SideRun, replicas: list[Replica], served: SideServed) -> PoolServed:
    gaps = [_gaps_of(run.gaps[replica.index], replica.index, run.jobs, served) for replica in replicas]
    return PoolServed(Outcome([], replicas), pooled(gaps), replicas[0].index)


def _gaps_of(gaps: Gaps, replica: int, jobs: Jobs, served: SideServed) -> WeightedGaps:
    """Those of one replica after the first token of the first measured job that came to it."""
    here = jobs.measured & (served.replica == replica)
    if not here.any():
        return gaps.after(np.inf)
    counted = np.flatnonzero(here)
    first = counted[np.lexsort((jobs.id[counted], served.ready_s[counted]))[0]]
    return gaps.after(float(served.first_token_s[first]))
