"""How long the requests of a workload are, from random numbers common to all configurations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.scenario.scenario import Workload
from evaluator.scenario.trace import LENGTHS, read_trace
from evaluator.traffic.lengths import request_lengths


@dataclass(frozen=True, eq=False)
class Tokens:
    """How long the requests are; every array is (request,)."""

    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64]  # leading prompt tokens whose KV is there; always less than the prompt


def request_tokens(workload: Workload, seed: int, count: int) -> Tokens:
    """The first ``count`` requests of ``workload`` under ``seed``, without their arrivals, which rates do not share.

    The same seed gives the same lengths whatever the arrivals, so that configurations differ by what they are and not
    by their luck. ``cached_tokens`` of the workload are cut to leave one token of each prompt to compute; a trace that
    has the column says them itself.
    """
    prompt, output = request_lengths(workload.lengths, seed, count)
    return Tokens(prompt, output, _cached(workload, prompt))


def _cached(workload: Workload, prompt: NDArray[np.int64]) -> NDArray[np.int64]:
    if workload.lengths.source == "trace" and workload.lengths.file is not None:
        cached = read_trace(workload.lengths.file, LENGTHS).cached_tokens
        if cached is not None:
            return cached[: len(prompt)]
    return np.minimum(workload.cached_tokens, prompt - 1)
