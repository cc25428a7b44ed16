"""The stages of a configuration around its LLM: what they run on, and what they make of its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from evaluator.catalog.model import Model
from evaluator.catalog.read_hardware import load_hardware
from evaluator.catalog.read_model import load_model
from evaluator.catalog.what_if import WhatIf, changed_model, device
from evaluator.cost.precision import Precision
from evaluator.metrics.outcomes import OK
from evaluator.plan.checks import limit_problem, policy_problem
from evaluator.plan.station import StationPlan, station_of
from evaluator.replica import Change
from evaluator.replica.changes import changed_hardware
from evaluator.scenario import Deployment, Workload
from evaluator.scenario.pipeline_keys import pipeline_problem
from evaluator.scenario.pools import STAGE, pools_of, stage_pools_of
from evaluator.scenario.unsaid import told
from evaluator.stages import Delay, Pass, Shipped, StageKind, StagePool, Step, Visit, Work, kind_of
from evaluator.traffic.jobs import Demand, Extremes
from evaluator.traffic.requests import Tokens, cached_by_content, shared_tokens
from evaluator.traffic.roles import ROLES


@dataclass(frozen=True)
class StepPlan:
    """A step of a stage: ``label`` names it in results, ``kind`` is a class of ``stages.steps``.

    ``station`` is the number of its pool among the stations of the member, where an engine runs it (``Pass``).
    """

    label: str
    kind: type
    pool: str | None
    station: int | None = None


@dataclass(frozen=True)
class StagePlan:
    """A stage that is none of the LLM's. ``only``: numbers of the pipelines that pass it; None: all do.

    ``before``: it is in front of the LLM.
    """

    name: str
    kind: StageKind
    parameters: object
    pool: str | None
    only: tuple[int, ...] | None
    before: bool
    steps: tuple[StepPlan, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The stage, and its steps where it has several."""
        return (self.name, *(step.label for step in self.steps if len(self.steps) > 1))

    def visited(self, tokens: Tokens) -> NDArray[np.bool_] | None:
        """Which requests pass it, (request,); None: all of them."""
        return None if self.only is None else np.isin(tokens.pipeline, self.only)


@dataclass(frozen=True, eq=False)
class Walked:
    """What the stages do with all requests of a seed: ``works`` and ``visited`` (as of ``StagePlan``) by stage.

    ``tokens`` are the requests as they come to the LLM.
    """

    works: tuple[Work, ...]
    visited: tuple[NDArray[np.bool_] | None, ...]
    tokens: Tokens
    _demands: dict[tuple[int, int], tuple[NDArray[np.int64], Demand]] = field(default_factory=dict)

    def asked(self, stage: int, step: int, ids: NDArray[np.int64]) -> Demand:
        """What the passes of a step ask of its pool for these requests; kept, since rates share it."""
        kept = self._demands.get((stage, step))
        if kept is None or not np.array_equal(kept[0], ids):
            work = self.works[stage].steps[step]
            assert isinstance(work, Pass)
            kept = self._demands[stage, step] = ids, pass_demand(work, ids, len(self.tokens.prompt_tokens))
        return kept[1]


