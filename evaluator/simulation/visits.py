"""Requests on ways of their own in the event loop of the reference, as the legs of a chain: visit by visit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.use import PoolTotals, Use
from evaluator.plan import Configuration, StationPlan
from evaluator.plan.visits import RequestRoutes
from evaluator.reference import PoolOutcome
from evaluator.simulation.chain import StationVisit
from evaluator.simulation.joint_visits import never
from evaluator.simulation.routes import StepVisits
from evaluator.simulation.stages import StepStation, on_pool
from evaluator.simulation.use import use_of
from evaluator.stages import Delay
from evaluator.stations.contract import (
    ChunkJobs,
    RequestTimes,
    Station,
    each,
    shape_of,
    table_shape,
    use_without_devices,
)
from evaluator.traffic.jobs import Demand, Jobs
from evaluator.traffic.requests import Tokens

if TYPE_CHECKING:
    from evaluator.simulation.network import NetworkRun
    from evaluator.simulation.phase_runs import PhaseRun


def legs_of_ways(
    configurations: Sequence[Configuration],
    walks: Sequence[Sequence[RequestRoutes]],
    jobs: ChunkJobs,
    llm: Sequence[StationVisit],
    runs: dict[tuple[int, int], NetworkRun],
) -> list[StationVisit]:
    """The legs of all visits in their order: those of the stages, and between them those of the LLM, ``llm``."""
    if not runs:  # no configuration of the chunk can run
        return list(llm)
    numbers = max(len(one.ways.hops) for one in runs.values() if one.ways is not None)
    now_s = {at: one.arrival_s.copy() for at, one in runs.items()}
    found: list[StationVisit] = []
    told: set[tuple[int, int]] = set()
    longest = max(runs.values(), key=lambda one: len(one.ways.hops) if one.ways is not None else 0)
    for number in range(numbers):
        kind = longest.ways.hops[number]  # type: ignore[union-attr]
        if isinstance(kind, int):
            found += [_visit_leg(leg, kind, jobs, now_s) for leg in llm]
            continue
        stop = StepStation(configurations, walks, kind.place, kind.step)
        hops: dict[tuple[int, int], StepVisits] = {
            at: one.ways.hops[number]  # type: ignore[union-attr, misc]
            for at, one in runs.items()
            if number < len(one.ways.hops)  # type: ignore[union-attr]
        }
        first = (kind.place, kind.step) not in told
        told.add((kind.place, kind.step))
        found.append(_hop_leg(stop, jobs, hops, runs, now_s, first))
    return found


def _visit_leg(
    leg: StationVisit, visit: int, jobs: ChunkJobs, now_s: dict[tuple[int, int], np.ndarray]
) -> StationVisit:
    """Of a leg with all visits to the LLM one visit; the first tells of the use."""
    own: list[list[Jobs]] = [[] for _ in jobs]
    for at, one in each(leg.jobs):
        count = len(jobs[at[0]][at[1]])
        some = one.some(np.flatnonzero(one.id // count == visit))
        own[at[0]].append(replace(some, id=some.id - visit * count))
    times = RequestTimes.empty(table_shape(own))
    for at, one in each(own):
        shifted = one.id + visit * len(jobs[at[0]][at[1]])  # the ids by which the LLM knew this visit
        for name in ("arrival_s", "scheduled_s", "first_token_s", "last_token_s", "replica"):
            getattr(times, name)[at][one.id] = getattr(leg.times, name)[at][shifted]
        own[at[0]][at[1]] = one.at(times.arrival_s[at][one.id])
        if at in now_s:
            now_s[at][one.id] = times.last_token_s[at][one.id]
    return replace(leg, jobs=own, times=times, uses=leg.uses if visit == 0 else (), visit=visit)


def _hop_leg(
    stop: StepStation,
    jobs: ChunkJobs,
    hops: dict[tuple[int, int], StepVisits],
    runs: dict[tuple[int, int], NetworkRun],
    now_s: dict[tuple[int, int], np.ndarray],
    first: bool,
) -> StationVisit:
    """Of one step of one visit; its first visit tells of the use."""
    found = RequestTimes.empty(table_shape(jobs))
    visited = np.zeros(found.arrival_s.shape, dtype=bool)
    own = [list(of_seeds) for of_seeds in jobs]
    for at, one in each(jobs):
        if at not in runs:
            continue
        for name in ("arrival_s", "scheduled_s", "first_token_s", "last_token_s"):
            getattr(found, name)[at][one.id] = now_s[at][one.id]
        own[at[0]][at[1]] = one.at(now_s[at][one.id])
        if at not in hops:
            continue
        hop = hops[at]
        for request in hop.ids.tolist():
            came_s, began_s, left_s, replica = hop.times(request)
            found.arrival_s[at][request], found.scheduled_s[at][request] = came_s, began_s
            found.first_token_s[at][request] = found.last_token_s[at][request] = left_s
            found.replica[at][request] = replica
            visited[at][request] = True
        now_s[at][one.id] = found.last_token_s[at][one.id]
    stage = stop.stage(0)
    station = Station(
        stop.label,
        never,
        streams=stage.kind.streams(stage.parameters),
        stage=stage.name,
        waits=stop.planned(0).kind is not Delay,
    )
    uses = (_hop_use(stop, jobs, runs),) if first else ()
    return StationVisit(station, own, replace(found, visited=visited), uses)


def _hop_use(stop: StepStation, jobs: ChunkJobs, runs: dict[tuple[int, int], NetworkRun]) -> Use:
    """What a step used in all its visits; where stages share a pool, the first of them tells of it."""
    number = stop.planned(0).station
    if number is not None:
        pools = [configuration.stations[number] for configuration in stop.configurations]
        totals = PoolTotals.empty(*shape_of(jobs)[:2])
        own = [list(of_seeds) for of_seeds in jobs]
        for at, one in runs.items():
            totals.add(at, PoolTotals.of(PoolOutcome([], list(one.passes[number].pools[0]))))
            own[at[0]][at[1]] = _computed(pools[at[0]], one.passes[number])
        return replace(use_of(pools, own, totals, None), name=stop.label)
    busy_s = np.zeros(shape_of(jobs)[:2])
    for at, one in runs.items():
        assert one.ways is not None
        busy_s[at] = sum(hop.busy_s for hop in one.ways.hops if isinstance(hop, StepVisits) and hop.of(stop))
    servers = np.array([float(stop.all_servers(config)) for config in range(len(stop.configurations))])
    return on_pool(stop, use_without_devices(stop.label, jobs, servers, busy_s))


def _computed(pool: StationPlan, of_run: PhaseRun) -> Jobs:
    """The passes that a pool computed."""
    prompt = np.array([part.prompt_tokens for part in of_run.phase.parts.values()], dtype=np.int64)
    none = np.zeros_like(prompt)
    demand = Demand.of(Tokens(prompt, none + 1, none, none, none), pool.role)
    return Jobs(np.arange(len(prompt)), none.astype(float), demand, none.astype(bool))
