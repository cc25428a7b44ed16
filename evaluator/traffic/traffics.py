"""The jobs of every configuration and seed, from arrays that are built once for all configurations that share them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from typing import cast

import numpy as np

from evaluator.scenario import Arrivals, Workload
from evaluator.traffic.arrivals import arrival_times, at_rate
from evaluator.traffic.jobs import Demand, Jobs
from evaluator.traffic.requests import request_tokens
from evaluator.traffic.roles import Role


class Traffics:
    """Builds jobs. Points of a sweep share the objects of their workloads, so identity is the cheapest key.

    Rates share their lengths and their demands, warm-ups their arrivals.
    """

    def __init__(self) -> None:
        self._alive: dict[Hashable, object] = {}  # keeps the objects, so that an id stays theirs
        self._demand = lru_cache(maxsize=1024)(self._build_demand)
        self._arrivals = lru_cache(maxsize=4096)(self._build_arrivals)
        self._at_rate = lru_cache(maxsize=4096)(self._build_at_rate)
        self._identity = lru_cache(maxsize=64)(np.arange)
        self._measured = lru_cache(maxsize=64)(_measured)

    def jobs(self, workload: Workload, seed: int, role: Role, shared_tokens: int = 0) -> Jobs:
        """All requests of ``workload`` under ``seed`` as they come to the first pool, which has this role.

        ``shared_tokens`` of every prompt are kept there for all of them (``requests.shared_tokens``).
        """
        count = workload.requests
        return Jobs(
            self._identity(count),
            self._arrivals(self._key(workload.arrivals), seed, count),
            self.demand(workload, seed, role, shared_tokens),
            self._measured(count, workload.ends),
        )

    def demand(self, workload: Workload, seed: int, role: Role, shared_tokens: int = 0) -> Demand:
        """What they ask of that pool, whenever they come."""
        lengths, models = self._key(workload.lengths), self._key(workload.models)
        sizes = (lengths, models, workload.requests, workload.cached_tokens, workload.sessions)
        self._alive[sizes] = workload
        return self._demand(sizes, seed, role, shared_tokens)

    def at_rate(self, workload: Workload, rate_rps: float) -> Workload:
        """The workload at another rate of arrivals: the same lengths and the same unit gaps. One object for each rate.

        Errors: ValueError where arrivals have no rate (closed loop, all at once).
        """
        return self._at_rate(self._key(workload), rate_rps)

    def _key(self, value: object) -> int:
        self._alive[id(value)] = value
        return id(value)

    def _build_at_rate(self, workload: int, rate_rps: float) -> Workload:
        found = cast(Workload, self._alive[workload])
        return replace(found, arrivals=at_rate(found.arrivals, rate_rps, found.requests))

    def _build_arrivals(self, arrivals: int, seed: int, count: int) -> np.ndarray:
        return arrival_times(cast(Arrivals, self._alive[arrivals]), seed, count)

    def _build_demand(self, sizes: Hashable, seed: int, role: Role, shared_tokens: int) -> Demand:
        workload = cast(Workload, self._alive[sizes])
        return Demand.of(request_tokens(workload, seed, workload.requests), role, shared_tokens)


def _measured(count: int, ends: tuple[int, int]) -> np.ndarray:
    number = np.arange(count)
    return (number >= ends[0]) & (number < count - ends[1])