@dataclass(frozen=True, eq=False)
class PipelinePlan:
    """The stages in their order, the pools for them, and the model that gives the answers."""

    stages: tuple[StagePlan, ...]
    pools: Mapping[str, StagePool]
    deployments: Mapping[str, Deployment]  # of the pools
    model: Model
    precision: Precision
    change: Change | None = None  # of a variant: an input of the hardware that differs

    @property
    def route(self) -> tuple[str, ...]:
        """What configurations must have in common to be run together: their stages and the kinds of their steps."""
        return tuple(
            f"{step.label} {step.kind.__name__} {step.station} {stage.before} {stage.kind.streams(stage.parameters)}"
            for stage in self.stages
            for step in stage.steps
        )

    @property
    def priced(self) -> list[tuple[int, float | None]]:
        """(devices, USD per hour of one) of every pool."""
        return [(pool.replicas * pool.devices, self.price(name)) for name, pool in self.pools.items()]

    def price(self, name: str) -> float | None:
        """USD per hour of a device of a pool; None: not known."""
        own = self.deployments[name].usd_per_device_hour
        return self.pools[name].hardware.usd_per_hour if own is None else own

    def walk(self, tokens: Tokens, seed: int) -> Walked:
        """Requests, as the workload has them, through all stages. InputError where a stage cannot be computed."""
        works, visits = [], []
        for stage in self.stages:
            visited = stage.visited(tokens)
            work = stage.kind.work(stage.parameters, self._visit(stage, tokens, seed))
            tokens = _behind(tokens, work, visited)
            works.append(work)
            visits.append(visited)
        return Walked(tuple(works), tuple(visits), tokens)

    def _visit(self, stage: StagePlan, tokens: Tokens, seed: int) -> Visit:
        return Visit(
            stage.name,
            tokens.prompt_tokens,
            tokens.output_tokens,
            tokens.cached_tokens,
            seed,
            self.model,
            self.precision,
            None if stage.pool is None else self.pools[stage.pool],
            self.pools,
        )

    def changed(self, change: Change) -> PipelinePlan:
        """With an input of the hardware changed; itself where that makes no difference to any step."""
        pools = {
            name: replace(pool, hardware=changed_hardware(pool.hardware, change)) for name, pool in self.pools.items()
        }
        same = all(pools[name].hardware is pool.hardware for name, pool in self.pools.items())
        linked = change.input.startswith("link_") and any(
            step.kind is Shipped for stage in self.stages for step in stage.steps
        )
        return self if same and not linked else replace(self, pools=pools, change=change)


def _behind(tokens: Tokens, work: Work, visited: NDArray[np.bool_] | None) -> Tokens:
    there = True if visited is None else visited
    prompt = tokens.prompt_tokens + np.where(there, work.adds_tokens, 0)
    cached = tokens.cached_tokens
    if work.cached_tokens is not None:
        cached = np.where(there, work.cached_tokens, cached)
    if prompt is not tokens.prompt_tokens or cached is not tokens.cached_tokens:
        tokens = replace(tokens, prompt_tokens=prompt.astype(np.int64), cached_tokens=cached.astype(np.int64))
    return tokens


def pipeline_of(workload: Workload, deployment: Deployment) -> PipelinePlan | None:
    """The stages around the LLM, without their steps; None where there are none."""
    stages = deployment.pipeline
    if all(stage.of_llm for stage in stages.values()):
        return None
    deployments = stage_pools_of(deployment)
    names, llm = tuple(workload.pipelines), list(stages.values())
    first = next(number for number, stage in enumerate(llm) if stage.of_llm)
    found = [
        StagePlan(
            name,
            kind_of(stage.kind),
            stage.parameters,
            stage.pool,
            tuple(names.index(one) for one in stage.only) or None,
            number < first,
        )
        for number, (name, stage) in enumerate(stages.items())
        if not stage.of_llm
    ]
    _, served = pools_of(deployment)[0]
    model = changed_model(served.model) if isinstance(served.model, WhatIf) else load_model(served.model)
    pools = {name: _stage_pool(name, pool) for name, pool in deployments.items()}
    return PipelinePlan(tuple(found), pools, deployments, model, served.precision)


def _stage_pool(name: str, pool: Deployment) -> StagePool:
    of = pool.hardware
    hardware = device(of) if isinstance(of, WhatIf) else load_hardware(of)
    return StagePool(name, hardware, pool.replicas, pool.tensor_parallel * pool.pipeline_parallel)


def with_steps(pipeline: PipelinePlan, works: tuple[Work, ...], first_station: int) -> PipelinePlan:
    """With the steps that its stages are found to have. Engines that run them are numbered from ``first_station``."""
    stages, number = [], first_station
    for stage, work in zip(pipeline.stages, works, strict=True):
        steps = []
        for step in work.steps:
            runs = isinstance(step, Pass)
            pool = pool_of_step(stage, step)
            steps.append(StepPlan(_label(stage, step, work), type(step), pool, number if runs else None))
            number += runs
        stages.append(replace(stage, steps=tuple(steps)))
    return replace(pipeline, stages=tuple(stages))


