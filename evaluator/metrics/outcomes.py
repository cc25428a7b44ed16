"""What the stations hand to the metrics: plain arrays of one chunk of configurations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from evaluator.metrics.sessions import SessionTable
from evaluator.metrics.stages import StageTimes
from evaluator.metrics.use import Use, WeightedGaps

OK = "ok"


@dataclass(frozen=True)
class Bounds:
    """One objective over the configurations of a chunk.

    ``metric`` is ttft, tpot, e2e, queue_wait or itl; ``statistic`` is ``mean`` or ``p<percent>`` (p90, p99.9);
    ``bound_s`` is float64 (config,), NaN where the configuration has no such objective. ``request_class``: of the
    requests of that class alone; of all requests where it is empty. ``confidence`` (config,): the chance with which it
    has to hold, NaN where the prediction within the bound is enough; None: so for all.
    """

    metric: str
    statistic: str
    bound_s: np.ndarray
    request_class: str = ""
    confidence: np.ndarray | None = None

    @property
    def name(self) -> str:
        """What is bounded, in words."""
        return f"{self.metric} {self.statistic}" + (f" of {self.request_class}" if self.request_class else "")

    @property
    def quantile(self) -> float | None:
        """The quantile between 0 and 1, or None for the mean."""
        # Rounded, as 99.9 / 100 is not the 0.999 that levels are written as.
        return None if self.statistic == "mean" else round(float(self.statistic.removeprefix("p")) / 100.0, 12)

    def rows(self, rows: np.ndarray) -> Bounds:
        """That of some configurations."""
        confidence = None if self.confidence is None else self.confidence[rows]
        return replace(self, bound_s=self.bound_s[rows], confidence=confidence)


class ObjectiveFields(Protocol):
    """What ``bounds_of`` reads of a scenario's objective."""

    @property
    def metric(self) -> str: ...
    @property
    def statistic(self) -> str: ...
    @property
    def bound_s(self) -> float: ...
    @property
    def request_class(self) -> str: ...
    @property
    def confidence(self) -> float | None: ...


def bounds_of(slos: Sequence[Iterable[ObjectiveFields]]) -> tuple[Bounds, ...]:
    """One ``Bounds`` for each metric, statistic and class that any configuration names; ``slos`` has one entry per
    config."""
    table: dict[tuple[str, str, str], tuple[np.ndarray, np.ndarray]] = {}
    for config, slo in enumerate(slos):
        # By statistic and not by position: configurations may name their objectives in any order.
        for objective in slo:
            key = (objective.metric, objective.statistic, objective.request_class)
            if key not in table:
                table[key] = np.full(len(slos), np.nan), np.full(len(slos), np.nan)
            bound_s, confidence = table[key]
            bound_s[config] = objective.bound_s
            confidence[config] = np.nan if objective.confidence is None else objective.confidence
    return tuple(
        Bounds(metric, statistic, bound_s, name, confidence)
        for (metric, statistic, name), (bound_s, confidence) in table.items()
    )


@dataclass(frozen=True, eq=False)
class RequestTimes:
    """When requests were served and where: the one table of it, from a station through the chain to the outcomes.

    (config, seed, request), a request by its id; float64, absolute seconds. Of a station that some requests pass by, or
    that takes those of one configuration and not of another, the rest is 0. What a station calls the arrival is when a
    request comes there: in a closed loop the first station finds out itself when a user sends the next one, so that
    latencies mean the same.
    """

    arrival_s: np.ndarray
    scheduled_s: np.ndarray  # the service starts: of an engine, the first iteration that computes the request
    first_token_s: np.ndarray  # of a station that gives no tokens: the departure
    last_token_s: np.ndarray  # the departure
    # int32: which replica served it, pool after pool; of several stations the first that gives tokens
    replica: np.ndarray
    hit_tokens: np.ndarray | None = None  # int64: prompt tokens found in a prefix cache; None: there is none
    host_tokens: np.ndarray | None = None  # int64: of these, those that host memory had; None: there is none
    storage_tokens: np.ndarray | None = None  # int64: that a tier of the replica's own behind it had; None: no tiers
    shared_tokens: np.ndarray | None = None  # int64: that a tier had which replicas share; None: no tiers
    refused: np.ndarray | None = None  # bool: sent away on arrival, which the other times say; None: none can be
    lost: np.ndarray | None = None  # bool: its replica failed, and it was not sent again; None: no replica fails
    tries: np.ndarray | None = None  # int64: how often it was sent to a replica; None: no replica fails
    first_wait_s: np.ndarray | None = None  # of its first token at an API server; None: nothing waits there
    last_wait_s: np.ndarray | None = None  # of its last token
    visited: np.ndarray | None = None  # bool: False for requests that only passed by; None: all that came were served

    @property
    def unanswered(self) -> np.ndarray | None:
        """bool: refused or lost, so that none of the request's times is one of an answer; None: no request can be."""
        if self.refused is None or self.lost is None:
            return self.lost if self.refused is None else self.refused
        return self.refused | self.lost

    @staticmethod
    def empty(shape: tuple[int, int, int]) -> RequestTimes:
        """Zeros, to be filled."""
        arrays: list[np.ndarray] = [np.zeros(shape) for _ in range(4)]
        arrays.append(np.zeros(shape, dtype=np.int32))
        return RequestTimes(*arrays)

    def put(self, at: tuple[int, int], ids: np.ndarray | slice | int, **columns: ArrayLike) -> None:
        """Write what is known of some requests of a configuration and seed; each column is (request,), or one value."""
        for name, values in columns.items():
            getattr(self, name)[at][ids] = values

    def columns(self) -> dict[str, np.ndarray]:
        """The arrays that there are, by name."""
        return {name: values for name, values in vars(self).items() if values is not None}

    def rows(self, rows: np.ndarray) -> RequestTimes:
        """Those of some configurations."""
        return RequestTimes(**{name: values[rows] for name, values in self.columns().items()})


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """The tokens of requests, integers (config, seed, request), or (seed, request) where all configurations share."""

    prompt_tokens: np.ndarray
    output_tokens: np.ndarray  # of all stations together, and of all branches of a request
    cached_tokens: np.ndarray | None = None  # of the prompt, that were not computed: known before, or found in a cache
    host_tokens: np.ndarray | None = None  # of the cached ones, those that host memory had
    storage_tokens: np.ndarray | None = None  # those that a tier of the replica's own behind it had
    shared_tokens: np.ndarray | None = None  # those that a tier had which replicas share
    decode_hit_tokens: np.ndarray | None = None  # of the prompt, that the prefix cache of a decode side had
    path_tokens: np.ndarray | None = None  # output of the branch that ends last; None: each request has one

    @property
    def longest(self) -> np.ndarray:
        """Output tokens of the branch that ends last."""
        return self.output_tokens if self.path_tokens is None else self.path_tokens

    def of_config(self, position: int) -> TokenCounts:
        """Those of one configuration, (seed, request)."""
        return self.rows(position)

    def rows(self, rows: np.ndarray | int) -> TokenCounts:
        """Those of some configurations."""
        columns = {name: values for name, values in vars(self).items() if values is not None}
        return TokenCounts(**{name: values[rows] if values.ndim == 3 else values for name, values in columns.items()})


