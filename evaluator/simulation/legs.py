"""Pools that ran in one event loop: what became of their jobs, as of the stations that the chain has.

So all that follows is the same, whichever engine ran the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluator.metrics.use import Use, WeightedGaps
from evaluator.plan import Member
from evaluator.plan.sides import SidePlan
from evaluator.simulation.chain import Leg
from evaluator.simulation.gaps import pooled
from evaluator.simulation.use import Done, Totals, check_served, use_of
from evaluator.stations.contract import ChunkJobs, Departures, Station, each, shape_of, use_without_devices
from evaluator.traffic.jobs import Jobs, Origin

At = tuple[int, int]
"""Configuration and seed, by their positions."""


@dataclass(frozen=True, eq=False)
class PoolServed:
    """A pool after a run: what its replicas did, and the gaps between the tokens they gave."""

    done: Done
    gaps: WeightedGaps
    first: int  # number on its side of its first replica


@dataclass(frozen=True, eq=False)
class SideServed:
    """A side after a run: times and replicas of its jobs, (job,) in the order of the jobs that came there."""

    ready_s: np.ndarray
    scheduled_s: np.ndarray
    first_token_s: np.ndarray
    last_token_s: np.ndarray
    replica: np.ndarray
    pools: tuple[PoolServed, ...]


@dataclass(frozen=True, eq=False)
class LinkServed:
    """The link behind a prefill side: when each job's KV was there to be sent, began, and had come, (job,)."""

    ready_s: np.ndarray
    started_s: np.ndarray
    left_s: np.ndarray


@dataclass(frozen=True, eq=False)
class Served:
    """All sides of one configuration under one seed, and the link between them."""

    sides: tuple[SideServed, ...]
    link: LinkServed | None


def legs_in_one_loop(members: Sequence[Member], jobs: ChunkJobs, runs: Mapping[At, Served]) -> list[Leg]:
    """The legs of the jobs of a chunk; ``runs`` are those of the members that can run."""
    legs: list[Leg] = []
    for side in members[0].sides:
        if side.number > 0:
            legs.append(_link_leg(legs[-1], members, {at: run.link for at, run in runs.items()}))
        came = jobs if side.number == 0 else _sent(legs[-1])
        legs.append(_side_leg(members, side, came, {at: run.sides[side.number] for at, run in runs.items()}))
    return legs


def _side_leg(members: Sequence[Member], side: SidePlan, jobs: ChunkJobs, runs: Mapping[At, SideServed]) -> Leg:
    found = Departures.empty(jobs)
    for at, run in runs.items():
        for name in ("ready_s", "scheduled_s", "first_token_s", "last_token_s", "replica"):
            getattr(found, name)[at][: len(run.replica)] = getattr(run, name)
    check_served(members, found)
    uses = [_use(members, side, place, jobs, found, runs) for place in range(len(side.stations))]
    name = members[0].stations[side.stations.start].name if len(uses) == 1 else side.role.name
    return Leg(Station(name, never, side.role), jobs, found, tuple(uses))


def never(jobs: ChunkJobs) -> tuple[Departures, *tuple[Use, ...]]:
    """In place of a station's service where all is done in the loop."""
    raise AssertionError("this station has served its jobs in the loop of the network")


def _use(
    members: Sequence[Member],
    side: SidePlan,
    place: int,
    jobs: ChunkJobs,
    served: Departures,
    runs: Mapping[At, SideServed],
) -> Use:
    """Of the pool at a place on its side."""
    pools = [member.stations[member.sides[side.number].stations[place]] for member in members]
    configs, seeds, _ = shape_of(jobs)
    totals = Totals.empty(configs, seeds)
    itl: list[list[WeightedGaps]] = [[pooled([])] * seeds for _ in members]
    own = [list(of_seeds) for of_seeds in jobs]
    for at, run in runs.items():
        pool, one = run.pools[place], jobs[at[0]][at[1]]
        totals.add(at, pool.done)
        chosen = served.replica[at][: len(one)].astype(np.int64) - pool.first
        own[at[0]][at[1]] = replace(one, chosen=chosen)
        itl[at[0]][at[1]] = pool.gaps
    return use_of(pools, own, totals, itl)


def _link_leg(before: Leg, members: Sequence[Member], links: Mapping[At, LinkServed | None]) -> Leg:
    """The link behind a prefill side, which requests of one token do not pass."""
    jobs: list[list[Jobs]] = [[] for _ in before.jobs]
    for at, one in each(before.jobs):
        times = before.departures
        served_s = (times.first_token_s - times.scheduled_s)[at][: len(one)]
        came = replace(one, origin=Origin(times.replica[at][: len(one)], served_s))
        jobs[at[0]].append(came.after_prefill(times.last_token_s[at][: len(one)])[0])
    found, busy_s = Departures.empty(jobs), np.zeros(shape_of(jobs)[:2])
    for at, one in each(jobs):
        run = links.get(at)
        if run is None:
            continue
        for name, column in (("ready_s", run.ready_s), ("scheduled_s", run.started_s), ("last_token_s", run.left_s)):
            getattr(found, name)[at][: len(one)] = column
        assert one.origin is not None
        found.replica[at][: len(one)] = one.origin.replica
        latency_s = members[at[0]].link.latency_s  # type: ignore[union-attr]
        busy_s[at] = (run.left_s - run.started_s - latency_s).sum()
    found.first_token_s[...] = found.last_token_s
    replicas = np.array([0 if member.link is None else member.link.replicas for member in members], dtype=float)
    name = next((member.link.name for member in members if member.link is not None), "link")
    return Leg(Station(name, never), jobs, found, (use_without_devices(name, jobs, replicas, busy_s),))


def _sent(link: Leg) -> ChunkJobs:
    return [
        [one.at(link.departures.last_token_s[config, seed][: len(one)]) for seed, one in enumerate(of_seeds)]
        for config, of_seeds in enumerate(link.jobs)
    ]
