"""Docker Compose: a service for every replica, and one for the router."""

from __future__ import annotations

from typing import Any

from evaluator.deploy.design import Design
from evaluator.deploy.launch import Launch, manifest_head
from evaluator.deploy.router import PORT, has_router, router_words
from evaluator.deploy.targets.images import ROUTER_IMAGES, entrypoint, image
from evaluator.yaml import dumps_yaml

COMPOSE = "compose.yaml"


def compose(design: Design, launches: list[Launch]) -> dict[str, str]:
    """``compose.yaml``. Devices are given in the order of the services, as if all were of one machine."""
    services: dict[str, Any] = {}
    device = 0
    for launch in launches:
        for number in range(launch.pool.replicas):
            devices = [str(device + n) for n in range(launch.pool.devices)]
            services[f"{service_name(launch)}-{number}"] = _service(launch, devices)
            device += launch.pool.devices
    if has_router(design):
        hosts = {launch.pool.name: service_name(launch) for launch in launches}
        services["router"] = {
            "image": ROUTER_IMAGES[design.engine],
            "entrypoint": router_words(design, launches, hosts),
            "ports": [f"{PORT}:{PORT}"],
            "depends_on": list(services),
        }
    else:
        # Without a router there is one server, whose port clients ask.
        (service,) = services.values()
        service["ports"] = [f"{launches[0].port}:{launches[0].port}"]
    text = dumps_yaml({"services": services})
    files = {name: text for launch in launches for name, text in launch.files.items()}
    return {COMPOSE: manifest_head(design, launches) + text, **files}


def service_name(launch: Launch) -> str:
    """A name that hosts may have."""
    return launch.pool.name.lower().replace("_", "-")


def _service(launch: Launch, devices: list[str]) -> dict[str, Any]:
    reserved = {"driver": "nvidia", "device_ids": devices, "capabilities": ["gpu"]}
    service: dict[str, Any] = {
        "image": image(launch),
        "entrypoint": entrypoint(launch),
        # The image's own entrypoint differs between releases, so both halves of the command are said.
        "command": launch.words(host="0.0.0.0")[len(entrypoint(launch)) :],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}"},
        "volumes": ["${HF_HOME:-~/.cache/huggingface}:/root/.cache/huggingface"],
        "ipc": "host",  # tensor-parallel ranks share memory
        "deploy": {"resources": {"reservations": {"devices": [reserved]}}},
    }
    service["volumes"] += [f"./{name}:/{name}:ro" for name in launch.files]
    return service
