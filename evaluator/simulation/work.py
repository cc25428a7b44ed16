"""The useful work of jobs: what the model must compute and move for them, for MFU and MBU."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from evaluator.cost.batch import attention_area
from evaluator.cost.iteration import BatchStatistics
from evaluator.traffic.jobs import Demand


@lru_cache(maxsize=4096)
def useful_work(demand: Demand, window: int | None) -> BatchStatistics:
    """``work_of``, kept for all configurations that share a demand."""
    return work_of(demand, window)


def work_of(demand: Demand, window: int | None) -> BatchStatistics:
    """Batch statistics of all jobs summed over all iterations, every prompt computed in one piece."""
    prompt, width = demand.prompt_tokens, window or 0
    computed = demand.compute_tokens > 0
    start = prompt - demand.compute_tokens
    read = np.minimum(prompt, demand.compute_tokens + max(width - 1, 0))
    totals = BatchStatistics(
        decodes=demand.kv_tokens - prompt,
        decode_context=_decode_area(demand),
        decode_window_context=_decode_area(demand, width),
        prefill_tokens=demand.compute_tokens,
        prefill_sequences=computed,
        prefill_area=attention_area(prompt, start),
        prefill_window_area=attention_area(prompt, start, width),
        prefill_context=prompt * computed,
        prefill_window_context=read * computed,
    )
    return BatchStatistics(*(float(np.sum(values)) for values in totals))


def _decode_area(demand: Demand, window: int | None = None) -> np.ndarray:
    """Tokens that the decodes of each job attend to, summed over its branches: (job,) or (job, branch)."""
    if demand.branch_tokens is None:
        return attention_area(demand.kv_tokens, demand.prompt_tokens, window)
    prompt, sampled = demand.prompt_tokens[:, None], np.where(demand.compute_tokens > 0, 1, 0)[:, None]
    computed = np.maximum(demand.branch_tokens - sampled, 0)
    return attention_area(prompt + computed, prompt, window)
