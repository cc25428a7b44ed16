"""The requests of a workload: arrival times and lengths, from random numbers common to all configurations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.errors import InputError
from evaluator.scenario.scenario import Workload
from evaluator.scenario.trace import LENGTHS, read_trace
from evaluator.traffic.arrivals import arrival_times
from evaluator.traffic.lengths import request_lengths


@dataclass(frozen=True, eq=False)
class Tokens:
    """How long the requests are; every array is (request,)."""

    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64]  # leading prompt tokens whose KV is there; always less than the prompt


@dataclass(frozen=True, eq=False)
class Traffic(Tokens):
    """The requests of one seed in order of arrival."""

    arrival_s: NDArray[np.float64]


def traffic(workload: Workload, seed: int, count: int | None = None) -> Traffic:
    """The first ``count`` (default: all) requests of ``workload`` under ``seed``.

    The same seed gives the same lengths and the same unit gaps whatever the rate, so that configurations differ by
    what they are and not by their luck. A closed loop's arrivals are 0: its users decide.
    ``cached_tokens`` of the workload are cut to leave one token of each prompt to compute; a trace that has the
    column says them itself. Errors: InputError for a trace that cannot be used or has fewer than ``count`` requests.
    """
    n = workload.requests if count is None else count
    found = request_tokens(workload, seed, n)
    arrival = arrival_times(workload.arrivals, seed, n)
    if not len(arrival) == len(found.prompt_tokens) == n:
        raise InputError(f"{n} requests are more than the {min(len(arrival), len(found.prompt_tokens))} of the trace")
    return Traffic(found.prompt_tokens, found.output_tokens, found.cached_tokens, arrival)


def request_tokens(workload: Workload, seed: int, count: int) -> Tokens:
    """The lengths of the first ``count`` requests, without their arrivals, which other rates do not share."""
    prompt, output = request_lengths(workload.lengths, seed, count)
    return Tokens(prompt, output, _cached(workload, prompt))


def _cached(workload: Workload, prompt: NDArray[np.int64]) -> NDArray[np.int64]:
    if workload.lengths.source == "trace" and workload.lengths.file is not None:
        cached = read_trace(workload.lengths.file, LENGTHS).cached_tokens
        if cached is not None:
            return cached[: len(prompt)]
    return np.minimum(workload.cached_tokens, prompt - 1)
