"""What is known of one configuration before it runs: what it serves, its stations, and whether it can run."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

from evaluator.metrics.outcomes import OK
from evaluator.plan.feasibility import Feasibility, check
from evaluator.plan.link import LinkPlan
from evaluator.plan.phases import PhasePools
from evaluator.plan.request_level import objective_problem
from evaluator.plan.route import PipelinePlan
from evaluator.plan.same_but_speed import DesignStations, likeness
from evaluator.plan.simulators import AUTO, ITERATION, REQUEST, TOKEN
from evaluator.plan.station import StationPlan
from evaluator.replica import Change, varied
from evaluator.scenario import STAGE, Deployment, Objective, Point, Workload, all_objectives
from evaluator.traffic.request_sampler import RequestSampler
from evaluator.traffic.roles import ROLES


class RateChange(NamedTuple):
    """Another mean rate of arrivals, as a change of a configuration. Lengths and unit gaps stay."""

    rate_rps: float


@dataclass(frozen=True, slots=True)  # a large sweep has one for each design: half of the memory
class Configuration:
    """One configuration: ``config`` is its row of the grid, ``status`` is ok or why it cannot run.

    ``phases`` says which of its stations serve one phase side by side. ``simulator`` computes it; ``lacking`` are the
    keys for which the vectorised engine cannot. ``joint``: what one replica or station does decides what comes to
    another, so that they cannot be computed one after the other. ``joint_pools``: that holds for pools, not only for
    the replicas of one, so that all pools run in one event loop. ``link`` is between a prefill and a decode side; None:
    what the one sends is there at once. ``changes`` are those by which a variant differs from its configuration.
    """

    config: int
    workload: Workload
    objectives: tuple[Objective, ...]
    of_design: DesignStations
    status: str
    simulator: str = ITERATION
    lacking: tuple[str, ...] = ()
    joint: bool = False
    link: LinkPlan | None = None
    phases: tuple[PhasePools, ...] = ()
    joint_pools: bool = False
    pipeline: PipelinePlan | None = None
    changes: tuple[Change | RateChange, ...] = ()

    @property
    def stations(self) -> tuple[StationPlan, ...]:
        """Its pools in the order in which a request passes them; behind those that give the answers come those that
        compute models for stages of the ``pipeline``."""
        return self.of_design.stations

    def with_stations(self, stations: tuple[StationPlan, ...]) -> Configuration:
        """The same with these stations."""
        return replace(self, of_design=DesignStations(stations))

    @property
    def open_loop(self) -> bool:
        """Whether requests come at times of their own, so that a queue can grow without bound."""
        return self.workload.arrivals.process not in ("closed_loop", "all_at_once")

    @property
    def one_batch(self) -> bool:
        """Whether requests that all come together are the whole of what is asked: a batch has no state but being done.

        Of a closed loop they are the first requests of its users, of a rate a run of one.
        """
        return self.workload.arrivals.process in ("all_at_once", "trace")

    @property
    def devices(self) -> int:
        """Devices of all pools."""
        of_answering = sum(station.devices for station in self.answering)
        return of_answering + (0 if self.pipeline is None else sum(devices for devices, _ in self.pipeline.priced))

    @property
    def accelerators(self) -> int:
        """The devices without the CPUs that serve stages: what a budget of devices counts, and what is per GPU."""
        return self.devices - (0 if self.pipeline is None else self.pipeline.cpus)

    @property
    def answering(self) -> tuple[StationPlan, ...]:
        """The stations that give the answers."""
        if len(self.stations) == 1 and self.pipeline is None:  # nearly always
            return self.stations
        return tuple(station for station in self.stations if station.role is not ROLES[STAGE])

    @property
    def staged(self) -> bool:
        """Whether its requests pass stages beside the LLM; those of a configuration that cannot run pass none."""
        return self.pipeline is not None and self.status == OK

    @property
    def in_loop(self) -> bool:
        """Whether the stages run on one clock with the pools, since requests are sent when others have been answered
        behind them, come to the LLM again, or wait in a queue that stages share."""
        return self.pipeline is not None and self.pipeline.in_loop is not None

    @property
    def unpriced(self) -> list[tuple[str, str]]:
        """(device, key of the scenario that says its price) of all pools whose price is not known.

        The key beside the pools holds for those that answer, and not for those of stages.
        """
        names = [station.design.hardware.title for station in self.answering if station.usd_per_device_hour is None]
        of_answering = [(name, "deployment.usd_per_device_hour") for name in names]
        return of_answering if self.pipeline is None else [*of_answering, *self.pipeline.unpriced]

    @property
    def _priced(self) -> list[tuple[int, float | None]]:
        """(devices, USD per hour of one) of all pools; those for stages once, however many stages they serve."""
        of_answering = [(station.devices, station.usd_per_device_hour) for station in self.answering]
        return of_answering if self.pipeline is None else [*of_answering, *self.pipeline.priced]

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all devices; None where that of one is not known."""
        # One unknown price makes the sum unknown: a design whose CPUs have none would else rank as the
        # cheapest.
        if any(price is None for _, price in self._priced):
            return None
        return sum(devices * price for devices, price in self._priced if price is not None)

    @property
    def users(self) -> int | None:
        """Users of a closed loop; None: an open loop."""
        return self.workload.arrivals.users if self.workload.arrivals.process == "closed_loop" else None


