"""What routers of pools in one loop choose, as far as it is known before the run: tables for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evaluator.plan import Member
from evaluator.plan.sides import SidePlan, group_of_replicas
from evaluator.routing import COUNTERS, HeavyLight, Sent, assign, name_of, router_of, stream
from evaluator.routing.sides import Asking, turns
from evaluator.stations.engine.common.rings import NONE
from evaluator.stations.engine.coupled import NO_COUNTER
from evaluator.traffic.jobs import Jobs


class Choices(NamedTuple):
    """Fields as of ``coupled.Network``; of replicas (replica,) without those that only fill up."""

    model: np.ndarray
    group: np.ndarray
    asks: np.ndarray
    counter: np.ndarray
    kind: np.ndarray
    turns: np.ndarray
    assigned: np.ndarray


def choices_of(member: Member, seed: int, sides: Sequence[Jobs], width: int, tables: tuple[int, int, int]) -> Choices:
    """The choices for the jobs of both sides, in ``width`` slots; ``tables``: kinds and groups, see ``Program``."""
    kinds, groups, _ = tables
    counts = [[member.stations[number].deployment.ranks for number in side.stations] for side in member.sides]
    replicas = sum(map(sum, counts))
    found = Choices(
        model=np.zeros(replicas, np.int32),
        group=np.zeros(replicas, np.int32),
        asks=np.zeros(width, np.int32),
        counter=np.full(len(sides), NO_COUNTER, np.int32),
        kind=np.full(width, NONE, np.int32),
        turns=np.zeros((kinds, groups, width), np.int32),
        assigned=np.zeros((groups, width), np.int32),
    )
    first, start = 0, 0
    for side, jobs, of_side in zip(member.sides, sides, counts, strict=True):
        own, at = slice(start, start + sum(of_side)), slice(first, first + len(jobs))
        found.group[own] = group_of_replicas(of_side, groups)
        if side.replicas is not None:
            found.model[own], found.asks[at] = side.replicas.model, jobs.demand.model
        counts_what = router_of(side.router).counts
        if counts_what is not None:
            found.counter[side.number] = COUNTERS.index(counts_what)
        elif side.number == 0:
            found.assigned[:, at] = start + _in_order(member, seed, side, jobs)
        else:
            _fill(found, member, seed, side, jobs, first, start)
        first, start = at.stop, own.stop
    return found


def _in_order(member: Member, seed: int, side: SidePlan, jobs: Jobs) -> np.ndarray:
    """The replicas of jobs that come in the order of their numbers, (job,)."""
    if side.replicas is not None:
        return side.assigned(Asking(jobs.id, jobs.demand.model, None), seed)
    replicas = member.stations[side.stations.start].deployment.ranks
    sent = Sent(jobs.demand.prompt_tokens, replicas, stream(seed, side.stations.start), jobs.session)
    return assign(side.router, sent)


def _fill(found: Choices, member: Member, seed: int, side: SidePlan, jobs: Jobs, first: int, start: int) -> None:
    """The tables for a second side, to which jobs come in an order that is known only in the run."""
    count, groups = len(jobs), found.turns.shape[1]
    at = slice(first, first + count)
    if side.replicas is not None and name_of(side.router) == "random":
        for group in range(groups):
            kept = np.full(count, group) if side.grouped else None
            found.assigned[group, at] = start + side.assigned(Asking(jobs.id, jobs.demand.model, kept), seed)
        return
    if side.replicas is not None:
        found.kind[at] = jobs.demand.model
        for model in np.unique(jobs.demand.model).tolist():
            for group in range(groups):
                able = side.replicas.able(model, group if side.grouped else None)
                found.turns[model, group, :count] = start + able[turns(side.replicas.weights(able), count)]
        return
    _fill_alone(found, member, seed, side, jobs, first, start)


def _fill_alone(found: Choices, member: Member, seed: int, side: SidePlan, jobs: Jobs, first: int, start: int) -> None:
    """The same for a single pool with a router of its own."""
    count, station = len(jobs), side.stations.start
    replicas, at = member.stations[station].deployment.ranks, slice(first, first + count)
    independent = router_of(side.router).independent
    assert independent is not None

    def taken(prompts: np.ndarray) -> np.ndarray:
        return start + assign(side.router, Sent(prompts, replicas, stream(seed, station), jobs.session))

    prompts = jobs.demand.prompt_tokens
    if independent.by_session:
        found.assigned[:, at] = taken(prompts)
    elif isinstance(side.router, HeavyLight):
        least = side.router.prompt_tokens
        found.kind[at] = prompts >= least
        for kind, alike in enumerate((np.zeros_like(prompts), np.full_like(prompts, least))):
            found.turns[kind, :, :count] = taken(alike)
    else:
        found.kind[at] = 0
        found.turns[0, :, :count] = taken(prompts)
