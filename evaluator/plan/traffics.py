"""The requests of every configuration and seed, built once for all configurations that share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache

import numpy as np

from evaluator.scenario import Traffic, Workload, traffic
from evaluator.scenario.scenario import Deployment


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
        return Extremes(*np.array([astuple(one) for one in several]).max(axis=0).tolist())


@dataclass(frozen=True, eq=False)
class Load:
    """Traffic as a role of a pool sees it."""

    traffic: Traffic
    compute_tokens: np.ndarray  # (request,) prompt tokens to compute
    kv_tokens: np.ndarray  # (request,) tokens in the KV cache when the request finishes
    extremes: Extremes


class Traffics:
    """Loads by workload object and seed: points of a sweep share their workloads, so identity is the cheapest key."""

    def __init__(self) -> None:
        self._workloads: dict[int, Workload] = {}  # keeps the objects alive, so that an id stays theirs
        self._load = lru_cache(maxsize=512)(self._build)

    def load(self, workload: Workload, seed: int, role: str) -> Load:
        """The requests of ``workload`` under ``seed`` for a pool of this role."""
        self._workloads[id(workload)] = workload
        return self._load(id(workload), seed, role)

    def _build(self, workload_id: int, seed: int, role: str) -> Load:
        requests = traffic(self._workloads[workload_id], seed)
        if role == "prefill":  # its work ends with the first token
            requests = replace(requests, output_tokens=np.ones_like(requests.output_tokens))
        resident = role == "decode"
        compute = requests.prompt_tokens * 0 if resident else requests.prompt_tokens - requests.cached_tokens
        # The last token is sampled and never computed; a resident prompt came with a first token that is computed.
        kept = requests.prompt_tokens + requests.output_tokens - (0 if resident else 1)
        whole = requests.prompt_tokens + requests.output_tokens
        sizes = (compute, requests.output_tokens, whole, kept)
        return Load(requests, compute, kept, Extremes(*(int(size.max()) for size in sizes)))


def assign_replicas(deployment: Deployment, seed: int, count: int) -> np.ndarray:
    """Which replica serves each request (request,): independent of the state, so it is known before the run."""
    if deployment.replicas == 1:
        return np.zeros(count, dtype=np.int64)
    if deployment.router == "round_robin":
        return np.arange(count) % deployment.replicas
    stream = np.random.default_rng(np.random.SeedSequence([seed, 0x726F7574]))  # "rout"
    return np.floor(stream.random(count) * deployment.replicas).astype(np.int64)
