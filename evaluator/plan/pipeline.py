"""The stages of a configuration around its LLM: what they run on, and what they make of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.catalog.what_if import device_named, model_named
from evaluator.plan.route import (
    BEFORE,
    BEHIND,
    BETWEEN,
    PipelinePlan,
    RequestRoutes,
    RouteStep,
    StagePlan,
    StepPlan,
)
from evaluator.plan.station import StationPlan, station_of
from evaluator.policies import ENCODING
from evaluator.scenario import Deployment, Workload, pipeline_problem, pools_of, stage_pools_of, with_engine_defaults
from evaluator.scenario.pipeline import stages_between
from evaluator.stages import Delay, Pass, Shipped, StagePool, Step, Work, kind_of
from evaluator.traffic.jobs import Extremes
from evaluator.traffic.requests import Tokens


def pipeline_of(workload: Workload, deployment: Deployment) -> PipelinePlan | None:
    """The stages around the LLM, without their steps; None where there are none."""
    stages = deployment.pipeline
    if all(stage.of_llm for stage in stages.values()):
        return None
    deployments = stage_pools_of(deployment)
    names, entry_of = workload.pipeline_names, dict[str, int]()
    plans: list[StagePlan] = []
    entries: list[RouteStep] = []
    between, llm = stages_between(stages), -1
    for name, stage in stages.items():
        entry_of[name] = len(entries)
        if stage.kind == "decode":
            # ``prefill`` and ``decode`` are two stages of one visit to the LLM: the tokens of the second are its
            # output.
            entries[llm] = entries[llm]._replace(tokens=stage.tokens)
        elif stage.of_llm:
            llm = len(entries)
            entries.append(RouteStep(None))
        else:
            back_to = None if stage.back_to is None else entry_of[stage.back_to]
            # Numbered among the stages beside the LLM's, to which ``plans`` is the index.
            entries.append(RouteStep(len(plans), None, back_to, stage.times))
            only = tuple(names.index(pipeline) for pipeline in stage.only) or None
            # Once the LLM is among the entries, all that follows is behind it.
            where = BETWEEN if name in between else BEFORE if llm < 0 else BEHIND
            plans.append(StagePlan(name, kind_of(stage.kind), stage.parameters, stage.pool, only, where))
    answering = [pool for _, pool in pools_of(deployment)]
    # Those that a request can come to first: stages that bring KV (``kv_fetch``) bring it to one of them.
    served, replicas = answering[0], sum(pool.ranks for pool in answering if pool.role == answering[0].role)
    model = model_named(served.model)
    pools = {name: _stage_pool(name, pool) for name, pool in deployments.items()}
    return PipelinePlan(
        tuple(plans),
        tuple(entries),
        pools,
        deployments,
        model,
        served.precision,
        bool(served.kv.prefix_caching),
        replicas,
    )


def _stage_pool(name: str, pool: Deployment) -> StagePool:
    devices = pool.tensor_parallel * pool.pipeline_parallel
    return StagePool(name, device_named(pool.hardware), pool.ranks, devices)


def with_steps(pipeline: PipelinePlan, routes: RequestRoutes, first_station: int) -> PipelinePlan:
    """The pipeline with the steps of its stages; pools that compute them are numbered from ``first_station``."""
    stages = []
    engines: dict[str | None, int] = {}  # a pool computes one model, for all steps that run on it
    for stage_number, stage in enumerate(pipeline.stages):
        work, steps = routes.first[stage_number].work, []
        assert work is not None
        for step in work.steps:
            pool = pool_of_step(stage, step)
            runs = isinstance(step, Pass)
            number = engines.setdefault(pool, first_station + len(engines)) if runs else None
            steps.append(StepPlan(_label(stage, step, work), type(step), pool, number))
        stages.append(replace(stage, steps=tuple(steps)))
    return replace(pipeline, stages=tuple(stages))


def pool_of_step(stage: StagePlan, step: Step) -> str | None:
    """The name of the pool on which a step runs."""
    of_step = getattr(step, "pool", None)
    if isinstance(step, Delay | Shipped):
        return None
    return stage.pool if of_step is None else of_step


def _label(stage: StagePlan, step: Step, work: Work) -> str:
    if len(work.steps) == 1:
        return stage.name
    return f"{stage.name}.{step.name or work.steps.index(step) + 1}"


def stage_names(workload: Workload, deployment: Deployment) -> tuple[str, ...]:
    """What results are told of: the stages, the steps of those that have several, and the LLM's own.

    None where there are no stages beside these, or where they name what is not there.
    """
    if pipeline_problem(workload, deployment) is not None:
        return ()
    pipeline = pipeline_of(workload, deployment)
    if pipeline is None:
        return ()
    single = np.ones(1, dtype=np.int64)
    # A request of one token: the steps' names depend on no size.
    request = Tokens(single, single, single - 1, single - 1, single - 1)
    pipeline = with_steps(pipeline, pipeline.walk(request, 0), 0)
    pools = [pool.role for _, pool in pools_of(deployment)]
    llm = LLM_TIMES if "decode" in pools and "prefill" in pools else (LLM_TIMES[0], LLM_TIMES[-1])
    before, between, behind = (
        [name for stage in pipeline.stages if stage.where == where for name in stage.names]
        for where in (BEFORE, BETWEEN, BEHIND)
    )
    return (*before, llm[0], *between, *llm[1:], *behind)


LLM_TIMES = ("prefill", "transfer", "decode")
"""The stages of the pools that give the answers, as results tell of them; a transfer is between two sides."""


def pass_stations(pipeline: PipelinePlan, all_routes: Sequence[RequestRoutes]) -> tuple[StationPlan, ...]:
    """The pools that compute models for stages, in the order of their numbers, with the largest of their requests.

    A pool is named after the first step that it serves.
    """
    stations = []
    for number, steps in passes_of(pipeline).items():
        stage_number, step, planned = steps[0]
        model = pass_of(all_routes[0], stage_number, step).model
        demands = [
            routes.asked(visit, step)
            for stage_number, step, _ in steps
            for routes in all_routes
            for visit in routes.visits
            if visit.stage == stage_number
        ]
        # ``stages_problem`` says that no pool serves the step.
        if planned.pool is None:
            continue
        deployment = with_engine_defaults(_whole_texts(replace(pipeline.deployments[planned.pool], model=model)))
        station = station_of(planned.label, deployment, Extremes.of([demand.extremes for demand in demands]))
        most = max(len(demand) for demand in demands)
        stations.append(replace(station, number=number, most_jobs=most))
    return tuple(stations)


def _whole_texts(pool: Deployment) -> Deployment:
    """The pool with a policy of whole prompts, where it states none and its model is an encoder, which needs one."""
    if pool.batching.policy is not None or not model_named(pool.model).whole_texts:
        return pool
    return replace(pool, batching=replace(pool.batching, policy=ENCODING.name))


def passes_of(pipeline: PipelinePlan) -> dict[int, list[tuple[int, int, StepPlan]]]:
    """(stage, step, what is planned) of the steps that compute models, by the number of their station."""
    passes: dict[int, list[tuple[int, int, StepPlan]]] = {}
    for number, stage in enumerate(pipeline.stages):
        for step, planned in enumerate(stage.steps):
            if planned.station is not None:
                passes.setdefault(planned.station, []).append((number, step, planned))
    return passes


def pass_of(routes: RequestRoutes, stage: int, step: int) -> Pass:
    """A step that computes a model, as of the first visit to its stage."""
    work = routes.first[stage].work
    assert work is not None and isinstance(work.steps[step], Pass)
    return work.steps[step]  # type: ignore[return-value]
