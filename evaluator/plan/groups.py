"""Configurations in groups of one sequence of compiled structures, with shapes that hold every one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from evaluator.cost.lanes import RowCounts, common_counts, rooflines, structure
from evaluator.metrics.outcomes import OK
from evaluator.plan.configuration import Configuration
from evaluator.plan.joint_pools import joint_program
from evaluator.plan.route import RouteSizes
from evaluator.plan.simulators import (
    FCFS_RESERVED,
    ITERATION,
    CompileKey,
    goes_by_work,
    grows_by_blocks,
    has_frontend,
    is_joint,
    on_demand,
    program,
    ring_of,
    routed_by,
    serving,
    swaps,
)
from evaluator.plan.station import StationPlan
from evaluator.policies import policy
from evaluator.replica.replica_build import RunnableReplica
from evaluator.routing import Sent, assign, router_of, stream
from evaluator.scenario import Workload
from evaluator.traffic.requests import cached_by_content

FEWEST_BLOCK_TOKENS = 64
"""That a program for KV on demand has cells for: blocks of most engines have so many or fewer."""

FEWEST_STOPS = RouteSizes(visits=64, stops=1024, queues=8, servers=8)
"""That a program for stages in the loop has room for: more queues or servers cost next to nothing."""


@dataclass(frozen=True)
class StationGroup:
    """What the engine is compiled for at one station, as its key says, and the shapes that hold all configurations."""

    key: CompileKey
    ring: int  # steps that rings of the engine hold: a power of two above the longest output
    rows: RowCounts
    lane_requests: int  # slots of a lane: a power of two, at least the most requests that any lane gets
    # With KV on demand that both programs count by blocks: a power of two, at least the tokens of any block. Else 0.
    block_tokens: int = 0
    looks: int = 0  # of autoscalers, a power of two: at least those that any of them remembers; 0: there is none
    routes: RouteSizes | None = None  # of stages in the loop: powers of two
    # Of the whole run at all stations of the key, where programs are to be compiled no further than these pay back;
    # None: optimised in any case.
    requests_of_program: int | None = None


@dataclass(frozen=True)
class Group:
    """Configurations of one engine with as many requests and, vectorised, the same compiled program at every
    station."""

    configurations: list[Configuration]
    requests: int
    simulator: str = ITERATION
    # Of the vectorised engine, else none: one for each station, or one for all pools in one loop and those of stages.
    stations: tuple[StationGroup, ...] = ()

    def of_station(self, number: int) -> StationGroup:
        """The group of a station of the configurations, by its number."""
        # Pools in one loop have one entry together, at the front: so many station numbers more than entries
        # there are.
        joint = len(self.configurations[0].stations) - len(self.stations)
        return self.stations[max(number - joint, 0)]


class Alike(NamedTuple):
    """Configurations that share their stations and measure the same requests."""

    simulator: str
    requests: int
    ends: tuple[int, int]
    configurations: list[Configuration]
    keys: list[tuple[CompileKey, tuple[StationPlan, ...]]]  # each with the stations that its program runs


def groups_of(
    configurations: Sequence[Configuration],
    seeds: tuple[int, ...],
    programs: Mapping[CompileKey, tuple[CompileKey, int]] | None = None,
    rest: int | None = None,
) -> list[Group]:
    """Configurations by the compile keys of their stations, in the order of the first of each group.

    The shapes of a key (ring, rows, slots of a lane) are the largest that any configuration needs at any of its
    stations, so that one compiled program serves all of them. Configurations of a group also measure the same
    requests, so that the statistics of a chunk are of one window. ``programs`` as of ``programs_of``; keys that are not
    in it have programs of their own, for ``rest`` requests (``StationGroup.requests_of_program``).
    """
    programs = programs or {}
    requests_of = dict(programs.values())  # by the key of a program
    by_keys: dict[tuple, list[Configuration]] = {}
    having: dict[CompileKey, list[tuple[Configuration, StationPlan]]] = {}
    for alike in _alike(configurations):
        run_by = [(programs.get(key, (key, rest))[0], stations) for key, stations in alike.keys]
        first = alike.configurations[0]
        for key, stations in run_by:
            having.setdefault(key, []).extend((first, station) for station in stations)
        kind = alike.simulator, alike.requests, alike.ends, tuple(key for key, _ in run_by), _route(first)
        by_keys.setdefault(kind, []).extend(alike.configurations)
    # One set of shapes per key, over the configurations of all groups that have it: the same program serves them.
    shaped = {
        key: replace(_shaped(key, stations, seeds), requests_of_program=requests_of.get(key, rest))
        for key, stations in having.items()
    }
    position = {id(configuration): number for number, configuration in enumerate(configurations)}
    return [
        Group(
            # In the order of the grid: chunks are cut from this list, and their rows are written as they come.
            sorted(some, key=lambda same: position[id(same)]),
            requests,
            simulator,
            tuple(shaped[key] for key in keys),
        )
        for (simulator, requests, _, keys, _), some in by_keys.items()
    ]


def programs_of(configurations: Sequence[Configuration], runs: int) -> dict[CompileKey, tuple[CompileKey, int]]:
    """By compile key of the configurations, each of which is simulated so often: the key of the program that serves
    them, and how many requests this program serves in all."""
    requests_of: Counter[CompileKey] = Counter()
    for alike in _alike(configurations):
        for key, _ in alike.keys:
            requests_of[key] += runs * alike.requests * len(alike.configurations)
    of_program: Counter[CompileKey] = Counter()
    program_of = {key: serving(key, requests, requests_of) for key, requests in requests_of.items()}
    for key, requests in requests_of.items():
        of_program[program_of[key]] += requests
    return {key: (which, of_program[which]) for key, which in program_of.items()}


def _alike(configurations: Sequence[Configuration]) -> Iterator[Alike]:
    # Rates share the object of their stations, figures of devices what was checked: one key is made for all of them.
    same_stations: dict[tuple, list[Configuration]] = {}
    for configuration in configurations:
        workload = configuration.workload
        # The statistics of a chunk are of one window of requests, hence ``ends`` (warm-up and cool-down) in the key.
        same = (id(configuration.of_design.checked), configuration.simulator, workload.requests, workload.ends)
        same_stations.setdefault(same, []).append(configuration)
    for (_, simulator, requests, ends), some in same_stations.items():
        keys = list(_keys(some[0])) if simulator == ITERATION else []
        yield Alike(simulator, requests, ends, some, keys)


def _keys(configuration: Configuration) -> Iterator[tuple[CompileKey, tuple[StationPlan, ...]]]:
    """The compile keys of a configuration, each with the stations that its program runs."""
    alone = configuration.stations
    if configuration.joint_pools:
        # One key for all pools that answer, since one program runs them, then one for each station of a stage.
        alone = configuration.stations[len(configuration.answering) :]
        yield _key_of_pools(configuration), tuple(configuration.answering)
    for station in alone:
        yield _key(configuration.workload, station), (station,)


def _route(configuration: Configuration) -> tuple[str, ...]:
    """What the way of a request depends on where there are several pools, and what their use is told by."""
    several = configuration.stations if len(configuration.stations) > 1 else ()
    stages = configuration.pipeline.route if configuration.pipeline is not None and configuration.staged else ()
    return (*(f"{station.role.name} {station.name}" for station in several), f"{configuration.joint_pools}", *stages)


def _key(workload: Workload, station: StationPlan) -> CompileKey:
    replica, requests = station.design.replica, workload.requests
    frontend = has_frontend(workload, station.design.calibration)
    lockstep = station.lockstep
    joint = is_joint(workload, station.deployment, frontend, lockstep)
    branches, cached = station.extremes.branches, cached_by_content(workload, station.deployment)
    session_turns = workload.feedback
    if replica is None:
        # It cannot run and no lane of it is computed: any program will do for its place among the groups.
        return replace(FCFS_RESERVED, requests=requests)
    which = program(
        station.deployment, joint, frontend, branches, cached, session_turns, lockstep, station.drafts, workload.agents
    )
    return _with_costs(which, [replica], requests)


def _with_costs(which: CompileKey, replicas: Sequence[RunnableReplica], requests: int) -> CompileKey:
    """The key with what the replicas compile in: forms of cost, windows of the KV, experts."""
    # Experts in any replica make the program compute the touched share, for all lanes.
    costs = [replica.costing.typical[0] for replica in replicas]
    forms = _forms(which.pipeline_ranks, replicas)
    return replace(
        which,
        windowed=any(replica.kv.window is not None for replica in replicas),
        experts=any(len(roofline.expert_rows.flop) > 0 for cost in costs for roofline in rooflines(cost)),
        # One form where all agree; else the form of each rank's costs is compiled in and chosen by the replica
        # at run time.
        cost=structure(costs[0]) if costs and not forms else (),
        forms=forms,
        requests=requests,
    )


def _forms(pipeline_ranks: int, replicas: Sequence[RunnableReplica]) -> tuple[tuple[Hashable, ...], ...]:
    """The forms of the costs of each pipeline rank; none where all replicas have the same."""
    of_ranks = []
    for number in range(pipeline_ranks):
        # A replica with fewer ranks has a batch in none behind its last: any of its costs will do there.
        costs = (replica.costing.typical[min(number, len(replica.costing.typical) - 1)] for replica in replicas)
        of_ranks.append(tuple(sorted({structure(cost) for cost in costs}, key=repr)))
    return tuple(of_ranks) if any(len(forms) > 1 for forms in of_ranks) else ()


def _key_of_pools(configuration: Configuration) -> CompileKey:
    """The key of pools that run in one loop."""
    workload = configuration.workload
    pools, staged = configuration.answering, configuration.pipeline is not None
    frontend = any(has_frontend(workload, station.design.calibration) for station in pools)
    cached = any(cached_by_content(workload, station.deployment) for station in pools)
    which = joint_program(
        pools, configuration.phases, configuration.link, frontend, staged, workload.feedback, cached, workload.agents,
        configuration.in_loop,
    )  # fmt: skip
    able = [station.design.replica for station in pools if station.design.replica is not None]
    return _with_costs(which, able, workload.requests)


def _shaped(key: CompileKey, having: list[tuple[Configuration, StationPlan]], seeds: tuple[int, ...]) -> StationGroup:
    # What cannot run has no lane, and must not make those of others larger.
    able = [station for configuration, station in having if configuration.status == OK]
    alone = {
        (pool.deployment.ranks, pool.deployment.router, pool.number): pool for pool in able if pool.most_jobs is None
    }
    most_jobs = [station.most_jobs or 1 for station in able]
    # In one loop the lane holds the jobs of all phases.
    if key.stages:
        pipelines = [configuration.pipeline for configuration, _ in having if configuration.status == OK]
        sizes = [pipeline.in_loop for pipeline in pipelines if pipeline is not None and pipeline.in_loop is not None]
        routes = RouteSizes(*(1 << (max(size) - 1).bit_length() for size in zip(*sizes, FEWEST_STOPS, strict=True)))
        return replace(station_group(key, able, max(key.requests, routes.visits) * key.phases), routes=routes)
    if key.pools > 1:
        return station_group(key, able, key.requests * key.phases)
    together = key.replicas > 1
    shares = [key.requests if together else _largest_share(pool, seeds, key.requests) for pool in alone.values()]
    return station_group(key, able, max((*shares, *most_jobs), default=1))


def station_group(key: CompileKey, stations: Sequence[StationPlan], most_jobs: int) -> StationGroup:
    """The key with shapes that hold stations which can run, of one cost structure and alike in having windows.

    ``most_jobs``: the most that any lane of theirs serves, a replica or all that run together.
    """
    ring = ring_of(max((station.extremes.output for station in stations), default=0))
    designs = {id(station.design): station.design.ready for station in stations}  # configurations share their designs
    costings = {id(ready.costing): ready.costing for ready in designs.values()}
    rows = common_counts([cost for costing in costings.values() for cost in costing.typical])
    windowed = any(ready.kv.window is not None for ready in designs.values())
    # A power of two, so that few widths are compiled; a half-empty lane costs memory and next to no time.
    slots, block = 1 << max(most_jobs - 1, 1).bit_length(), 0
    key = _with_parts(key, stations)
    if key.on_demand or (grows_by_blocks(key) and key.preempts):
        block = max((FEWEST_BLOCK_TOKENS, *(ready.kv.block_tokens for ready in designs.values())))
    scaling = [station.deployment.autoscaling for station in stations]
    looks = max((policy.looks for policy in scaling if policy is not None), default=0)
    return StationGroup(
        replace(key, windowed=windowed),
        ring, rows, slots,
        1 << (block - 1).bit_length() if block else 0,
        1 << max(looks - 1, 1).bit_length() if looks else 0,
    )  # fmt: skip


def _kv_seen(key: CompileKey, stations: Sequence[StationPlan]) -> bool:
    """Whether anybody looks at the KV of replicas that run together while a batch is under way."""
    routers = [router_of(routed_by(station.deployment)) for station in stations]
    looked_at = any(router.by_prefix or router.counts == "kv_units" for router in routers)
    # A reservation asks the cache, too; on demand it is made between two batches.
    by_reservations = (
        key.cached and key.kv_reservation and not all(on_demand(station.deployment) for station in stations)
    )
    # Reserved KV changes at ends of batches alone, but for what a prefix cache finds of it.
    return key.replicas > 1 and ((looked_at and (key.preempts or key.cached)) or by_reservations)


def _with_parts(key: CompileKey, stations: Sequence[StationPlan]) -> CompileKey:
    """The key with the parts of a general program that any of the stations needs."""
    if not key.preemptive and not key.on_demand:  # who runs short of KV on demand runs again in such a program
        return key
    deployments = [station.deployment for station in stations]
    key = replace(key, preempts=any(map(on_demand, deployments)))
    return replace(
        key,
        kv_seen=_kv_seen(key, stations),
        # A batch may be formed in two turns, the first of which admits (``preemptive.batch``).
        admits_first=any(policy(deployment.batching.policy).prefill_alone for deployment in deployments),
        by_work=any(map(goes_by_work, deployments)),
        admits_decodes=any(map(_admits_decodes, stations)),
    )


def _admits_decodes(station: StationPlan) -> bool:
    """Whether some requests decode as soon as they are admitted: their KV is there, or comes back from the host."""
    return station.role.prompt_resident or station.extremes.least_prompt == 0 or swaps(station.deployment)


def _largest_share(station: StationPlan, seeds: tuple[int, ...], requests: int) -> int:
    deployment = station.deployment
    router = router_of(routed_by(deployment)).independent
    # Who counts, or goes by prompts or sessions, may send everything to one replica.
    if deployment.ranks == 1 or router is None or router.by_prompt or router.by_session:
        return requests
    # Only routers that look at no prompt come here: any prompts will do.
    prompts = np.zeros(requests, dtype=np.int64)
    shares = (
        assign(routed_by(deployment), Sent(prompts, deployment.ranks, stream(seed, station.number))) for seed in seeds
    )
    # Dealt out as the run will do it, with the same draws: a bound from chance would have to be far wider.
    return max(int(np.bincount(chosen).max()) for chosen in shares)