@dataclass(frozen=True)
class PlanContext:
    """What all configurations of a plan are checked with: their jobs, the seeds, and the engine that is wanted.

    ``found`` keeps what was found of designs, because the rates of a sweep share their pools and lengths.
    """

    sampler: RequestSampler
    seeds: tuple[int, ...]
    simulator: str
    requests: int  # of the whole run, all configurations and seeds that the vectorised engine can compute
    found: dict[Hashable, tuple[Feasibility, DesignStations]] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _next: Iterator[int] = field(default_factory=count)

    def asked(self, workload: Workload) -> int:
        """A number for all that a check looks at of a workload, equal for workloads that are alike to it."""
        number = self._numbers.get(id(workload))
        if number is None:
            # A number stands for them in every key, since to hash them takes longer than to find a design. From a
            # counter and not by how many there are: threads of a worker may ask at the same time.
            alike = _alike(workload)
            number = self._numbers[id(workload)] = self._numbers.setdefault(alike, next(self._next))
        return number


def _alike(workload: Workload) -> Hashable:
    """Equal for workloads under which checks find the same.

    Points of a sweep share the objects of parts that they do not vary, so these are known by their identity (``id``).
    """
    arrivals = workload.arrivals
    # Without sessions that go on, neither memory nor the lengths of requests depend on when they come: all rates
    # share one check.
    turns = id(arrivals) if workload.sessions.continued else None  # which of them are sent follows from the rate
    return (
        arrivals.process, arrivals.users, turns, id(workload.lengths), id(workload.models), id(workload.pipelines),
        id(workload.classes), workload.requests, id(workload.sampling), workload.cached_tokens, workload.sessions,
        workload.reasoning, workload.adapters,  # a replica is built with their popularity
    )  # fmt: skip


def configuration_at(config: int, point: Point, setting: PlanContext) -> Configuration:
    """The configuration at a point of the grid, checked."""
    workload, deployment, slo = point
    objectives = all_objectives(workload, slo)
    # By identity, since to hash or compare a deployment takes longer than most checks; the grid keeps the objects
    # alive.
    key = (id(deployment), setting.asked(workload))
    found = setting.found.get(key)
    if found is None:
        found = setting.found[key] = _found(workload, deployment, setting)
    feasibility, of_design = found
    # The request-level algorithms run replicas that share a queue together by themselves: nothing is ``joint`` to
    # them.
    by_request = setting.simulator == REQUEST
    status = feasibility.status
    if by_request and status == OK and feasibility.pipeline is not None:
        status = "unsupported: simulator request does not cover a pipeline of stages; use simulator iteration"
    if by_request and status == OK:
        status = objective_problem(objectives) or OK
    return Configuration(
        config=config,
        workload=workload,
        objectives=objectives,
        of_design=of_design,
        status=status,
        simulator=_simulator_of(feasibility, setting),
        lacking=() if by_request else feasibility.lacking,
        joint=feasibility.joint and not by_request,
        link=feasibility.link,
        phases=feasibility.phases,
        joint_pools=feasibility.joint_pools,
        pipeline=feasibility.pipeline,
    )


def _simulator_of(feasibility: Feasibility, setting: PlanContext) -> str:
    """What computes a configuration: what is asked for, but for what the vectorised one lacks, or is too slow to start
    for."""
    if setting.simulator == REQUEST:
        return REQUEST
    if feasibility.lacking:
        return TOKEN
    if setting.simulator != AUTO:
        return setting.simulator
    # By the requests of the whole sweep and not of this configuration's group, which is not known before all are
    # planned: so each shard of a sweep, and each worker, comes to the same answer.
    return TOKEN if setting.requests < feasibility.worth_compiling else ITERATION


def _found(workload: Workload, deployment: Deployment, setting: PlanContext) -> tuple[Feasibility, DesignStations]:
    """What is known of a deployment, and its stations: checked, or as of one that is like it."""
    # By what decides whether it can run, where no object is shared: devices that a sweep describes differ in each
    # point.
    like = likeness(deployment)
    key = (like, setting.asked(workload))
    first = None if like is None else setting.found.get(key)
    if first is not None:
        feasibility, of_first = first
        return feasibility, DesignStations(of_first.checked, deployment)
    feasibility = check(workload, deployment, setting.sampler, setting.seeds, setting.simulator)
    found = feasibility, DesignStations(feasibility.stations)
    if like is not None:
        setting.found[key] = found
    return found


# --- configurations with something changed: an input of the hardware, or the rate at which requests come


def variant(configuration: Configuration, change: Change | RateChange, sampler: RequestSampler) -> Configuration:
    """The configuration with the change; the configuration itself where the change makes no difference to it.

    No check is made anew: neither the memory nor the lengths of the requests change. So a variant runs in the group of
    its configuration, with the programs that were compiled for it.
    """
    changes = (*configuration.changes, change)
    if isinstance(change, RateChange):
        # Stations, link and pipeline stay the same objects, so that the variant keeps the compile key of its
        # configuration.
        return replace(
            configuration, workload=sampler.at_rate(configuration.workload, change.rate_rps), changes=changes
        )
    if configuration.status != OK:
        return configuration
    stations = tuple(_varied(station, change) for station in configuration.stations)
    # A change that touches nothing returns the same object, by which elasticities know that it is 0 without a run.
    link = None if configuration.link is None else configuration.link.changed(change)
    pipeline = None if configuration.pipeline is None else configuration.pipeline.changed(change)
    same = link is configuration.link and pipeline is configuration.pipeline
    same = same and all(station is other for station, other in zip(stations, configuration.stations, strict=True))
    if same:
        return configuration
    return replace(configuration.with_stations(stations), link=link, pipeline=pipeline, changes=changes)


def _varied(station: StationPlan, change: Change) -> StationPlan:
    deployment = station.deployment
    # A replica on one device sends nothing over links, but for KV that is swapped to the host.
    linked = station.design.devices > 1 or deployment.kv.preemption == "swap"
    # The same object, by which elasticities know that the input moves nothing here.
    if change.input.startswith("link_") and not linked:
        return station
    return replace(station, design=varied(station.design, change))
