"""Pools that depend on one another, so that one event loop must run all of them: why, and which program does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evaluator.plan.link import LinkPlan
from evaluator.plan.phases import PhasePools
from evaluator.plan.route import PipelinePlan, RequestRoutes, RouteSizes
from evaluator.plan.simulators import (
    CACHE_BYTES,
    FEW_CACHES,
    RING_BYTES,
    THINKING,
    CompileKey,
    draft_width,
    plans_ahead,
    ring_bytes,
    ring_of,
    together,
)
from evaluator.plan.station import StationPlan
from evaluator.policies import policy
from evaluator.routing import name_of
from evaluator.scenario import STAGE, Transfer, Workload
from evaluator.scenario.deployment import ASYNCHRONOUS
from evaluator.stages import Batched, Pass, Served
from evaluator.traffic.requests import cached_by_content

FEWEST_KINDS = 2
"""Kinds of jobs that a router's tables tell apart: two for ``heavy_light``, else one for each model."""


MIXED_BESIDE = "mixed pools beside prefill pools"


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
    lockstep_beside_others = any(
        stations[number].lockstep > 1 for phase in phases if phase.replicas is not None for number in phase.stations
    )
    pools = sum(len(phase.stations) for phase in phases)
    looking = [name_of(phase.router) for phase in phases if phase.looks and phase.replicas is not None]
    reasons = {
        f"{THINKING} over several pools": pools > 1 and workload.feedback,
        f"{THINKING} over a pipeline": pipeline is not None and workload.feedback,
        "closed loop over several pools": pools > 1 and workload.arrivals.process == "closed_loop",
        "closed loop over a pipeline": pipeline is not None and workload.arrivals.process == "closed_loop",
        "pipeline that comes to the LLM more than once": pipeline is not None and pipeline.repeats,
        "pipeline with a pool for several stages": pipeline is not None and pipeline.shared is not None,
        "deployment.autoscaling_devices": any(
            station.deployment.autoscaling is not None and station.deployment.autoscaling_devices is not None
            for station in stations
        ),
        "transfer.backpressure": transfer is not None and transfer.backpressure,
        "data_parallel in one of several pools of a role": lockstep_beside_others,
        **{f"router {router} over several pools": True for router in looking},
    }
    return tuple(name for name, applies in reasons.items() if applies)


def lacking_jointly(
    whys: Sequence[str],
    workload: Workload,
    stations: Sequence[StationPlan],
    phases: Sequence[PhasePools],
    pipeline: PipelinePlan | None,
) -> tuple[str, ...]:
    """What only the reference knows of pools in one loop; why they are in one, ``whys``, is said with it.

    Where ``stages_in_loop`` those of the pipeline are events of the loop, too, one by one.
    """
    stages = pipeline.stages if pipeline is not None and stages_in_loop(whys) else ()
    steps = {step.kind for stage in stages for step in stage.steps}
    cached = any(cached_by_content(workload, station.deployment) for station in stations)
    deployments = [station.deployment for station in stations]
    ahead = [plans_ahead(deployment) for deployment in deployments if deployment.role != STAGE]
    others = {
        # Its replicas of a phase are of one role.
        MIXED_BESIDE: phases[0].mixed_from is not None,
        # In the loop a step serves each request by itself.
        "a stage that serves in batches": Batched in steps,
        "a stage that computes a model": Pass in steps,
        # Stages are served before the pools of the loop, or after all of them.
        "a stage between prefill and decode": pipeline is not None and pipeline.between is not None,
        # Their parts of the loop go by the KV that running requests hold, or are not held to the reference with caches.
        "kv.prefix_caching and data_parallel": cached and any(station.lockstep > 1 for station in stations),
        "kv.prefix_caching and speculative": cached and any(station.drafts for station in stations),
        "kv.prefix_caching and pipeline_parallel": cached
        and any(deployment.pipeline_parallel > 1 for deployment in deployments),
        "workload.reasoning.branches": workload.reasoning.several,
        # One program plans all batches in one way, and its reservations are made where a batch is formed and sent off.
        f"batching.planning {ASYNCHRONOUS} in some pools": any(ahead) and not all(ahead),
        f"batching.planning {ASYNCHRONOUS} and transfer.backpressure": any(ahead) and "transfer.backpressure" in whys,
    }
    return tuple(f"{whys[0]} with {name}" for name, applies in others.items() if applies)


def stages_in_loop(whys: Sequence[str]) -> bool:
    """Whether stages run on one clock with the pools, for what couples these.

    Elsewhere stages in front of the pools and behind are served before and after the loop of the pools. That is the
    same as long as nobody at a stage waits for what a pool does. Where somebody does (users of a closed loop, agents, a
    queue that several stages share), all of it needs one clock.
    """
    return any("pipeline" in why for why in whys)  # three of ``why_joint``


