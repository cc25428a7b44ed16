"""The route of requests through the stages of a configuration, unrolled: which visit which stage, with which tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.catalog.model import Model
from evaluator.cost.precision import Precision
from evaluator.replica import Change
from evaluator.replica.changes import changed_hardware
from evaluator.scenario import STAGE, Deployment, Geometric
from evaluator.stages import Pass, Shipped, StageKind, StagePool, StageRequests, Work, stage_rng
from evaluator.traffic.jobs import Demand
from evaluator.traffic.requests import Tokens
from evaluator.traffic.roles import ROLES


class Position(NamedTuple):
    """Where a visit is in a pipeline with its loops unrolled: at an ``entry`` in a round, or behind it at the entry
    ``again``, to which requests went back. Routes with other numbers of rounds have one order of positions."""

    entry: int
    round: int = 0
    again: int = -1  # before all entries: ``entry`` itself


@dataclass(frozen=True, eq=False)
class StageVisitPlan:
    """One visit of the requests to a stage (``work`` is what it does) or to the LLM (``stage`` None).

    ``comers`` (request,) are those that come; None: all. ``tokens`` are the requests as they come.
    """

    position: Position
    stage: int | None
    comers: NDArray[np.bool_] | None
    tokens: Tokens
    work: Work | None = None

    @property
    def ids(self) -> NDArray[np.int64]:
        """The requests that come."""
        return np.arange(len(self.tokens.prompt_tokens)) if self.comers is None else np.flatnonzero(self.comers)


@dataclass(frozen=True, eq=False)
class RequestRoutes:
    """The visits of all requests of a seed, in order, with what each asks of its stage: all but the times."""

    visits: tuple[StageVisitPlan, ...]
    _demands: dict[tuple[int, int], Demand] = field(default_factory=dict)

    @cached_property
    def llm(self) -> tuple[StageVisitPlan, ...]:
        """The visits to the LLM."""
        return tuple(visit for visit in self.visits if visit.stage is None)

    @property
    def tokens(self) -> Tokens:
        """The requests as they first come to the LLM."""
        return self.llm[0].tokens

    @cached_property
    def first(self) -> dict[int, StageVisitPlan]:
        """The first visit to every stage."""
        first_visits: dict[int, StageVisitPlan] = {}
        for visit in self.visits:
            if visit.stage is not None:
                first_visits.setdefault(visit.stage, visit)
        return first_visits

    @property
    def on_decode(self) -> int | None:
        """The first stage that brings KV to a decode side; None: there is none."""
        return next((stage for stage, visit in self.first.items() if visit.work and visit.work.on_decode), None)

    def ahead(self, stage: int) -> bool:
        """Whether a stage begins before its turn."""
        work = self.first[stage].work
        return work is not None and work.ahead

    # id(visit) is safe as a key, because the routes hold their visits for as long as they hold these demands.
    def asked(self, visit: StageVisitPlan, step: int) -> Demand:
        """What a step's passes ask of its pool for the requests of a visit; kept, since rates of a sweep share it."""
        key = id(visit), step
        if key not in self._demands:
            assert visit.work is not None
            work = visit.work.steps[step]
            assert isinstance(work, Pass)
            self._demands[key] = pass_demand(work, visit.ids, len(visit.tokens.prompt_tokens))
        return self._demands[key]


def pass_demand(step: Pass, ids: NDArray[np.int64], requests: int) -> Demand:
    """What passes of a model for these requests, (request,), ask of its pool: ``step.sequences`` jobs for each."""
    tokens = np.broadcast_to(np.asarray(step.tokens, dtype=np.int64), requests)[ids]
    # An empty prompt is still one row to a kernel.
    prompt = np.repeat(np.maximum(tokens, 1), step.sequences)
    none = np.zeros_like(prompt)
    # A pass gives one vector, which counts as a single output token: a sequence never decodes.
    return Demand.of(Tokens(prompt, np.ones_like(prompt), none, none, none), ROLES[STAGE])


@dataclass(frozen=True)
class StepPlan:
    """A step of a stage: ``label`` names it in results, ``kind`` is a class of ``stages.steps``.

    ``station`` is the number of its pool among the stations of the configuration, where an engine runs it (``Pass``).
    """

    label: str
    kind: type
    pool: str | None
    station: int | None = None


BEFORE, BETWEEN, BEHIND = "before", "between", "behind"
"""Where a stage stands on the way through the LLM."""


