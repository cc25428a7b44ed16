"""The stages of a configuration around its LLM: what they run on, and what they make of its requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.catalog.model import Model
from evaluator.catalog.read_hardware import load_hardware
from evaluator.catalog.read_model import load_model
from evaluator.catalog.what_if import WhatIf, changed_model, device
from evaluator.cost.precision import Precision
from evaluator.metrics.outcomes import OK
from evaluator.plan.checks import limit_problem, policy_problem
from evaluator.plan.link import LinkPlan
from evaluator.plan.station import StationPlan, station_of
from evaluator.replica import Change
from evaluator.replica.changes import changed_hardware
from evaluator.scenario import Deployment, Workload
from evaluator.scenario.pipeline_keys import pipeline_problem
from evaluator.scenario.pools import STAGE, pools_of, stage_pools_of
from evaluator.scenario.scenario import Geometric
from evaluator.scenario.unsaid import told
from evaluator.scenario.workload import pipeline_names
from evaluator.stages import Batched, Delay, Pass, Shipped, StageKind, StagePool, Step, Visit, Work, kind_of, stage_rng
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


class Entry(NamedTuple):
    """A place on the way: a stage by its number, or the LLM (None), which gives ``tokens``; None: the request's output.

    From behind ``back_to``, the number of an entry, requests come back to it ``times`` times.
    """

    stage: int | None
    tokens: int | None = None
    back_to: int | None = None
    times: int | Geometric | None = None


@dataclass(frozen=True, eq=False)
class Visited:
    """One visit of the requests to a stage (``work`` is what it does) or to the LLM (``stage`` None).

    ``there`` (request,) are those that come; None: all. ``tokens`` are the requests as they come.
    """

    stage: int | None
    there: NDArray[np.bool_] | None
    tokens: Tokens
    work: Work | None = None

    @property
    def ids(self) -> NDArray[np.int64]:
        """The requests that come."""
        return np.arange(len(self.tokens.prompt_tokens)) if self.there is None else np.flatnonzero(self.there)


@dataclass(frozen=True, eq=False)
class Walked:
    """What becomes of all requests of a seed on their way, visit by visit, if nobody asks when."""

    visits: tuple[Visited, ...]
    _demands: dict[tuple[int, int], Demand] = field(default_factory=dict)

    @cached_property
    def llm(self) -> tuple[Visited, ...]:
        """The visits to the LLM."""
        return tuple(visit for visit in self.visits if visit.stage is None)

    @property
    def tokens(self) -> Tokens:
        """The requests as they first come to the LLM."""
        return self.llm[0].tokens

    @cached_property
    def first(self) -> dict[int, Visited]:
        """The first visit to every stage."""
        found: dict[int, Visited] = {}
        for visit in self.visits:
            if visit.stage is not None:
                found.setdefault(visit.stage, visit)
        return found

    @property
    def on_decode(self) -> int | None:
        """The first stage that brings KV to a decode side; None: there is none."""
        return next((stage for stage, visit in self.first.items() if visit.work and visit.work.on_decode), None)

    def ahead(self, stage: int) -> bool:
        """Whether a stage begins before its turn."""
        work = self.first[stage].work
        return work is not None and work.ahead

    def asked(self, visit: Visited, step: int) -> Demand:
        """What the passes of a step ask of its pool for those who come; kept, since rates share it."""
        key = id(visit), step
        if key not in self._demands:
            assert visit.work is not None
            work = visit.work.steps[step]
            assert isinstance(work, Pass)
            self._demands[key] = pass_demand(work, visit.ids, len(visit.tokens.prompt_tokens))
        return self._demands[key]


@dataclass(frozen=True, eq=False)
class PipelinePlan:
    """The stages in their order, the way through them, the pools for them, and the model that gives the answers.

    ``keeps_kv``: the KV of what was said stays in the cache while stages between two visits to the LLM run. An
    approximation: it takes no room meanwhile.
    """

    stages: tuple[StagePlan, ...]
    entries: tuple[Entry, ...]
    pools: Mapping[str, StagePool]
    deployments: Mapping[str, Deployment]  # of the pools
    model: Model
    precision: Precision
    keeps_kv: bool = False
    replicas: int = 1  # of the pools that requests come to first
    change: Change | None = None  # of a variant: an input of the hardware that differs

    @property
    def route(self) -> tuple[str, ...]:
        """What configurations must have in common to be run together: stages, kinds of steps, who shares a pool."""
        return tuple(
            f"{step.label} {step.kind.__name__} {step.pool} {step.station} {stage.before} "
            f"{stage.kind.streams(stage.parameters)}"
            for stage in self.stages
            for step in stage.steps
        )

    @property
    def priced(self) -> list[tuple[int, float | None]]:
        """(devices, USD per hour of one) of every pool."""
        return [(pool.replicas * pool.devices, self.price(name)) for name, pool in self.pools.items()]

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Devices of its pools whose price is not known."""
        return tuple(pool.hardware.name for name, pool in self.pools.items() if self.price(name) is None)

    def price(self, name: str) -> float | None:
        """USD per hour of a device of a pool; None: not known."""
        own = self.deployments[name].usd_per_device_hour
        return self.pools[name].hardware.usd_per_hour if own is None else own

    def walk(self, tokens: Tokens, seed: int) -> Walked:
        """Requests, as the workload has them, through all stages. InputError where a stage cannot be computed."""
        visits: list[Visited] = []
        turns: dict[int, int] = {}
        answered: Tokens | None = None  # with what the last visit to the LLM gave
        for entry, there in self._way(tokens, seed):
            if entry.stage is None:
                tokens = _asking(tokens, entry, answered, self.keeps_kv)
                answered = tokens
                visits.append(Visited(None, there, tokens))
                continue
            stage, turn = self.stages[entry.stage], turns.get(entry.stage, 0)
            turns[entry.stage] = turn + 1
            work = stage.kind.work(stage.parameters, self._visit(stage, tokens, seed, turn))
            visits.append(Visited(entry.stage, there, tokens, work))
            tokens = _behind(tokens, work, there)
        return Walked(tuple(visits))

    def _way(self, tokens: Tokens, seed: int) -> Iterator[tuple[Entry, NDArray[np.bool_] | None]]:
        """The entries in the order in which they are visited, loops unrolled, with those who come."""
        for entry in self.entries:
            there = None if entry.stage is None else self.stages[entry.stage].visited(tokens)
            if entry.back_to is None:
                yield entry, there
                continue
            rounds = self._rounds(entry, there, len(tokens.prompt_tokens), seed)
            again = self.entries[entry.back_to : self.entries.index(entry)]
            for number in range(1, int(rounds.max(initial=0)) + 1):
                yield entry, rounds >= number
                for one in again:
                    own = None if one.stage is None else self.stages[one.stage].visited(tokens)
                    yield one, (rounds >= number) & (True if own is None else own)

    def _rounds(self, entry: Entry, there: NDArray[np.bool_] | None, count: int, seed: int) -> NDArray[np.int64]:
        """How often each request goes back from an entry, (request,)."""
        assert entry.stage is not None
        times: Any = entry.times
        if isinstance(times, Geometric):
            drawn = stage_rng(f"{self.stages[entry.stage].name} times", seed).random(count)
            more = np.log1p(-drawn) / np.log1p(-1.0 / times.mean) if times.mean > 1.0 else np.zeros(count)
            times = np.minimum(1 + np.floor(more), times.max or np.inf)
        rounds = np.broadcast_to(np.asarray(times, dtype=np.int64), count)
        return rounds if there is None else np.where(there, rounds, 0)

    @property
    def repeats(self) -> bool:
        """Whether requests come to the LLM more than once."""
        answers = [entry for entry in self.entries if entry.stage is None]
        return len(answers) > 1 or any(entry.back_to is not None for entry in self.entries)

    @property
    def shared(self) -> str | None:
        """A pool that several steps of one kind use, so that they wait in one queue; None: there is none."""
        used = [(step.pool, step.kind) for stage in self.stages for step in stage.steps if step.pool is not None]
        return next((str(pool) for pool, kind in used if used.count((pool, kind)) > 1), None)

    def _visit(self, stage: StagePlan, tokens: Tokens, seed: int, turn: int) -> Visit:
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
            turn,
            self.replicas,
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


