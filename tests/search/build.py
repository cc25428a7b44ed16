"""Small scenarios with objectives, for searches."""

from __future__ import annotations

from typing import Any

from evaluator.scenario import Scenario, load_scenario


def scenario(*overrides: str, **sections: Any) -> Scenario:
    """Llama-3.1-8B on H100 under 200 requests with objectives; ``sections`` are added to the file."""
    tree = {
        "name": "small",
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 4},
            "lengths": {"source": "azure-conv-2023"},
            "requests": 200,
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "batching": {"max_num_seqs": 16},
            "kv": {"admission": "reserve"},
        },
        "slo": {"ttft": {"p90": 1.0}, "tpot": {"p90": 0.05}},
        **sections,
    }
    return load_scenario(tree, overrides)


def axes(**values: Any) -> dict[str, Any]:
    """Axes over key paths with ``__`` for dots."""
    return {path.replace("__", "."): steps for path, steps in values.items()}
