"""Container images of the engines, of the release that is said, else of the one whose arguments were recorded."""

from __future__ import annotations

from evaluator.deploy.launch import Launch, version_of

_IMAGES = {
    "vllm": "vllm/vllm-openai:v{version}",
    "sglang": "lmsysorg/sglang:v{version}",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:{version}",
}
"""As the projects publish them; mirrors and builds of one's own have other names."""
ROUTER_IMAGES = {"vllm": "vllm/vllm-router:v0.1.17", "sglang": "lmsysorg/sgl-router:v0.3.2"}


def image(launch: Launch) -> str:
    """The image of a pool's engine."""
    return _IMAGES[launch.pool.engine].format(version=version_of(launch))


def entrypoint(launch: Launch) -> list[str]:
    """The first words of the command, which run in the place of what the image would start."""
    # ``vllm serve``, ``trtllm-serve MODEL``, or ``python3 -m MODULE``: the rest are arguments, which a
    # manifest may overlay.
    return list(launch.program[:2] if launch.program[0] != "python3" else launch.program)
