"""What is known of one configuration before it runs: what it serves, its stations, and whether it can run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from evaluator.cost.memory import kv_units
from evaluator.metrics.outcomes import OK
from evaluator.plan.checks import limit_problem, longest_prompt, policy_problem, prefix_problem, routing_problem
from evaluator.plan.engines import ITERATION, TOKEN, is_coupled, lacking
from evaluator.plan.link import LinkPlan, link_of, link_problem
from evaluator.plan.station import StationPlan
from evaluator.replica import Change, design, token_budget
from evaluator.scenario import Deployment, Objective, Transfer, Workload
from evaluator.scenario.grid import Point
from evaluator.scenario.pools import pools_of
from evaluator.traffic.jobs import Demand, Extremes
from evaluator.traffic.requests import shared_tokens
from evaluator.traffic.roles import ROLES, Role, hands_on
from evaluator.traffic.traffics import Traffics


class Rate(NamedTuple):
    """Another mean rate of arrivals, as a change of a configuration. Lengths and unit gaps stay."""

    rate_rps: float


@dataclass(frozen=True)
class Member:
    """One configuration: ``config`` is its row of the grid, ``status`` is ok or why it cannot run.

    ``stations`` are its pools in the order in which a request passes them. ``engine`` computes it; ``lacking`` are the
    keys for which the vectorised engine cannot. ``coupled``: what one replica or station does decides what comes to
    another, so that they cannot be computed one after the other: replicas run together where the router of their pool
    looks at them or users send again when they are served, and so do all stations in a closed loop over several.
    ``link`` is between a prefill and a decode pool; None: what the one sends is there at once. ``changes`` are those by
    which a variant differs from its configuration.
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
    changes: tuple[Change | Rate, ...] = ()

    @property
    def open_loop(self) -> bool:
        """Whether requests come at times of their own, so that a queue can grow without bound."""
        return self.workload.arrivals.process not in ("closed_loop", "all_at_once")

    @property
    def users(self) -> int | None:
        """Of a closed loop."""
        return self.workload.arrivals.users if self.workload.arrivals.process == "closed_loop" else None


@dataclass(frozen=True)
class Checked:
    """What is known of pools in tandem under requests of some lengths, whatever their rate; fields as of ``Member``."""

    stations: tuple[StationPlan, ...]
    status: str
    lacking: tuple[str, ...]
    coupled: bool
    link: LinkPlan | None


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
    lengths = (id(workload.lengths), workload.requests, workload.cached_tokens, workload.sessions)
    key = (id(deployment), arrivals.process, arrivals.users, *lengths)
    found = setting.known.get(key)
    if found is None:
        found = setting.known[key] = _checked(workload, pools_of(deployment), setting, deployment.transfer)
    return _member(config, workload, objectives, found, setting.engine)


def member_of_pools(
    config: int,
    workload: Workload,
    objectives: tuple[Objective, ...],
    pools: Sequence[tuple[str, Deployment]],
    setting: Setting,
    transfer: Transfer | None = None,
) -> Member:
    """A configuration of several pools, (name, pool), in tandem, checked; without ``transfer`` nothing lies between."""
    return _member(config, workload, objectives, _checked(workload, pools, setting, transfer), setting.engine)


def _member(config: int, workload: Workload, objectives: tuple[Objective, ...], found: Checked, engine: str) -> Member:
    engine = TOKEN if found.lacking else engine
    stations, status = found.stations, found.status
    return Member(config, workload, objectives, stations, status, engine, found.lacking, found.coupled, found.link)


def _checked(
    workload: Workload, pools: Sequence[tuple[str, Deployment]], setting: Setting, transfer: Transfer | None
) -> Checked:
    roles, shared = [ROLES[deployment.role] for _, deployment in pools], shared_tokens(workload, pools[0][1])
    demands = [_demands(setting.traffics, workload, seed, roles, shared) for seed in setting.seeds]
    largest = [Extremes.of([demand.extremes for demand in column]) for column in zip(*demands, strict=True)]
    stations = tuple(_station(*pool, workload, extremes) for pool, extremes in zip(pools, largest, strict=True))
    missing = tuple(dict.fromkeys(name for _, deployment in pools for name in lacking(workload, deployment)))
    coupled = any(is_coupled(workload, deployment) for _, deployment in pools)
    if len(pools) > 1 and workload.arrivals.process == "closed_loop":
        coupled, missing = True, (*missing, "closed loop over several pools")
    link = None if transfer is None else link_of(stations, transfer)
    status = _status(workload, stations)
    if status == OK and link is not None and transfer is not None:
        status = link_problem(stations, transfer) or OK
    return Checked(stations, status, missing, coupled, link)


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


def _status(workload: Workload, stations: tuple[StationPlan, ...]) -> str:
    """ok, or the first problem of any station, which is named where there are several."""
    for station in stations:
        deployment, built = station.deployment, station.design
        problem: str | None = built.status
        if problem == OK:
            problem = routing_problem(deployment) or policy_problem(deployment, built)
            problem = problem or prefix_problem(workload, deployment, built, station.extremes)
            problem = problem or limit_problem(deployment, built, station.extremes)
        if problem is not None:
            kind, _, reason = problem.partition(": ")
            return problem if len(stations) == 1 else f"{kind}: pool {station.name}: {reason}"
    if workload.arrivals.process == "closed_loop" and len(stations) > 1:
        return "unsupported: a closed loop over several pools; use arrivals with a rate"
    return OK
