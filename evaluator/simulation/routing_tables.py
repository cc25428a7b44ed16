"""What routers choose, as far as it is known before the run: tables for the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from evaluator.plan import Configuration, StationGroup, StationPlan
from evaluator.plan.joint_pools import FEWEST_KINDS
from evaluator.plan.phases import PhasePools, group_of_replicas
from evaluator.plan.simulators import routed_by
from evaluator.routing import COUNTERS, Choice, HeavyLight, Sent, assign, name_of, router_of, stream
from evaluator.routing.phases import BY_REQUEST, Asking, turns
from evaluator.stations.engine.common.rings import NONE
from evaluator.stations.engine.preemptive import NO_COUNTER, RouterChoices
from evaluator.stations.lane_jobs import LaneJobs
from evaluator.traffic.jobs import Jobs


class RoutingTables(NamedTuple):
    """Fields of ``preemptive.Network``, ``RouterChoices``; of replicas (replica,) without those that only fill up."""

    model: np.ndarray
    group: np.ndarray
    asks: np.ndarray
    counter: np.ndarray
    kind: np.ndarray
    turns: np.ndarray
    assigned: np.ndarray


def choices_of(
    configuration: Configuration, seed: int, phases: Sequence[Jobs], width: int, sizes: tuple[int, int, int]
) -> RoutingTables:
    """The choices for the jobs of both sides, in ``width`` slots; ``sizes``: kinds and groups, see ``CompileKey``."""
    kinds, groups, _ = sizes
    counts = [
        [configuration.stations[number].deployment.ranks for number in phase.stations] for phase in configuration.phases
    ]
    replicas = sum(map(sum, counts))
    tables = RoutingTables(
        model=np.zeros(replicas, np.int32),
        group=np.zeros(replicas, np.int32),
        asks=np.zeros(width, np.int32),
        counter=np.full(len(phases), NO_COUNTER, np.int32),
        kind=np.full(width, NONE, np.int32),
        turns=np.zeros((kinds, groups, width), np.int32),
        assigned=np.zeros((groups, width), np.int32),
    )
    # In which order requests come to the first side is known in the run alone.
    unordered = configuration.workload.feedback or configuration.in_loop
    first, start = 0, 0
    for phase, jobs, by_pool in zip(configuration.phases, phases, counts, strict=True):
        of_phase, served = slice(start, start + sum(by_pool)), slice(first, first + len(jobs))
        # One pool or several: a replica is in one group, however its phase is routed.
        tables.group[of_phase] = group_of_replicas(by_pool, groups)
        if phase.replicas is not None:
            tables.model[of_phase], tables.asks[served] = phase.replicas.model, jobs.demand.model
        router = router_of(phase.router)
        if router.counts is not None:
            tables.counter[phase.number] = COUNTERS.index(router.counts)
        elif router.by_prefix:
            pass  # ``RouterChoices.by_prefix`` has its keys: it looks, but counts nothing of this kind
        elif phase.number == 0 and not unordered:
            # Routers that do not look deal in the order in which requests are sent, which behind stages is another.
            sent = jobs.order
            some = jobs if isinstance(sent, slice) else jobs.some(sent)
            # All rows alike: the group is chosen with the replica, whatever its number.
            tables.assigned[:, np.arange(first, served.stop)[sent]] = start + _in_order(
                configuration, seed, phase, some
            )
        else:
            # Where both sides deal by turns, each has kinds of its own (``plan.joint_pools.joint_program``).
            first_kind = kinds // 2 if phase.number > 0 and unordered else 0
            _fill(tables, _Side(configuration, seed, phase, jobs, first, start, first_kind))
        first, start = served.stop, of_phase.stop
    return tables


def _in_order(configuration: Configuration, seed: int, phase: PhasePools, jobs: Jobs) -> np.ndarray:
    """The replicas of jobs that come in the order of their numbers, (job,)."""
    if phase.replicas is not None:
        return phase.assigned(Asking(jobs.id, jobs.demand.model, None, jobs.session), seed)
    replicas = configuration.stations[phase.stations.start].deployment.ranks
    sent = Sent(jobs.demand.prompt_tokens, replicas, stream(seed, phase.stations.start), jobs.session)
    return assign(phase.router, sent)


class _Side(NamedTuple):
    """A side of a configuration and its jobs; the first of their slots, of its replicas and of its kinds."""

    configuration: Configuration
    seed: int
    phase: PhasePools
    jobs: Jobs
    first: int
    start: int
    first_kind: int


def _fill(empty: RoutingTables, side: _Side) -> None:
    """The tables for a side to which jobs come in an order that is known only in the run."""
    _, seed, phase, jobs, first, start, first_kind = side
    count, groups = len(jobs), empty.turns.shape[1]
    served = slice(first, first + count)
    # A random choice belongs to the request, whenever it comes, and a session's to the session; others deal by turns.
    if phase.replicas is not None and name_of(phase.router) in BY_REQUEST:
        for group in range(groups):
            of_group = np.full(count, group) if phase.grouped else None
            asking = Asking(jobs.id, jobs.demand.model, of_group, jobs.session)
            empty.assigned[group, served] = start + phase.assigned(asking, seed)
        return
    if phase.replicas is not None:
        empty.kind[served] = first_kind + jobs.demand.model
        # Who comes n-th of a model and group takes turn n: that is known, though not who it will be.
        for model in np.unique(jobs.demand.model).tolist():
            for group in range(groups):
                able = phase.replicas.able(model, group if phase.grouped else None)
                empty.turns[first_kind + model, group, :count] = (
                    start + able[turns(phase.replicas.weights(able), count)]
                )
        return
    _fill_alone(empty, side)


def _fill_alone(empty: RoutingTables, side: _Side) -> None:
    """The same for a single pool with a router of its own."""
    configuration, seed, phase, jobs, first, start, first_kind = side
    count, station = len(jobs), phase.stations.start
    replicas, served = configuration.stations[station].deployment.ranks, slice(first, first + count)
    sent = Sent(jobs.demand.prompt_tokens, replicas, stream(seed, station), jobs.session)
    independent = router_of(phase.router).independent
    assert independent is not None
    # A session keeps its replica, so that the choice is the request's own.
    if independent.by_session:
        empty.assigned[:, served] = start + assign(phase.router, sent)
        return
    kinds, choices = _in_turn(phase.router, sent, lambda: stream(seed, station))
    empty.kind[served] = first_kind + kinds
    for kind, chosen in enumerate(choices, first_kind):
        empty.turns[kind, :, :count] = start + chosen


def _in_turn(
    router: Choice, sent: Sent, draws: Callable[[], np.random.Generator]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The kind of each job, (job,), and by kind the replicas of the first, the second, ... job of the kind that comes.

    Of two kinds under ``heavy_light``, where the order in which long and short prompts come says nothing of either.
    """
    prompts = sent.prompt_tokens
    if not isinstance(router, HeavyLight):
        return np.zeros(len(prompts), np.int32), [assign(router, sent)]
    # As if all prompts were short, and as if all were long: in each case the draws go to the jobs of that kind in
    # turn.
    alike = (np.zeros_like(prompts), np.full_like(prompts, router.prompt_tokens))
    choices = [assign(router, sent._replace(prompt_tokens=prompts, draws=draws())) for prompts in alike]
    return (prompts >= router.prompt_tokens).astype(np.int32), choices


