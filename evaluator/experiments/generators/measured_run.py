"""What a load generator measured of one run, in the same words whichever generator wrote it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evaluator.errors import InputError
from evaluator.experiments.entry import as_number

MOST_REQUESTS = 200_000
"""Requests of a run that a comparison simulates; generators' own tables rarely have more than ten thousand."""
MOST_TOKENS = 100_000_000

_STATISTIC = re.compile(r"(?:p|P)?0*(\d{1,3}(?:\.\d+)?)(?:th)?")
_NAMED = {"mean": "mean", "avg": "mean", "average": "mean", "median": "p50", "p001": "p0.1", "p999": "p99.9"}


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """One run: what was sent, and what the client saw of it.

    ``arrivals`` is that section of a scenario. ``metrics`` are ``ttft``, ``tpot``, ``itl`` and ``e2e`` with their
    statistic (``ttft_mean``, ``e2e_p99``) in seconds, ``throughput_rps``, ``output_tok_per_s`` and ``total_tok_per_s``.
    Lengths are one number where the file has means alone, an array (request,) in order of sending where it has them by
    request, None where it says nothing. ``deployment`` is what the file says of the server, by keys of a scenario, and
    ``weights`` how it calls their precision.
    """

    label: str
    generator: str
    arrivals: Mapping[str, Any]
    requests: int
    metrics: Mapping[str, float]
    prompt_tokens: np.ndarray | float | None = None
    output_tokens: np.ndarray | float | None = None
    arrival_s: np.ndarray | None = None
    model: str | None = None
    gpu: str | None = None
    deployment: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    failed: int = 0  # requests beside those that were answered
    cancelled: bool = False  # it ended before all was sent
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Checked in the record, since every generator's reader ends here.
        if not 1 <= self.requests <= MOST_REQUESTS:
            raise InputError(f"{self.requests:,} requests; a comparison takes 1 to {MOST_REQUESTS:,}")
        for what, tokens in (("prompts", self.prompt_tokens), ("outputs", self.output_tokens)):
            # `not ... <=`, so that a NaN is refused, too.
            if tokens is not None and not np.mean(tokens) <= MOST_TOKENS:
                raise InputError(
                    f"{what} of {np.mean(tokens):g} tokens; there is no model for more than {MOST_TOKENS:,}"
                )
        if not self.metrics:
            raise InputError("no latency or throughput that could be compared")


def closed_loop(users: float, what: str) -> dict[str, Any]:
    """Arrivals of so many users, each of whom sends when an answer has come."""
    if not 1 <= users <= 10**6 or users != int(users):
        raise InputError(f"{what} must be a whole number of at least 1, got {users:g}")
    return {"process": "closed_loop", "users": int(users)}


def open_loop(rate_rps: float, what: str, cv: float = 1.0) -> dict[str, Any]:
    """Arrivals at random at a mean rate; ``cv`` 0 is evenly spaced."""
    if not 0 < rate_rps < math.inf:
        raise InputError(f"{what} must be above 0, got {rate_rps:g}")
    # The processes of a scenario, each by its own name: a run at cv 1 then shares the draws of other poisson runs.
    if cv == 0:
        return {"process": "uniform", "rate_rps": rate_rps}
    random = {"process": "poisson"} if cv == 1 else {"process": "gamma", "cv": cv}
    return random | {"rate_rps": rate_rps}


AT_ONCE: Mapping[str, Any] = {"process": "all_at_once"}


def statistic(name: str) -> str | None:
    """``mean`` or ``p99`` of what generators call it (avg, median, P99, p99, p999); None for another word."""
    if name in _NAMED:
        return _NAMED[name]
    percentile = _STATISTIC.fullmatch(name)
    # p999 is in `_NAMED`, since by its digits it would be the 999th percentile.
    return None if percentile is None or float(percentile[1]) > 100 else f"p{float(percentile[1]):g}"


def statistics_of(metric: str, values: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """The statistics of a metric in seconds, of a mapping from their names to numbers; what is none is left out."""
    statistics = {}
    for name, given in values.items():
        kind, value = statistic(str(name)), as_number(given)
        if kind is not None and value is not None and 0 <= value < math.inf:
            statistics[f"{metric}_{kind}"] = value * seconds
    # Generators write zeros for what they did not measure: the TTFT of answers that were not streamed.
    return statistics if any(statistics.values()) else {}


def statistics_by_ending(entry: Mapping[str, Any], endings: Mapping[str, str], seconds: float) -> dict[str, float]:
    """The statistics of several metrics, where keys are of one and the other: ``p99_ttft_ms``, with ``endings`` by
    metric (``ttft``: ``_ttft_ms``)."""
    statistics: dict[str, float] = {}
    for metric, ending in endings.items():
        values = {str(key).removesuffix(ending): value for key, value in entry.items() if str(key).endswith(ending)}
        statistics |= statistics_of(metric, values, seconds)
    return statistics


def rates_of(entry: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float]:
    """Rates above zero by our names, of their names in a file."""
    read = {ours: as_number(entry.get(theirs)) for ours, theirs in names.items()}
    return {ours: value for ours, value in read.items() if value is not None and 0 < value < math.inf}


def per_request(values: Any, what: str, least: float = 0.0) -> np.ndarray:
    """A list of numbers, one a request; InputError with the place of the first that is none."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise InputError(f"{what} must be a list, got {type(values).__name__}")
    numbers = [as_number(value) for value in values]
    for index, value in enumerate(numbers):
        if value is None or not least <= value < math.inf:
            raise InputError(f"{what}[{index}] must be a number of at least {least:g}, got {str(values[index])[:40]!r}")
    return np.array(numbers, dtype=np.float64)


def number_in(entry: Mapping[str, Any], name: str, least: float) -> float:
    """The number under a name; InputError where there is none, or one below ``least``."""
    value = as_number(entry.get(name))
    if value is None or not least <= value < math.inf:
        raise InputError(f"{name} must be a number of at least {least:g}, got {str(entry.get(name))[:40]!r}")
    return value


def mean_of(total: float | None, count: int) -> float | None:
    """Tokens of a request on average; None where the file has no total."""
    return total / count if total and count else None


def latencies_of_requests(
    ttft_s: np.ndarray, e2e_s: np.ndarray, output_tokens: np.ndarray, percents: Iterable[float] = (50, 90, 95, 99)
) -> dict[str, float]:
    """TTFT, TPOT and E2E of single requests, as a generator would summarise them; NaN is not measured."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # An answer of one token has no time per further token; as NaN it stays out of the statistics.
        tpot = np.where(output_tokens > 1, (e2e_s - ttft_s) / (output_tokens - 1), np.nan)
    statistics: dict[str, float] = {}
    for name, values in (("ttft", ttft_s), ("tpot", tpot), ("e2e", e2e_s)):
        measured = values[np.isfinite(values)]
        if len(measured):
            statistics[f"{name}_mean"] = float(measured.mean())
            statistics |= {f"{name}_p{percent:g}": float(np.percentile(measured, percent)) for percent in percents}
    return statistics
