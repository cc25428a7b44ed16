"""Runs whose traces are read: as the format says, and by the viewer."""

from __future__ import annotations

RUNS = {
    "replicas": ("deployment.replicas=2", "workload.seeds=[4, 5]"),
    "one router": ("deployment.replicas=2", "deployment.router=least_work"),
    "closed loop": ("workload.arrivals={process: closed_loop, users: 8}",),
    "pipeline": ("deployment.pipeline_parallel=2", "workload.arrivals.rate_rps=30"),
    "preemption": (
        "deployment.hardware=rtx-4090",
        "deployment.precision.weights=fp8",
        "deployment.kv={admission: on_demand, memory_fraction: 0.55}",
        "workload.arrivals.rate_rps=60",
        "workload.lengths={source: fixed, prompt_tokens: 1500, output_tokens: 600}",
    ),
}