def _asking(tokens: Tokens, entry: Entry, answered: Tokens | None, keeps_kv: bool) -> Tokens:
    """Requests as they come to the LLM; ``answered`` is how they came before.

    What was said then, prompt and output, is at the beginning of the prompt. With ``keeps_kv`` its KV is there still.
    """
    output = tokens.output_tokens
    if answered is not None:
        said = answered.prompt_tokens + answered.output_tokens
        cached = np.maximum(tokens.cached_tokens, said - 1) if keeps_kv else tokens.cached_tokens
        prompt = tokens.prompt_tokens + answered.output_tokens
        tokens = replace(tokens, prompt_tokens=prompt, cached_tokens=cached)
    branches = tokens.branch_tokens
    if entry.tokens is not None:
        output = np.full_like(output, entry.tokens)
        branches = None if branches is None else np.full_like(branches, entry.tokens)
    return replace(tokens, output_tokens=output, branch_tokens=branches)


def pipeline_of(workload: Workload, deployment: Deployment) -> PipelinePlan | None:
    """The stages around the LLM, without their steps; None where there are none."""
    stages = deployment.pipeline
    if all(stage.of_llm for stage in stages.values()):
        return None
    deployments = stage_pools_of(deployment)
    names, at = pipeline_names(workload), dict[str, int]()
    found: list[StagePlan] = []
    entries: list[Entry] = []
    for name, stage in stages.items():
        at[name] = len(entries)
        if stage.kind == "decode":
            entries[-1] = entries[-1]._replace(tokens=stage.tokens)
        elif stage.of_llm:
            entries.append(Entry(None))
        else:
            back_to = None if stage.back_to is None else at[stage.back_to]
            entries.append(Entry(len(found), None, back_to, stage.times))
            only = tuple(names.index(one) for one in stage.only) or None
            before = all(entry.stage is not None for entry in entries)
            found.append(StagePlan(name, kind_of(stage.kind), stage.parameters, stage.pool, only, before))
    answering = [pool for _, pool in pools_of(deployment)]
    served, replicas = answering[0], sum(pool.replicas for pool in answering if pool.role == answering[0].role)
    model = _model_of(served)
    pools = {name: _stage_pool(name, pool) for name, pool in deployments.items()}
    return PipelinePlan(
        tuple(found),
        tuple(entries),
        pools,
        deployments,
        model,
        served.precision,
        served.kv.prefix_caching,
        replicas,
    )


