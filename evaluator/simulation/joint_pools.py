"""Pools that depend on one another, on the vectorised engine: a lane for each configuration and seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from evaluator.cost.iteration import IterationCost
from evaluator.cost.lanes import stack, structure
from evaluator.cost.one_of import OneOf
from evaluator.cost.quantities import holds_everywhere
from evaluator.metrics.outcomes import OK
from evaluator.metrics.use import PoolTotals
from evaluator.plan import Configuration, Plan, StationGroup, StationPlan
from evaluator.simulation.lanes import costs_of, lanes_per_call, limits_of, program_of, results_of, rules_of
from evaluator.simulation.request_dependencies import PoolJobs, by_prefix, cache_shape, contents_of, session_turns_of
from evaluator.simulation.routing_tables import choices_of
from evaluator.simulation.stops import RouteStops, route_stops
from evaluator.speculation import keys
from evaluator.stations.contract import ChunkJobs, RunKey, StationVisit, by_run, whole_table
from evaluator.stations.engine import LaneResult, Requests, preemptive
from evaluator.stations.engine.common import histogram
from evaluator.stations.engine.common.rings import NONE
from evaluator.stations.engine.common.speculation import Speculation
from evaluator.stations.joint_visits import JointResult, PoolServed, visits_of_joint_run
from evaluator.stations.lane_jobs import OPEN_LOOP
from evaluator.stations.route_visits import all_visits, visits_by_route
from evaluator.stations.stage_steps import StepStation
from evaluator.traffic.jobs import Jobs, shared_units
from evaluator.traffic.requests import cached_by_content


@dataclass(frozen=True)
class JointLane:
    """One configuration under one seed. ``phases`` are the jobs of each side, in the order of the requests.

    With ``stops`` a request has a job for each of its visits to the LLM, those of first visits in front.
    """

    configuration: Configuration
    run: RunKey
    seed: int
    requests: Jobs
    phases: tuple[Jobs, ...]
    goes_on: np.ndarray  # of the jobs of the first side: which of them have one on the second side
    stops: RouteStops | None = None  # None: requests pass no stages in the loop

    @property
    def jobs(self) -> int:
        """Of all sides."""
        return sum(map(len, self.phases))

    @property
    def at_pools(self) -> list[PoolJobs]:
        """Of every pool, the jobs that it may serve: those of its side."""
        pool_jobs, first = [], 0
        for phase, jobs in zip(self.configuration.phases, self.phases, strict=True):
            pool_jobs += [PoolJobs(self.configuration.stations[number], jobs, first=first) for number in phase.stations]
            first += len(jobs)
        return pool_jobs

    @property
    def pool_of_replica(self) -> np.ndarray:
        """By replica, pool after pool, the number of its pool."""
        counts = [station.deployment.ranks for station in self.configuration.answering]
        return np.repeat(np.arange(len(counts)), counts)


def visits_in_one_loop(
    plan: Plan, group: StationGroup, configurations: Sequence[Configuration], jobs: ChunkJobs
) -> list[StationVisit]:
    """The jobs of a chunk at all pools that give the answers, over all seeds; ``jobs`` as they come to the first."""
    # Behind stages jobs come in any order. The loop knows them by their ids, as the reference does: of several at one
    # time the lowest goes first. The order in which they are sent is told apart (``Network.order``).
    jobs = [
        [of_run if whole_table(of_run) else of_run.some(np.argsort(of_run.id)) for of_run in of_seeds]
        for of_seeds in jobs
    ]
    lanes = lanes_of(plan, configurations, jobs)
    runs = {lane.run: _joint_result(lane, result) for lane, result in _run_lanes(group, lanes)}
    return visits_of_joint_run(configurations, jobs, runs)


def visits_on_routes(
    plan: Plan, group: StationGroup, configurations: Sequence[Configuration], jobs: ChunkJobs
) -> list[StationVisit]:
    """The same where stages of a pipeline are in the loop, too: visits to all stations; ``jobs`` as clients have
    them."""
    all_routes = [plan.routes(configuration) if configuration.staged else [] for configuration in configurations]
    stops: dict[RunKey, RouteStops] = {}
    asked = [list(of_seeds) for of_seeds in jobs]
    for (config, seed), run_jobs in by_run(jobs):
        if configurations[config].status == OK:
            routes, steps = all_routes[config][seed], partial(StepStation, configurations, all_routes)
            stops[config, seed] = route_stops(routes, steps, config)
            asked[config][seed] = all_visits(configurations[config], routes, run_jobs)
    lanes = lanes_of(plan, configurations, asked)
    lanes = [replace(lane, requests=jobs[lane.run[0]][lane.run[1]], stops=stops[lane.run]) for lane in lanes]
    runs, routed = {}, {}
    for lane, result in _run_lanes(group, lanes):
        runs[lane.run] = _joint_result(lane, result)
        assert result.began_s is not None
        routed[lane.run] = stops[lane.run].after_run(result.began_s)
    llm = visits_of_joint_run(configurations, asked, runs)
    return visits_by_route(configurations, all_routes, jobs, llm, routed)


def _run_lanes(group: StationGroup, lanes: Sequence[JointLane]) -> Iterator[tuple[JointLane, LaneResult]]:
    cache = None
    if group.key.cached and lanes:
        most = max(len(lane.pool_of_replica) for lane in lanes)
        cache = cache_shape([of_pool for lane in lanes for of_pool in lane.at_pools], most, group.key.guesses)
    # Calls have the shape of full lanes, whatever the chunk: one compilation.
    size = lanes_per_call(group, len(lanes), cache=cache)
    results = results_of(program_of(group, cache), lambda some: engine_input(group, lanes[some]), len(lanes), size)
    return zip(lanes, results, strict=True)


def lanes_of(plan: Plan, configurations: Sequence[Configuration], jobs: ChunkJobs) -> list[JointLane]:
    """The lanes of the configurations that can run."""
    return [
        _lane(configurations[run[0]], run, plan.seeds[run[1]], run_jobs)
        for run, run_jobs in by_run(jobs)
        if configurations[run[0]].status == OK
    ]


def _lane(configuration: Configuration, run: RunKey, seed: int, jobs: Jobs) -> JointLane:
    if len(configuration.phases) == 1:
        return JointLane(configuration, run, seed, jobs, (jobs,), np.zeros(0, dtype=np.int64))
    # The second phase's jobs get their times in the loop; those here only say what they ask.
    later, _ = jobs.after_prefill(jobs.ready_s)
    return JointLane(configuration, run, seed, jobs, (jobs, later), jobs.demand.after_prefill[0])


# --- what the engine is given


def engine_input(group: StationGroup, lanes: Sequence[JointLane]) -> tuple[preemptive.Lane, Requests]:
    """What ``joint.run_lanes`` is given, with a leading axis (lane,)."""
    return _lanes(group, lanes), _requests(group, lanes)


def _requests(group: StationGroup, lanes: Sequence[JointLane]) -> Requests:
    width, pools = group.lane_requests + 1, group.key.pools
    # Requests are sent at their times; when jobs of second visits and of the second phase come is for the run to say.
    arrival = np.full((len(lanes), width), np.inf)
    tokens = np.zeros((3, len(lanes), width), dtype=np.int32)
    # The same job takes other units in a pool with other blocks or another dtype.
    units = np.zeros((len(lanes), pools, width), dtype=np.int32)
    for row, lane in enumerate(lanes):
        arrival[row, : len(lane.requests)] = lane.requests.ready_s
        first = 0
        for phase, jobs in zip(lane.configuration.phases, lane.phases, strict=True):
            served, demand = slice(first, first + len(jobs)), jobs.demand
            for column, values in enumerate((demand.compute_tokens, demand.prompt_tokens, demand.output_tokens)):
                tokens[column, row, served] = values
            for number in phase.stations:
                # Of both phases a job has the units of every pool that may serve it; the run says which does.
                units[row, number, served] = lane.configuration.stations[number].held_units(demand)
            first += len(jobs)
    compute, prompt, output = tokens
    return Requests(arrival, compute, prompt, output, units.reshape(len(lanes), -1))


def _lanes(group: StationGroup, lanes: Sequence[JointLane]) -> preemptive.Lane:
    width, shape = group.lane_requests + 1, (len(lanes), group.key.pools)
    serving = [station for lane in lanes for station in lane.configuration.answering]

    def by_lane(values: Any) -> Any:
        return jax.tree.map(lambda column: column.reshape(*shape, *column.shape[1:]), values)

    limits = by_lane(limits_of(serving))._replace(
        users=np.array([lane.configuration.users or OPEN_LOOP for lane in lanes], dtype=np.int32),
        requests=np.array([len(lane.requests) for lane in lanes], dtype=np.int32),
        # Which jobs are measured says ``Network.measured``: with two phases it is no range of slots.
        measured_from=np.zeros(len(lanes), dtype=np.int32),
    )
    # Prefixes that stay resident are refused with several pools, and with phases (``plan.feasibility``).
    shared = np.zeros((len(lanes), width), dtype=np.int32)
    for row, lane in zip(shared, lanes, strict=True):
        if len(lane.configuration.answering) == 1:
            (jobs,), (pool,) = lane.phases, lane.configuration.answering
            row[: len(jobs)] = shared_units(jobs.demand, pool.design.ready.kv)
    at_pools, agents = [lane.at_pools for lane in lanes], group.key.agents
    clusters = [_cluster(group, lane) for lane in lanes]
    return preemptive.Lane(
        by_lane(_costs(group, serving)),
        limits,
        by_lane(rules_of(serving)),
        shared,
        content=contents_of(at_pools, width, several=True, agents=agents) if group.key.cached else None,
        session_turns=_session_turns(group, lanes) if group.key.session_turns else None,
        speculation=_speculation(group, lanes),
        cluster=jax.tree.map(lambda *values: np.stack(values), *clusters),
    )


def _session_turns(group: StationGroup, lanes: Sequence[JointLane]) -> preemptive.SessionTurns:
    """Who follows whom: of the jobs of the first side, which have the numbers of the requests."""
    requests = [(lane.requests, slice(None)) for lane in lanes]
    users = [lane.configuration.users or OPEN_LOOP for lane in lanes]
    return session_turns_of(requests, users, group.lane_requests + 1, group.key.agents)


def _costs(group: StationGroup, serving: list[StationPlan]) -> tuple[IterationCost, ...]:
    """The cost of each pipeline rank, with a leading axis (station,)."""
    if group.key.forms or group.key.fewer_ranks:
        return tuple(_unlike_costs(group, serving, number) for number in range(group.key.pipeline_ranks))
    # The usual case: pools that share a costing are folded together, once for all devices that do.
    costs, rows = costs_of(group, serving)
    return jax.tree.map(lambda values: values[rows], costs)


def _unlike_costs(group: StationGroup, serving: list[StationPlan], number: int) -> IterationCost:
    """Of one pipeline rank, where pools differ in their number or in the form of their cost.

    Every form has a row for each station: its own cost, or anyone's of that form, which is never chosen.
    """
    ranks = [station.design.ready.pipeline_ranks for station in serving]
    costs = [of_ranks[min(number, len(of_ranks) - 1)] for of_ranks in ranks]
    forms = group.key.forms[number] if group.key.forms else (structure(costs[0]),)
    # Those of the group, sorted, so that every configuration of a chunk numbers them alike.
    chosen = np.array([forms.index(structure(cost)) for cost in costs], dtype=np.int32)
    stacked = []
    for form in range(len(forms)):
        # argmax of a mask: the first that has this form, if any has.
        any_of_form = costs[int((chosen == form).argmax())]
        rows = stack(
            [cost if which == form else any_of_form for cost, which in zip(costs, chosen, strict=True)], group.rows
        )
        # The engine maps over lanes, so that their axis goes in front; contiguous, because views would be copied per
        # call.
        stacked.append(jax.tree.map(lambda values: np.ascontiguousarray(np.moveaxis(values, -1, 0)), rows))
    return stacked[0] if len(forms) == 1 else OneOf(tuple(stacked), chosen)


def _speculation(group: StationGroup, lanes: Sequence[JointLane]) -> Speculation | None:
    """What decodes draft, by pool; None where no pool drafts anything. Prefill pools draft nothing."""
    most = group.key.drafts
    if not most:
        return None
    chances = np.zeros((len(lanes), group.key.pools, most))
    drafts = np.zeros(chances.shape[:2])
    random_keys = np.zeros((len(lanes), group.lane_requests + 1), dtype=np.uint32)
    for row, lane in enumerate(lanes):
        # A request has the same luck with its drafts wherever it decodes: keys are of its id, not of the job's slot.
        ids = np.concatenate([jobs.id for jobs in lane.phases])
        random_keys[row, : len(ids)] = keys(lane.seed, ids)
        for number, station in enumerate(lane.configuration.answering):
            drafts[row, number] = station.drafts
            if station.speculative is not None:
                chances[row, number, : station.drafts] = station.speculative.chances
    return Speculation(chances, drafts, random_keys)


def _cluster(group: StationGroup, lane: JointLane) -> preemptive.Cluster:
    """The replicas of all pools, without an axis (lane,)."""
    configuration, width = lane.configuration, group.lane_requests + 1
    pool, requests = lane.pool_of_replica, len(lane.phases[0])
    phase_of = np.concatenate([np.full(len(phase.stations), phase.number) for phase in configuration.phases])
    later = np.arange(requests, lane.jobs)
    # NONE ends a request: no job before, none behind.
    before, after = np.full((2, width), NONE, dtype=np.int32)
    # A request of two phases is two jobs of the lane; each knows the slot of the other.
    before[later], after[lane.goes_on] = lane.goes_on, later
    ranks = [station.deployment.pipeline_parallel for station in configuration.answering]
    measured = np.zeros(width, dtype=bool)
    measured[: lane.jobs] = np.concatenate([jobs.measured for jobs in lane.phases])
    choices = choices_of(configuration, lane.seed, lane.phases, width, group.key.tables)
    order = None
    if group.key.reordered:  # else no array is there, and the loop counts requests up
        order = np.zeros(width, dtype=np.int32)
        order[:requests] = np.arange(requests)[lane.phases[0].order]

    def by_replica(values: Any, rest: int) -> np.ndarray:
        # Replicas of a program without one in this configuration: of no phase, so that nobody is sent there.
        padded = np.full(group.key.replicas, rest, dtype=np.int32)
        padded[: len(pool)] = values
        return padded

    network = preemptive.Network(
        jobs=np.int32(lane.jobs),
        pool=by_replica(pool, 0),
        phase=by_replica(phase_of[pool], NONE),
        model=by_replica(choices.model, NONE),
        group=by_replica(choices.group, NONE),
        asks=choices.asks,
        measured=measured,
        before=before,
        after=after,
        grouped=np.bool_(configuration.phases[-1].grouped),
        links=_links(group, lane),
        order=order,
        stops=None if lane.stops is None else lane.stops.in_shape(width, group.routes),
        lockstep=_lockstep(lane, by_replica) if group.key.lockstep else None,
        pipeline_ranks=by_replica(np.array(ranks)[pool], 1) if group.key.fewer_ranks else None,
    )
    by = by_prefix(group, [phase.router for phase in configuration.phases])
    router = preemptive.RouterChoices(choices.counter, choices.assigned, choices.kind, choices.turns, by)
    return preemptive.Cluster(np.int32(len(pool)), router, network=network)


def _lockstep(lane: JointLane, by_replica: Callable[[Any, int], np.ndarray]) -> preemptive.Lockstep:
    """Which replicas are data-parallel ranks that start together; pools begin with the first rank of a replica."""
    pool, stations = lane.pool_of_replica, lane.configuration.answering
    # ``deployment.ranks`` counts data-parallel ranks as replicas, so that those of a pool fill whole replicas.
    ranks = np.array([station.lockstep for station in stations])[pool]
    start = np.searchsorted(pool, pool)
    numbers = np.arange(len(pool))
    return preemptive.Lockstep(by_replica(numbers - (numbers - start) % ranks, 0), by_replica(ranks, 1))


def _links(group: StationGroup, lane: JointLane) -> preemptive.Links:
    link, width = lane.configuration.link, group.lane_requests + 1
    pools, rows = group.key.pools, group.key.tables[-1]
    row, service_s = np.zeros((pools, pools), np.int32), np.zeros((rows, width))
    token_bytes, ahead = np.zeros((2, rows))
    if link is None:
        never, nothing = np.bool_(False), np.float64(0.0)
        return preemptive.Links(
            row.reshape(-1), service_s.reshape(-1), token_bytes, ahead, nothing, nothing, never, never
        )
    first, jobs = len(lane.phases[0]), lane.phases[1]
    prompts, targets = link.tokens(jobs.demand), lane.configuration.phases[1].stations
    for number in range(1 + len(link.others)):
        pair = link.others[number - 1][0] if number else None
        way = None if pair is None else np.full(len(prompts), link.way_of(*pair))
        service_s[number, first : first + len(prompts)] = link.service_s(prompts, way)
        token_bytes[number] = link.token_bytes(pair)
        if link.by_layer and len(prompts):
            # Of n layers all but one may be sent while the prompt is computed (``LinkPlan.head_start_s``).
            ahead[number] = 1.0 - 1.0 / float(np.broadcast_to(link.layers(way), len(prompts))[0])
        if pair is not None:
            # Row 0 is the link between the first pools of both sides; only pairs that differ from it have rows of
            # their own.
            row[pair[0], targets.start + pair[1]] = number
    return preemptive.Links(
        row.reshape(-1),
        service_s.reshape(-1),
        token_bytes,
        ahead,
        bandwidth=np.float64(link.bandwidth),
        latency_s=np.float64(link.latency_s),
        one_by_one=np.bool_(link.shared),
        asks_early=np.bool_(link.by_layer and link.backpressure),
    )


# --- what it gives back


def _joint_result(lane: JointLane, result: LaneResult) -> JointResult:
    assert result.replica is not None and result.sent_s is not None and result.link_s is not None
    pool, phases, pools, first = lane.pool_of_replica, [], [], 0
    for phase, jobs in zip(lane.configuration.phases, lane.phases, strict=True):
        served = slice(first, first + len(jobs))
        # The lane numbers replicas over all pools, stations number them from the first of their phase.
        start = int(np.searchsorted(pool, phase.stations.start))
        phases.append(
            {
                "arrival_s": result.sent_s[served],
                "scheduled_s": result.scheduled_s[served],
                "first_token_s": result.first_token_s[served],
                "last_token_s": result.last_token_s[served],
                "replica": result.replica[served].astype(np.int64) - start,
            }
        )
        stations = lane.configuration.stations
        workload = lane.configuration.workload
        if any(cached_by_content(workload, stations[number].deployment) for number in phase.stations):
            assert result.hit_tokens is not None
            phases[-1]["hit_tokens"] = result.hit_tokens[served].astype(np.int64)
        pools.append(tuple(_pool_served(result, stations[number], pool, number, start) for number in phase.stations))
        first += len(jobs)
    link = None
    if len(phases) > 1:
        # The lane keeps when sending began in the cells of the second phase's jobs.
        began_s, left_s = result.link_s[len(lane.phases[0]) : lane.jobs], phases[0]["last_token_s"][lane.goes_on]
        link = {"arrival_s": left_s, "scheduled_s": began_s, "last_token_s": phases[1]["arrival_s"]}
    return JointResult(tuple(phases), tuple(pools), link)


def _pool_served(result: LaneResult, station: StationPlan, pool: np.ndarray, number: int, start: int) -> PoolServed:
    replicas = np.flatnonzero(pool == number)
    # Where some pool has a fitted cost the loop keeps peaks of all; those of a roofline say nothing (``raised``).
    peaks = result.totals.peaks[replicas].max(axis=0)
    peaks = peaks[:0] if holds_everywhere(station.design.ready.pipeline_ranks[0]) else peaks
    sums = PoolTotals(*(column[replicas].sum() for column in result.totals))
    done = sums._replace(kv_units_max=result.totals.kv_units_max[replicas].max(), peaks=peaks)
    bins = result.itl_histogram[number * histogram.BINS : (number + 1) * histogram.BINS]
    return PoolServed(done, histogram.weighted(bins), int(replicas[0]) - start)
