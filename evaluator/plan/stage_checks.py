"""Why the stages of a pipeline cannot serve the requests of a workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.plan.checks import limit_problem, policy_problem
from evaluator.plan.link import LinkPlan
from evaluator.plan.phases import PhasePools
from evaluator.plan.pipeline import pass_of, passes_of
from evaluator.plan.route import BETWEEN, PipelinePlan, RequestRoutes
from evaluator.plan.station import StationPlan
from evaluator.scenario import Deployment, Transfer, Workload
from evaluator.stages import Batched, Pass
from evaluator.traffic.requests import cached_by_content, shared_tokens


def passes_problem(passes: Sequence[StationPlan]) -> str | None:
    """Why a pool could not compute the models of its stages; None where all can."""
    for station in passes:
        problem: str | None = station.design.status
        if problem == OK:
            problem = policy_problem(station.deployment, station.design)
            problem = problem or limit_problem(station.deployment, station.design, station.extremes)
        if problem is not None:
            kind, _, reason = problem.partition(": ")
            return f"{kind}: pipeline.{station.name}: {reason}"
    return None


def stages_problem(
    workload: Workload, llm: Sequence[Deployment], pipeline: PipelinePlan, all_routes: Sequence[RequestRoutes]
) -> str | None:
    """What the stages of a pipeline cannot do with one another, or with the workload; None where they can.

    ``llm``: the pools that give the answers.
    """
    return _steps_problem(pipeline, all_routes) or _with_workload_problem(workload, llm, pipeline, all_routes)


def _steps_problem(pipeline: PipelinePlan, all_routes: Sequence[RequestRoutes]) -> str | None:
    for routes in all_routes:
        for visit in routes.visits:
            if visit.stage is not None and visit.work is not None and visit.work.problem is not None:
                return f"infeasible: pipeline.{pipeline.stages[visit.stage].name}: {visit.work.problem}"
    for stage in pipeline.stages:
        for step in stage.steps:
            if step.kind is Pass and step.pool is None:
                return (
                    f"infeasible: pipeline.{step.label}: it computes a model, and no pool serves it; add a pool such "
                    f"as deployment.pools.{stage.name}: {{role: stage, hardware: l4}} and say pool: {stage.name}"
                )
    # A pool has one model in its memory: steps that compute others would swap weights for each request.
    for steps in passes_of(pipeline).values():
        models = {str(pass_of(all_routes[0], number, step).model): planned for number, step, planned in steps}
        if len(models) > 1:
            (first_model, first), (other, second) = list(models.items())[:2]
            return (
                f"infeasible: pipeline.{second.label}: pool {second.pool} computes {first_model} for "
                f"{first.label} and cannot compute {other} too; give it a pool of its own"
            )
    together: dict[str | None, str] = {}
    for batched in (step for stage in pipeline.stages for step in stage.steps if step.kind is Batched):
        served = together.setdefault(batched.pool, batched.label)
        # Batches are of one kind of step (an index, an encoder); two kinds on one device would wait for each
        # other in a way that no station here has.
        if batched.pool is not None and served != batched.label:
            return (
                f"infeasible: pipeline.{batched.label}: pool {batched.pool} serves {served} in batches, and no others "
                "fit into them; give it a pool of its own"
            )
    return None


def _with_workload_problem(
    workload: Workload, llm: Sequence[Deployment], pipeline: PipelinePlan, all_routes: Sequence[RequestRoutes]
) -> str | None:
    if workload.reasoning.several and pipeline.repeats:
        return (
            "unsupported: workload.reasoning.branches with a pipeline that comes to the LLM more than once: it is not "
            "said which branch goes on; use one branch"
        )
    works = [visit.work for routes in all_routes for visit in routes.visits if visit.work is not None]
    if any(np.any(np.asarray(work.adds_tokens)) for work in works) and (
        any(cached_by_content(workload, pool) or shared_tokens(workload, pool) for pool in llm)
    ):
        return (
            "unsupported: kv.prefix_caching with stages that add tokens to prompts: what these are is not known; "
            "leave it out"
        )
    return None


def between_problem(
    pipeline: PipelinePlan,
    all_routes: Sequence[RequestRoutes],
    link: LinkPlan | None,
    phases: Sequence[PhasePools],
    transfer: Transfer,
) -> str | None:
    """Why no stage can stand between prefill and decode; None where it can, or none does."""
    name = pipeline.between
    if name is None:
        return None
    elsewhere = "or put it before prefill or behind decode"
    if link is None or phases[0].mixed_from is not None:
        return (
            f"infeasible: pipeline.{name}: it stands between prefill and decode, which a mixed replica does in one go; "
            f"use pools of prefill and of decode alone, {elsewhere}"
        )
    if transfer.granularity == "layer":
        return (
            f"infeasible: pipeline.{name}: KV is sent when the stage has answered, and with transfer.granularity layer "
            f"before that, while the prompt is computed; use granularity cache, {elsewhere}"
        )
    works = {
        pipeline.stages[visit.stage].name: visit.work
        for routes in all_routes
        for visit in routes.visits
        if visit.stage is not None and pipeline.stages[visit.stage].where == BETWEEN
    }
    for stage, work in works.items():
        adds = work is not None and (np.any(np.asarray(work.adds_tokens)) or work.cached_tokens is not None)
        if work is not None and (adds or work.ahead or work.on_decode):
            return (
                f"infeasible: pipeline.{stage}: it adds to the prompt, or brings KV of it, and behind prefill the "
                "prompt is computed; put it before prefill"
            )
    return None


def content_problem(workload: Workload, llm: Sequence[Deployment], pipeline: PipelinePlan, joint: str) -> str | None:
    """Why blocks cannot be found by their content where all stations run in one loop, for what is ``joint``."""
    if not any(cached_by_content(workload, pool) for pool in llm):
        return None
    if any(pool.kv.offload_bytes is not None for pool in llm):
        return f"unsupported: kv.offload_bytes with {joint}; leave it out"
    # What a request asks when it comes again is not the prompt whose blocks the workload knows.
    if pipeline.repeats:
        return (
            "unsupported: kv.prefix_caching by content with pipeline that comes to the LLM more than once; leave it out"
        )
    return None


def ahead_problem(pipeline: PipelinePlan, routes: RequestRoutes, joint: str) -> str | None:
    """Why no stage can begin before its turn where all stations run in one loop, for what is ``joint``."""
    for number in routes.first:
        if routes.ahead(number):
            return f"unsupported: pipeline.{pipeline.stages[number].name}: prefetch with {joint}; use prefetch: false"
    return None


def with_own_kv(
    pipeline: PipelinePlan, routes: RequestRoutes, link: LinkPlan | None
) -> tuple[LinkPlan | None, str | None]:
    """The links where a stage brings KV to the decode side, and why it cannot; both as they are where none does."""
    if routes.on_decode is None:
        return link, None
    if link is None:
        name = pipeline.stages[routes.on_decode].name
        return (
            link,
            f"infeasible: pipeline.{name}: to_decode without a decode side; leave it out, or use pools with roles",
        )
    return replace(link, computed_only=True), None
