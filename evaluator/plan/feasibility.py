"""Whether the pools of a configuration can serve requests of some lengths, whatever their rate; or why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evaluator.metrics.outcomes import OK
from evaluator.plan.checks import (
    branches_problem,
    drafts_problem,
    limit_problem,
    policy_problem,
    prefix_problem,
    routing_problem,
)
from evaluator.plan.joint_pools import lacking_in_one_loop, why_in_one_loop
from evaluator.plan.link import LinkPlan, backpressure_problem, link_problem
from evaluator.plan.phases import PhasePools, sides_problem
from evaluator.plan.request_level import queue_problem, request_problem
from evaluator.plan.route import PipelinePlan
from evaluator.plan.simulators import REQUEST, has_frontend, is_coupled, lacking
from evaluator.plan.stage_checks import ahead_problem, content_problem, passes_problem, stages_problem
from evaluator.plan.station import StationPlan
from evaluator.plan.tandem import Tandem, tandem_of
from evaluator.scenario import Deployment, Workload, pipeline_problem
from evaluator.traffic.request_sampler import RequestSampler


@dataclass(frozen=True)
class Feasibility:
    """What is known of pools in tandem under requests of some lengths, whatever their rate; fields as of ``Member``."""

    stations: tuple[StationPlan, ...]
    phases: tuple[PhasePools, ...]
    status: str
    lacking: tuple[str, ...]
    joint: bool
    joint_pools: bool
    link: LinkPlan | None
    pipeline: PipelinePlan | None = None
    checked: tuple[StationPlan, ...] = ()  # of one that is like it; none where these stations were checked


def check(
    workload: Workload, deployment: Deployment, sampler: RequestSampler, seeds: tuple[int, ...], simulator: str
) -> Feasibility:
    """Check a deployment under the requests of all seeds for an engine (iteration, request or token)."""
    unnamed = pipeline_problem(workload, deployment)
    tandem = tandem_of(workload, deployment, sampler, seeds, staged=unnamed is None)
    stations, passes = tandem.stations, tandem.passes()
    several = why_in_one_loop(workload, stations, tandem.phases, tandem.sending, tandem.pipeline)
    status = _pools_status(workload, tandem, simulator)
    if status == OK:
        stations = tandem.shared_out(seeds)
    if unnamed is not None:
        status = f"infeasible: {': '.join(unnamed)}"
    if status == OK and tandem.pipeline is not None:
        status = _stages_status(workload, tandem, passes, several)
    if status == OK and several and simulator == REQUEST:
        status = f"unsupported: simulator request does not cover {several[0]}; use simulator iteration"
    lack, joint = _engines(workload, stations, several, tandem.pipeline)
    return Feasibility(
        (*stations, *passes), tandem.phases, status, lack, joint, bool(several), tandem.link, tandem.pipeline
    )


def _first(*problems: Callable[[], str | None]) -> str:
    """The first problem that is found; ok without any. Later ones are not looked for."""
    return next((found for problem in problems if (found := problem()) is not None), OK)


def _pools_status(workload: Workload, tandem: Tandem, simulator: str) -> str:
    """ok, or the first problem of the pools that give the answers and of the link between them."""
    phases, stations, transfer = tandem.phases, tandem.stations, tandem.transfer
    sending = tandem.link is not None
    return _first(
        lambda: sides_problem(workload, tandem.pools, phases, transfer.groups),
        lambda: _stations_problem(workload, stations, simulator),
        lambda: link_problem(stations, transfer) if sending else None,
        lambda: backpressure_problem(stations, transfer) if sending else None,
        lambda: tandem.link_problem,
    )


def _stages_status(
    workload: Workload, tandem: Tandem, passes: tuple[StationPlan, ...], several: tuple[str, ...]
) -> str:
    """ok, or the first problem of the stages; ``several``: what couples them with the pools, if anything does."""
    pipeline, walks, llm = tandem.pipeline, tandem.walks, tandem.answering
    assert pipeline is not None
    return _first(
        lambda: stages_problem(workload, llm, pipeline, walks),
        lambda: passes_problem(passes),
        lambda: content_problem(workload, llm, several[0]) if several else None,
        lambda: ahead_problem(pipeline, walks[0], several[0]) if several else None,
    )


def _stations_problem(workload: Workload, stations: tuple[StationPlan, ...], simulator: str) -> str | None:
    """The first problem of any station, which is named where there are several."""
    for station in stations:
        deployment, built = station.deployment, station.design
        problem: str | None = built.status
        if problem == OK:
            problem = routing_problem(workload, deployment) or policy_problem(deployment, built)
            problem = problem or prefix_problem(workload, deployment, built, station.extremes)
            problem = problem or branches_problem(workload, station) or drafts_problem(station)
            problem = problem or limit_problem(deployment, built, station.extremes, station.largest_units)
            problem = problem or (
                request_problem(workload, station) if simulator == REQUEST else queue_problem(station)
            )
        if problem is not None:
            kind, _, reason = problem.partition(": ")
            return problem if len(stations) == 1 else f"{kind}: pool {station.name}: {reason}"
    if workload.sessions.feedback and len(stations) > 1:
        return (
            "unsupported: sessions that think from the answer over several pools; use workload.sessions.think_from "
            "arrival"
        )
    return None


def _engines(
    workload: Workload, stations: tuple[StationPlan, ...], several: tuple[str, ...], pipeline: PipelinePlan | None
) -> tuple[tuple[str, ...], bool]:
    """What the vectorised engine lacks, each once, and whether replicas or stations depend on one another."""
    fronts = [has_frontend(workload, station.design.calibration) for station in stations]
    pairs = list(zip(stations, fronts, strict=True))
    missing = [
        name for station, front in pairs
        for name in lacking(workload, station.deployment, front, not several, station.lockstep)
    ]  # fmt: skip
    if several:
        missing += lacking_in_one_loop(several, stations, pipeline, workload)
    joint = bool(several) or any(
        is_coupled(workload, station.deployment, front, station.lockstep) for station, front in pairs
    )
    return tuple(dict.fromkeys(missing)), joint
