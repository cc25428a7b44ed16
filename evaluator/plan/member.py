"""What is known of one configuration before it runs: what it serves, its stations, and whether it can run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from evaluator.metrics.outcomes import OK
from evaluator.plan.alike import likeness, with_devices
from evaluator.plan.checks import (
    branches_problem,
    drafts_problem,
    limit_problem,
    policy_problem,
    prefix_problem,
    routing_problem,
)
from evaluator.plan.engines import ITERATION, REQUEST, TOKEN, has_frontend, is_coupled, lacking
from evaluator.plan.link import LinkPlan, backpressure_problem, link_of, link_problem
from evaluator.plan.one_loop import lacking_in_one_loop, why_in_one_loop
from evaluator.plan.pipeline import pass_stations, pipeline_of, with_steps
from evaluator.plan.request_level import objective_problem, queue_problem, request_problem
from evaluator.plan.sides import Pools, SidePlan, model_of, most_jobs, sides_of, sides_problem
from evaluator.plan.stage_checks import ahead_problem, content_problem, passes_problem, stages_problem, with_own_kv
from evaluator.plan.station import StationPlan, station_of
from evaluator.plan.way import PipelinePlan, Visited, Walked
from evaluator.records import with_fields
from evaluator.replica import Change
from evaluator.scenario import Deployment, Objective, Workload
from evaluator.scenario.grid import Point
from evaluator.scenario.pipeline_keys import pipeline_problem
from evaluator.scenario.pools import STAGE, pools_of
from evaluator.scenario.unsaid import told
from evaluator.scenario.workload import model_names
from evaluator.traffic.jobs import Demand, Extremes, held_units
from evaluator.traffic.requests import shared_tokens
from evaluator.traffic.roles import ROLES, Role, hands_on
from evaluator.traffic.traffics import Traffics


class Rate(NamedTuple):
    """Another mean rate of arrivals, as a change of a configuration. Lengths and unit gaps stay."""

    rate_rps: float


@dataclass(frozen=True)
class Member:
    """One configuration: ``config`` is its row of the grid, ``status`` is ok or why it cannot run.

    ``stations`` are its pools in the order in which a request passes them; ``sides`` says which of them serve one phase
    side by side. Behind the pools that give the answers come those that compute models for stages of the ``pipeline``.
    ``engine`` computes it; ``lacking`` are the keys for which the vectorised engine cannot. ``coupled``:
    what one replica or station does decides what comes to another, so that they cannot be computed one after the other.
    ``in_one_loop``: that holds for pools, not only for the replicas of one, so that all pools run in one event loop.
    ``link`` is between a prefill and a decode side; None: what the one sends is there at once. ``changes``
    are those by which a variant differs from its configuration.
    """

    config: int
    workload: Workload
    objectives: tuple[Objective, ...]
    stations: tuple[StationPlan, ...]
    status: str
    engine: str = ITERATION
    lacking: tuple[str, ...] = ()
    coupled: bool = False
    link: LinkPlan | None = None
    sides: tuple[SidePlan, ...] = ()
    in_one_loop: bool = False
    pipeline: PipelinePlan | None = None
    changes: tuple[Change | Rate, ...] = ()
    checked: tuple[StationPlan, ...] = ()  # the stations as they were checked: its own, or those of one that is like it

    @property
    def open_loop(self) -> bool:
        """Whether requests come at times of their own, so that a queue can grow without bound."""
        return self.workload.arrivals.process not in ("closed_loop", "all_at_once")

    @property
    def devices(self) -> int:
        """Of all pools."""
        return sum(devices for devices, _ in self._priced)

    @property
    def accelerators(self) -> int:
        """The devices without the CPUs that serve stages: what a budget of devices counts, and what is per GPU."""
        return self.devices - (0 if self.pipeline is None else self.pipeline.cpus)

    @property
    def answering(self) -> tuple[StationPlan, ...]:
        """The stations that give the answers."""
        return tuple(station for station in self.stations if station.role is not ROLES[STAGE])

    @property
    def staged(self) -> bool:
        """Whether its requests pass stages beside the LLM; those of a member that cannot run pass none."""
        return self.pipeline is not None and self.status == OK

    @property
    def unpriced(self) -> list[tuple[str, str]]:
        """(device, key of the scenario that says its price) of all pools whose price is not known.

        The key beside the pools holds for those that answer, and not for those of stages.
        """
        names = [station.design.hardware.name for station in self.answering if station.usd_per_device_hour is None]
        own = [(name, "deployment.usd_per_device_hour") for name in names]
        return own if self.pipeline is None else [*own, *self.pipeline.unpriced]

    @property
    def _priced(self) -> list[tuple[int, float | None]]:
        """(devices, USD per hour of one) of all pools; those for stages once, however many stages they serve."""
        own = [(station.devices, station.usd_per_device_hour) for station in self.answering]
        return own if self.pipeline is None else [*own, *self.pipeline.priced]

    @property
    def usd_per_hour(self) -> float | None:
        """Of all devices; None where the price of one is not known."""
        if any(price is None for _, price in self._priced):
            return None
        return sum(devices * price for devices, price in self._priced if price is not None)

    @property
    def users(self) -> int | None:
        """Of a closed loop."""
        return self.workload.arrivals.users if self.workload.arrivals.process == "closed_loop" else None


@dataclass(frozen=True)
class Checked:
    """What is known of pools in tandem under requests of some lengths, whatever their rate; fields as of ``Member``."""

    stations: tuple[StationPlan, ...]
    sides: tuple[SidePlan, ...]
    status: str
    lacking: tuple[str, ...]
    coupled: bool
    in_one_loop: bool
    link: LinkPlan | None
    pipeline: PipelinePlan | None = None
    checked: tuple[StationPlan, ...] = ()  # of one that is like it; none where these stations were checked


@dataclass(frozen=True)
class Setting:
    """What all configurations of a plan are checked with: their jobs, the seeds, and the engine that is wanted.

    ``known`` keeps what was found, because the rates of a sweep share their pools and lengths.
    """

    traffics: Traffics
    seeds: tuple[int, ...]
    engine: str
    known: dict[Hashable, Checked] = field(default_factory=dict)


def member(config: int, point: Point, setting: Setting) -> Member:
    """The configuration at a point of the grid, checked.

    Points of a sweep share the objects of parts that they do not vary, so what was checked is kept by the identity
    (``id``) of the deployment and the lengths.
    """
    workload, deployment, objectives = point
    arrivals = workload.arrivals
    lengths = (
        id(workload.lengths), id(workload.models), id(workload.pipelines), workload.requests,
        workload.cached_tokens, workload.sessions, workload.reasoning,
    )  # fmt: skip
    turns = id(arrivals) if workload.sessions.continued else None  # which of them are sent follows from the rate
    asked = (arrivals.process, arrivals.users, turns, *lengths)
    found = setting.known.get((id(deployment), *asked))
    if found is None:
        found = setting.known[id(deployment), *asked] = _found(workload, deployment, setting, asked)
    by_request = setting.engine == REQUEST
    status = found.status
    if by_request and status == OK and found.pipeline is not None:
        status = "unsupported: engine request does not cover a pipeline of stages; use engine iteration"
    if by_request and status == OK:
        status = objective_problem(objectives) or OK
    return Member(
        config=config,
        workload=workload,
        objectives=objectives,
        stations=found.stations,
        status=status,
        engine=TOKEN if found.lacking and not by_request else setting.engine,
        lacking=() if by_request else found.lacking,
        coupled=found.coupled and not by_request,
        link=found.link,
        sides=found.sides,
        in_one_loop=found.in_one_loop,
        pipeline=found.pipeline,
        checked=found.checked or found.stations,
    )


def _found(workload: Workload, deployment: Deployment, setting: Setting, asked: tuple[Hashable, ...]) -> Checked:
    """What is known of a deployment: checked, or as of one that is like it; ``asked`` is what it depends on beside."""
    like = likeness(deployment)
    if like is None:
        return _checked(workload, deployment, setting)
    first = setting.known.get((like, *asked))
    if first is None:
        first = setting.known[like, *asked] = _checked(workload, deployment, setting)
    return with_fields(first, stations=with_devices(first.stations, deployment), checked=first.stations)


def _checked(workload: Workload, deployment: Deployment, setting: Setting) -> Checked:
    pools, transfer = tuple((name, told(pool)) for name, pool in pools_of(deployment)), deployment.transfer
    sides = sides_of(pools, model_names(workload), transfer.groups)
    roles, shared = [side.role for side in sides], shared_tokens(workload, pools[0][1])
    problem = pipeline_problem(workload, deployment)
    pipeline = None if problem is not None else pipeline_of(workload, deployment)
    walks: list[Walked] = []
    if pipeline is not None:
        walks = [setting.traffics.walked(workload, seed, pipeline) for seed in setting.seeds]
        pipeline = with_steps(pipeline, walks[0], len(pools))
    demands = [_demands(setting.traffics, workload, seed, roles, shared, pipeline) for seed in setting.seeds]
    later = [_later_demands(roles, visit, shared) for walked in walks for visit in walked.llm[1:]]
    stations = _stations(workload, pools, sides, [*demands, *later])
    link, apart = link_of(stations, sides, transfer), None
    if pipeline is not None:
        link, apart = with_own_kv(pipeline, walks[0], link)
    status = sides_problem(workload, pools, sides, transfer.groups) or _status(workload, stations, setting.engine)
    if status == OK and link is not None:
        status = link_problem(stations, transfer) or backpressure_problem(stations, transfer) or OK
    status = apart or OK if status == OK else status
    if status == OK:
        stations = _with_shares(stations, sides, [of_seed[0] for of_seed in demands], setting.seeds)
    passes: tuple[StationPlan, ...] = ()
    if problem is not None:
        status = f"infeasible: {': '.join(problem)}"
    elif pipeline is not None:
        passes = pass_stations(pipeline, walks)
        status = (
            status
            if status != OK
            else (stages_problem(workload, pools[0][1], pipeline, walks) or passes_problem(passes) or OK)
        )
    fronts = [has_frontend(workload, station.design.calibration) for station in stations]
    several = why_in_one_loop(workload, stations, sides, transfer if link is not None else None, pipeline)
    missing = [
        name for station, front in zip(stations, fronts, strict=True)
        for name in lacking(workload, station.deployment, front, not several, station.lockstep)
    ]  # fmt: skip
    if several:
        missing += lacking_in_one_loop(several, stations, pipeline, workload)
    if status == OK and several and pipeline is not None:
        status = ahead_problem(pipeline, walks[0], several[0]) or OK
        status = content_problem(workload, pools[0][1], several[0]) or status
    if status == OK and several and setting.engine == REQUEST:
        status = f"unsupported: engine request does not cover {several[0]}; use engine iteration"
    coupled = bool(several) or any(
        is_coupled(workload, station.deployment, front, station.lockstep)
        for station, front in zip(stations, fronts, strict=True)
    )
    lack = tuple(dict.fromkeys(missing))
    return Checked((*stations, *passes), sides, status, lack, coupled, bool(several), link, pipeline)


def _demands(
    traffics: Traffics, workload: Workload, seed: int, roles: Sequence[Role], shared: int, pipeline: PipelinePlan | None
) -> list[Demand]:
    """What the requests ask of each side; ``shared`` tokens of their prompts are kept at the first."""
    found = [traffics.demand(workload, seed, roles[0], shared, pipeline)]
    for position in range(len(roles) - 1):
        found.append(found[-1].after_prefill[1] if hands_on(roles, position) else found[-1])
    return found


def _later_demands(roles: Sequence[Role], visit: Visited, shared: int) -> list[Demand]:
    """What requests ask of each side that come to the LLM again."""
    found = [Demand.of(visit.tokens, roles[0], shared)[visit.ids]]
    for position in range(len(roles) - 1):
        found.append(found[-1].after_prefill[1] if hands_on(roles, position) else found[-1])
    return found


def _stations(
    workload: Workload, pools: Pools, sides: Sequence[SidePlan], demands: Sequence[Sequence[Demand]]
) -> tuple[StationPlan, ...]:
    """The pools with their largest requests. ``demands`` (seed, side)."""
    names, found = model_names(workload), []
    for side in sides:
        for number in side.stations:
            name, deployment = pools[number]
            asked = [of_seed[side.number] for of_seed in demands]
            if len(names) > 1 and model_of(deployment) in names:
                model = names.index(model_of(deployment))
                asked = [demand.by_model[model] for demand in asked if model in demand.by_model] or asked
            station = station_of(name, deployment, Extremes.of([demand.extremes for demand in asked]), workload)
            station = _with_largest(station, asked)
            found.append(replace(station, number=number) if number else station)
    return tuple(found)


def _with_shares(
    stations: tuple[StationPlan, ...], sides: Sequence[SidePlan], demands: Sequence[Demand], seeds: Sequence[int]
) -> tuple[StationPlan, ...]:
    """With the most jobs that any replica gets, where that is not for the pool's own router to say."""
    if all(side.replicas is None for side in sides):
        return stations
    found = [most_jobs(sides, stations, demand, seed) for demand, seed in zip(demands, seeds, strict=True)]
    most = [None if None in column else max(column) for column in zip(*found, strict=True)]
    return tuple(replace(station, most_jobs=one) for station, one in zip(stations, most, strict=True))


