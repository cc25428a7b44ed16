"""What a design can be written for: one file each, named here with the engines that it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evaluator.deploy.design import Design
from evaluator.deploy.launch import Launch
from evaluator.deploy.targets.script import script

Write = Callable[[Design, list[Launch]], dict[str, str]]
Problem = Callable[[Design], str | None]


@dataclass(frozen=True)
class DeployTarget:
    """``write`` gives files by their names, that which starts the servers first. ``problem``: why it cannot hold a
    design, with the remedy. ``routes``: it has a router of its own."""

    name: str
    label: str
    engines: tuple[str, ...]
    write: Write
    problem: Problem = lambda design: None
    routes: bool = False


TARGETS: dict[str, DeployTarget] = {
    target.name: target
    for target in (
        DeployTarget("vllm", "vLLM", ("vllm",), script),
        DeployTarget("sglang", "SGLang", ("sglang",), script),
    )
}
