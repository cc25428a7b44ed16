"""What routers of pools in one loop choose, as far as it is known before the run: tables for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evaluator.plan import Configuration
from evaluator.plan.phases import PhasePools, group_of_replicas
from evaluator.routing import COUNTERS, HeavyLight, Sent, assign, name_of, router_of, stream
from evaluator.routing.phases import Asking, turns
from evaluator.stations.engine.common.rings import NONE
from evaluator.stations.engine.joint import NO_COUNTER
from evaluator.traffic.jobs import Jobs


class RoutingTables(NamedTuple):
    """Fields as of ``joint.Network``; of replicas (replica,) without those that only fill up."""

    model: np.ndarray
    group: np.ndarray
    asks: np.ndarray
    counter: np.ndarray
    kind: np.ndarray
    turns: np.ndarray
    assigned: np.ndarray


def choices_of(
    configuration: Configuration, seed: int, phases: Sequence[Jobs], width: int, tables: tuple[int, int, int]
) -> RoutingTables:
    """The choices for the jobs of both sides, in ``width`` slots; ``tables``: kinds and groups, see ``Program``."""
    kinds, groups, _ = tables
    counts = [
        [configuration.stations[number].deployment.ranks for number in phase.stations] for phase in configuration.phases
    ]
    replicas = sum(map(sum, counts))
    found = RoutingTables(
        model=np.zeros(replicas, np.int32),
        group=np.zeros(replicas, np.int32),
        asks=np.zeros(width, np.int32),
        counter=np.full(len(phases), NO_COUNTER, np.int32),
        kind=np.full(width, NONE, np.int32),
        turns=np.zeros((kinds, groups, width), np.int32),
        assigned=np.zeros((groups, width), np.int32),
    )
    first, start = 0, 0
    for phase, jobs, of_side in zip(configuration.phases, phases, counts, strict=True):
        own, at = slice(start, start + sum(of_side)), slice(first, first + len(jobs))
        found.group[own] = group_of_replicas(of_side, groups)
        if phase.replicas is not None:
            found.model[own], found.asks[at] = phase.replicas.model, jobs.demand.model
        counts_what = router_of(phase.router).counts
        if counts_what is not None:
            found.counter[phase.number] = COUNTERS.index(counts_what)
        elif phase.number == 0:
            found.assigned[:, at] = start + _in_order(configuration, seed, phase, jobs)
        else:
            _fill(found, configuration, seed, phase, jobs, first, start)
        first, start = at.stop, own.stop
    return found


def _in_order(configuration: Configuration, seed: int, phase: PhasePools, jobs: Jobs) -> np.ndarray:
    """The replicas of jobs that come in the order of their numbers, (job,)."""
    if phase.replicas is not None:
        return phase.assigned(Asking(jobs.id, jobs.demand.model, None), seed)
    replicas = configuration.stations[phase.stations.start].deployment.ranks
    sent = Sent(jobs.demand.prompt_tokens, replicas, stream(seed, phase.stations.start), jobs.session)
    return assign(phase.router, sent)


def _fill(
    found: RoutingTables, configuration: Configuration, seed: int, phase: PhasePools, jobs: Jobs, first: int, start: int
) -> None:
    """The tables for a second side, to which jobs come in an order that is known only in the run."""
    count, groups = len(jobs), found.turns.shape[1]
    at = slice(first, first + count)
    if phase.replicas is not None and name_of(phase.router) == "random":
        for group in range(groups):
            kept = np.full(count, group) if phase.grouped else None
            found.assigned[group, at] = start + phase.assigned(Asking(jobs.id, jobs.demand.model, kept), seed)
        return
    if phase.replicas is not None:
        found.kind[at] = jobs.demand.model
        for model in np.unique(jobs.demand.model).tolist():
            for group in range(groups):
                able = phase.replicas.able(model, group if phase.grouped else None)
                found.turns[model, group, :count] = start + able[turns(phase.replicas.weights(able), count)]
        return
    _fill_alone(found, configuration, seed, phase, jobs, first, start)


def _fill_alone(
    found: RoutingTables, configuration: Configuration, seed: int, phase: PhasePools, jobs: Jobs, first: int, start: int
) -> None:
    """The same for a single pool with a router of its own."""
    count, station = len(jobs), phase.stations.start
    replicas, at = configuration.stations[station].deployment.ranks, slice(first, first + count)
    independent = router_of(phase.router).independent
    assert independent is not None

    def taken(prompts: np.ndarray) -> np.ndarray:
        return start + assign(phase.router, Sent(prompts, replicas, stream(seed, station), jobs.session))

    prompts = jobs.demand.prompt_tokens
    if independent.by_session:
        found.assigned[:, at] = taken(prompts)
    elif isinstance(phase.router, HeavyLight):
        least = phase.router.prompt_tokens
        found.kind[at] = prompts >= least
        for kind, alike in enumerate((np.zeros_like(prompts), np.full_like(prompts, least))):
            found.turns[kind, :, :count] = taken(alike)
    else:
        found.kind[at] = 0
        found.turns[0, :, :count] = taken(prompts)
