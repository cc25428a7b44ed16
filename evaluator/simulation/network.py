"""Pools that depend on one another, on the reference: all of them in one event loop, configuration by configuration.

That is so in a closed loop, whose users wait for the last pool; where a router looks at the replicas of several pools;
and under back-pressure from a decode side. What happened is put into the departures of the same stations that the chain
has, so that all that follows is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from evaluator.cost.memory import kv_units
from evaluator.metrics.outcomes import OK
from evaluator.metrics.use import Use, WeightedGaps
from evaluator.plan import LinkPlan, Member, Plan, StationPlan
from evaluator.plan.engines import routed_by
from evaluator.plan.pipeline import Walked
from evaluator.plan.sides import SidePlan, group_of_replicas
from evaluator.reference import Iteration, Outcome, Request
from evaluator.reference.network import Clients, run
from evaluator.reference.network import Station as Stage
from evaluator.reference.replica import Replica
from evaluator.reference.routing import chooser
from evaluator.reference.side_routing import SideRouter
from evaluator.reference.stations.pool import Pool
from evaluator.reference.stations.side import Choose, Side
from evaluator.reference.stations.transfers import Sending, Transfers
from evaluator.routing import stream
from evaluator.simulation.chain import Journey, Leg, journey_of
from evaluator.simulation.frontend import delay_s
from evaluator.simulation.gaps import Gaps, pooled
from evaluator.simulation.slots import OPEN_LOOP, Slot
from evaluator.simulation.stages import Stop, on_pool
from evaluator.simulation.tokens import Observe, add_totals, branches_of, limits_of
from evaluator.simulation.use import Totals, check_served, use_of
from evaluator.simulation.ways import Hop, Itinerary, Ways, ways_of
from evaluator.stages import Delay
from evaluator.stations.contract import ChunkJobs, Departures, Station, each, shape_of, use_without_devices
from evaluator.traffic.jobs import Demand, Jobs, Origin, branch_units, held_units
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
    legs: list[Leg] = []
    for side in members[0].sides:
        if side.number > 0:
            legs.append(_link_leg(legs[-1], members, {at: one.links for at, one in runs.items()}))
        came = asked if side.number == 0 else _sent(legs[-1])
        legs.append(
            _side_leg(members, plan.seeds, side, came, {at: one.sides[side.number] for at, one in runs.items()})
        )
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
        for index in range(station.deployment.replicas)
    ]  # fmt: skip
    router = chooser(routed_by(station.deployment), replicas, seed, number)

    def choose(request: Request, now: float, group: int | None = None) -> Replica:
        request.kv_units = int(kv_units(built.kv, request.prompt_tokens))
        return router(request, now)

    return SideRun(jobs, Side(Pool(replicas, choose), {}, choose), (replicas,), ())


def _delivered_after(member: Member, runs: Sequence[SideRun], request: Request) -> float:
    """Seconds from the last token of a request to its user, by the frontend of the pool that it went to first."""
    parts = [each.side.parts[request.index] for each in runs if request.index in each.side.parts]
    replicas = np.cumsum([member.stations[number].deployment.replicas for number in member.sides[0].stations])
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
        own = [Gaps(_until(jobs)) for _ in range(station.deployment.replicas)]
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
    if demand.branch_tokens is not None:
        branches = branches_of(demand.branch_tokens, demand.branch_tokens)
        for request, (lengths, _) in zip(found.values(), branches, strict=True):
            request.branches = lengths
    return found


def _choose(member: Member, seed: int, side: SidePlan, jobs: Jobs, replicas: Sequence[Replica]) -> Choose:
    """The router of a side; a request learns from its pool how much KV it takes there."""
    pools = [member.stations[number] for number in side.stations]
    pool_of = np.repeat(np.arange(len(pools)), [pool.deployment.replicas for pool in pools]).tolist()
    places = dict(zip(jobs.id.tolist(), range(len(jobs)), strict=True))
    units = [held_units(jobs.demand, pool.design.ready.kv).tolist() for pool in pools]
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
        request.kv_units = int(units[pool][place])
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


# --- what became of it, as of the stations of a chain


def _side_leg(
    members: Sequence[Member],
    seeds: Sequence[int],
    side: SidePlan,
    jobs: ChunkJobs,
    runs: dict[tuple[int, int], SideRun],
) -> Leg:
    found = Departures.empty(jobs)
    for at, of_run in runs.items():
        parts = [of_run.side.parts[index] for index in of_run.jobs.id.tolist()]
        for name, own in (
            ("ready_s", "arrival_s"),
            *((time, time) for time in ("scheduled_s", "first_token_s", "last_token_s")),
        ):
            getattr(found, name)[at][: len(parts)] = [getattr(part, own) for part in parts]
        found.replica[at][: len(parts)] = [part.replica for part in parts]
    check_served(members, found)
    uses = [_use(members, side, place, jobs, found, runs) for place in range(len(side.stations))]
    name = members[0].stations[side.stations.start].name if len(uses) == 1 else side.role.name
    return Leg(Station(name, _never, side.role), jobs, found, tuple(uses))


def _never(jobs: ChunkJobs) -> tuple[Departures, *tuple[Use, ...]]:
    raise AssertionError("this station has served its jobs in the loop of the network")


def _use(
    members: Sequence[Member],
    side: SidePlan,
    place: int,
    jobs: ChunkJobs,
    served: Departures,
    runs: dict[tuple[int, int], SideRun],
) -> Use:
    """Of the pool at a place on its side."""
    pools = [member.stations[member.sides[side.number].stations[place]] for member in members]
    configs, seeds, _ = shape_of(jobs)
    totals = Totals.empty(configs, seeds)
    itl: list[list[WeightedGaps]] = [[pooled([])] * seeds for _ in members]
    own = [list(of_seeds) for of_seeds in jobs]
    for at, of_run in runs.items():
        replicas, one = of_run.pools[place], jobs[at[0]][at[1]]
        add_totals(totals, at, Outcome([], replicas))
        chosen = served.replica[at][: len(one)].astype(np.int64) - replicas[0].index
        own[at[0]][at[1]] = replace(one, chosen=chosen)
        itl[at[0]][at[1]] = pooled(
            [_gaps_of(of_run.gaps[replica.index], replica.index, one, served, at) for replica in replicas]
        )
    return use_of(pools, own, totals, itl)


def _gaps_of(gaps: Gaps, replica: int, jobs: Jobs, served: Departures, at: tuple[int, int]) -> WeightedGaps:
    """Those of one replica after the first token of the first measured job that came to it."""
    here = jobs.measured & (served.replica[at][: len(jobs)] == replica)
    if not here.any():
        return gaps.after(np.inf)
    counted = np.flatnonzero(here)
    first = counted[np.lexsort((jobs.id[counted], served.ready_s[at][counted]))[0]]
    return gaps.after(float(served.first_token_s[at][first]))


def _link_leg(before: Leg, members: Sequence[Member], links: dict[tuple[int, int], Transfers | None]) -> Leg:
    """The link behind a prefill side, which requests of one token do not pass."""
    jobs: list[list[Jobs]] = [[] for _ in before.jobs]
    for at, one in each(before.jobs):
        times = before.departures
        served_s = (times.first_token_s - times.scheduled_s)[at][: len(one)]
        came = replace(one, origin=Origin(times.replica[at][: len(one)], served_s))
        jobs[at[0]].append(came.after_prefill(times.last_token_s[at][: len(one)])[0])
    found, busy_s = Departures.empty(jobs), np.zeros(shape_of(jobs)[:2])
    for at, one in each(jobs):
        done = links.get(at)
        if done is None:
            continue
        visits = [done.done[index] for index in one.id.tolist()]
        columns = np.array(visits, dtype=float).reshape(-1, 3).T
        for name, column in zip(("ready_s", "scheduled_s", "last_token_s"), columns, strict=True):
            getattr(found, name)[at][: len(one)] = column
        assert one.origin is not None
        found.replica[at][: len(one)] = one.origin.replica
        latency_s = members[at[0]].link.latency_s  # type: ignore[union-attr]
        busy_s[at] = (columns[2] - columns[1] - latency_s).sum()
    found.first_token_s[...] = found.last_token_s
    replicas = np.array([0 if member.link is None else member.link.replicas for member in members], dtype=float)
    name = next((member.link.name for member in members if member.link is not None), "link")
    return Leg(Station(name, _never), jobs, found, (use_without_devices(name, jobs, replicas, busy_s),))


def _sent(link: Leg) -> ChunkJobs:
    return [
        [one.at(link.departures.last_token_s[config, seed][: len(one)]) for seed, one in enumerate(of_seeds)]
        for config, of_seeds in enumerate(link.jobs)
    ]


def legs_of_ways(
    members: Sequence[Member],
    walks: Sequence[Sequence[Walked]],
    jobs: ChunkJobs,
    llm: Sequence[Leg],
    runs: dict[tuple[int, int], NetworkRun],
) -> list[Leg]:
    """The legs of all visits in their order: those of the stages, and between them those of the LLM, ``llm``."""
    if not runs:  # no configuration of the chunk can run
        return list(llm)
    numbers = max(len(one.ways.hops) for one in runs.values() if one.ways is not None)
    now_s = {at: one.arrival_s.copy() for at, one in runs.items()}
    found: list[Leg] = []
    told: set[tuple[int, int]] = set()
    longest = max(runs.values(), key=lambda one: len(one.ways.hops) if one.ways is not None else 0)
    for number in range(numbers):
        kind = longest.ways.hops[number]  # type: ignore[union-attr]
        if isinstance(kind, int):
            found += [_visit_leg(leg, kind, jobs, now_s) for leg in llm]
            continue
        stop = Stop(members, walks, kind.place, kind.step)
        hops: dict[tuple[int, int], Hop] = {
            at: one.ways.hops[number]  # type: ignore[union-attr, misc]
            for at, one in runs.items()
            if number < len(one.ways.hops)  # type: ignore[union-attr]
        }
        first = (kind.place, kind.step) not in told
        told.add((kind.place, kind.step))
        found.append(_hop_leg(stop, jobs, hops, runs, now_s, first))
    return found


def _visit_leg(leg: Leg, visit: int, jobs: ChunkJobs, now_s: dict[tuple[int, int], np.ndarray]) -> Leg:
    """Of a leg with all visits to the LLM one visit; the first tells of the use."""
    own: list[list[Jobs]] = [[] for _ in jobs]
    places: dict[tuple[int, int], np.ndarray] = {}
    for at, one in each(leg.jobs):
        count = len(jobs[at[0]][at[1]])
        places[at] = np.flatnonzero(one.id // count == visit)
        some = one.some(places[at])
        own[at[0]].append(replace(some, id=some.id - visit * count))
    departures = Departures.empty(own)
    for at, one in each(own):
        for name in ("ready_s", "scheduled_s", "first_token_s", "last_token_s", "replica"):
            getattr(departures, name)[at][: len(one)] = getattr(leg.departures, name)[at][places[at]]
        own[at[0]][at[1]] = one.at(departures.ready_s[at][: len(one)])
        if at in now_s:
            now_s[at][one.id] = departures.last_token_s[at][: len(one)]
    return replace(leg, jobs=own, departures=departures, uses=leg.uses if visit == 0 else (), visit=visit)


def _hop_leg(
    stop: Stop,
    jobs: ChunkJobs,
    hops: dict[tuple[int, int], Hop],
    runs: dict[tuple[int, int], NetworkRun],
    now_s: dict[tuple[int, int], np.ndarray],
    first: bool,
) -> Leg:
    """Of one step of one visit; its first visit tells of the use."""
    found = Departures.empty(jobs)
    visited = np.zeros(found.ready_s.shape, dtype=bool)
    own = [list(of_seeds) for of_seeds in jobs]
    for at, one in each(jobs):
        if at not in runs:
            continue
        for name in ("ready_s", "scheduled_s", "first_token_s", "last_token_s"):
            getattr(found, name)[at][: len(one)] = now_s[at]
        own[at[0]][at[1]] = one.at(now_s[at].copy())
        if at not in hops:
            continue
        hop = hops[at]
        for request in hop.ids.tolist():
            came_s, began_s, left_s, replica = hop.times(request)
            found.ready_s[at][request], found.scheduled_s[at][request] = came_s, began_s
            found.first_token_s[at][request] = found.last_token_s[at][request] = left_s
            found.replica[at][request] = replica
            visited[at][request] = True
        now_s[at][:] = found.last_token_s[at][: len(one)]
    stage = stop.stage(0)
    station = Station(
        stop.label,
        _never,
        streams=stage.kind.streams(stage.parameters),
        stage=stage.name,
        waits=stop.planned(0).kind is not Delay,
    )
    uses = (_hop_use(stop, jobs, runs),) if first else ()
    return Leg(station, own, replace(found, visited=visited), uses)


def _hop_use(stop: Stop, jobs: ChunkJobs, runs: dict[tuple[int, int], NetworkRun]) -> Use:
    """What a step used in all its visits; where stages share a pool, the first of them tells of it."""
    number = stop.planned(0).station
    if number is not None:
        pools = [member.stations[number] for member in stop.members]
        totals = Totals.empty(*shape_of(jobs)[:2])
        own = [list(of_seeds) for of_seeds in jobs]
        for at, one in runs.items():
            add_totals(totals, at, Outcome([], list(one.passes[number].pools[0])))
            own[at[0]][at[1]] = _computed(pools[at[0]], one.passes[number])
        return replace(use_of(pools, own, totals, None), name=stop.label)
    busy_s = np.zeros(shape_of(jobs)[:2])
    for at, one in runs.items():
        assert one.ways is not None
        busy_s[at] = sum(hop.busy_s for hop in one.ways.hops if isinstance(hop, Hop) and hop.of(stop))
    servers = np.array([float(stop.all_servers(config)) for config in range(len(stop.members))])
    return on_pool(stop, use_without_devices(stop.label, jobs, servers, busy_s))


def _computed(pool: StationPlan, of_run: SideRun) -> Jobs:
    """The passes that a pool computed."""
    prompt = np.array([part.prompt_tokens for part in of_run.side.parts.values()], dtype=np.int64)
    none = np.zeros_like(prompt)
    demand = Demand.of(Tokens(prompt, none + 1, none, none, none), pool.role)
    return Jobs(np.arange(len(prompt)), none.astype(float), demand, none.astype(bool))
