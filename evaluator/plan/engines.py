"""Which engine computes a configuration: the vectorised one, or the reference where that lacks a feature."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.scenario import Deployment, Workload

ITERATION, TOKEN = "iteration", "token"
ENGINES = (ITERATION, TOKEN)

CHUNKING = ("chunked", "sarathi")
"""Policies that cut prompts into chunks."""

INDEPENDENT_ROUTERS = ("random", "round_robin")


@dataclass(frozen=True)
class Program:
    """Which program of the vectorised engine runs a configuration.

    The first keeps its queues in the order of arrival; ``in_any_order`` needs the general one, which takes about three
    times as long. ``pipeline_ranks`` and ``peaks`` (admission by the future peak of
    KV) are structure of that one.
    """

    in_any_order: bool = False
    pipeline_ranks: int = 1
    peaks: bool = False


IN_ORDER = Program()


def program(deployment: Deployment) -> Program:
    """The program for a deployment."""
    batching, pipeline_ranks = deployment.batching, deployment.pipeline_parallel
    general = (
        pipeline_ranks > 1
        or batching.policy in ("orca", "lightllm")
        or on_demand(deployment)
        or batching.packing != "fcfs"
        or (batching.long_prefill_token_threshold > 0 and batching.policy in CHUNKING)
    )
    return Program(True, pipeline_ranks, batching.policy == "lightllm") if general else IN_ORDER


def on_demand(deployment: Deployment) -> bool:
    """KV is taken as tokens come, whatever the file says of a policy that knows only one way."""
    return deployment.kv.admission == "on_demand" or deployment.batching.policy == "lightllm"


def is_coupled(workload: Workload, deployment: Deployment) -> bool:
    """Which replica serves a request is known only when it is sent, so that replicas must run together."""
    if deployment.replicas == 1:
        return False
    closed = workload.arrivals.process == "closed_loop"
    return deployment.router not in INDEPENDENT_ROUTERS or (closed and deployment.router == "random")


def lacking(workload: Workload, deployment: Deployment) -> tuple[str, ...]:
    """The keys whose values only the reference knows; none where the vectorised engine can run the configuration."""
    found = {
        "preemption swap": deployment.kv.admission == "on_demand" and deployment.kv.preemption == "swap",
        "policy lightllm with pipeline_parallel": deployment.batching.policy == "lightllm"
        and deployment.pipeline_parallel > 1,
        f"router {deployment.router}": is_coupled(workload, deployment),
    }
    return tuple(name for name, applies in found.items() if applies)
