"""Dynamo: a DynamoGraphDeployment with a frontend and a worker service for every pool.

Keys are those of ``examples/backends/vllm/deploy/disagg.yaml`` of ai-dynamo/dynamo (Apache-2.0). Its frontend routes.
"""

from __future__ import annotations

from typing import Any

from evaluator.deploy.design import Design, router_keys, router_name
from evaluator.deploy.launch import Launch, manifest_head
from evaluator.deploy.router import has_router
from evaluator.deploy.targets.dynamo_planner import beyond_budget, planner_config, planner_service
from evaluator.deploy.targets.kubernetes import other_pools, too_large
from evaluator.yaml import dumps_yaml

GRAPH = "dynamo.yaml"
VERSION = "1.6.1"
"""The newest ai-dynamo on PyPI when this was written; images have the same tags."""
_ROLE_FLAGS: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {"prefill": ("--is-prefill-worker",), "decode": ("--is-decode-worker",)},
    "sglang": {},  # --disaggregation-mode, which is among its flags
}
_SAID_BY_DYNAMO = ("--kv-transfer-config",)
_MODES = {"round_robin": "round-robin", "random": "random", "prefix_aware": "kv", "prefix_approximate": "kv"}
_TTL_S = 120.0
"""For which its router remembers blocks without KV events, if nothing is said (``--router-ttl-secs``)."""


def dynamo_problem(design: Design) -> str | None:
    """Why one graph cannot hold a design; None where it can."""
    return other_pools(design, "a frontend of Dynamo has one pool of workers") or too_large(design)


def dynamo(design: Design, launches: list[Launch]) -> dict[str, str]:
    """``dynamo.yaml``, for ``kubectl apply``."""
    picture = f"nvcr.io/nvidia/ai-dynamo/{design.engine}-runtime:{VERSION}"
    envs, _ = _routing(design)
    frontend = {
        "componentType": "frontend",
        "replicas": 1,
        "envs": [{"name": name, "value": value} for name, value in envs.items()],
        "extraPodSpec": {"mainContainer": {"image": picture}},
    }
    planner = planner_service(design, launches, VERSION)
    services: dict[str, Any] = {"Frontend": frontend} | ({"Planner": planner} if planner else {})
    for launch in launches:
        # All replicas, of which a planner stops those that it does not want: how many there may be stands nowhere else.
        services[f"{launch.pool.name.title().replace('_', '')}Worker"] = _worker(launch, picture)
    graph = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": "evaluator-design"},
        "spec": {"services": services},
    }
    notes_of_router = "".join(f"# not the same: {remark}\n" for remark in dynamo_remarks(design, launches))
    return {GRAPH: manifest_head(design, launches) + notes_of_router + dumps_yaml(graph)}


def dynamo_remarks(design: Design, launches: list[Launch]) -> list[str]:
    """What of the design the frontend and the planner do not do."""
    of_router = _routing(design)[1] if has_router(design) else []
    return of_router + (beyond_budget(design, launches) if planner_config(design, launches) else [])


def _routing(design: Design) -> tuple[dict[str, str], list[str]]:
    """Variables for the frontend's way to choose a worker, and what of the design's routers it is not."""
    by_phase = design.router_of_phase
    # One frontend routes both phases: that of the prefill is taken, since prefixes are what its kv mode goes by.
    wanted = by_phase.get("prefill", next(iter(by_phase.values()))) if by_phase else design.router
    first = router_name(wanted)
    keys = router_keys(wanted)
    mode, remarks = _MODES.get(first, "kv"), []
    envs = {"DYN_ROUTER_MODE": mode}
    if first == "prefix_approximate":
        envs |= {"DYN_ROUTER_USE_KV_EVENTS": "false", "DYN_ROUTER_TTL_SECS": str(keys.get("ttl_s", _TTL_S))}
        if "ttl_s" not in keys:
            remarks.append(f"router {first}: Dynamo's forgets after {_TTL_S:g} s, not by memory_blocks")
    elif "predicted_ttl_s" in keys:
        envs["DYN_ROUTER_PREDICTED_TTL_SECS"] = str(keys["predicted_ttl_s"])
    if mode == "kv" and first in _MODES:
        remarks.append(f"router {first}: Dynamo's weighs prefixes against load (kv), without thresholds")
    if first not in _MODES:
        remarks.append(f"router {first}: Dynamo's routes by prefixes and load (kv)")
    decode = router_name(by_phase.get("decode", first))
    if decode != first:
        remarks.append(f"router {decode} of the decode phase: one frontend routes both phases, by {mode}")
    return envs, remarks


def _worker(launch: Launch, picture: str) -> dict[str, Any]:
    pool = launch.pool
    # Its workers set the KV connector themselves, and would refuse a second one.
    flags = [word for flag in launch.flags if flag[0] not in _SAID_BY_DYNAMO for word in flag]
    # SGLang's flags name the model; of vLLM's command it is the first word, which is no flag.
    model = [] if "--model-path" in flags else ["--model", launch.repository]
    container = {
        "image": picture,
        "command": ["python3", "-m", f"dynamo.{pool.engine}"],
        "args": [*model, *flags, *_ROLE_FLAGS[pool.engine].get(pool.role, ())],
    }
    worker: dict[str, Any] = {
        "componentType": "worker",
        "envFromSecret": "hf-token",
        "replicas": pool.replicas,
        "resources": {"limits": {"gpu": str(pool.devices)}},
        "extraPodSpec": {"mainContainer": container},
    }
    return worker if pool.role == "mixed" else {**worker, "subComponentType": pool.role}
