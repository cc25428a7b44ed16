"""What a deployment leaves unsaid of its scheduler and memory: the serving engine's own defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evaluator.catalog.engines import SchedulerDefaults, serving_engine
from evaluator.catalog.read_hardware import load_hardware
from evaluator.catalog.read_model import load_model
from evaluator.catalog.what_if import WhatIf, changed_model, device
from evaluator.scenario.scenario import Batching, Deployment, KvCache

_ENGINE = ("engine",)
_DEVICE = (*_ENGINE, "hardware", "hardware.memory_bytes", "hardware.like", "model", "model.like",
           "tensor_parallel", "pipeline_parallel", "data_parallel")  # fmt: skip
UNSAID: dict[str, dict[str, tuple[str, ...]]] = {
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


def told(deployment: Deployment) -> Deployment:
    """The deployment with nothing left unsaid; itself where there is nothing to add."""
    found: dict[str, Batching | KvCache] = {}
    for section, keys in UNSAID.items():
        of: Any = getattr(deployment, section)
        if any(getattr(of, key) is None for key in keys):
            budget = deployment.batching.max_num_batched_tokens
            defaults = scheduler_defaults(deployment).within(budget, deployment.decode_tokens)
            more = {key: getattr(defaults, key) for key in keys if getattr(of, key) is None}
            found[section] = replace(of, **more)
    return replace(deployment, **found) if found else deployment  # type: ignore[arg-type]
