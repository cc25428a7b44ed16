"""Whether the pools of a configuration can serve requests of some lengths, whatever their rate; or why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from evaluator.metrics.outcomes import OK
from evaluator.plan.checks import (
    api_servers_problem,
    branches_problem,
    drafts_problem,
    failures_problem,
    late_problem,
    limit_problem,
    lora_problem,
    planning_problem,
    policy_problem,
    priority_problem,
    ratio_problem,
    refusal_problem,
    reports_problem,
    routing_problem,
)
from evaluator.plan.joint_pools import (
    MIXED_BESIDE,
    lacking_jointly,
    route_sizes,
    stages_in_loop,
    too_many_together,
    why_joint,
)
from evaluator.plan.kv_checks import (
    context_parallel_problem,
    groups_problem,
    manager_problem,
    offload_problem,
    prefix_problem,
)
from evaluator.plan.link import LinkPlan, backpressure_problem, link_of, link_problem
from evaluator.plan.phases import PhasePools, Pools, model_of, most_jobs, phases_of, phases_problem
from evaluator.plan.pipeline import pass_stations, pipeline_of, with_steps
from evaluator.plan.request_level import queue_problem, request_problem
from evaluator.plan.route import PipelinePlan, RequestRoutes
from evaluator.plan.scaling import budget_problem, scaling_problem
from evaluator.plan.simulators import (
    REQUEST,
    has_frontend,
    is_joint,
    lacking,
    waits_for_answers,
    why_together,
    worth_compiling,
)
from evaluator.plan.stage_checks import (
    ahead_problem,
    between_problem,
    content_problem,
    passes_problem,
    stages_problem,
    with_own_kv,
)
from evaluator.plan.station import DrawnLengths, StationPlan, station_of
from evaluator.scenario import (
    Deployment,
    Transfer,
    Workload,
    answers_alone,
    pipeline_problem,
    pools_of,
    with_engine_defaults,
)
from evaluator.traffic.jobs import Demand, Extremes, held_units
from evaluator.traffic.request_sampler import RequestSampler
from evaluator.traffic.requests import shared_tokens


@dataclass(frozen=True)
class Feasibility:
    """What is known of pools, one after the other, under requests of some lengths, whatever their rate; fields as of
    ``Configuration``."""

    stations: tuple[StationPlan, ...]
    phases: tuple[PhasePools, ...]
    status: str
    lacking: tuple[str, ...]
    joint: bool
    joint_pools: bool
    link: LinkPlan | None
    pipeline: PipelinePlan | None = None
    worth_compiling: int = 0  # requests of a whole run from which on programs are worth their compilation


def check(
    workload: Workload, deployment: Deployment, sampler: RequestSampler, seeds: tuple[int, ...], simulator: str
) -> Feasibility:
    """Check a deployment under the requests of all seeds for an engine (iteration, request or token)."""
    unnamed = pipeline_problem(workload, deployment)
    # Routes are walked only where all stages name what is there.
    planned = planned_pools(workload, deployment, sampler, seeds, unnamed is None, simulator == REQUEST)
    stations, passes = planned.stations, planned.passes()
    several = why_joint(workload, stations, planned.phases, planned.sending, planned.pipeline)
    pipeline = planned.pipeline
    if pipeline is not None and stages_in_loop(several):
        pipeline = replace(pipeline, in_loop=route_sizes(pipeline, planned.all_routes))
    status = _pools_status(workload, planned, simulator)
    # Only of pools that passed their checks: dealing out requests asks their routers, which suppose that.
    if status == OK:
        stations = planned.shared_out(seeds)
    if unnamed is not None:
        status = f"infeasible: {': '.join(unnamed)}"
    if status == OK and planned.pipeline is not None:
        status = _stages_status(workload, planned, passes, several)
    couples = [*several, *((MIXED_BESIDE,) if planned.phases[0].mixed_from is not None else ())]
    if status == OK and couples and simulator == REQUEST:
        status = f"unsupported: simulator request does not cover {couples[0]}; use simulator iteration"
    # Also of what cannot run: a group takes its place among the others by these.
    lack, joint = _engines(workload, stations, several, planned)
    all_stations = (*stations, *passes)
    lockstep = any(station.design.lockstep > 1 for station in all_stations)
    demand = planned.demands[0]
    answer_tokens = float((demand.output_tokens + demand.later_tokens).mean()) if len(demand.output_tokens) else 0.0
    deployments = [station.deployment for station in all_stations]
    worth = worth_compiling(workload, deployments, joint, lockstep, answer_tokens)
    return Feasibility(all_stations, planned.phases, status, lack, joint, bool(several), planned.link, pipeline, worth)


def _first(*problems: Callable[[], str | None]) -> str:
    """The first problem that is found; ok without any. Later ones are not looked for."""
    return next((reason for problem in problems if (reason := problem()) is not None), OK)


def _pools_status(workload: Workload, planned: PlannedPools, simulator: str) -> str:
    """ok, or the first problem of the pools that give the answers and of the link between them."""
    phases, stations, transfer = planned.phases, planned.stations, planned.transfer
    sending = planned.link is not None
    # Each takes for granted what those before it found in order, and is asked only then.
    return _first(
        lambda: phases_problem(workload, planned.pools, phases, transfer.groups),
        lambda: _stations_problem(workload, stations, phases, simulator),
        lambda: budget_problem(stations),
        lambda: link_problem(stations, transfer) if sending else None,
        lambda: backpressure_problem(stations, transfer) if sending else None,
        lambda: planned.link_problem,
    )


def _stages_status(
    workload: Workload, planned: PlannedPools, passes: tuple[StationPlan, ...], several: tuple[str, ...]
) -> str:
    """ok, or the first problem of the stages; ``several``: what couples them with the pools, if anything does."""
    pipeline, all_routes = planned.pipeline, planned.all_routes
    llm = [pool for _, pool in planned.pools]
    assert pipeline is not None
    return _first(
        lambda: between_problem(pipeline, all_routes, planned.link, planned.phases, planned.transfer),
        lambda: stages_problem(workload, llm, pipeline, all_routes),
        lambda: passes_problem(passes),
        lambda: content_problem(workload, llm, pipeline, several[0]) if several else None,
        lambda: ahead_problem(pipeline, all_routes[0], several[0]) if several else None,
    )


def _stations_problem(
    workload: Workload, stations: tuple[StationPlan, ...], phases: Sequence[PhasePools], simulator: str
) -> str | None:
    """The first problem of any station, which is named where there are several."""
    for station in stations:
        deployment, built = station.deployment, station.design
        # The replica's own problems first: all checks below ask for its KV, which a replica that cannot be
        # built has not.
        problem: str | None = built.status
        if problem == OK:
            problem = routing_problem(workload, deployment) or reports_problem(station) or late_problem(station)
            problem = problem or policy_problem(deployment, built)
            problem = problem or groups_problem(workload, station)
            problem = problem or prefix_problem(workload, deployment, built, station.extremes)
            problem = problem or offload_problem(workload, station, len(stations)) or ratio_problem(workload, station)
            alone = len(stations) == 1 and not deployment.pipeline
            problem = problem or priority_problem(station, alone)
            problem = problem or lora_problem(workload, station, alone) or context_parallel_problem(deployment)
            problem = problem or refusal_problem(workload, station, alone)
            problem = problem or scaling_problem(station, phases, bool(deployment.pipeline))
            problem = problem or failures_problem(workload, station, alone) or api_servers_problem(station, alone)
            problem = problem or branches_problem(workload, station) or drafts_problem(station)
            problem = problem or planning_problem(station) or manager_problem(station)
            problem = problem or limit_problem(deployment, built, station.extremes, station.largest_units)
            problem = problem or (
                request_problem(workload, station) if simulator == REQUEST else queue_problem(station)
            )
        if problem is not None:
            # "infeasible: ..." -> "infeasible: pool NAME: ...", so that the kind stays in front.
            kind, _, reason = problem.partition(": ")
            return problem if len(stations) == 1 else f"{kind}: pool {station.name}: {reason}"
    return None


def _engines(
    workload: Workload, stations: tuple[StationPlan, ...], several: tuple[str, ...], planned: PlannedPools
) -> tuple[tuple[str, ...], bool]:
    """What the vectorised engine lacks, each once, and whether replicas or stations depend on one another."""
    fronts = [has_frontend(workload, station.design.calibration) for station in stations]
    pairs = list(zip(stations, fronts, strict=True))
    missing = [
        name for station, front in pairs
        for name in lacking(workload, station.deployment, front, not several, station.lockstep)
    ]  # fmt: skip
    if any(station.design.replica is not None and station.design.replica.kv.groups for station in stations):
        missing.append("kv.layer_groups")
    # An answer that waits at an API server holds up its user's next request.
    if waits_for_answers(workload) and any(station.api_server_times is not None for station in stations):
        missing.append("api_server_times with users who wait for answers")
    # Pools that are coupled are one lane, whose size is that of all of them; else each pool has lanes of its own.
    if several:
        missing += [
            *lacking_jointly(several, workload, stations, planned.phases, planned.pipeline),
            *too_many_together(several[0], stations, workload),
        ]
    else:
        for station, front in pairs:
            why = why_together(workload, station.deployment, front, station.lockstep)
            missing += () if why is None else too_many_together(why, [station], workload)
    joint = bool(several) or any(
        is_joint(workload, station.deployment, front, station.lockstep) for station, front in pairs
    )
    return tuple(dict.fromkeys(missing)), joint


# --- the pools in the order in which requests pass them, each with the largest requests that come to it


@dataclass(frozen=True)
class PlannedPools:
    """What requests of some lengths meet; nothing says yet whether it can serve them.

    ``demands`` (seed,) are what the requests ask of the first side. ``link_problem``: why a stage cannot bring KV to
    the decode side; None where it can, or where none does. ``all_routes`` (seed,) are empty without a ``pipeline``.
    """

    pools: Pools
    phases: tuple[PhasePools, ...]
    stations: tuple[StationPlan, ...]
    transfer: Transfer
    link: LinkPlan | None
    link_problem: str | None
    demands: tuple[Demand, ...]
    pipeline: PipelinePlan | None
    all_routes: tuple[RequestRoutes, ...]

    @property
    def sending(self) -> Transfer | None:
        """How KV is sent; None: there is no decode side to send it to."""
        return None if self.link is None else self.transfer

    def passes(self) -> tuple[StationPlan, ...]:
        """The pools that compute models for the stages of the pipeline."""
        return () if self.pipeline is None else pass_stations(self.pipeline, self.all_routes)

    def shared_out(self, seeds: Sequence[int]) -> tuple[StationPlan, ...]:
        """The stations with the most jobs that any replica gets, where that is not for the pool's router to say."""
        if all(phase.replicas is None for phase in self.phases):
            return self.stations
        pairs = zip(self.demands, seeds, strict=True)
        of_seeds = [most_jobs(self.phases, self.stations, demand, seed) for demand, seed in pairs]
        # None of a pool whose own router deals out its requests: then it is None under every seed.
        most = [None if None in column else max(column) for column in zip(*of_seeds, strict=True)]
        return tuple(replace(station, most_jobs=jobs) for station, jobs in zip(self.stations, most, strict=True))


