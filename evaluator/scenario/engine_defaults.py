"""The serving engine's own defaults for what a deployment does not say of its scheduler and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evaluator.catalog.engines import SchedulerDefaults, serving_engine
from evaluator.catalog.what_if import device_named, model_named
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
    # Data-parallel ranks of a model without experts are replicas that depend on nothing of one another.
    data_parallel = deployment.data_parallel
    ranks = data_parallel if data_parallel > 1 and model_named(deployment.model).has_experts else 1
    devices = deployment.tensor_parallel * deployment.pipeline_parallel * ranks
    return serving_engine(deployment.engine).defaults(device_named(deployment.hardware), devices, ranks)


def with_engine_defaults(deployment: Deployment) -> Deployment:
    """The deployment with nothing left to the engine; itself where it says everything."""
    filled: dict[str, Batching | KvCache] = {}
    for section, keys in LEFT_TO_ENGINE.items():
        said: Any = getattr(deployment, section)
        if any(getattr(said, key) is None for key in keys):
            budget = deployment.batching.max_num_batched_tokens
            defaults = scheduler_defaults(deployment).within(budget, deployment.decode_tokens)
            unsaid = {key: getattr(defaults, key) for key in keys if getattr(said, key) is None}
            filled[section] = replace(said, **unsaid)
    return replace(deployment, **filled) if filled else deployment  # type: ignore[arg-type]
