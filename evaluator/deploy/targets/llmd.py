"""llm-d: values of its Helm chart llm-d-modelservice, for one pool or for a prefill and a decode pool of vLLM.

Keys are those of ``guides/pd-disaggregation/ms-pd/values.yaml`` of llm-d (Apache-2.0). Its inference scheduler routes.
"""

from __future__ import annotations

from typing import Any

from evaluator.deploy.design import Design, router_keys, router_name
from evaluator.deploy.launch import Launch, manifest_head
from evaluator.deploy.targets.compose import service_name
from evaluator.deploy.targets.images import image
from evaluator.deploy.targets.kubernetes import environment, other_pools, too_large
from evaluator.routing.adapter_affinity import REQUESTS, AdapterAffinity
from evaluator.yaml import dumps_yaml

VALUES, PICKER = "llm-d-values.yaml", "llm-d-scheduler.yaml"
_SERVED, _BEHIND_PROXY = 8000, 8200
"""Ports of the chart: the service's, and that of a decode server behind its routing proxy."""


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
    remark, files = "# not the same: llm-d's scheduler routes by load and prefix, and not as the design's router\n", {}
    if not design.phases and (plugins := _plugins(design.router)):
        files[PICKER] = dumps_yaml(plugins)
        remark = f"# the design's router: {PICKER}, as the plugins of llm-d's inference scheduler\n"
    return {VALUES: manifest_head(design, launches) + remark + dumps_yaml(values), **files}


def _plugins(router: Any) -> dict[str, Any] | None:
    """What the inference scheduler reads to route as the design's router; None where it has no such scorers."""
    keys = router_keys(router)
    if router_name(router) != "adapter_affinity" or keys.get("sees", REQUESTS) != REQUESTS:
        return None
    weights = {"lora-affinity-scorer": 1, "queue-scorer": keys.get("queue_weight", AdapterAffinity.queue_weight)}
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [{"type": plugin} for plugin in (*weights, "max-score-picker", "single-profile-handler")],
        "schedulingProfiles": [
            {
                "name": "default",
                "plugins": [
                    *({"pluginRef": plugin, "weight": weight} for plugin, weight in weights.items()),
                    {"pluginRef": "max-score-picker"},
                ],
            }
        ],
    }


def _side(design: Design, launch: Launch) -> dict[str, Any]:
    pool = launch.pool
    # The chart puts a sidecar on the service's port of decode pods, which sends the prompt to a prefill pod
    # first.
    port = _BEHIND_PROXY if design.phases and pool.role == "decode" else _SERVED
    # The chart itself says the model, the port, and how many devices share it.
    said = ("--tensor-parallel-size", "--data-parallel-size")
    args = [word for flag in launch.flags if flag[0] not in said for word in flag]
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