def planned_pools(
    workload: Workload,
    deployment: Deployment,
    sampler: RequestSampler,
    seeds: Sequence[int],
    staged: bool,
    whole_requests: bool,
) -> PlannedPools:
    """The pools of a deployment, as planned; with ``staged`` the stages of its pipeline, too.

    ``whole_requests``: for the request-level simulator.
    """
    alone = answers_alone(deployment)
    pools = tuple(
        (name, with_engine_defaults(pool, workload, alone, whole_requests)) for name, pool in pools_of(deployment)
    )
    transfer = deployment.transfer
    phases = phases_of(pools, workload.model_names, transfer.groups)
    role, shared = phases[0].asked, shared_tokens(workload, pools[0][1])
    pipeline = pipeline_of(workload, deployment) if staged else None
    all_routes: tuple[RequestRoutes, ...] = ()
    if pipeline is not None:
        all_routes = tuple(sampler.routes(workload, seed, pipeline) for seed in seeds)
        # What steps a stage has does not depend on the draws, so that the first seed serves for all.
        pipeline = with_steps(pipeline, all_routes[0], len(pools))
    firsts = tuple(sampler.demand(workload, seed, role, shared, pipeline) for seed in seeds)
    # Who comes to the LLM again has ``shared`` tokens of the prompt kept there as well.
    later = [Demand.of(visit.tokens, role, shared)[visit.ids] for routes in all_routes for visit in routes.llm[1:]]
    demands = [_by_role(first, phases) for first in (*firsts, *later)]
    stations = _stations(workload, pools, phases, demands)
    link, problem = link_of(stations, phases, transfer), None
    if pipeline is not None:
        link, problem = with_own_kv(pipeline, all_routes[0], link)
    return PlannedPools(pools, phases, stations, transfer, link, problem, firsts, pipeline, all_routes)


