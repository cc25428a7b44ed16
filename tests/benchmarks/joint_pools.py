"""Requests per second of pools that depend on one another, in one loop of the vectorised engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from evaluator.device import configure
from evaluator.plan import plan
from evaluator.scenario import load_scenario
from evaluator.simulation.joint_pools import engine_input, lanes_of
from evaluator.simulation.lanes import program_of
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import best_of

PAIR = {"p": {"role": "prefill"}, "d": {"role": "decode"}}
TWO = {"h": {"role": "mixed", "replicas": 4}, "l": {"role": "mixed", "hardware": "h200-sxm", "replicas": 4}}
FOUR = {
    "p": {"role": "prefill", "replicas": 2}, "q": {"role": "prefill", "hardware": "h200-sxm", "replicas": 2},
    "d": {"role": "decode", "replicas": 2}, "e": {"role": "decode", "hardware": "h200-sxm", "replicas": 2},
}  # fmt: skip
CLOSED = {"process": "closed_loop", "users": 64}
BACK = {"backpressure": True}
LEAST = "least_outstanding"
RUNS: dict[str, dict[str, Any]] = {
    "closed loop over 1P:1D": {"pools": PAIR, "arrivals": CLOSED},
    "least_outstanding over two mixed pools of 4": {"pools": TWO, "router": LEAST, "rate": 40.0},
    "least_outstanding on both sides, 2 x 2 replicas each": {"pools": FOUR, "router": LEAST, "rate": 30.0},
    "back-pressure, 1P:1D": {"pools": PAIR, "transfer": BACK, "rate": 10.0},
    "back-pressure by layer, on demand, least_work on both sides": {
        "pools": FOUR, "router": "least_work", "rate": 30.0, "transfer": {**BACK, "granularity": "layer"},
        "kv": {"admission": "on_demand"},
    },
}  # fmt: skip
LANES, REQUESTS = 16, 4_000


@benchmark("joint_pools")
def joint_pools(quick: bool) -> Iterator[Row]:
    """Requests/s of 16 lanes x 4,000 requests over pools in one loop; each request counts once, however many pools."""
    configure()
    for label, run in list(RUNS.items())[: 2 if quick else None]:
        job = _job(**run)
        took = best_of(lambda job=job: jax.block_until_ready(job()))
        served = LANES * REQUESTS
        yield Row(
            label, served / took.wall_s / 1e6, "M requests/s", f"{served / took.cpu_s / 1e6:.3g} M per core-second"
        )


def _job(pools: Any, arrivals: Any = None, rate: float = 0.0, **deployment: Any) -> Any:
    """The engine's call for LANES seeds of a scenario, Llama-3.1-8B on an H100 where nothing else is said."""
    served = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "calibration": "datasheet", "pools": pools}
    workload = {
        "arrivals": arrivals or {"process": "poisson", "rate_rps": rate},
        "lengths": {"source": "azure-conv-2023"},
        "requests": REQUESTS,
        "seeds": list(range(LANES)),
    }
    whole = plan(load_scenario({"workload": workload, "deployment": {**served, **deployment}}))
    (configuration,), (group,) = whole.configurations, whole.groups
    lanes = lanes_of(whole, [configuration], [whole.jobs(configuration)])
    inputs = jax.tree.map(np.asarray, engine_input(group.stations[0], lanes))
    run = program_of(group.stations[0])
    return lambda: run(*inputs)
