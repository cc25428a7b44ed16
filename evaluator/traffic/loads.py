"""The requests of every configuration and seed, built once for all configurations that share them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import cast

import numpy as np

from evaluator.cost.memory import KvLayout, kv_units
from evaluator.scenario import Arrivals, Workload
from evaluator.traffic.arrivals import arrival_times
from evaluator.traffic.requests import Tokens, request_tokens


@dataclass(frozen=True)
class Extremes:
    """The largest requests of a workload, in tokens: what the limits of a replica are checked against."""

    prompt: int  # to compute
    output: int
    sequence: int  # prompt and output
    kv_tokens: int

    @staticmethod
    def of(several: Sequence[Extremes]) -> Extremes:
        """The largest of several."""
        if len(several) == 1:
            return several[0]
        return Extremes(*np.array([astuple(one) for one in several]).max(axis=0).tolist())


@dataclass(frozen=True, eq=False)
class Demand:
    """The requests of a workload and seed as a role of a pool sees them, whenever they arrive: (request,) arrays."""

    tokens: Tokens
    compute_tokens: np.ndarray  # prompt tokens to compute
    kv_tokens: np.ndarray  # tokens in the KV cache when the request finishes
    extremes: Extremes


@dataclass(frozen=True, eq=False)
class Load:
    """A demand at its times of arrival (request,), seconds."""

    arrival_s: np.ndarray
    demand: Demand


class Traffics:
    """Loads by workload and seed, each built once for all configurations that share it.

    Points of a sweep share the objects of their workloads, so identity is the cheapest key; rates share their lengths.
    """

    def __init__(self) -> None:
        self._alive: dict[Hashable, object] = {}  # keeps the objects, so that an id stays theirs
        self._demand = lru_cache(maxsize=1024)(self._build_demand)
        self._arrivals = lru_cache(maxsize=4096)(self._build_arrivals)

    def load(self, workload: Workload, seed: int, role: str) -> Load:
        """The requests of ``workload`` under ``seed`` for a pool of this role."""
        return Load(
            self._arrivals(self._key(workload.arrivals), seed, workload.requests), self.demand(workload, seed, role)
        )

    def demand(self, workload: Workload, seed: int, role: str) -> Demand:
        """The same without the times of arrival."""
        lengths = self._key(workload.lengths)
        self._alive[lengths, workload.requests, workload.cached_tokens] = workload
        return self._demand(lengths, workload.requests, workload.cached_tokens, seed, role)

    def _key(self, value: object) -> int:
        self._alive[id(value)] = value
        return id(value)

    def _build_arrivals(self, arrivals: int, seed: int, count: int) -> np.ndarray:
        return arrival_times(cast(Arrivals, self._alive[arrivals]), seed, count)

    def _build_demand(self, lengths: int, count: int, cached: int, seed: int, role: str) -> Demand:
        tokens = request_tokens(cast(Workload, self._alive[lengths, count, cached]), seed, count)
        if role == "prefill":  # its work ends with the first token
            tokens = replace(tokens, output_tokens=np.ones_like(tokens.output_tokens))
        resident = role == "decode"
        compute = tokens.prompt_tokens * 0 if resident else tokens.prompt_tokens - tokens.cached_tokens
        # The last token is sampled and never computed; a resident prompt came with a first token that is computed.
        kept = tokens.prompt_tokens + tokens.output_tokens - (0 if resident else 1)
        whole = tokens.prompt_tokens + tokens.output_tokens
        extremes = Extremes(*(int(size.max()) for size in (compute, tokens.output_tokens, whole, kept)))
        return Demand(tokens, compute, kept, extremes)


@lru_cache(maxsize=4096)
def held_units(demand: Demand, kv: KvLayout) -> np.ndarray:
    """KV units that each request holds from its admission on, (request,)."""
    return kv_units(kv, demand.kv_tokens)
