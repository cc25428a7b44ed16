"""Which replica a request goes to. Replicas are seen as of the arrival: an iteration under way has done nothing yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evaluator.reference.data_parallel import RankBalance, RankBalancer
from evaluator.reference.prefix_knowledge import RouterMemory, knowledge_of
from evaluator.reference.replica import Replica
from evaluator.reference.request import Request
from evaluator.routing import AdapterAffinity, Choice, PrefixAware, name_of, router_of, stream
from evaluator.routing.adapter_affinity import PLACES
from evaluator.routing.phases import PhaseReplicas, Weights, drawn_by

Choose = Callable[[Request, float], Replica]
"""By the request and the time of its arrival."""


def chooser(
    choice: Choice | RankBalance,
    replicas: Sequence[Replica],
    seed: int = 0,
    station: int = 0,
    memory: RouterMemory | None = None,
) -> Choose:
    """The router of a pool, which may have replicas of different hardware. ``seed``, ``station``: of its draws.

    ``memory``: what it remembers of replicas, where those that serve change; it is added to.
    """
    if isinstance(choice, RankBalance):
        return RankBalancer(choice, replicas)
    router = router_of(choice)
    if router.independent is not None:
        in_turn = router.independent.in_turn(choice, len(replicas), stream(seed, station))
        return lambda request, now: replicas[in_turn(request.prompt_tokens, request.session)]
    if router.by_reports:
        return RankBalancer(RankBalance(), replicas)
    if router.by_prefix:
        return _by_prefix(PrefixAware() if isinstance(choice, str) else choice, replicas, memory or RouterMemory())
    if router.by_adapter:
        return _by_adapter(AdapterAffinity() if isinstance(choice, str) else choice, replicas)
    assert router.counts is not None
    load = LOADS[router.counts]
    # ``min`` takes the first of several with the least, as ``argmin`` of the vectorised engine does.
    return lambda request, now: min(replicas, key=lambda replica: load(replica, now))


def fleet_router(choice: Choice | RankBalance, seed: int) -> Callable[[Sequence[Replica], int], Choose]:
    """The router of a fleet, anew for those that serve whenever they have changed, and how often they have."""
    memory = RouterMemory()
    # Another stream of draws for each fleet: the same one would send the next requests as it sent the first.
    return lambda serving, changes: chooser(choice, serving, seed, changes, memory)


def _by_prefix(rule: Any, replicas: Sequence[Replica], memory: RouterMemory) -> Choose:
    """The replica that is thought to have most of the prompt, see ``PrefixRule``."""
    knowledge = knowledge_of(rule, replicas, memory)
    # A router that is registered beside the package's has a ``choose`` of its own alone.
    scores, block = getattr(rule, "scores", None), replicas[0].limits.block_tokens

    def choose(request: Request, now: float) -> Replica:
        tokens, blocks = knowledge.known_tokens(request, now)
        requests = [replica.outstanding for replica in replicas]
        if scores is None:
            chosen = rule.choose(requests, [hit_tokens / request.prompt_tokens for hit_tokens in tokens], blocks)
        else:
            # llm-d counts blocks, of which a prompt has whole ones alone; one of less than a block has none anywhere.
            whole = max(request.prompt_tokens // block, 1) * block
            waiting = [len(replica.queues.waiting) for replica in replicas]
            used = [kv_share(replica, now) for replica in replicas]
            chosen = scores.choose([hit_tokens / whole for hit_tokens in tokens], waiting, used, requests)
        knowledge.sent(request, chosen, now)
        return replicas[chosen]

    return choose


def _by_adapter(rule: Any, replicas: Sequence[Replica]) -> Choose:
    """The replica with the adapter that a request names, or room for it, see ``AdapterAffinity``."""

    def score(replica: Replica, adapter: int) -> float:
        assert replica.adapters is not None, "the plan refuses adapters that all have places under this router"
        running = {request.adapter for request in replica.queues.running}
        active = set(replica.adapters.held) if rule.sees == PLACES else running
        waiting = {request.adapter for request in replica.queues.waiting}
        return rule.affinity(adapter, active, waiting, replica.limits.max_adapters)

    def choose(request: Request, now: float) -> Replica:
        scores = [score(replica, request.adapter) for replica in replicas]
        waiting = [len(replica.queues.waiting) for replica in replicas]
        return replicas[rule.choose(scores, waiting, [replica.outstanding for replica in replicas])]

    return choose


# --- what a router may count of a replica (``evaluator.routing.record.COUNTERS``)


def requests(replica: Replica, now: float) -> float:
    """Requests that were sent there and have not finished."""
    return replica.outstanding


def work_tokens(replica: Replica, now: float) -> float:
    """Tokens to compute and to generate."""
    # The counters move when a running batch ends; a leap stands for iterations of which some have ended by now.
    return replica.queues.work_tokens - replica.tokens_of_leaps(now)


def output_tokens(replica: Replica, now: float) -> float:
    """Tokens to generate."""
    return replica.queues.output_tokens - replica.tokens_of_leaps(now)


def kv_share(replica: Replica, now: float) -> float:
    """The share of the KV cache that is in use."""
    kv = replica.queues.kv
    return (kv.capacity - kv.free + replica.units_of_leaps(now)) / kv.capacity


def kv_units(replica: Replica, now: float) -> float:
    """The share of the KV cache in use, and needed by the requests that wait."""
    queues = replica.queues
    used = queues.kv.capacity - queues.kv.free + replica.units_of_leaps(now)
    return (used + queues.waiting_units) / queues.kv.capacity


def context_tokens(replica: Replica, now: float) -> float:
    """Tokens of prompts and outputs so far."""
    return replica.queues.context_tokens + replica.tokens_of_leaps(now)


LOADS: dict[str, Callable[[Replica, float], float]] = {
    load.__name__: load for load in (requests, work_tokens, output_tokens, kv_units, context_tokens)
}


# --- several pools side by side: ``routing.phases``, one request after the other


class PhaseRouter:
    """Chooses among the replicas that have a request's model and, if that matters, are of its group.

    ``models`` are the numbers of the models that requests ask for, by their index, ``apart`` whether they are for
    prefill and decode pools, where that is not for the router to say. ``draws`` gives a number for each request, by its
    index, whichever comes first.
    """

    def __init__(
        self,
        side: PhaseReplicas,
        choice: Choice,
        replicas: Sequence[Replica],
        models: Sequence[int],
        draws: np.random.Generator,
        apart: Sequence[bool] | None = None,
    ) -> None:
        self._side = side
        self._apart = apart
        self._choice = choice
        self._replicas = replicas
        self._models = models
        self._drawn = draws.random(len(models)) if name_of(choice) == "random" else None
        self._choosers: dict[tuple[int, int | None, bool | None], Choose] = {}

    def __call__(self, request: Request, now: float, group: int | None = None) -> Replica:
        kind = self._models[request.index], group, None if self._apart is None else self._apart[request.index]
        if kind not in self._choosers:
            self._choosers[kind] = self._chooser(*kind)
        return self._choosers[kind](request, now)

    def _chooser(self, model: int, group: int | None, apart: bool | None) -> Choose:
        numbers = self._side.able(model, group, apart)
        able, weights = [self._replicas[number] for number in numbers], self._side.weights(numbers)
        independent = router_of(self._choice).independent
        if independent is None:
            return chooser(self._choice, able)
        if independent.by_session:
            return lambda request, now: able[request.session % len(able)]
        if self._drawn is None:
            return _in_turn(able, weights)
        drawn = self._drawn
        return lambda request, now: able[int(drawn_by(weights, drawn[request.index]))]


def _in_turn(able: Sequence[Replica], weights: Weights) -> Choose:
    """``routing.phases.turns``, turn by turn."""
    taken = [0] * len(able)

    def choose(request: Request, now: float) -> Replica:
        # Stride scheduling: see ``routing.phases.turns``, which does the same for all requests at once.
        due = [(count + 0.5) / weight for count, weight in zip(taken, weights, strict=True)]
        which = due.index(min(due))
        taken[which] += 1
        return able[which]

    return choose