def _with_largest(station: StationPlan, asked: Sequence[Demand]) -> StationPlan:
    """With what the largest job takes of the KV cache, where jobs have several branches; ``asked`` (seed,)."""
    replica = station.design.replica
    if replica is None or station.extremes.branches == 1:
        return station
    return replace(station, largest_units=max(int(held_units(one, replica.kv).max(initial=0)) for one in asked))


def _status(workload: Workload, stations: tuple[StationPlan, ...], engine: str) -> str:
    """ok, or the first problem of any station, which is named where there are several."""
    for station in stations:
        deployment, built = station.deployment, station.design
        problem: str | None = built.status
        if problem == OK:
            problem = routing_problem(workload, deployment) or policy_problem(deployment, built)
            problem = problem or prefix_problem(workload, deployment, built, station.extremes)
            problem = problem or branches_problem(workload, station) or drafts_problem(workload, station)
            problem = problem or limit_problem(deployment, built, station.extremes, station.largest_units)
            problem = problem or (request_problem(workload, station) if engine == REQUEST else queue_problem(station))
        if problem is not None:
            kind, _, reason = problem.partition(": ")
            return problem if len(stations) == 1 else f"{kind}: pool {station.name}: {reason}"
    if workload.sessions.feedback and len(stations) > 1:
        return (
            "unsupported: sessions that think from the answer over several pools; use workload.sessions.think_from "
            "arrival"
        )
    return OK
