"""Small scenarios for tests of the whole chain."""

from __future__ import annotations

from typing import Any

from evaluator.scenario import Scenario, load_scenario

GRID = {
    "deployment__model": ["llama-3.1-8b", "gpt-oss-20b", "llama-3.1-70b"],  # the last does not fit on one device
    "deployment__batching__policy": ["continuous", "chunked"],
    "workload__arrivals__rate_rps": [2, 20],
}


def scenario(*overrides: str, **axes: Any) -> Scenario:
    """Llama-3.1-8B on an H100 under 60 requests; axes are sweeps over key paths with ``__`` for dots.

    KV is reserved, so that policies with chunks and with whole prompts share a program.
    """
    tree = {
        "name": "small",
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 4},
            "lengths": {"source": "azure-conv-2023"},
            "requests": 60,
            "warmup_requests": 10,
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "batching": {"max_num_seqs": 32},
            "kv": {"admission": "reserve"},
        },
        "sweep": {path.replace("__", "."): values for path, values in axes.items()} or None,
    }
    return load_scenario(tree, overrides)
