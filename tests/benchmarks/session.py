"""Memory of a Python session that sweeps one scenario after the other: what is kept, and whether it has a bound."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import evaluator
from tests.benchmarks.registry import Row, benchmark

MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "gpt-oss-20b",
    "qwen3-30b-a3b",
    "qwen3-14b",
    "deepseek-v2-lite",
    "llama-2-7b",
)
DEVICES = ("h100-sxm", "h200-sxm", "a100-sxm", "l40s", "b200-sxm", "mi300x")
SCENARIOS, QUICK = 350, 20


def scenario(number: int) -> dict[str, Any]:
    """One of many that differ in what is compiled: model, policy, arrivals, sizes of lanes."""
    rng = random.Random(number)
    arrivals = rng.choice(
        [{"process": "poisson", "rate_rps": rng.uniform(1, 9)}, {"process": "closed_loop", "users": rng.randint(2, 60)}]
    )
    lengths = rng.choice(
        [
            {"source": "azure-conv-2023"},
            {"source": "fixed", "prompt_tokens": rng.randint(10, 3000), "output_tokens": rng.randint(5, 300)},
        ]
    )
    return {
        "name": f"session {number}",
        "workload": {"arrivals": arrivals, "lengths": lengths, "requests": rng.choice([100, 200, 400, 1000])},
        "deployment": {
            "model": rng.choice(MODELS),
            "hardware": rng.choice(DEVICES),
            "tensor_parallel": rng.choice([1, 2, 4]),
            "batching": {
                "policy": rng.choice(["chunked", "continuous", "mixed", "static"]),
                "max_num_seqs": rng.choice([16, 64, 256]),
            },
            "kv": {"prefix_caching": rng.random() < 0.2},
        },
        "sweep": {"deployment.replicas": [1, 2]},
    }


def held_mb() -> float:
    """Memory that this process holds."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@benchmark("session")
def session(quick: bool) -> Iterator[Row]:
    """Memory of a session of many different scenarios, as they run by themselves and all compiled."""
    count = QUICK if quick else SCENARIOS
    for simulator in ("auto", "iteration"):
        for number in range(count):
            evaluator.sweep(scenario(number), simulator=simulator)
            if (number + 1) % (count // 5) == 0:
                yield Row(f"{number + 1} scenarios, --simulator {simulator}", held_mb(), "MB")
