"""What a design can be written for: one file each, named here with the engines that it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evaluator.deploy.design import Design
from evaluator.deploy.launch import Launch
from evaluator.deploy.targets.compose import compose
from evaluator.deploy.targets.dynamo import dynamo, dynamo_problem, dynamo_remarks
from evaluator.deploy.targets.dynamo_planner import scaled
from evaluator.deploy.targets.kubernetes import kubernetes, too_large
from evaluator.deploy.targets.llmd import llmd, llmd_problem, llmd_remarks
from evaluator.deploy.targets.script import script
from evaluator.deploy.targets.trtllm import trtllm

_SERVERS = ("vllm", "sglang")
Write = Callable[[Design, list[Launch]], dict[str, str]]
Problem = Callable[[Design], str | None]
Scale = Callable[[Design, list[Launch]], list[Launch]]
Remarks = Callable[[Design, list[Launch]], list[str]]


@dataclass(frozen=True)
class DeployTarget:
    """``write`` gives files by their names, that which starts the servers first. ``problem``: why it cannot hold a
    design, with the remedy. ``routes``: it has a router of its own. ``scale``: what it starts in another way where it
    has an autoscaler. ``remarks``: what of the design its own router and autoscaler do not do, beside what its servers
    do not."""

    name: str
    label: str
    engines: tuple[str, ...]
    write: Write
    problem: Problem = lambda design: None
    routes: bool = False
    scale: Scale = lambda design, launches: launches
    remarks: Remarks = lambda design, launches: []


# The first three start servers by their own commands and are what ``--to`` is without a word: the engine's
# name.
TARGETS: dict[str, DeployTarget] = {
    target.name: target
    for target in (
        DeployTarget("vllm", "vLLM", ("vllm",), script),
        DeployTarget("sglang", "SGLang", ("sglang",), script),
        DeployTarget("trtllm", "TensorRT-LLM", ("trtllm",), trtllm, routes=True),
        DeployTarget("compose", "Docker Compose", _SERVERS, compose, routes=True),
        DeployTarget("kubernetes", "Kubernetes", _SERVERS, kubernetes, too_large, routes=True),
        DeployTarget("llm-d", "llm-d", ("vllm",), llmd, llmd_problem, routes=True, remarks=llmd_remarks),
        DeployTarget(
            "dynamo", "Dynamo", _SERVERS, dynamo, dynamo_problem, routes=True, scale=scaled, remarks=dynamo_remarks
        ),
    )
}
