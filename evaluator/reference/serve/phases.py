"""The sides of a network on the reference: their replicas and requests before a run, and what became of them after."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from evaluator.cost.memory import kv_units
from evaluator.metrics.use import PoolTotals, WeightedGaps, pooled
from evaluator.plan import Configuration, StationPlan
from evaluator.plan.phases import PhasePools
from evaluator.plan.simulators import by_reports, routed_by
from evaluator.reference import Iteration, Limits, PoolOutcome, Request
from evaluator.reference.lockstep import in_lockstep
from evaluator.reference.replica import Replica
from evaluator.reference.routing import Choose as OfPool
from evaluator.reference.routing import PhaseRouter, chooser, fleet_router
from evaluator.reference.serve.pool import (
    Observe,
    TokenGaps,
    branches_of,
    curve_of,
    limits_of,
    say_priorities,
    scaling_of,
)
from evaluator.reference.stations.fleet import DeviceBudget, FleetPhase, ReplicaFleet
from evaluator.reference.stations.phase import Choose, PhaseStation
from evaluator.reference.stations.pool import PoolStation
from evaluator.routing import stream
from evaluator.speculation import keys
from evaluator.stations.contract import JobColumns, RunKey
from evaluator.stations.joint_visits import PoolServed
from evaluator.stations.lane_jobs import OPEN_LOOP, LaneJobs
from evaluator.traffic.jobs import Demand, Jobs, branch_units, shared_units
from evaluator.traffic.requests import Tokens, cached_by_content
from evaluator.traffic.sharing import PrefixContent


@dataclass(frozen=True, eq=False)
class PhaseRun:
    """A side after a run: its jobs, its replicas by pool, and the gaps between the tokens that each replica gave."""

    jobs: Jobs
    phase: PhaseStation
    pools: tuple[list[Replica], ...]
    gaps: tuple[TokenGaps, ...]
    fleet: ReplicaFleet | None = None  # of one pool whose replicas come and go


def phase_run(
    configuration: Configuration,
    run: RunKey,
    seed: int,
    phase: PhasePools,
    jobs: Jobs,
    fleets: FleetStart,
    observe: Observe | None,
) -> PhaseRun:
    """A side under its jobs, ready to run; ``run`` is (configuration, seed), by which ``observe`` knows it."""
    users = configuration.users or OPEN_LOOP
    lane = LaneJobs(*run, -1, jobs, slice(0, len(jobs)), len(jobs), users, phase.stations.start, by_id=True)
    pools: list[list[Replica]] = []
    gaps: list[TokenGaps] = []
    fleet: ReplicaFleet | None = None
    # Only where a transfer waits for room: else a request takes its KV on the decode side when it is admitted
    # there.
    kv_reserved = phase.role.prompt_resident and configuration.link is not None and configuration.link.backpressure
    for number in phase.stations:
        station = configuration.stations[number]
        limits = limits_of(station, jobs.demand)
        by_content = cached_by_content(configuration.workload, station.deployment)
        limits = replace(limits, kv_reserved=kv_reserved, prefix_caching=by_content)
        pool_gaps = [TokenGaps(_until(jobs)) for _ in range(station.deployment.ranks)]
        # Replicas are numbered over the whole phase, pool after pool, as routers and links know them.
        make = partial(_replica, station, limits, gaps, observe, lane)
        numbers = range(len(gaps), len(gaps) + len(pool_gaps))
        gaps += pool_gaps
        scaling = scaling_of(station)
        if scaling is not None:  # alone on its side (``plan.scaling``)
            router = fleet_router(phase.router, seed)
            fleet = ReplicaFleet(scaling, make, router, len(jobs), fleets.begin_s, fleets.budget)
            pools.append(fleet.replicas)
            continue
        pools.append([make(index) for index in numbers])
        in_lockstep(pools[-1], station.lockstep)
    replicas = [replica for pool in pools for replica in pool]
    choose = _choose(configuration, seed, phase, jobs, replicas, None if fleet is None else fleet.choose)
    # Of two requests that users send at one time the one that opens a session comes first (``Clients``), whatever its
    # number.
    as_sent = phase.number == 0 and configuration.workload.feedback and configuration.pipeline is None
    if fleet is not None:
        return PhaseRun(jobs, FleetPhase(fleet, _parts(jobs), choose, as_sent), tuple(pools), tuple(gaps), fleet)
    side = PhaseStation(PoolStation(replicas, choose), _parts(jobs), choose, as_sent)
    return PhaseRun(jobs, side, tuple(pools), tuple(gaps))


def _replica(
    station: StationPlan,
    limits: Limits,
    gaps: Sequence[TokenGaps],
    observe: Observe | None,
    lane: LaneJobs,
    index: int,
) -> Replica:
    built = station.design.ready
    return Replica(
        index, built.pipeline_ranks, station.deployment.batching.policy, limits,
        window=built.kv.window, leap=not by_reports(station.deployment),
        observe=partial(_watch, gaps[index], observe, lane),
    )  # fmt: skip


class FleetStart(NamedTuple):
    """What the fleets of a run have in common: from when they look, and the devices that they share, if they do."""

    begin_s: float
    budget: DeviceBudget | None


def fleet_start(configuration: Configuration, jobs: Jobs) -> FleetStart:
    """Of the fleets of a configuration under its jobs."""
    pools = [pool for pool in configuration.answering if pool.deployment.autoscaling is not None]
    begin_s = 0.0 if configuration.users is not None else float(jobs.ready_s.min(initial=math.inf))
    devices = configuration.answering[0].deployment.autoscaling_devices
    if devices is None or not pools:
        return FleetStart(begin_s, None)
    return FleetStart(begin_s, DeviceBudget(devices, [pool.design.devices for pool in pools]))


def _until(jobs: Jobs) -> int:
    """All ids of the jobs are below it."""
    return int(jobs.id.max(initial=-1)) + 1


def _watch(gaps: TokenGaps, observe: Observe | None, lane: LaneJobs, iteration: Iteration) -> None:
    gaps.add(iteration)
    if observe is not None:
        observe(lane, iteration)


def _parts(jobs: Jobs) -> dict[int, Request]:
    """Requests by their ids. How much KV one takes, and each of its branches, is known with its pool."""
    demand = jobs.demand
    # KV is 0 here and set by `_choose`: it depends on the pool.
    columns = (jobs.ready_s, demand.compute_tokens, demand.prompt_tokens, demand.output_tokens, np.zeros_like(jobs.id))
    rows = zip(jobs.id.tolist(), *(column.tolist() for column in columns), strict=True)
    requests = {index: Request(index, *row) for index, *row in rows}
    # Lengths are predicted for one pool alone (``plan.checks.priority_problem``).
    say_priorities(requests.values(), None if jobs.classes is None else jobs.classes.of(jobs.id).priority)
    session_of = None if jobs.sharing is None else jobs.sharing.session
    if session_of is not None:  # the ids of later visits follow those of all requests (``network.all_visits``)
        for request in requests.values():
            request.session = int(session_of[request.index % len(session_of)])
    if demand.branch_tokens is not None:
        branches = branches_of(demand.branch_tokens, demand.branch_tokens)
        for request, (lengths, _) in zip(requests.values(), branches, strict=True):
            request.branches = lengths
    return requests


def _choose(
    configuration: Configuration,
    seed: int,
    phase: PhasePools,
    jobs: Jobs,
    replicas: Sequence[Replica],
    serving: OfPool | None = None,
) -> Choose:
    """The router of a side; a request learns from its pool how much KV it takes there.

    ``serving``: the router of those that serve, where replicas come and go.
    """
    pools = [configuration.stations[number] for number in phase.stations]
    demands = [_asked_of(pool, phase, jobs.demand) for pool in pools]
    pool_of = np.repeat(np.arange(len(pools)), [pool.deployment.ranks for pool in pools]).tolist()
    places = dict(zip(jobs.id.tolist(), range(len(jobs)), strict=True))
    units = [pool.held_units(demand).tolist() for pool, demand in zip(pools, demands, strict=True)]
    outputs = [demand.output_tokens.tolist() for demand in demands]
    # By id: a request accepts the same drafts at whichever replica it is served, on the chain and in a joint run.
    drawn = list(keys(seed, jobs.id))
    shared = [shared_units(jobs.demand, pool.design.ready.kv).tolist() for pool in pools]
    tokens = jobs.demand.branch_tokens
    branches = [
        branches_of(tokens, branch_units(jobs.demand, pool.design.ready.kv)) for pool in pools if tokens is not None
    ]
    contents = [_contents(configuration, pool, jobs, demand) for pool, demand in zip(pools, demands, strict=True)]
    router = serving if serving is not None else _router(seed, phase, jobs, replicas)

    def choose(request: Request, now: float, group: int | None = None) -> Replica:
        position = places[request.index]
        # A router that goes by prefixes looks for it in all pools, which then have blocks of one size.
        request.content = contents[0][position] if contents[0] else ()
        replica = router(request, now, *(() if group is None else (group,)))
        # The pool's own figures are set once the replica is known: pools of a phase may keep a request's KV in
        # other blocks or dtypes.
        pool = pool_of[replica.index]
        request.content = contents[pool][position] if contents[pool] else ()
        request.kv_units, request.shared_units = int(units[pool][position]), int(shared[pool][position])
        request.output_tokens = outputs[pool][position]
        request.curve = curve_of(pools[pool], drawn[position], request.output_tokens)
        if branches:
            request.branches, request.branch_units = branches[pool][position]
        return replica

    return choose


def _router(seed: int, phase: PhasePools, jobs: Jobs, replicas: Sequence[Replica]) -> Callable[..., Replica]:
    """The router of one pool without groups, or of a side with them."""
    if phase.replicas is None:
        return chooser(phase.router, replicas, seed, phase.stations.start)
    # By id and not by place: jobs of a decode phase are those that prefill handed on, in whatever order.
    models = np.zeros(_until(jobs), dtype=np.int64)
    models[jobs.id] = jobs.demand.model
    draws, apart = stream(seed, phase.number), phase.apart(jobs.demand)
    if apart is not None:
        apart_of = np.zeros(_until(jobs), dtype=bool)
        apart_of[jobs.id] = apart
        return PhaseRouter(phase.replicas, phase.router, replicas, models.tolist(), draws, apart_of.tolist())
    return PhaseRouter(phase.replicas, phase.router, replicas, models.tolist(), draws)


def _asked_of(pool: StationPlan, phase: PhasePools, demand: Demand) -> Demand:
    """What jobs ask of a pool of their side: of prefill pools with mixed ones beside them, the first token alone."""
    return demand.apart(True) if phase.mixed_from is not None and pool.role.first_token_only else demand


def _contents(configuration: Configuration, pool: StationPlan, jobs: Jobs, demand: Demand) -> list[PrefixContent]:
    """What is in the blocks of each job, in the order of the jobs; none where the pool keeps nothing by its content."""
    if not cached_by_content(configuration.workload, pool.deployment):
        return []
    assert jobs.sharing is not None
    block_tokens = pool.design.ready.kv.block_tokens
    return list(jobs.sharing.contents(jobs.id, demand.prompt_tokens, demand.kv_tokens, block_tokens))


def pool_run(
    configuration: Configuration,
    run: RunKey,
    seed: int,
    number: int,
    observe: Observe | None,
) -> PhaseRun:
    """A pool for stages, ready to run; its parts come with the visits."""
    station, none = configuration.stations[number], np.zeros(0, dtype=np.int64)
    nobody = Demand.of(Tokens(none, none, none, none, none), station.role)
    jobs = Jobs(none, none.astype(float), nobody, none.astype(bool))
    lane = LaneJobs(*run, -1, jobs, slice(0, 0), 0, OPEN_LOOP, number, by_id=True)
    built, limits = station.design.ready, limits_of(station, nobody)
    replicas = [
        Replica(
            index, built.pipeline_ranks, station.deployment.batching.policy, limits,
            window=built.kv.window, leap=not by_reports(station.deployment),
            observe=None if observe is None else partial(observe, lane),
        )
        for index in range(station.deployment.ranks)
    ]  # fmt: skip
    router = chooser(routed_by(station.deployment), replicas, seed, number)

    def choose(request: Request, now: float, group: int | None = None) -> Replica:
        # A pass gives a vector, so that it never holds more than its prompt.
        request.kv_units = int(kv_units(built.kv, request.prompt_tokens))
        return router(request, now)

    in_lockstep(replicas, station.lockstep)
    # No gaps: a pass gives no tokens.
    return PhaseRun(jobs, PhaseStation(PoolStation(replicas, choose), {}, choose), (replicas,), ())


def phase_served(run: PhaseRun) -> tuple[JobColumns, tuple[PoolServed, ...]]:
    """What became of the jobs of a side, and of the replicas of its pools."""
    parts = [run.phase.parts[index] for index in run.jobs.id.tolist()]
    names = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")
    served = {name: np.array([getattr(part, name) for part in parts], dtype=float) for name in names}
    served["replica"] = np.array([part.replica for part in parts], dtype=np.int64)
    if any(replica.limits.prefix_caching for replica in run.phase.pool.replicas):
        served["hit_tokens"] = np.array([part.hit_tokens for part in parts], dtype=np.int64)
    return served, tuple(_pool_served(run, replicas, served) for replicas in run.pools)


def _pool_served(run: PhaseRun, replicas: list[Replica], served: JobColumns) -> PoolServed:
    # Of a fleet several one after the other in one slot.
    numbers = dict.fromkeys(replica.index for replica in replicas)
    gaps = [_gaps_of(run.gaps[number], number, run.jobs, served) for number in numbers]
    alive = None if run.fleet is None else np.array(run.fleet.alive)
    return PoolServed(PoolTotals.of(PoolOutcome([], replicas)), pooled(gaps), replicas[0].index, alive)


def _gaps_of(gaps: TokenGaps, replica: int, jobs: Jobs, served: JobColumns) -> WeightedGaps:
    """The gaps of one replica after the first token of the first measured job that came to it."""
    here = jobs.measured & (served["replica"] == replica)
    if not here.any():
        return gaps.after(np.inf)
    counted = np.flatnonzero(here)
    # The first by arrival, ties by id: in that order lanes of the chain have their requests, and count their
    # gaps.
    first = counted[np.lexsort((jobs.id[counted], served["arrival_s"][counted]))[0]]
    return gaps.after(float(served["first_token_s"][first]))
