"""Pools that depend on one another, so that one event loop must run all of them: why, and which program does."""

from __future__ import annotations

from collections.abc import Sequence

from evaluator.cost.lanes import structure
from evaluator.plan.link import LinkPlan
from evaluator.plan.phases import PhasePools
from evaluator.plan.route import PipelinePlan
from evaluator.plan.simulators import MOST_TOGETHER, CompileKey, together
from evaluator.plan.station import StationPlan
from evaluator.policies import policy
from evaluator.routing import name_of
from evaluator.scenario import Transfer, Workload

FEWEST_KINDS = 2
"""Kinds of jobs that a router's tables tell apart: two for ``heavy_light``, else one for each model."""


def why_joint(
    workload: Workload,
    stations: Sequence[StationPlan],
    phases: Sequence[PhasePools],
    transfer: Transfer | None,
    pipeline: PipelinePlan | None,
) -> tuple[str, ...]:
    """What couples pools with one another; nothing: they can be computed one after the other."""
    # Ranks in lockstep with others beside them: the router of several pools counts them one by one, while they start
    # their batches together.
    together = any(
        stations[number].lockstep > 1 for phase in phases if phase.replicas is not None for number in phase.stations
    )
    pools = sum(len(phase.stations) for phase in phases)
    looking = [name_of(phase.router) for phase in phases if phase.looks and phase.replicas is not None]
    reasons = {
        "closed loop over several pools": pools > 1 and workload.arrivals.process == "closed_loop",
        "closed loop over a pipeline": pipeline is not None and workload.arrivals.process == "closed_loop",
        "pipeline that comes to the LLM more than once": pipeline is not None and pipeline.repeats,
        "pipeline with a pool for several stages": pipeline is not None and pipeline.shared is not None,
        "transfer.backpressure": transfer is not None and transfer.backpressure,
        "data_parallel in one of several pools of a role": together,
        **{f"router {router} over several pools": True for router in looking},
    }
    return tuple(name for name, applies in reasons.items() if applies)


def lacking_jointly(
    whys: Sequence[str], stations: Sequence[StationPlan], pipeline: PipelinePlan | None, workload: Workload
) -> tuple[str, ...]:
    """What only the reference knows of pools in one loop; why they are in one, ``whys``, is said with it.

    Of the stages of a pipeline the vectorised engine's loop knows nothing yet.
    """
    if pipeline is not None:
        return tuple(why if "pipeline" in why else f"{why} of a pipeline" for why in whys)
    why = whys[0]
    deployments = [station.deployment for station in stations]
    costs = {
        structure(station.design.ready.costing.typical[0]) for station in stations if station.design.replica is not None
    }
    locked = why.startswith("data_parallel")
    reasons = {
        why if locked else f"{why} with data_parallel": any(station.lockstep > 1 for station in stations),
        f"{why} with workload.reasoning.branches": workload.reasoning.several,
        f"{why} with deployment.speculative": any(station.deployment.speculative for station in stations),
        f"{why} with pools of different pipeline_parallel": len({pool.pipeline_parallel for pool in deployments}) > 1,
        f"{why} with pools of different forms of cost": len(costs) > 1,
        f"{why} over more than {MOST_TOGETHER} replicas": sum(pool.ranks for pool in deployments) > MOST_TOGETHER,
    }
    return tuple(name for name, applies in reasons.items() if applies)


def joint_program(
    stations: Sequence[StationPlan], phases: Sequence[PhasePools], link: LinkPlan | None, frontend: bool
) -> CompileKey:
    """The program that runs the pools of a configuration in one loop."""
    deployments = [station.deployment for station in stations]
    last = phases[-1]
    kinds = FEWEST_KINDS if last.replicas is None else max(FEWEST_KINDS, max(last.replicas.model) + 1)
    kv_reservation = link is not None and link.backpressure
    return CompileKey(
        preemptive=True,
        pipeline_ranks=deployments[0].pipeline_parallel,
        peaks=any(policy(deployment.batching.policy).by_future_peak for deployment in deployments),
        replicas=together(sum(deployment.ranks for deployment in deployments)),
        frontend=frontend,
        pools=len(stations),
        phases=len(phases),
        route_at_first_token=link is not None and (kv_reservation or last.replicas is not None),
        kv_reservation=kv_reservation,
        tables=(kinds, max(last.replicas.group) + 1 if last.grouped and last.replicas else 1, _rows(link)),
    )


def _rows(link: LinkPlan | None) -> int:
    """Rows of the links' figures, a power of two, so that few programs serve a sweep."""
    return 1 if link is None else 1 << len(link.others).bit_length()