def tables_of_pool(lane: LaneJobs, pool: StationPlan, group: StationGroup) -> RouterChoices:
    """The router of one pool whose replicas run together, without an axis (lane,).

    Who thinks about answers sends requests in an order that is known only in the run.
    """
    width, choice = group.lane_requests + 1, routed_by(pool.deployment)
    counts, independent = router_of(choice).counts, router_of(choice).independent
    counter = np.array([NO_COUNTER if counts is None else COUNTERS.index(counts)], np.int32)
    assigned = np.zeros((1, width), np.int32)
    if lane.assigned is not None:
        assigned[0, : lane.count] = lane.assigned
    if not group.key.session_turns:
        return RouterChoices(counter, assigned)
    kind, turns = np.full(width, NONE, np.int32), np.zeros((FEWEST_KINDS, 1, width), np.int32)
    # By turns, as in ``_in_turn``: sessions that think send in an order that the run decides.
    if independent is not None and not independent.by_session:
        prompts, draws = lane.jobs.demand.prompt_tokens[lane.served], partial(stream, lane.draws, lane.station)
        sent = Sent(prompts, pool.deployment.ranks, draws())
        kind[: lane.count], choices = _in_turn(choice, sent, draws)
        for row, chosen in zip(turns[:, 0], choices, strict=False):
            row[: lane.count] = chosen
    return RouterChoices(counter, assigned, kind, turns)
