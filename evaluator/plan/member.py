"""What is known of one configuration before it runs: what it serves, its stations, and whether it can run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from evaluator.cost.memory import kv_units
from evaluator.metrics.outcomes import OK
from evaluator.plan.checks import limit_problem, longest_prompt, policy_problem, prefix_problem, routing_problem
from evaluator.plan.engines import ITERATION, TOKEN, is_coupled, lacking
from evaluator.replica import Change, Design, design, token_budget
from evaluator.scenario import Deployment, Objective, Workload
from evaluator.scenario.grid import Point
from evaluator.traffic.jobs import Demand, Extremes
from evaluator.traffic.requests import shared_tokens
from evaluator.traffic.roles import ROLES, Role, hands_on
from evaluator.traffic.traffics import Traffics


class Rate(NamedTuple):
    """Another mean rate of arrivals, as a change of a configuration. Lengths and unit gaps stay."""

    rate_rps: float


@dataclass(frozen=True)
class StationPlan:
    """One pool of a configuration: what it is deployed as, and what its largest jobs ask of a replica.

    ``kept_units`` of the KV cache of each replica hold prefixes that jobs share, and never come free.
    """

    name: str
    deployment: Deployment
    design: Design
    extremes: Extremes
    max_num_batched_tokens: int
    kept_units: int = 0

    @property
    def role(self) -> Role:
        """Which part of a request's tokens it computes."""
        return ROLES[self.deployment.role]

    @property
    def devices(self) -> int:
        """Of all replicas."""
        return self.design.devices * self.deployment.replicas


@dataclass(frozen=True)
class Member:
    """One configuration: ``config`` is its row of the grid, ``status`` is ok or why it cannot run.

    ``stations`` are its pools in the order in which a request passes them. ``engine`` computes it; ``lacking`` are the
    keys for which the vectorised engine cannot. ``coupled``: what one replica or station does decides what comes to
    another, so that they cannot be computed one after the other. ``changes`` are those by which a variant differs from
    its configuration.
    """

    config: int
    workload: Workload
    objectives: tuple[Objective, ...]
    stations: tuple[StationPlan, ...]
    status: str
    engine: str = ITERATION
    lacking: tuple[str, ...] = ()
    coupled: bool = False
    changes: tuple[Change | Rate, ...] = ()

    @property
    def open_loop(self) -> bool:
        """Whether requests come at times of their own, so that a queue can grow without bound."""
        return self.workload.arrivals.process not in ("closed_loop", "all_at_once")

    @property
    def users(self) -> int | None:
        """Of a closed loop."""
        return self.workload.arrivals.users if self.workload.arrivals.process == "closed_loop" else None


def pools_of(deployment: Deployment) -> tuple[tuple[str, Deployment], ...]:
    """The pools of a deployment, (name, pool), in the order in which a request passes them."""
    return (("engine", deployment),)


@dataclass(frozen=True)
class Checked:
    """What is known of pools in tandem under requests of some lengths, whatever their rate; fields as of ``Member``."""

    stations: tuple[StationPlan, ...]
    status: str
    lacking: tuple[str, ...]
    coupled: bool


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
    """The configuration at a point of the grid, checked. Points share their parts, which so are known by identity."""
    workload, deployment, objectives = point
    arrivals = workload.arrivals
    lengths = (id(workload.lengths), workload.requests, workload.cached_tokens, workload.sessions)
    key = (id(deployment), arrivals.process, arrivals.users, *lengths)
    found = setting.known.get(key)
    if found is None:
        found = setting.known[key] = _checked(workload, pools_of(deployment), setting)
    return _member(config, workload, objectives, found, setting.engine)


def member_of_pools(
    config: int,
    workload: Workload,
    objectives: tuple[Objective, ...],
    pools: Sequence[tuple[str, Deployment]],
    setting: Setting,
) -> Member:
    """A configuration of several pools, (name, pool), in tandem, checked."""
    return _member(config, workload, objectives, _checked(workload, pools, setting), setting.engine)


def _member(config: int, workload: Workload, objectives: tuple[Objective, ...], found: Checked, engine: str) -> Member:
    engine = TOKEN if found.lacking else engine
    stations, status = found.stations, found.status
    return Member(config, workload, objectives, stations, status, engine, found.lacking, found.coupled)


def _checked(workload: Workload, pools: Sequence[tuple[str, Deployment]], setting: Setting) -> Checked:
    roles, shared = [ROLES[deployment.role] for _, deployment in pools], shared_tokens(workload, pools[0][1])
    demands = [_demands(setting.traffics, workload, seed, roles, shared) for seed in setting.seeds]
    largest = [Extremes.of([demand.extremes for demand in column]) for column in zip(*demands, strict=True)]
    stations = tuple(_station(*pool, workload, extremes) for pool, extremes in zip(pools, largest, strict=True))
    missing = tuple(dict.fromkeys(name for _, deployment in pools for name in lacking(workload, deployment)))
    coupled = any(is_coupled(workload, deployment) for _, deployment in pools)
    if len(pools) > 1 and workload.arrivals.process == "closed_loop":
        coupled, missing = True, (*missing, "closed loop over several pools")
    return Checked(stations, _status(workload, stations, coupled), missing, coupled)


def _demands(traffics: Traffics, workload: Workload, seed: int, roles: Sequence[Role], shared: int) -> list[Demand]:
    """What the requests ask of each pool; ``shared`` tokens of their prompts are kept at the first."""
    found = [traffics.demand(workload, seed, roles[0], shared)]
    for position in range(len(roles) - 1):
        found.append(found[-1].after_prefill[1] if hands_on(roles, position) else found[-1])
    return found


def _station(name: str, deployment: Deployment, workload: Workload, extremes: Extremes) -> StationPlan:
    longest = longest_prompt(deployment, extremes)
    built, shared, kept = design(deployment, longest), shared_tokens(workload, deployment), 0
    if built.replica is not None and shared:
        kept = workload.sessions.system_prompts * int(kv_units(built.replica.kv, shared))
    return StationPlan(name, deployment, built, extremes, token_budget(deployment.batching, longest), kept)


def _status(workload: Workload, stations: tuple[StationPlan, ...], coupled: bool) -> str:
    """ok, or the first problem of any station, which is named where there are several."""
    for station in stations:
        deployment, built = station.deployment, station.design
        problem: str | None = built.status
        if problem == OK:
            problem = routing_problem(workload, deployment) or policy_problem(deployment, built)
            problem = problem or prefix_problem(workload, deployment, built, station.extremes)
            problem = problem or limit_problem(deployment, built, station.extremes)
        if problem is not None:
            kind, _, reason = problem.partition(": ")
            return problem if len(stations) == 1 else f"{kind}: pool {station.name}: {reason}"
    if coupled and len(stations) > 1:
        return (
            "unsupported: a closed loop or a router that looks at the state over several pools; "
            "use arrivals with a rate and router round_robin or random"
        )
    return OK
