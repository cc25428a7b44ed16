"""What the stations hand to the metrics: plain arrays of one chunk of configurations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

OK = "ok"

# One (gap_s, weight) pair: ``weight`` successive tokens came ``gap_s`` seconds after the token before.
WeightedGaps = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Bounds:
    """One objective over the configurations of a chunk.

    ``metric`` is ttft, tpot, e2e, queue_wait or itl; ``statistic`` is ``mean`` or ``p<percent>`` (p90, p99.9);
    ``bound_s`` is float64 (config,), NaN where the configuration has no such objective.
    """

    metric: str
    statistic: str
    bound_s: np.ndarray

    @property
    def quantile(self) -> float | None:
        """The quantile between 0 and 1, or None for the mean."""
        return None if self.statistic == "mean" else round(float(self.statistic.removeprefix("p")) / 100.0, 12)


class Objective(Protocol):
    """What ``bounds_of`` reads of a scenario's objective."""

    @property
    def metric(self) -> str: ...
    @property
    def statistic(self) -> str: ...
    @property
    def bound_s(self) -> float: ...


def bounds_of(slos: Sequence[Iterable[Objective]]) -> tuple[Bounds, ...]:
    """One ``Bounds`` for each (metric, statistic) that any configuration names; ``slos`` has one entry per config."""
    table: dict[tuple[str, str], np.ndarray] = {}
    for config, slo in enumerate(slos):
        for objective in slo:
            key = (objective.metric, objective.statistic)
            table.setdefault(key, np.full(len(slos), np.nan))[config] = objective.bound_s
    return tuple(Bounds(metric, statistic, bound) for (metric, statistic), bound in table.items())


@dataclass(frozen=True)
class Outcomes:
    """Per-request times and lane totals of a chunk. Rows whose ``status`` is not ``ok`` may hold anything.

    Requests are in the order of arrival. Under closed loop ``arrival_s`` is the time of release, so that latencies
    mean the same. Times are float64, absolute, in seconds; they are finite in every row that is ``ok``.
    """

    arrival_s: np.ndarray  # (config, seed, request)
    scheduled_s: np.ndarray  # (config, seed, request): the first iteration that computes the request starts
    first_token_s: np.ndarray  # (config, seed, request)
    last_token_s: np.ndarray  # (config, seed, request)
    prompt_tokens: np.ndarray  # (seed, request) or (config, seed, request), integer
    output_tokens: np.ndarray  # (seed, request) or (config, seed, request), integer
    measured: np.ndarray  # (request,) boolean, False for the warm-up

    busy_s: np.ndarray  # (config, seed): summed over the replicas
    makespan_s: np.ndarray  # (config, seed): from the first arrival to the last completion of any replica
    flops: np.ndarray  # (config, seed): useful FLOPs of the model, all replicas
    bytes: np.ndarray  # (config, seed): useful bytes of the model, all replicas
    kv_used_mean: np.ndarray  # (config, seed): fraction of the KV capacity
    kv_used_max: np.ndarray  # (config, seed)
    iterations: np.ndarray  # (config, seed): summed over the replicas
    preemptions: np.ndarray  # (config, seed)

    replicas: np.ndarray  # (config,)
    devices: np.ndarray  # (config,): of all replicas together
    peak_flops: np.ndarray  # (config,): FLOP/s of one device
    peak_bandwidth: np.ndarray  # (config,): byte/s of one device
    power_w: np.ndarray  # (config,): of one device that works; NaN where unknown
    idle_power_w: np.ndarray  # (config,): of one device that waits; NaN where unknown
    usd_per_hour: np.ndarray  # (config,): of one device; NaN where unknown
    open_loop: np.ndarray  # (config,) boolean: False for closed loop and all at once, which never saturate

    status: np.ndarray  # (config,) text: ``ok``, or why it cannot run and what to do
    engine: np.ndarray  # (config,) text: request | iteration | token
    provenance: np.ndarray  # (config,) text: calibrated | extrapolated | datasheet

    objectives: tuple[Bounds, ...] = ()
    itl: Sequence[Sequence[WeightedGaps]] | None = None  # [config][seed], all gaps after the first measured first token
    replica: np.ndarray | None = None  # (config, seed, request) or (seed, request): which replica served it
    cached_tokens: np.ndarray | None = None  # shaped as prompt_tokens