def pool_of_step(stage: StagePlan, step: Step) -> str | None:
    """The name of the pool on which a step runs."""
    own = getattr(step, "pool", None)
    if isinstance(step, Delay | Shipped):
        return None
    return stage.pool if own is None else own


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
    one = np.ones(1, dtype=np.int64)
    request = Tokens(one, one, one - 1, one - 1, one - 1)
    pipeline = with_steps(pipeline, pipeline.walk(request, 0).works, 0)
    pools = [pool.role for _, pool in pools_of(deployment)]
    llm = LLM_TIMES if "decode" in pools and "prefill" in pools else (LLM_TIMES[0], LLM_TIMES[-1])
    before = [name for stage in pipeline.stages if stage.before for name in stage.names]
    behind = [name for stage in pipeline.stages if not stage.before for name in stage.names]
    return (*before, *llm, *behind)


LLM_TIMES = ("prefill", "transfer", "decode")
"""The stages of the pools that give the answers, as results tell of them; a transfer is between two sides."""


def pass_demand(step: Pass, ids: NDArray[np.int64], requests: int) -> Demand:
    """What passes of a model for these requests, (request,), ask of its pool: ``step.sequences`` jobs for each."""
    tokens = np.broadcast_to(np.asarray(step.tokens, dtype=np.int64), requests)[ids]
    prompt = np.repeat(np.maximum(tokens, 1), step.sequences)
    none = np.zeros_like(prompt)
    return Demand.of(Tokens(prompt, np.ones_like(prompt), none, none, none), ROLES[STAGE])


def pass_stations(pipeline: PipelinePlan, walks: Sequence[Walked]) -> tuple[StationPlan, ...]:
    """The pools that compute models for stages, one for each step that does, with the largest of their requests."""
    found = []
    for place, stage in enumerate(pipeline.stages):
        for number, planned in enumerate(stage.steps):
            if planned.station is None or planned.pool is None:
                continue
            step = walks[0].works[place].steps[number]
            assert isinstance(step, Pass)
            demands = []
            for walked in walks:
                visited, count = walked.visited[place], len(walked.tokens.prompt_tokens)
                demands.append(
                    walked.asked(place, number, np.arange(count) if visited is None else np.flatnonzero(visited))
                )
            deployment = told(replace(pipeline.deployments[planned.pool], model=step.model))
            extremes = Extremes.of([demand.extremes for demand in demands])
            station = station_of(planned.label, deployment, extremes)
            most = max(len(demand) for demand in demands)
            found.append(replace(station, number=planned.station, most_jobs=most))
    return tuple(found)


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


def stages_problem(workload: Workload, llm: Deployment, pipeline: PipelinePlan, walks: Sequence[Walked]) -> str | None:
    """What the stages of a pipeline cannot do with one another, or with the workload; None where they can."""
    for stage in pipeline.stages:
        for step in stage.steps:
            if step.kind is Pass and step.pool is None:
                return (
                    f"infeasible: pipeline.{step.label}: it computes a model, and no pool serves it; add a pool such "
                    f"as deployment.pools.{stage.name}: {{role: stage, hardware: l4}} and say pool: {stage.name}"
                )
    if workload.sessions.feedback:
        return (
            "unsupported: sessions that think from the answer with a pipeline; use workload.sessions.think_from arrival"
        )
    longer = any(np.any(np.asarray(work.adds_tokens)) for walked in walks for work in walked.works)
    if longer and (cached_by_content(workload, llm) or shared_tokens(workload, llm)):
        return (
            "unsupported: kv.prefix_caching with stages that add tokens to prompts: what these are is not known; "
            "leave it out"
        )
    return None
