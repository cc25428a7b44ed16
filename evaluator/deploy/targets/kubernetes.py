"""Kubernetes: a Deployment or StatefulSet of every pool, Services, and the router's Deployment.

Replicas are a StatefulSet, whose pods have names that the router can be told. Each pod has all devices of its replica,
so that a replica larger than a machine is refused: it would need LeaderWorkerSets.
"""

from __future__ import annotations

from typing import Any

from evaluator.deploy.design import Design
from evaluator.deploy.launch import Launch, manifest_head
from evaluator.deploy.router import PORT, has_router, router_words
from evaluator.deploy.targets.compose import service_name
from evaluator.deploy.targets.images import ROUTER_IMAGES, entrypoint, image
from evaluator.yaml import dumps_yaml

MANIFESTS = "kubernetes.yaml"
LARGEST = 8
"""Devices of a machine: those of DGX and HGX servers, which most others are like."""


def too_large(design: Design) -> str | None:
    """Why pods cannot hold a replica; None where they can."""
    for pool in design.pools:
        if pool.devices > LARGEST:
            return (
                f"a replica of pool {pool.name} has {pool.devices} devices, more than the {LARGEST} of a machine, "
                "and a pod is on one; choose a smaller layout, or write command lines with --to and the engine"
            )
    return None


def other_pools(design: Design, holds: str) -> str | None:
    """Why what ``holds`` one pool of workers, or one for each phase, cannot hold a design; None where it can."""
    roles = [pool.role for pool in design.pools]
    if sorted(roles) in (["mixed"], ["decode", "prefill"]):
        return None
    return (
        f"{holds}, or one for prefill and one for decode, and the design has {len(roles)} ({', '.join(roles)}); "
        "use --to kubernetes"
    )


def kubernetes(design: Design, launches: list[Launch]) -> dict[str, str]:
    """``kubernetes.yaml``: apply it in a namespace with a secret hf-token of the key HF_TOKEN."""
    documents: list[dict[str, Any]] = []
    for launch in launches:
        if launch.files:
            documents.append(_config_map(launch))
        # Headless: the Service gives every pod a name in the DNS instead of one address for all, as the
        # router picks the pod.
        documents += [_stateful_set(launch), service(service_name(launch), launch.port, headless=True)]
    if has_router(design):
        hosts = {launch.pool.name: service_name(launch) for launch in launches}
        documents += [_router(router_words(design, launches, hosts, domains=True), design.engine)]
        documents += [service("router", PORT)]
    return {MANIFESTS: manifest_head(design, launches) + "---\n".join(map(dumps_yaml, documents))}


def labels(name: str) -> dict[str, str]:
    """By which Services and controllers find pods."""
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "evaluator-design"}


def _stateful_set(launch: Launch) -> dict[str, Any]:
    name, pool = service_name(launch), launch.pool
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "labels": labels(name)},
        "spec": {
            "replicas": pool.replicas,
            "serviceName": name,
            # The default starts a pod when the one before is ready: minutes of loading weights, one after the other.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels(name)},
            "template": {"metadata": {"labels": labels(name)}, "spec": _pod(launch)},
        },
    }


def _pod(launch: Launch) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "server",
        "image": image(launch),
        "command": entrypoint(launch),
        "args": launch.words(host="0.0.0.0")[len(entrypoint(launch)) :],
        "env": environment(launch),
        "ports": [{"name": "http", "containerPort": launch.port}],
        "resources": {"limits": {"nvidia.com/gpu": str(launch.pool.devices)}},
        # Loading weights takes minutes, in which the pod is not to be killed.
        "startupProbe": {**_health(), "periodSeconds": 10, "failureThreshold": 360},
        "readinessProbe": {**_health(), "periodSeconds": 5},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    # NCCL and the processes of an engine share memory; a container has 64 MB of it by default.
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    for file in launch.files:
        container["volumeMounts"].append({"name": "config", "mountPath": f"/{file}", "subPath": file})
    if launch.files:
        volumes.append({"name": "config", "configMap": {"name": f"{service_name(launch)}-config"}})
    return {"containers": [container], "volumes": volumes}


def environment(launch: Launch) -> list[dict[str, Any]]:
    """The token for the Hub, and where NIXL of a server is met."""
    secret = {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN", "optional": True}}
    variables: list[dict[str, Any]] = [{"name": "HF_TOKEN", "valueFrom": secret}]
    # The other side of the transfer connects to this address; vLLM's default is localhost, another pod's
    # own.
    if launch.pool.engine == "vllm" and launch.pool.role != "mixed":
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        variables.append({"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": address})
    return variables


def _health() -> dict[str, Any]:
    return {"httpGet": {"path": "/health", "port": "http"}}


def _config_map(launch: Launch) -> dict[str, Any]:
    name = f"{service_name(launch)}-config"
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(launch.files)}


def service(name: str, port: int, headless: bool = False) -> dict[str, Any]:
    """What finds the pods of a name."""
    spec: dict[str, Any] = {"selector": labels(name), "ports": [{"name": "http", "port": port, "targetPort": "http"}]}
    if headless:
        spec["clusterIP"] = "None"
        spec["publishNotReadyAddresses"] = True  # the router itself asks whether they are
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": labels(name)}, "spec": spec}


def _router(words: list[str], engine: str) -> dict[str, Any]:
    container = {
        "name": "router",
        "image": ROUTER_IMAGES[engine],
        "command": words,
        "ports": [{"name": "http", "containerPort": PORT}],
    }
    template = {"metadata": {"labels": labels("router")}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "router", "labels": labels("router")},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels("router")}, "template": template},
    }
