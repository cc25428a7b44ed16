"""Command lines: a shell script that starts every replica of every pool on this machine's devices."""

from __future__ import annotations

from evaluator.deploy.design import Design
from evaluator.deploy.launch import Launch, fleet_note, head, pool_note, quoted
from evaluator.deploy.router import BOOTSTRAP

SCRIPT = "serve.sh"


def script(design: Design, launches: list[Launch]) -> dict[str, str]:
    """``serve.sh``, with the files that its commands name."""
    lines = ["#!/bin/sh", *head(design, launches)]
    lines += [
        "# Starts all replicas here. On several machines say which start there, and the first device of each machine:",
        "# REPLICAS_POOL='2 3' DEVICE=0 sh serve.sh",
        fleet_note(design),
        'device="${DEVICE:-0}"',
    ]
    for launch in launches:
        lines += ["", *_pool(design, launch)]
    # A shell that ended would leave the servers without one that Ctrl-C reaches.
    lines += ["", "wait", ""]
    files = {name: text for launch in launches for name, text in launch.files.items()}
    return {SCRIPT: "\n".join(lines), **files}


def _pool(design: Design, launch: Launch) -> list[str]:
    pool = launch.pool
    flags = [quoted(words) for words in launch.flags]
    width = pool.devices
    variable = f"REPLICAS_{pool.name.upper()}"
    numbers = " ".join(map(str, range(pool.replicas)))
    # NIXL of vLLM meets its other side at a port of its own, one for each server on a machine.
    of_transfer = pool.engine == "vllm" and pool.role != "mixed"
    bootstrap = pool.engine == "sglang" and pool.role == "prefill"
    # 5600 is vLLM's default (``VLLM_NIXL_SIDE_CHANNEL_PORT`` of its envs.py); servers of several pools must
    # not share one.
    side = f"VLLM_NIXL_SIDE_CHANNEL_PORT=$((5600 + {launch.port - 8000} + replica)) " if of_transfer else ""
    return [
        pool_note(launch),
        f"for replica in ${{{variable}:-{numbers}}}; do",
        # Counted in the shell and not here, so that a part of the replicas can be started on another
        # machine.
        f'  devices=$(seq -s , "$device" $((device + {width - 1})))',
        f"  device=$((device + {width}))",
        f"  port=$(({launch.port} + replica))",
        *([f"  bootstrap=$(({BOOTSTRAP} + replica))"] if bootstrap else []),
        f'  {side}CUDA_VISIBLE_DEVICES="$devices" {quoted(launch.program)} \\',
        *(f"    {flag} \\" for flag in flags),
        *(['    --disaggregation-bootstrap-port "$bootstrap" \\'] if bootstrap else []),
        '    --port "$port" &',
        "done",
    ]