def _model_of(pool: Deployment) -> Model:
    return changed_model(pool.model) if isinstance(pool.model, WhatIf) else load_model(pool.model)


def _stage_pool(name: str, pool: Deployment) -> StagePool:
    of = pool.hardware
    hardware = device(of) if isinstance(of, WhatIf) else load_hardware(of)
    return StagePool(name, hardware, pool.replicas, pool.tensor_parallel * pool.pipeline_parallel)


def with_steps(pipeline: PipelinePlan, walked: Walked, first_station: int) -> PipelinePlan:
    """With the steps that its stages are found to have. Engines that run them are numbered from ``first_station``."""
    stages = []
    engines: dict[str | None, int] = {}  # a pool computes one model, for all steps that run on it
    for place, stage in enumerate(pipeline.stages):
        work, steps = walked.first[place].work, []
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
    pipeline = with_steps(pipeline, pipeline.walk(request, 0), 0)
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
    """The pools that compute models for stages, in the order of their numbers, with the largest of their requests.

    A pool is named after the first step that it serves.
    """
    found = []
    for number, steps in _passes(pipeline).items():
        place, step, planned = steps[0]
        model = _pass(walks[0], place, step).model
        demands = [
            walked.asked(visit, step)
            for place, step, _ in steps
            for walked in walks
            for visit in walked.visits
            if visit.stage == place
        ]
        if planned.pool is None:
            continue
        deployment = told(_whole_texts(replace(pipeline.deployments[planned.pool], model=model)))
        station = station_of(planned.label, deployment, Extremes.of([demand.extremes for demand in demands]))
        most = max(len(demand) for demand in demands)
        found.append(replace(station, number=number, most_jobs=most))
    return tuple(found)


