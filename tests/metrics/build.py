"""Outcomes for tests: a FIFO server per configuration, small enough to follow by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from evaluator.metrics import Outcomes


def fifo(arrival_s: np.ndarray, service_s: np.ndarray) -> np.ndarray:
    """Start times of a single FIFO server (Lindley), any leading axes."""
    before = np.cumsum(service_s, axis=-1) - service_s
    return np.maximum.accumulate(arrival_s - before, axis=-1) + before


def outcomes(
    configs: int = 3, seeds: int = 2, requests: int = 200, load: float = 0.5, warmup: int = 20, **changes: Any
) -> Outcomes:
    """Poisson arrivals, unit service: first token after half of it, last token at its end."""
    rng = np.random.default_rng(0)
    arrival = np.cumsum(rng.exponential(1.0 / load, (configs, seeds, requests)), axis=-1)
    start = fifo(arrival, np.ones_like(arrival))
    lane = np.ones((configs, seeds))
    config = np.ones(configs)
    base = Outcomes(
        arrival_s=arrival,
        scheduled_s=start,
        first_token_s=start + 0.5,
        last_token_s=start + 1.0,
        prompt_tokens=np.full((seeds, requests), 100),
        output_tokens=np.full((seeds, requests), 11),
        measured=np.arange(requests) >= warmup,
        busy_s=lane * requests,
        makespan_s=start[..., -1] + 1.0,
        flops=lane * requests * 0.25,
        bytes=lane * requests * 0.5,
        kv_used_mean=lane * 0.25,
        kv_used_max=lane * 0.5,
        iterations=lane * 11 * requests,
        preemptions=lane * 0,
        replicas=config,
        devices=config * 2,
        peak_flops=config,
        peak_bandwidth=config,
        power_w=config * 700.0,
        idle_power_w=config * 100.0,
        usd_per_hour=config * 3.6,
        open_loop=np.ones(configs, dtype=bool),
        status=np.full(configs, "ok"),
        engine=np.full(configs, "iteration"),
        provenance=np.full(configs, "datasheet"),
    )
    return replace(base, **changes)
