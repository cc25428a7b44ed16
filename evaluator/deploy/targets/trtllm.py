"""TensorRT-LLM: the script of all engines, and with prefill and decode apart the server that orchestrates them."""

from __future__ import annotations

from evaluator.deploy.design import Design
from evaluator.deploy.launch import Launch
from evaluator.deploy.router import PORT
from evaluator.deploy.targets.script import script
from evaluator.yaml import dumps_yaml

ORCHESTRATED = "disaggregated.yaml"
_SIDES = {"prefill": "context_servers", "decode": "generation_servers"}


def trtllm(design: Design, launches: list[Launch]) -> dict[str, str]:
    """``serve.sh`` with a YAML for each pool; ``router.sh`` where prefill and decode are apart."""
    files = script(design, launches)
    if not design.phases:
        return files
    config: dict[str, object] = {"hostname": "0.0.0.0", "port": PORT, "backend": "pytorch"}
    for role, name in _SIDES.items():
        urls = [
            f"localhost:{launch.port + number}"
            for launch in launches
            if launch.pool.role == role
            for number in range(launch.pool.replicas)
        ]
        config[name] = {"num_instances": len(urls), "urls": urls}
    # It takes requests and sends each to a context server, then to a generation server: no other router is
    # needed.
    start = f"#!/bin/sh\nexec trtllm-serve disaggregated -c {ORCHESTRATED}\n"
    return {**files, "router.sh": start, ORCHESTRATED: dumps_yaml(config)}
