"""The steady state that a request rate puts a replica in, without simulating a request."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evaluator.cost.arrays import Batched
from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.iteration import IterationCost, iteration_time

_GRID = np.geomspace(1e-9, 1.0, 4096)
"""Prompts admitted per iteration, as fractions of the most that fit."""

Steps = tuple[Batched, Batched, Batched]
"""Iterations with prompts: their share of all, their seconds; and the seconds of those without."""


@dataclass(frozen=True)
class SteadyState:
    """What a replica does on average under a constant rate of equal requests.

    ``utilisation`` is the rate over the capacity. When saturated, the queue grows without bound: waits are infinite.
    """

    rate_rps: float
    capacity_rps: float
    utilisation: float
    saturated: bool
    concurrency: float  # requests in the system
    step_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float


class DecodeSteps(NamedTuple):
    """With drafts: the iterations that a request decodes in, and the tokens of the budget that each takes of it."""

    iterations: float
    rows: float


def steady_state(
    parameters: IterationCost,
    rate_rps: float,
    *,
    prompt_tokens: int,
    output_tokens: int,
    pipeline_ranks: int,
    max_sequences: int,
    max_num_batched_tokens: int,
    window: int | None,
    drafted: DecodeSteps | None = None,
) -> SteadyState:
    """Mean-field fixed point of Little's law on the continuous-batching step.

    In the steady state an iteration admits q prompts on average and decodes n = q (output - 1) sequences. Prompts come
    whole, or in chunks of what n leaves of the budget: a share f of the iterations has one, or more where one each is
    not enough, and the mean iteration takes T(q) = f T_with + (1 - f) T_without, so that n = rate (output - 1) T. With
    one batch in flight per pipeline rank the rate is ranks x q / T(q), which grows with q. The q of the wanted rate is
    read off a grid, up to what fits: ``max_sequences`` in all, ``max_num_batched_tokens`` in an iteration. The rate at
    that bound is the capacity. As a request sees it, n others decode beside it: tpot = T with n + 1 decodes; ttft =
    what is left of the iteration under way, E[T^2] / 2 E[T] with the chance 1 - exp(-requests in the system) that there
    is one (an infinite server's), then an iteration with its whole prompt. With drafts a request decodes in fewer
    iterations than it has tokens, ``drafted``.

    Limits: no queue of prompts, no variance of lengths. Fair below some 70 % of the capacity; above, waits dominate,
    which only an engine with requests knows.
    """
    # No sequence fits: the queue grows from the first request on.
    if max_sequences < 1:
        return SteadyState(rate_rps, 0.0, 1.0, True, *(float("inf"),) * 5)
    steps, rows = drafted or DecodeSteps(output_tokens - 1, 1)
    # Over its decodes a request attends to the prompt and half of its output on average.
    step = _step(parameters, prompt_tokens, prompt_tokens + output_tokens / 2, window)
    bound = max_num_batched_tokens / (steps * rows + prompt_tokens)
    # Geometric, because rates of interest span decades; the last value is the bound of the batch itself.
    admitted = _GRID * (min(bound, max_sequences / pipeline_ranks / steps) if steps else bound)

    def shares(prompts: Batched, decodes: Batched) -> Steps:
        # What decodes leave of the token budget is the chunk's size, so that loaded replicas take more chunks per
        # prompt.
        chunks = np.maximum(1.0, prompt_tokens / (max_num_batched_tokens - prompts * steps * rows))
        share = np.minimum(1.0, prompts * chunks)
        return share, step(prompts / share, decodes), step(0.0, decodes)

    # Where prompts begin to need several chunks the rate may dip; interpolation wants a curve that does not fall.
    sustained = np.maximum.accumulate(pipeline_ranks * admitted / _mean(shares(admitted, admitted * steps)))
    capacity = float(sustained[-1])
    saturated = rate_rps >= capacity
    prompts = float(np.interp(rate_rps, sustained, admitted))
    state = shares(prompts, prompts * steps)
    step_s = float(_mean(state))
    # One decode more than on average: the request itself, which arrivals that are Poisson find beside the mean (PASTA).
    beside = float(_mean(shares(prompts, prompts * steps + 1.0))) if steps else 0.0
    # A token takes its share of the iterations, fewer than one each with drafts.
    tpot = beside * (steps / (output_tokens - 1)) if steps else float("nan")
    served_s = float(step(1.0, prompts * steps))
    # Requests in the system are Poisson in an infinite server, so that it is empty with exp(-their mean).
    busy = -math.expm1(-rate_rps * (served_s + beside * steps) / pipeline_ranks)
    ttft = float("inf") if saturated else busy * float(_left(state)) + served_s
    e2e = ttft + beside * steps
    return SteadyState(
        rate_rps, capacity, min(1.0, rate_rps / capacity), saturated, rate_rps * e2e, step_s, ttft, tpot, e2e
    )


def _mean(steps: Steps) -> Batched:
    """Seconds of an iteration on average."""
    share, with_prompts, without = steps
    return share * with_prompts + (1.0 - share) * without


def _left(steps: Steps) -> Batched:
    """Seconds that are left of the iteration in which a request comes at random: E[T^2] / 2 E[T]."""
    share, with_prompts, without = steps
    return (share * with_prompts**2 + (1.0 - share) * without**2) / (2.0 * _mean(steps))


def _step(
    parameters: IterationCost, prompt_tokens: int, context: float, window: int | None
) -> Callable[[Batched, Batched], Batched]:
    """Seconds of an iteration as a function of the prompts it admits and its decodes, both (...), maybe fractional."""

    def step(prompts: Batched, decodes: Batched) -> Batched:
        prompt = prefill_batch(prompts, prompt_tokens, window)
        return iteration_time(parameters, together(prompt, decode_batch(decodes, context, window)))

    return step