def _whole_texts(pool: Deployment) -> Deployment:
    """With a policy that computes whole prompts, where none is said and the model is an encoder, which needs that."""
    if pool.batching.policy is not None or not _model_of(pool).whole_texts:
        return pool
    return replace(pool, batching=replace(pool.batching, policy="continuous"))


def _passes(pipeline: PipelinePlan) -> dict[int, list[tuple[int, int, StepPlan]]]:
    """(stage, step, what is planned) of the steps that compute models, by the number of their station."""
    found: dict[int, list[tuple[int, int, StepPlan]]] = {}
    for place, stage in enumerate(pipeline.stages):
        for step, planned in enumerate(stage.steps):
            if planned.station is not None:
                found.setdefault(planned.station, []).append((place, step, planned))
    return found


def _pass(walked: Walked, stage: int, step: int) -> Pass:
    work = walked.first[stage].work
    assert work is not None and isinstance(work.steps[step], Pass)
    return work.steps[step]  # type: ignore[return-value]


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
    for steps in _passes(pipeline).values():
        models = {str(_pass(walks[0], place, step).model): planned for place, step, planned in steps}
        if len(models) > 1:
            (one, first), (other, second) = list(models.items())[:2]
            return (
                f"infeasible: pipeline.{second.label}: pool {second.pool} computes {one} for {first.label} and cannot "
                f"compute {other} too; give it a pool of its own"
            )
    together: dict[str | None, str] = {}
    for batched in (step for stage in pipeline.stages for step in stage.steps if step.kind is Batched):
        served = together.setdefault(batched.pool, batched.label)
        if batched.pool is not None and served != batched.label:
            return (
                f"infeasible: pipeline.{batched.label}: pool {batched.pool} serves {served} in batches, and no others "
                "fit into them; give it a pool of its own"
            )
    for walked in walks:
        for visit in walked.visits:
            if visit.stage is not None and visit.work is not None and visit.work.problem is not None:
                return f"infeasible: pipeline.{pipeline.stages[visit.stage].name}: {visit.work.problem}"
    if workload.sessions.feedback:
        return (
            "unsupported: sessions that think from the answer with a pipeline; use workload.sessions.think_from arrival"
        )
    if workload.reasoning.several and pipeline.repeats:
        return (
            "unsupported: workload.reasoning.branches with a pipeline that comes to the LLM more than once: it is not "
            "said which branch goes on; use one branch"
        )
    works = [visit.work for walked in walks for visit in walked.visits if visit.work is not None]
    if any(np.any(np.asarray(work.adds_tokens)) for work in works) and (
        cached_by_content(workload, llm) or shared_tokens(workload, llm)
    ):
        return (
            "unsupported: kv.prefix_caching with stages that add tokens to prompts: what these are is not known; "
            "leave it out"
        )
    return None


def ahead_problem(pipeline: PipelinePlan, walked: Walked, coupled: str) -> str | None:
    """Why no stage can begin before its turn where all stations run in one loop, for what is ``coupled``."""
    for place in walked.first:
        if walked.ahead(place):
            return f"unsupported: pipeline.{pipeline.stages[place].name}: prefetch with {coupled}; use prefetch: false"
    return None


def with_own_kv(pipeline: PipelinePlan, walked: Walked, link: LinkPlan | None) -> tuple[LinkPlan | None, str | None]:
    """The links where a stage brings KV to the decode side, and why it cannot; both as they are where none does."""
    if walked.on_decode is None:
        return link, None
    if link is None:
        name = pipeline.stages[walked.on_decode].name
        return (
            link,
            f"infeasible: pipeline.{name}: to_decode without a decode side; leave it out, or use pools with roles",
        )
    return replace(link, computed_only=True), None