@dataclass(frozen=True)
class Outcomes:
    """Request times and the use of each station of a chunk. Rows whose ``status`` is not ``ok`` may hold anything.

    Requests are rows of a table, in the order in which they first arrive. ``times`` are as clients see them, finite in
    every row that is ``ok``.
    """

    times: RequestTimes
    tokens: TokenCounts
    measured: np.ndarray  # boolean, False for the warm-up: (request,), or what broadcasts to (config, seed, request)
    makespan_s: np.ndarray  # (config, seed): from the first arrival to the last completion at any station
    stations: tuple[Use, ...]

    open_loop: np.ndarray  # (config,) boolean: False for closed loop and all at once, which never saturate
    users: np.ndarray  # (config,) int: of a closed loop, how many send their next request when an answer comes; else 0
    one_batch: np.ndarray  # (config,) boolean: requests that come together are all that is asked, not the first of many
    status: np.ndarray  # (config,) text: ``ok``, or why it cannot run and what to do
    engine: np.ndarray  # (config,) text: request | iteration | token
    provenance: np.ndarray  # (config,) text: of evaluator.catalog.calibration.PROVENANCES
    calibration_set: np.ndarray  # (config,) text: the sets of its pools

    finds_warmup: np.ndarray  # (config,) boolean: a transient beyond the warm-up is cut, too
    asked_rps: np.ndarray  # (config,) rate that clients who wait for answers would send at; NaN where they do not wait
    # (config, 3, 3): expected relative errors of the mean, p90 and p99 of TTFT, ITL and E2E; NaN: not known
    model_error: np.ndarray
    model_error_basis: np.ndarray  # (config,) text: what these rest on
    objectives: tuple[Bounds, ...] = ()
    itl: Sequence[Sequence[WeightedGaps]] | None = None  # [config][seed], all gaps after the first measured first token
    model: np.ndarray | None = None  # (config, seed, request): number of the model asked for; None: the first for all
    request_class: np.ndarray | None = None  # (config, seed, request): number among ``class_names``; None: no classes
    class_names: tuple[str, ...] = ()  # of all configurations of the plan
    later_wait_s: np.ndarray | None = None  # (config, seed, request): waits behind the first engine
    accelerators: np.ndarray | None = None  # (config,): devices without the CPUs that serve stages; None: all devices
    api_server_utilisation: np.ndarray | None = None  # (config, seed); NaN: not known what API servers take
    stages: tuple[StageTimes, ...] = ()  # of a pipeline
    sessions: SessionTable | None = None  # None: no configuration of the plan has any of several turns
    stage_names: tuple[str, ...] = ()  # of all configurations of the plan, in the order in which they are reported
    pool_names: tuple[str, ...] = ()  # of all configurations of the plan, where replicas of one of several come and go
    objective_names: tuple[str, ...] = ()  # of all configurations of the plan, as ``Bounds.name``

    def summed(self, name: str) -> np.ndarray:
        """A figure of the use, such as ``devices`` or ``iterations``, summed over the stations."""
        first, *others = (use.figure(name) for use in self.stations)
        return sum(others, first)
