"""Which engine computes a configuration: the vectorised one, or the reference where that lacks a feature."""

from __future__ import annotations

from evaluator.scenario import Deployment, Workload

ITERATION, TOKEN = "iteration", "token"
ENGINES = (ITERATION, TOKEN)

CHUNKING = ("chunked", "sarathi")
"""Policies that cut prompts into chunks."""

FAST_POLICIES = ("static", "continuous", "chunked", "mixed")
FAST_ROUTERS = ("random", "round_robin")


def on_demand(deployment: Deployment) -> bool:
    """KV is taken as tokens come, whatever the file says of a policy that knows only one way."""
    return deployment.kv.admission == "on_demand" or deployment.batching.policy == "lightllm"


def is_coupled(workload: Workload, deployment: Deployment) -> bool:
    """Which replica serves a request is known only when it is sent, so that replicas must run together."""
    if deployment.replicas == 1:
        return False
    closed = workload.arrivals.process == "closed_loop"
    return deployment.router not in FAST_ROUTERS or (closed and deployment.router == "random")


def lacking(workload: Workload, deployment: Deployment) -> tuple[str, ...]:
    """The keys whose values only the reference knows; none where the vectorised engine can run the configuration."""
    batching = deployment.batching
    found = {
        "pipeline_parallel": deployment.pipeline_parallel > 1,
        f"policy {batching.policy}": batching.policy not in FAST_POLICIES,
        "admission on_demand": deployment.kv.admission == "on_demand",
        "long_prefill_token_threshold": batching.long_prefill_token_threshold > 0 and batching.policy in CHUNKING,
        f"packing {batching.packing}": batching.packing != "fcfs",
        f"router {deployment.router}": is_coupled(workload, deployment),
    }
    return tuple(name for name, applies in found.items() if applies)