def route_sizes(pipeline: PipelinePlan, all_routes: Sequence[RequestRoutes]) -> RouteSizes:
    """The sizes of the routes of all seeds."""
    visits, stops, count = 0, 0, 1
    for routes in all_routes:
        count = len(routes.tokens.prompt_tokens)
        visits = max(visits, sum(len(visit.ids) for visit in routes.llm))
        # Bytes over a link come after it has sent them, which is a stop of its own.
        steps = sum(len(visit.ids) * 2 * len(visit.work.steps) for visit in routes.visits if visit.work is not None)
        stops = max(stops, visits + steps + 2 * count)
    works = [visit.work for routes in all_routes for visit in routes.first.values() if visit.work is not None]
    steps_of_all = [step for work in works for step in work.steps]
    queues = [getattr(step, "queue", None) for step in steps_of_all]
    last = [0 if queue is None else int(np.max(queue, initial=0)) for queue in queues]
    most = max((pool.replicas for pool in pipeline.pools.values()), default=1)
    servers = max((step.servers or most for step in steps_of_all if isinstance(step, Served)), default=1)
    # With as many servers as requests nobody waits.
    return RouteSizes(visits, stops, sum(last) + len(last), min(servers, count))


def too_many_together(why: str, stations: Sequence[StationPlan], workload: Workload) -> tuple[str, ...]:
    """What of the replicas that run together, for ``why``, takes more memory than a lane of the engine may have.

    With a prefix cache each replica has a table of the contents of all requests' blocks (``preemptive.cache``): 4 bytes
    a content, and some 24 bytes a block. Neither are more than the blocks of requests of the largest size, which is far
    more than requests with shared beginnings need, so that a few replicas are not asked.
    """
    replicas = sum(station.deployment.ranks for station in stations)
    output = max(station.extremes.output for station in stations)
    pipeline_ranks = max(station.deployment.pipeline_parallel for station in stations)
    windowed = any(
        station.design.replica is not None and station.design.replica.kv.window is not None for station in stations
    )
    drafts = any(station.drafts for station in stations)
    blocks = max(
        (
            workload.requests * -(-station.extremes.sequence // station.deployment.kv.block_tokens)
            for station in stations
            if cached_by_content(workload, station.deployment)
        ),
        default=0,
    )
    # As the program is compiled: for a power of two of replicas, and for the longest output of its group, which is that
    # of a configuration that fits itself.
    rings = ring_bytes(together(replicas), ring_of(output), pipeline_ranks, windowed, drafts)
    reasons = {
        f"{why} over {replicas:,} replicas with outputs of up to {output:,} tokens": rings > RING_BYTES,
        f"{why} over {replicas:,} replicas with prefix caches by content": replicas > FEW_CACHES
        # 28: the bytes of a content and of a block, see above.
        and together(replicas) * blocks * 28 > CACHE_BYTES,
    }
    return tuple(name for name, applies in reasons.items() if applies)


def joint_program(
    stations: Sequence[StationPlan],
    phases: Sequence[PhasePools],
    link: LinkPlan | None,
    frontend: bool,
    staged: bool,
    session_turns: bool = False,
    cached: bool = False,
    agents: bool = False,
    in_loop: bool = False,
) -> CompileKey:
    """The program that runs the pools of a configuration in one loop.

    ``staged``: requests pass stages, too, ``in_loop``: as events of the loop. ``session_turns``: users think about
    answers before they send again. ``cached``: some pool has prefix caches by content. ``agents``: requests may wait
    for several answers.
    """
    deployments = [station.deployment for station in stations]
    # What is compiled in is counts of pools and phases, and which parts there are; all figures of pools are traced.
    last = phases[-1]
    kinds = FEWEST_KINDS if last.replicas is None else max(FEWEST_KINDS, max(last.replicas.model) + 1)
    kv_reservation = link is not None and link.backpressure
    if (session_turns or in_loop) and len(phases) > 1:
        kinds *= 2  # both sides deal in an order that only the run knows, each with tables of its own
    return CompileKey(
        # The loop for several replicas is built of the general program's moves; ``fcfs_reserved`` has no form
        # of it.
        preemptive=True,
        pipeline_ranks=max(deployment.pipeline_parallel for deployment in deployments),
        fewer_ranks=len({deployment.pipeline_parallel for deployment in deployments}) > 1,
        peaks=any(policy(deployment.batching.policy).by_future_peak for deployment in deployments),
        replicas=together(sum(deployment.ranks for deployment in deployments)),
        frontend=frontend,
        session_turns=session_turns,
        agents=agents,
        asynchronous=plans_ahead(deployments[0]),
        lockstep=any(station.lockstep > 1 for station in stations),
        drafts=draft_width(max(station.drafts for station in stations)),
        cached=cached,
        pools=len(stations),
        phases=len(phases),
        # With a reservation, or a choice among several pools, the decode replica must be known before the KV is
        # sent.
        route_at_first_token=link is not None and (kv_reservation or last.replicas is not None),
        kv_reservation=kv_reservation,
        reordered=staged and not in_loop,
        stages=in_loop,
        # Rows of the links' figures, a power of two, so that few programs serve a sweep.
        tables=(
            kinds,
            max(last.replicas.group) + 1 if last.grouped and last.replicas else 1,
            1 if link is None else 1 << len(link.others).bit_length(),
        ),
    )
