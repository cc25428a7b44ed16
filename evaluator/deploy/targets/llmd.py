"""llm-d: values of its Helm chart llm-d-modelservice, for one pool or for a prefill and a decode pool of vLLM.

Keys are those of ``guides/pd-disaggregation/ms-pd/values.yaml`` of llm-d (Apache-2.0). Its inference scheduler routes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from evaluator.deploy.design import Design, router_keys, router_name
from evaluator.deploy.launch import Launch, manifest_head
from evaluator.deploy.router import has_router
from evaluator.deploy.targets.compose import service_name
from evaluator.deploy.targets.images import image
from evaluator.deploy.targets.kubernetes import environment, other_pools, too_large
from evaluator.keys import written
from evaluator.routing.adapter_affinity import REQUESTS, AdapterAffinity
from evaluator.routing.scores import PrefixScores
from evaluator.yaml import dumps_yaml

VALUES, PICKER = "llm-d-values.yaml", "llm-d-scheduler.yaml"
_SERVED, _BEHIND_PROXY = 8000, 8200
"""Ports of the chart: the service's, and that of a decode server behind its routing proxy."""


class _Scorer(NamedTuple):
    """A scorer with its weight, and the plugin whose data it scores with that one's parameters, if it needs one."""

    name: str
    weight: float = 1
    producer: tuple[str, dict[str, Any]] | None = None


_QUEUE = _Scorer("queue-scorer")


def llmd_problem(design: Design) -> str | None:
    """Why the chart cannot hold a design; None where it can."""
    return other_pools(design, "the chart of llm-d has one pool") or too_large(design)


def llmd(design: Design, launches: list[Launch]) -> dict[str, str]:
    """``llm-d-values.yaml``, for ``helm install -f``, and the scheduler's plugins where it routes as the design."""
    repository = launches[0].repository
    values: dict[str, Any] = {
        "multinode": False,
        "modelArtifacts": {"uri": f"hf://{repository}", "name": repository, "authSecretName": "hf-token"},
        "routing": {"servicePort": _SERVED, "proxy": {"connector": "nixlv2", "secure": False}},
    }
    if not design.phases:
        values["routing"]["proxy"] = {"enabled": False}
    sides = {launch.pool.role: launch for launch in launches}
    for side in ("decode", "prefill"):
        # Without phases the chart's decode servers are all there is: the pool's own launch stands there.
        launch = sides.get(side) or (launches[0] if side == "decode" else None)
        values[side] = {"create": False} if launch is None else _side(design, launch)
    scorers, remark = _scorers(design)
    files = {PICKER: dumps_yaml(_picker(scorers))} if scorers else {}
    notes_of_router = [f"not the same: {line}" for line in llmd_remarks(design, launches)]
    notes_of_router += [] if remark else [f"the design's router: {PICKER}, plugins of llm-d's inference scheduler"]
    lines = "".join(f"# {line}\n" for line in notes_of_router)
    return {VALUES: manifest_head(design, launches) + lines + dumps_yaml(values), **files}


def llmd_remarks(design: Design, launches: list[Launch]) -> list[str]:
    """What of the design's router the inference scheduler is not."""
    remark = _scorers(design)[1]
    return [remark] if remark is not None and has_router(design) else []


def _scorers(design: Design) -> tuple[tuple[_Scorer, ...], str | None]:
    """The scorers that the inference scheduler routes by as the design's router, and what of it they are not.

    Their parameters are those of ``approximateprefix`` and ``loraaffinity`` in llm-d-inference-scheduler (Apache-2.0).
    """
    name, keys = router_name(design.router), router_keys(design.router)
    if name == "adapter_affinity" and keys.get("sees", REQUESTS) == REQUESTS and not design.phases:
        queue = keys.get("queue_weight", AdapterAffinity.queue_weight)
        return (_Scorer("lora-affinity-scorer"), _QUEUE._replace(weight=queue)), None
    if name == "prefix_approximate" and not design.phases:
        memory: dict[str, Any] = {"autoTune": True}
        if "memory_blocks" in keys:
            block = design.pools[0].keys["kv"]["block_tokens"]
            memory = {"autoTune": False, "blockSizeTokens": block, "lruCapacityPerServer": keys["memory_blocks"]}
        forgets = " and without ttl_s" if "ttl_s" in keys else ""
        sums = "" if "scores" in keys else ", and the sum of its scores with their usual weights"
        remark = (
            f"router {name}: {PICKER} has llm-d's memory of what it sent, in blocks of 64 tokens at the least{forgets}"
            f"{sums}"
        )
        weights = keys.get("scores", written(PrefixScores()))
        return (
            _Scorer("prefix-cache-scorer", weights["prefix"], ("approx-prefix-cache-producer", memory)),
            _QUEUE._replace(weight=weights["queue"]),
            _Scorer("kv-cache-utilization-scorer", weights["kv"]),
        ), remark
    return (), f"router {name}: llm-d's scheduler routes by load and prefix, and not as the design's router"


def _picker(scorers: tuple[_Scorer, ...]) -> dict[str, Any]:
    """The endpoint picker's configuration: the highest sum of weighted scores."""
    producers = [scorer.producer for scorer in scorers if scorer.producer]
    plain = [scorer.name for scorer in scorers] + ["max-score-picker", "single-profile-handler"]
    weighed = [{"pluginRef": scorer.name, "weight": scorer.weight} for scorer in scorers]
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [
            *({"type": name, "parameters": parameters} for name, parameters in producers),
            *({"type": name} for name in plain),
        ],
        "schedulingProfiles": [{"name": "default", "plugins": [*weighed, {"pluginRef": "max-score-picker"}]}],
    }


def _side(design: Design, launch: Launch) -> dict[str, Any]:
    pool = launch.pool
    # The chart puts a sidecar on the service's port of decode pods, which sends the prompt to a prefill pod
    # first.
    port = _BEHIND_PROXY if design.phases and pool.role == "decode" else _SERVED
    # The chart itself says the model, the port, and how many devices share it.
    of_chart = ("--tensor-parallel-size", "--data-parallel-size")
    args = [word for flag in launch.flags if flag[0] not in of_chart for word in flag]
    container = {
        "name": service_name(launch),
        "image": image(launch),
        "modelCommand": "vllmServe",
        "args": args,
        "env": environment(launch),
        "ports": [{"containerPort": port, "name": "vllm"}],
        "mountModelVolume": True,
    }
    keys = pool.keys
    return {
        "create": True,
        "replicas": pool.replicas,
        "parallelism": {"tensor": keys["tensor_parallel"], "data": keys["data_parallel"]},
        "containers": [container],
    }
