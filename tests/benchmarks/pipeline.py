"""Requests per second of pipelines, from scenario to dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evaluator import sweep
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import best_of

RATES, REQUESTS = 400, 1_000
PREPROCESS = {"stage": "preprocess", "seconds": "5ms", "seconds_per_token": "2us", "servers": 2}
DETOKENISE = {"stage": "postprocess", "seconds": "1ms", "seconds_per_token": "10us", "servers": 1}
TOOL = {"stage": "tool", "seconds": "400ms", "servers": 16, "tokens": 200, "back_to": "prefill", "times": {"mean": 2}}
GUARD = {"stage": "postprocess", "kind": "guard", "model": "qwen3-0.6b", "pool": "guard"}
LLM = ["prefill", "decode"]
USERS = "on one clock, 1 to 400 users who wait for the last of three stages"
RUNS: dict[str, list[Any]] = {
    "no pipeline": LLM,
    "three stages: queues around the LLM": [PREPROCESS, *LLM, DETOKENISE],
    "three stages: a queue and a guard model": [PREPROCESS, *LLM, GUARD],
    USERS: [PREPROCESS, *LLM, DETOKENISE],
    "on one clock, a tool that is called twice in the mean": ["prefill", {"stage": "decode", "tokens": 60}, TOOL],
}


@benchmark("pipeline")
def pipeline(quick: bool) -> Iterator[Row]:
    """Requests/s of sweeps over 400 rates, or numbers of users, x 1,000 requests, compiled before, with all metrics."""
    for label, stages in RUNS.items():
        asked = scenario(stages)
        if label == USERS:
            asked["workload"]["arrivals"] = {"process": "closed_loop", "users": 1}
            asked["sweep"] = {"workload.arrivals.users": list(range(1, RATES + 1))}
        sweep(asked)
        took = best_of(lambda asked=asked: sweep(asked))
        note = f"{RATES * REQUESTS / took.cpu_s / 1e6:.3g} M per core-second"
        yield Row(label, RATES * REQUESTS / took.wall_s / 1e6, "M requests/s", note)


def scenario(stages: list[Any]) -> dict[str, Any]:
    """One H100 with an 8B model under rates up to most of what it can serve."""
    pools = {"pools": {"guard": {"role": "stage", "hardware": "l4"}}} if GUARD in stages else {}
    return {
        "name": "benchmark-pipeline",
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 1},
            "lengths": {"source": "azure-conv-2023"},
            "requests": REQUESTS,
        },
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", **pools},
        "pipeline": stages,
        "sweep": {"workload.arrivals.rate_rps": {"linspace": [0.5, 10, RATES]}},
    }
