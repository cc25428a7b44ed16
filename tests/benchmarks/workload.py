"""The engine's workload: 1,024 lanes x 1,000 requests, every lane with a load and hardware of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.cost import (
    OP_CLASSES,
    CostParameters,
    KvLayout,
    Parallel,
    coefficients,
    fold_rates,
    kv_units,
    memory_plan,
    operators,
    rates,
    reach,
)
from evaluator.cost.precision import Precision
from evaluator.replica import token_budget
from evaluator.scenario import Batching, Deployment

LANES, REQUESTS = 1024, 1000
KV_TOKENS = 400_000
MAX_NUM_SEQS = 256
HARDWARE = "h100-sxm"


@dataclass(frozen=True)
class Work:
    """``arrival_s`` (lane, request), lanes sorted by load; the lengths (request,) are the same in all lanes."""

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    kv_units: np.ndarray
    costs: list[CostParameters]
    kv: KvLayout
    policy: str
    max_num_batched_tokens: int


def work(model_name: str, policy: str = "chunked", lanes: int = LANES, requests: int = REQUESTS) -> Work:
    """Poisson arrivals of 1-20 requests/s, prompts around 1,024 and outputs around 200 tokens, both lognormal."""
    rng = np.random.default_rng(0)
    rate = np.sort(rng.uniform(1, 20, lanes))
    arrival = np.cumsum(rng.exponential(1, requests))[None] / rate[:, None]
    prompt = np.clip(rng.lognormal(np.log(1024), 0.8, requests), 8, 8000).astype(int)
    output = np.clip(rng.lognormal(np.log(200), 0.7, requests), 2, 1500).astype(int)
    model, hardware = load_model(model_name), load_hardware(HARDWARE)
    kv = memory_plan(model, hardware, Precision(), Parallel()).kv
    kv = replace(kv, capacity_units=KV_TOKENS // kv.block_tokens)
    served = Deployment(model_name, HARDWARE, batching=Batching(policy, MAX_NUM_SEQS))
    budget = token_budget(served, int(prompt.max()))
    costs = _costs(model_name, rng.uniform(120e12, 540e12, lanes), rng.uniform(1.05e12, 3.5e12, lanes))
    return Work(arrival, prompt, output, kv_units(kv, prompt + output - 1), costs, kv, policy, budget)


def _costs(model_name: str, flops: np.ndarray, bandwidth: np.ndarray) -> list[CostParameters]:
    """All operators of the model on devices that reach ``flops`` and ``bandwidth`` (lane,) in its GEMMs."""
    hardware = load_hardware(HARDWARE)
    known = coefficients(operators(load_model(model_name), Precision(), Parallel()), reach(hardware))
    rate = rates(hardware, load_calibration("datasheet", HARDWARE))
    gemm = OP_CLASSES.index("gemm")
    faster = flops / (hardware.peak_flops["bf16"] * rate.flops_efficiency[gemm])
    wider = bandwidth / (hardware.memory_bandwidth * rate.bandwidth_efficiency[gemm])
    return [
        fold_rates(
            known,
            rate._replace(peak_flops=rate.peak_flops * more, memory_bandwidth=rate.memory_bandwidth * wide),
        )
        for more, wide in zip(faster, wider, strict=True)
    ]