def _by_role(demand: Demand, phases: Sequence[PhasePools]) -> dict[str, Demand]:
    """What requests ask of the pools of each role, from what they ask of the first side."""
    first, *later = phases
    demands = {first.role.name: demand}
    if first.mixed_from is not None:
        apart = first.apart(demand)
        # Where the router decides any request may come to any pool; and a pool to which none comes, since all prompts
        # are short or all are long, is sized by all of them.
        whole, sent = (demand, demand) if apart is None or apart.all() or not apart.any() else (
            demand[~apart], demand[apart]
        )  # fmt: skip
        demands = {"mixed": whole, first.role.name: sent.apart(True)}
    for phase in later:
        demands[phase.role.name] = demands[first.role.name].after_prefill[1]
    return demands


def _stations(
    workload: Workload, pools: Pools, phases: Sequence[PhasePools], demands: Sequence[Mapping[str, Demand]]
) -> tuple[StationPlan, ...]:
    """The pools with their largest requests. ``demands`` (seed,) by role."""
    names, stations = workload.model_names, []
    for phase in phases:
        for number in phase.stations:
            name, deployment = pools[number]
            asked = [of_seed[deployment.role] for of_seed in demands]
            if len(names) > 1 and model_of(deployment) in names:
                model = names.index(model_of(deployment))
                # A model that no request of any seed asks for is sized by the requests of all.
                asked = [demand.by_model[model] for demand in asked if model in demand.by_model] or asked
            station = station_of(name, deployment, Extremes.of([demand.extremes for demand in asked]), workload)
            station = _with_largest(station, asked)
            if deployment.autoscaling is not None and deployment.autoscaling.within_s is not None:
                station = replace(station, lengths=DrawnLengths.of(asked))
            stations.append(replace(station, number=number) if number else station)
    return tuple(stations)


def _with_largest(station: StationPlan, asked: Sequence[Demand]) -> StationPlan:
    """The station with the KV units of its largest job, where jobs have several branches; ``asked`` (seed,)."""
    replica = station.design.replica
    if replica is None or station.extremes.branches == 1:
        return station
    return replace(station, largest_units=max(int(held_units(demand, replica.kv).max(initial=0)) for demand in asked))
