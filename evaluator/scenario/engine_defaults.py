"""The serving engine's own defaults for what a deployment does not say of its scheduler and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evaluator.catalog.engines import SchedulerDefaults, serving_engine
from evaluator.catalog.read_hardware import load_hardware
from evaluator.catalog.read_model import load_model
from evaluator.catalog.what_if import WhatIf, changed_model, device
from evaluator.scenario.deployment import Batching, Deployment, KvCache

_ENGINE = ("engine",)
_DEVICE = (*_ENGINE, "hardware", "hardware.memory_bytes", "hardware.like", "model", "model.like",
           "tensor_parallel", "pipeline_parallel", "data_parallel")  # fmt: skip
LEFT_TO_ENGINE: dict[str, dict[str, tuple[str, ...]]] = {
    "batching": {
        "policy": _ENGINE,
        "max_num_seqs": (*_DEVICE, "batching.max_num_batched_tokens", "speculative", "speculative.tokens"),
    },
    "kv": {
        "memory_fraction": _DEVICE,
        "block_tokens": _ENGINE,
    },
}
"""Keys that hold None where a file says nothing of them, by section, and the keys of a deployment that move their
defaults. ``batching.max_num_batched_tokens`` stays None: its default depends on the prompts
(``replica.token_budget``)."""


def scheduler_defaults(deployment: Deployment) -> SchedulerDefaults:
    """The defaults of the deployment's engine on its hardware."""
    of = deployment.hardware
    hardware = device(of) if isinstance(of, WhatIf) else load_hardware(of)
    ranks = deployment.data_parallel if deployment.data_parallel > 1 and _has_experts(deployment.model) else 1
    devices = deployment.tensor_parallel * deployment.pipeline_parallel * ranks
    return serving_engine(deployment.engine).defaults(hardware, devices, ranks)


def _has_experts(of: str | WhatIf) -> bool:
    return (changed_model(of) if isinstance(of, WhatIf) else load_model(of)).has_experts


def with_engine_defaults(deployment: Deployment) -> Deployment:
    """The deployment with nothing left to the engine; itself where it says everything."""
    filled: dict[str, Batching | KvCache] = {}
    for section, keys in LEFT_TO_ENGINE.items():
        said: Any = getattr(deployment, section)
        if any(getattr(said, key) is None for key in keys):
            budget = deployment.batching.max_num_batched_tokens
            defaults = scheduler_defaults(deployment).within(budget, deployment.decode_tokens)
            more = {key: getattr(defaults, key) for key in keys if getattr(said, key) is None}
            filled[section] = replace(said, **more)
    return replace(deployment, **filled) if filled else deployment  # type: ignore[arg-type]