@dataclass(frozen=True)
class StagePlan:
    """A stage that is none of the LLM's. ``only``: numbers of the pipelines that pass it; None: all do.

    ``where``: ``BEFORE`` the LLM, ``BETWEEN`` prefill and decode, or ``BEHIND`` it.
    """

    name: str
    kind: StageKind
    parameters: object
    pool: str | None
    only: tuple[int, ...] | None
    where: str
    steps: tuple[StepPlan, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The stage, and its steps where it has several."""
        return (self.name, *(step.label for step in self.steps if len(self.steps) > 1))

    def visited(self, tokens: Tokens) -> NDArray[np.bool_] | None:
        """Which requests pass it, (request,); None: all of them."""
        return None if self.only is None else np.isin(tokens.pipeline, self.only)


class RouteStep(NamedTuple):
    """A place on the way: a stage by its number, or the LLM (None), which gives ``tokens``; None: the request's output.

    From behind ``back_to``, the number of an entry, requests come back to it ``times`` times.
    """

    stage: int | None
    tokens: int | None = None
    back_to: int | None = None
    times: int | Geometric | None = None


class RouteSizes(NamedTuple):
    """Of the routes that an event loop follows, as large as those of any seed: visits to the LLM; stops, which are
    these, steps of stages, and where a request sets out and comes home; queues, and servers of each."""

    visits: int
    stops: int
    queues: int
    servers: int


@dataclass(frozen=True, eq=False)
class PipelinePlan:
    """The stages in their order, the way through them, the pools for them, and the model that gives the answers.

    ``keeps_kv``: the KV of what was said stays in the cache while stages between two visits to the LLM run. An
    approximation: it takes no room meanwhile.
    """

    stages: tuple[StagePlan, ...]
    entries: tuple[RouteStep, ...]
    pools: Mapping[str, StagePool]
    deployments: Mapping[str, Deployment]  # of the pools
    model: Model
    precision: Precision
    keeps_kv: bool = False
    replicas: int = 1  # of the pools that requests come to first
    change: Change | None = None  # of a variant: an input of the hardware that differs
    # Of the event loop that has the stages with the pools; None: each stage serves all its requests by itself.
    in_loop: RouteSizes | None = None

    @property
    def route(self) -> tuple[str, ...]:
        """What configurations that run together have in common: stages, kinds of steps, which stages share a pool."""
        return tuple(
            f"{step.label} {step.kind.__name__} {step.pool} {step.station} {stage.where} "
            f"{stage.kind.streams(stage.parameters)}"
            for stage in self.stages
            for step in stage.steps
        )

    @property
    def priced(self) -> list[tuple[int, float | None]]:
        """(devices, USD per hour of one) of every pool."""
        return [(pool.replicas * pool.devices, self.price(name)) for name, pool in self.pools.items()]

    @property
    def unpriced(self) -> list[tuple[str, str]]:
        """(device, key of the scenario that says its price) of its pools whose price is not known."""
        names = [name for name in self.pools if self.price(name) is None]
        return [(self.pools[name].hardware.title, f"deployment.pools.{name}.usd_per_device_hour") for name in names]

    @property
    def cpus(self) -> int:
        """Devices of the pools that are CPUs."""
        return sum(pool.replicas * pool.devices for pool in self.pools.values() if pool.hardware.kind == "cpu")

    def price(self, name: str) -> float | None:
        """USD per hour of a device of a pool; None: not known."""
        stated = self.deployments[name].usd_per_device_hour
        return self.pools[name].hardware.usd_per_hour if stated is None else stated

    def walk(self, tokens: Tokens, seed: int) -> RequestRoutes:
        """Requests, as the workload has them, through all stages. InputError where a stage cannot be computed."""
        visits: list[StageVisitPlan] = []
        turns: dict[int, int] = {}
        answered: Tokens | None = None  # with what the last visit to the LLM gave
        for position, entry, comers in self._unrolled(tokens, seed):
            if entry.stage is None:
                tokens = _asking(tokens, entry, answered, self.keeps_kv)
                answered = tokens
                visits.append(StageVisitPlan(position, None, comers, tokens))
                continue
            stage, turn = self.stages[entry.stage], turns.get(entry.stage, 0)
            turns[entry.stage] = turn + 1
            # ``turn`` counts the visits to a stage: each draws anew, or a tool that is called twice would take
            # the same time twice.
            work = stage.kind.work(stage.parameters, self._visit(stage, tokens, seed, turn))
            visits.append(StageVisitPlan(position, entry.stage, comers, tokens, work))
            tokens = _behind(tokens, work, comers)
        return RequestRoutes(tuple(visits))

    def _unrolled(self, tokens: Tokens, seed: int) -> Iterator[tuple[Position, RouteStep, NDArray[np.bool_] | None]]:
        """The entries as they are visited, loops unrolled, each with a mask of the requests that come,
        (request,); None: all."""
        for place, entry in enumerate(self.entries):
            comers = None if entry.stage is None else self.stages[entry.stage].visited(tokens)
            if entry.back_to is None:
                yield Position(place), entry, comers
                continue
            rounds = self._rounds(entry, comers, len(tokens.prompt_tokens), seed)
            if not rounds.any():  # the stage is there, though nobody comes, as are all others
                yield Position(place, 1), entry, rounds > 0
                continue
            again = range(entry.back_to, place)
            # Unrolled as often as the request that goes round most often; a mask says who still does.
            for number in range(1, int(rounds.max(initial=0)) + 1):
                yield Position(place, number), entry, rounds >= number
                for place_again in again:
                    step_again = self.entries[place_again]
                    visited = None if step_again.stage is None else self.stages[step_again.stage].visited(tokens)
                    back = (rounds >= number) & (True if visited is None else visited)
                    yield Position(place, number, place_again), step_again, back

    def _rounds(self, entry: RouteStep, comers: NDArray[np.bool_] | None, count: int, seed: int) -> NDArray[np.int64]:
        """How often each request goes back from an entry, (request,)."""
        assert entry.stage is not None
        times: Any = entry.times
        if isinstance(times, Geometric):
            # A stream of its own: other draws of the stage do not depend on how often requests come back.
            drawn = stage_rng(f"{self.stages[entry.stage].name} times", seed).random(count)
            # Geometric by inverse transform, so that the same draw means more rounds where the mean is larger.
            more = np.log1p(-drawn) / np.log1p(-1.0 / times.mean) if times.mean > 1.0 else np.zeros(count)
            times = np.minimum(1 + np.floor(more), times.max or np.inf)
        rounds = np.broadcast_to(np.asarray(times, dtype=np.int64), count)
        # Who does not come here does not go back; drawn for all the same, so that the others' draws do not
        # depend on who comes.
        return rounds if comers is None else np.where(comers, rounds, 0)

    @property
    def repeats(self) -> bool:
        """Whether requests come to the LLM more than once."""
        answers = [entry for entry in self.entries if entry.stage is None]
        return len(answers) > 1 or any(entry.back_to is not None for entry in self.entries)

    @property
    def shared(self) -> str | None:
        """A pool that several steps of one kind use, so that they wait in one queue; None: there is none."""
        used = [(step.pool, step.kind) for stage in self.stages for step in stage.steps if step.pool is not None]
        # Steps of different kinds on one pool have queues of their own: only steps of one kind wait for one another.
        return next((str(pool) for pool, kind in used if used.count((pool, kind)) > 1), None)

    @property
    def between(self) -> str | None:
        """The first stage between prefill and decode; None: there is none."""
        return next((stage.name for stage in self.stages if stage.where == BETWEEN), None)

    def _visit(self, stage: StagePlan, tokens: Tokens, seed: int, turn: int) -> StageRequests:
        # Between prefill and decode there is no more of an answer than its first token.
        output = np.ones_like(tokens.output_tokens) if stage.where == BETWEEN else tokens.output_tokens
        return StageRequests(
            stage.name,
            tokens.prompt_tokens,
            output,
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
        """The pipeline with an input of the hardware changed; itself where that makes no difference to any step."""
        pools = {
            name: replace(pool, hardware=changed_hardware(pool.hardware, change)) for name, pool in self.pools.items()
        }
        same = all(pools[name].hardware is pool.hardware for name, pool in self.pools.items())
        linked = change.input.startswith("link_") and any(
            step.kind is Shipped for stage in self.stages for step in stage.steps
        )
        # Shipped bytes cross a link whose figures stand in the step and are changed where its time is computed.
        return self if same and not linked else replace(self, pools=pools, change=change)


def _behind(tokens: Tokens, work: Work, visited: NDArray[np.bool_] | None) -> Tokens:
    """The requests as they leave a stage; those that do not pass it are as they were."""
    comes = True if visited is None else visited
    prompt = tokens.prompt_tokens + np.where(comes, work.adds_tokens, 0)
    cached = tokens.cached_tokens
    if work.cached_tokens is not None:
        cached = np.where(comes, work.cached_tokens, cached)
    return replace(tokens, prompt_tokens=prompt.astype(np.int64), cached_tokens=cached.astype(np.int64))


def _asking(tokens: Tokens, entry: RouteStep, answered: Tokens | None, keeps_kv: bool) -> Tokens:
    """Requests as they come to the LLM; ``answered`` is how they came before.

    What was said then, prompt and output, is at the beginning of the prompt. With ``keeps_kv`` its KV is there still.
    """
    output = tokens.output_tokens
    if answered is not None:
        # What a user and the model said is one text, with which the next prompt begins.
        spoken = answered.prompt_tokens + answered.output_tokens
        # The last token that was given has no KV yet: it is computed with the prompt that follows.
        cached = np.maximum(tokens.cached_tokens, spoken - 1) if keeps_kv else tokens.cached_tokens
        prompt = tokens.prompt_tokens + answered.output_tokens
        tokens = replace(tokens, prompt_tokens=prompt, cached_tokens=cached)
    branches = tokens.branch_tokens
    if entry.tokens is not None:
        output = np.full_like(output, entry.tokens)
        branches = None if branches is None else np.full_like(branches, entry.tokens)
    return replace(tokens, output_tokens=output, branch_tokens=branches)
