"""The jobs of every configuration and seed, from arrays that are built once for all configurations that share them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np

from evaluator.records import kept_with_record
from evaluator.scenario import Arrivals, Workload
from evaluator.traffic.arrivals import arrival_times, at_rate
from evaluator.traffic.classes import RequestClasses, request_classes
from evaluator.traffic.jobs import Demand, Jobs
from evaluator.traffic.requests import Tokens, request_tokens, turn_tokens
from evaluator.traffic.roles import Role
from evaluator.traffic.sessions import Turns, turns_of, turns_of_trace
from evaluator.traffic.sharing import Sharing, sharing_of


class StageEffects(Hashable, Protocol):
    """What the stages before an LLM make of requests (``plan.pipeline``)."""

    def walk(self, tokens: Tokens, seed: int) -> Any:
        """What they do; ``tokens`` of it are the requests as they come to the LLM."""


class RequestSampler:
    """Builds jobs. Points of a sweep share the objects of their workloads, so identity is the cheapest key.

    Rates share their lengths and their demands, warm-ups their arrivals. Where sessions have several turns, which of
    these are among the requests follows from the rate; only rates of ``at_rate`` share the requests of the first.
    """

    def __init__(self) -> None:
        self._alive: dict[Hashable, object] = {}  # keeps the objects, so that an id stays theirs
        self._first_rate: dict[int, Arrivals] = {}  # of arrivals at another rate, those that they were made of
        # Ids of all requests, one array for each number of them.
        self._identity = lru_cache(maxsize=64)(np.arange)
        self._measured = lru_cache(maxsize=64)(_measured)

    def jobs(
        self, workload: Workload, seed: int, role: Role, shared_tokens: int = 0, pipeline: StageEffects | None = None
    ) -> Jobs:
        """All requests of ``workload`` under ``seed`` as they come to the first pool, which has this role.

        ``shared_tokens`` of every prompt are kept there for all of them (``requests.shared_tokens``). With stages
        before that pool the requests are such as these make them, and come to the first of them.
        """
        count, traffic = workload.requests, self._traffic(workload)
        turns = self._turns(traffic, seed) if workload.draws_turns else None
        return Jobs(
            # Sessions with several turns come when users have read and thought; their arrivals are of the first
            # turns.
            self._identity(count),
            self._arrivals(self._key(workload.arrivals), seed, count)
            if turns is None
            else turns.sent_under(workload.arrivals, workload.sessions, seed),
            self._demand(traffic, seed, role, shared_tokens, pipeline),
            self._measured(count, workload.ends),
            sharing=self._sharing(traffic, seed),
            classes=self._classes(traffic, seed),
        )

    def turns(self, workload: Workload, seed: int) -> Turns | None:
        """Which requests are the turns of which sessions; None where every session is one request, of no user."""
        return self._turns(self._traffic(workload), seed) if workload.draws_turns else None

    def _traffic(self, workload: Workload) -> Hashable:
        """The key of what tells one table of requests from another; the rate is, where sessions have several turns."""
        sessions, arrivals = workload.sessions, workload.arrivals
        # Which turns fall into the run follows from the rate at which sessions start. A search that changes the rate
        # keeps the requests of the first one, or every trial would have others.
        first = self._first_rate.get(id(arrivals), arrivals) if workload.draws_turns else None
        which = None if first is None else self._key(first)
        lengths, models = self._key(workload.lengths), self._key(workload.models)
        pipelines = self._key(workload.pipelines) if workload.pipelines else 0
        classes = self._key(workload.classes) if workload.classes else 0
        sizes = (
            lengths, models, pipelines, classes, workload.requests, workload.cached_tokens, sessions,
            workload.reasoning, which,
        )  # fmt: skip
        # The key keeps its workload alive, whose ids it consists of.
        self._alive[sizes] = workload if first is None else replace(workload, arrivals=first)
        return sizes

    def demand(
        self, workload: Workload, seed: int, role: Role, shared_tokens: int = 0, pipeline: StageEffects | None = None
    ) -> Demand:
        """What they ask of that pool, whenever they come."""
        return self._demand(self._traffic(workload), seed, role, shared_tokens, pipeline)

    def routes(self, workload: Workload, seed: int, pipeline: StageEffects) -> Any:
        """What the stages do with the requests (``StageEffects.walk``), which does not depend on when they come."""
        return self._walked(self._traffic(workload), seed, pipeline)

    def at_rate(self, workload: Workload, rate_rps: float) -> Workload:
        """The workload at another rate of arrivals: the same lengths and the same unit gaps. One object for each rate.

        Errors: ValueError where arrivals have no rate (closed loop, all at once).
        """
        return self._at_rate(self._key(workload), rate_rps)

    def _key(self, value: object) -> int:
        self._alive[id(value)] = value
        return id(value)

    @kept_with_record(4096)
    def _at_rate(self, workload: int, rate_rps: float) -> Workload:
        alive = cast(Workload, self._alive[workload])
        arrivals = at_rate(alive.arrivals, rate_rps, alive.requests)
        # A rate that was made of another one has the requests of the first, or a search would compare different ones.
        self._first_rate[self._key(arrivals)] = self._first_rate.get(id(alive.arrivals), alive.arrivals)
        return replace(alive, arrivals=arrivals)

    @kept_with_record(4096)
    def _arrivals(self, arrivals: int, seed: int, count: int) -> np.ndarray:
        return arrival_times(cast(Arrivals, self._alive[arrivals]), seed, count)

    @kept_with_record(1024)
    def _demand(
        self, sizes: Hashable, seed: int, role: Role, shared_tokens: int, pipeline: StageEffects | None
    ) -> Demand:
        tokens = self._tokens(sizes, seed) if pipeline is None else self._walked(sizes, seed, pipeline).tokens
        return Demand.of(tokens, role, shared_tokens)

    @kept_with_record(1024)
    def _walked(self, sizes: Hashable, seed: int, pipeline: StageEffects) -> Any:
        return pipeline.walk(self._tokens(sizes, seed), seed)

    def _tokens(self, sizes: Hashable, seed: int) -> Tokens:
        workload = cast(Workload, self._alive[sizes])
        turns = self.turns(workload, seed)
        # Sessions of one turn are requests as all others, in their order.
        if turns is None or not workload.sessions.continued:
            return request_tokens(workload, seed, workload.requests)
        return turn_tokens(workload, seed, turns)

    @kept_with_record(256)
    def _turns(self, traffic: Hashable, seed: int) -> Turns:
        workload = cast(Workload, self._alive[traffic])
        if workload.traced_tasks and workload.trace is not None:
            return turns_of_trace(workload.trace, workload.arrivals, seed, workload.requests)
        return turns_of(workload.arrivals, workload.sessions, seed, workload.requests)

    @kept_with_record(256)
    def _sharing(self, traffic: Hashable, seed: int) -> Sharing | None:
        workload = cast(Workload, self._alive[traffic])
        turns = self.turns(workload, seed)
        inherited = None if turns is None or turns.graph is None else self._tokens(traffic, seed).inherited_tokens
        return sharing_of(workload, seed, turns, inherited)

    @kept_with_record(256)
    def _classes(self, traffic: Hashable, seed: int) -> RequestClasses | None:
        workload = cast(Workload, self._alive[traffic])
        return request_classes(workload, seed, self.turns(workload, seed))


def _measured(count: int, ends: tuple[int, int]) -> np.ndarray:
    number = np.arange(count)
    return (number >= ends[0]) & (number < count - ends[1])
