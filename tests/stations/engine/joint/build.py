"""Pools of replicas that run together: the same for the engine and for the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from evaluator.cost.dispatched import Dispatched
from evaluator.device import configure
from evaluator.reference import PoolOutcome, Request, simulate
from evaluator.routing import (
    COUNTERS,
    Choice,
    HeavyLight,
    PrefixApproximate,
    PrefixAware,
    PrefixRule,
    Sent,
    assign,
    router_of,
    stream,
)
from evaluator.routing.scores import PrefixScores
from evaluator.simulation.request_dependencies import rules_of
from evaluator.stations.engine import LaneResult
from evaluator.stations.engine.joint import run_lanes
from evaluator.stations.engine.preemptive import NO_COUNTER, Cluster, Lane, RouterChoices, Structure
from tests.reference.build import CHOICES, random_cost
from tests.stations.engine.fcfs_reserved.build import LANES, cut, in_calls, set_curves
from tests.stations.engine.preemptive import build as preemptive
from tests.stations.engine.preemptive.build import Kind, is_plain

MOST = 8  # replicas
EVENTS = 1 << 13  # of caches that a router hears of late: more than any case has


@dataclass(frozen=True, eq=False)
class Case:
    """A case of the program for any order on several replicas; users are those of all of them."""

    one: preemptive.Case
    replicas: int
    router: Choice
    seed: int = 0
    frontend: tuple[float, float] = (
        0.0,
        0.0,
    )  # closed loop: seconds, and iterations of a request, until it is delivered
    ranks: int = 1  # data-parallel ranks in lockstep; ``replicas`` are those of all of them

    def delay_s(self, request: Request) -> float:
        """Of the answer to a request."""
        steps = max(request.output_tokens - 1, 1)
        return self.frontend[0] + self.frontend[1] * (request.last_token_s - request.first_token_s) / steps

    def __repr__(self) -> str:
        return f"{self.replicas} replicas, {self.ranks} in lockstep, {self.router}: {self.one.case}"


def structure_of(kind: Kind, frontend: bool = False, lockstep: bool = False) -> Structure:
    shape = kind.structure.cache
    cache = None if shape is None else shape._replace(events=0 if kind.apart else EVENTS, replicas=MOST)
    return kind.structure._replace(replicas=MOST, frontend=frontend, lockstep=lockstep, cache=cache)


def random_case(seed: int, kind: Kind, frontend: bool = False) -> Case:
    """A random case with any router.

    In one of three every iteration takes a second and requests arrive at whole seconds, so that all that happens
    happens at the same time as something else.
    """
    rng = np.random.default_rng([seed, 77])
    one = (preemptive.random_cached_case if kind.cached else preemptive.random_case)(seed, kind)
    replicas = int(rng.integers(1, MOST + 1))
    limits, users = one.case.limits, one.case.users
    users = users and max(1, int(users * rng.choice([0.5, 1, replicas])))
    arrival_s = one.case.arrival_s / rng.choice([1, replicas])
    if rng.random() < 0.5:  # a crowd with KV for one: where several serve, hardly anybody would be preempted otherwise
        least = int((one.case.kv_units + one.shared_units).max()) + limits.watermark_units
        limits, arrival_s = replace(limits, kv_units=least), arrival_s / 100
    choice = CHOICES[int(rng.integers(len(CHOICES)))]
    if isinstance(choice, HeavyLight):
        choice = HeavyLight(int(rng.integers(1, 100)), int(rng.integers(1, replicas + 1)))
    if kind.cached and rng.random() < 0.75:
        choice = prefix_rule(rng, seed % 2 > 0, not kind.apart)
    case, costs = replace(one.case, limits=limits, users=users, arrival_s=arrival_s), one.costs
    if rng.random() < 1 / 3:
        free = random_cost(rng, experts=kind.experts, windowed=kind.windowed, scale=0.0)
        costs = (free._replace(iteration_s=1.0),) * kind.pipeline_ranks
        case = replace(case, cost=costs[0], arrival_s=np.floor(arrival_s * rng.choice([1, 10])))
    around = (float(rng.choice([0.0, 0.1, 3.0])), float(rng.choice([0.0, 1.2]))) if frontend else (0.0, 0.0)
    one = replace(one, case=case, costs=costs)
    return Case(preemptive.drafted(one, seed, kind) if kind.speculating else one, replicas, choice, seed, around)


def prefix_rule(rng: np.random.Generator, knows: bool, maybe_late: bool = True) -> PrefixRule:
    """A router by prefixes that ``knows`` the caches, or what it has sent; by thresholds or by scores."""
    weights = PrefixScores(*(float(rng.choice([0.0, 1.0, 3.0])) for _ in PrefixScores.__dataclass_fields__))
    keys = float(rng.choice([0.0, 0.3, 0.8])), int(rng.choice([0, 2, 64])), float(rng.choice([1, 2]))
    scores = weights if rng.random() < 0.3 else None
    if knows:
        late = (float(rng.choice([0.0, 0.7, 5.0])), rng.choice([None, 2.0])) if rng.random() < 0.6 else ()
        if not maybe_late:
            late = ()
        return PrefixAware(*keys, scores, *late)
    blocks, ttl_s = rng.choice([None, 1, 5, 40]), rng.choice([None, 1.0, 10.0, 300.0])
    return PrefixApproximate(*keys, scores, blocks, ttl_s)


@cache
def random_cases(kind: Kind, count: int, frontend: bool = False) -> list[Case]:
    """Random cases of one structure, drawn from ``count`` seeds; of plain ones only those that are."""
    cases = [random_case(seed, kind, frontend) for seed in range(count)]
    return [given for given in cases if is_plain(given.one) or not kind.plain]


def mostly_in_lockstep(cases: Sequence[Case]) -> list[Case]:
    """Two of three in lockstep; the program for them also serves replicas that run by themselves."""
    return [in_lockstep(given) if given.seed % 3 else given for given in cases]


def dispatched(given: Case, dispatch_s: float) -> Case:
    """The case with hosts that take up to ``dispatch_s`` for an iteration."""
    rng = np.random.default_rng([given.seed, 79])
    costs = tuple(Dispatched(cost, dispatch_s * rng.uniform()) for cost in given.one.costs)
    return replace(given, one=replace(given.one, costs=costs))


def in_lockstep(given: Case) -> Case:
    """The case with some of its replicas, or all, in lockstep."""
    rng = np.random.default_rng([given.seed, 78])
    ranks = int(rng.integers(2, MOST + 1))
    replicas = ranks * int(rng.integers(1, MOST // ranks + 1))
    router = given.router
    if isinstance(router, HeavyLight):
        router = HeavyLight(router.prompt_tokens, min(router.heavy_replicas, replicas))
    return replace(given, replicas=replicas, ranks=ranks, router=router)


def stacked(cases: Sequence[Case], late: bool = True) -> tuple[Lane, tuple]:
    """Cases of one structure with a leading lane axis."""
    lanes, requests = preemptive.stacked([given.one for given in cases])
    width = requests.arrival_s.shape[1]
    assigned = np.zeros((len(cases), 1, width), np.int32)
    counters = np.full((len(cases), 1), NO_COUNTER, np.int32)
    for row, given in enumerate(cases):
        router, prompts = router_of(given.router), given.one.case.prompt_tokens
        if isinstance(given.router, PrefixRule):
            pass
        elif router.counts is None:
            sent = Sent(prompts, given.replicas, stream(given.seed))
            assigned[row, 0, : len(prompts)] = assign(given.router, sent)
        else:
            counters[row] = COUNTERS.index(router.counts)
    replicas = np.array([given.replicas for given in cases], np.int32)
    around = np.array([given.frontend for given in cases])
    lanes = lanes._replace(rules=lanes.rules._replace(frontend_s=around[:, 0], lookahead_steps=around[:, 1]))
    by_prefix = rules_of([given.router for given in cases], guesses=True, late=late) if cases[0].one.contents else None
    ranks = np.array([given.ranks for given in cases], np.int32)
    router = RouterChoices(counters, assigned, by_prefix=by_prefix)
    return lanes._replace(cluster=Cluster(replicas, router, ranks if ranks.max() > 1 else None)), requests


def run_engine(cases: Sequence[Case], kind: Kind, vectorise: bool = False, lanes: int = LANES) -> list[LaneResult]:
    """The engine's results, one per case, cut to the case's requests; ``lanes`` of a call."""
    configure()
    lockstep = any(given.ranks > 1 for given in cases)
    structure = structure_of(kind, any(any(given.frontend) for given in cases), lockstep)
    run = partial(run_lanes, structure=structure, vectorise=vectorise)
    found = in_calls(run, stacked(cases, not kind.apart), len(cases), lanes)
    return [cut(result, len(given.one.case.arrival_s)) for result, given in zip(found, cases, strict=True)]


def run_reference(given: Case) -> PoolOutcome:
    """The reference on the same requests, every token of them."""
    case = given.one.case
    columns = (case.arrival_s, case.compute_tokens, case.prompt_tokens, case.output_tokens, case.kv_units)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    shared = given.one.shared_units.tolist()
    requests = [Request(number, *row, shared_units=shared[number]) for number, row in enumerate(rows)]
    for request, content in zip(requests, given.one.contents, strict=False):
        request.content = content
    set_curves(case, requests)
    return simulate(
        given.one.costs, case.policy, case.limits, requests, replicas=given.replicas, lockstep=given.ranks,
        router=given.router, seed=given.seed, users=case.users, delay_s=given.delay_s, window=case.window or None,
        tokens=True,
    )  # fmt: skip
