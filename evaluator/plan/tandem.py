"""The pools of a configuration in the order in which its requests pass them, each with the largest that come to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evaluator.plan.link import LinkPlan, link_of
from evaluator.plan.phases import PhasePools, Pools, model_of, most_jobs, sides_of
from evaluator.plan.pipeline import pass_stations, pipeline_of, with_steps
from evaluator.plan.route import PipelinePlan
from evaluator.plan.stage_checks import with_own_kv
from evaluator.plan.station import StationPlan, station_of
from evaluator.plan.visits import RequestRoutes, StageVisitPlan
from evaluator.scenario import Deployment, Transfer, Workload, pools_of, with_engine_defaults
from evaluator.traffic.jobs import Demand, Extremes, held_units
from evaluator.traffic.request_sampler import RequestSampler
from evaluator.traffic.requests import shared_tokens
from evaluator.traffic.roles import Role, hands_on


@dataclass(frozen=True)
class Tandem:
    """What requests of some lengths meet; nothing says yet whether it can serve them.

    ``demands`` (seed,) are what the requests ask of the first side. ``link_problem``: why a stage cannot bring KV to
    the decode side; None where it can, or where none does. ``walks`` (seed,) are empty without a ``pipeline``.
    """

    pools: Pools
    phases: tuple[PhasePools, ...]
    stations: tuple[StationPlan, ...]
    transfer: Transfer
    link: LinkPlan | None
    link_problem: str | None
    demands: tuple[Demand, ...]
    pipeline: PipelinePlan | None
    walks: tuple[RequestRoutes, ...]

    @property
    def answering(self) -> Deployment:
        """The pool that requests come to first."""
        return self.pools[0][1]

    @property
    def sending(self) -> Transfer | None:
        """How KV is sent; None: there is nobody to send it to."""
        return None if self.link is None else self.transfer

    def passes(self) -> tuple[StationPlan, ...]:
        """The pools that compute models for the stages of the pipeline."""
        return () if self.pipeline is None else pass_stations(self.pipeline, self.walks)

    def shared_out(self, seeds: Sequence[int]) -> tuple[StationPlan, ...]:
        """The stations with the most jobs that any replica gets, where that is not for the pool's router to say."""
        if all(phase.replicas is None for phase in self.phases):
            return self.stations
        pairs = zip(self.demands, seeds, strict=True)
        found = [most_jobs(self.phases, self.stations, demand, seed) for demand, seed in pairs]
        most = [None if None in column else max(column) for column in zip(*found, strict=True)]
        return tuple(replace(station, most_jobs=one) for station, one in zip(self.stations, most, strict=True))


def tandem_of(
    workload: Workload, deployment: Deployment, sampler: RequestSampler, seeds: Sequence[int], staged: bool
) -> Tandem:
    """The tandem of a deployment; with ``staged`` the stages of its pipeline, too."""
    pools, transfer = (
        tuple((name, with_engine_defaults(pool)) for name, pool in pools_of(deployment)),
        deployment.transfer,
    )
    phases = sides_of(pools, workload.model_names, transfer.groups)
    roles, shared = [phase.role for phase in phases], shared_tokens(workload, pools[0][1])
    pipeline = pipeline_of(workload, deployment) if staged else None
    walks: tuple[RequestRoutes, ...] = ()
    if pipeline is not None:
        walks = tuple(sampler.routes(workload, seed, pipeline) for seed in seeds)
        pipeline = with_steps(pipeline, walks[0], len(pools))
    firsts = tuple(sampler.demand(workload, seed, roles[0], shared, pipeline) for seed in seeds)
    later = [_asked_again(visit, roles[0], shared) for routes in walks for visit in routes.llm[1:]]
    demands = [_by_side(first, roles) for first in (*firsts, *later)]
    stations = _stations(workload, pools, phases, demands)
    link, problem = link_of(stations, phases, transfer), None
    if pipeline is not None:
        link, problem = with_own_kv(pipeline, walks[0], link)
    return Tandem(pools, phases, stations, transfer, link, problem, firsts, pipeline, walks)


def _asked_again(visit: StageVisitPlan, role: Role, shared: int) -> Demand:
    """What requests ask that come to the LLM again; ``shared`` tokens of their prompts are kept there."""
    return Demand.of(visit.tokens, role, shared)[visit.ids]


def _by_side(demand: Demand, roles: Sequence[Role]) -> list[Demand]:
    """What requests ask of each side, from what they ask of the first."""
    found = [demand]
    for position in range(len(roles) - 1):
        found.append(found[-1].after_prefill[1] if hands_on(roles, position) else found[-1])
    return found


def _stations(
    workload: Workload, pools: Pools, phases: Sequence[PhasePools], demands: Sequence[Sequence[Demand]]
) -> tuple[StationPlan, ...]:
    """The pools with their largest requests. ``demands`` (seed, side)."""
    names, found = workload.model_names, []
    for phase in phases:
        for number in phase.stations:
            name, deployment = pools[number]
            asked = [of_seed[phase.number] for of_seed in demands]
            if len(names) > 1 and model_of(deployment) in names:
                model = names.index(model_of(deployment))
                asked = [demand.by_model[model] for demand in asked if model in demand.by_model] or asked
            station = station_of(name, deployment, Extremes.of([demand.extremes for demand in asked]), workload)
            station = _with_largest(station, asked)
            found.append(replace(station, number=number) if number else station)
    return tuple(found)


def _with_largest(station: StationPlan, asked: Sequence[Demand]) -> StationPlan:
    """With what the largest job takes of the KV cache, where jobs have several branches; ``asked`` (seed,)."""
    replica = station.design.replica
    if replica is None or station.extremes.branches == 1:
        return station
    return replace(station, largest_units=max(int(held_units(one, replica.kv).max(initial=0)) for one in asked))
