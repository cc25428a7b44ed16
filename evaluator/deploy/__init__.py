"""From a result to what runs a design of it: command lines, manifests, the router, and the load to check it by.

``choice.py`` picks the row, ``design.py`` has what was simulated of it, ``launch.py`` the commands of its pools,
``router.py`` that of the router before them, ``targets/`` the files for each target, ``load.py`` the load, which
``send_load.py`` sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evaluator.catalog.engines import serving_engine
from evaluator.deploy.design import Design, read_design
from evaluator.deploy.launch import launches, remarks_of
from evaluator.deploy.load import load_files
from evaluator.deploy.router import has_router, policies, router_script
from evaluator.deploy.targets import TARGETS, DeployTarget
from evaluator.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["TARGETS", "Deployed", "deploy"]


@dataclass(frozen=True)
class Deployed:
    """``files`` by their names, that which starts the servers first; ``remarks``: what the servers do not do as the
    design does."""

    files: dict[str, str]
    chosen: str
    remarks: tuple[str, ...]


def deploy(
    ds: xr.Dataset,
    select: Sequence[str] = (),
    to: str | None = None,
    model_id: str | None = None,
    source: str = "the result",
) -> Deployed:
    """What runs a design of a result: the best one, or that which ``select`` names; ``to`` None: its own engine.

    Errors: InputError where no such design can run, and where the target cannot hold it.
    """
    design = read_design(ds, tuple(select), source)
    target = _target(design, to)
    servers = target.scale(design, launches(design, model_id))
    files = target.write(design, servers)
    remarks = remarks_of(design, servers)
    if not target.routes:
        files |= router_script(design, servers)
    remarks += target.remarks(design, servers)
    # Targets whose router is one of these; others route by a scheduler of their own.
    if has_router(design) and target.name in ("vllm", "sglang", "compose", "kubernetes"):
        remarks += policies(design)[1]
    # With every target: a prediction is checked by sending the load that it was made for.
    files |= load_files(design, {launch.pool.model.name: launch.repository for launch in servers})
    return Deployed(files, f"{design.chosen} (config={design.config})", tuple(remarks))


def _target(design: Design, to: str | None) -> DeployTarget:
    for pool in design.pools:
        if (apart := pool.keys.get("feed_forward_apart")) is not None:
            # Servers of what is left would compute whole layers, with the KV blocks of devices that hold no experts.
            beside = int(apart["devices"])
            whole = int(apart["attention_ranks"]) * pool.devices + beside
            raise InputError(
                f"{design.source}: the design has feed_forward_apart of {beside} of the {whole} devices of a replica, "
                "and no engine has servers of which some compute feed-forwards alone; choose a design without it with "
                "--select"
            )
    # A router in front of two engines would need both protocols of handing KV on; no target has such a
    # router.
    engines = list(dict.fromkeys(pool.engine for pool in design.pools))
    if len(engines) > 1:
        raise InputError(
            f"{design.source}: pools of {' and '.join(engines)} in one design have no target; use one engine"
        )
    name = to or engines[0]
    if name not in TARGETS:
        raise InputError(f"--to {name}: is no target; allowed: {', '.join(TARGETS)}")
    target = TARGETS[name]
    if engines[0] not in target.engines:
        label = serving_engine(engines[0]).label
        others = [other.name for other in TARGETS.values() if engines[0] in other.engines]
        raise InputError(
            f"--to {name}: the design was simulated with {label}, whose kernels and scheduler are its own; use "
            f"--to {' or '.join(others)}, or simulate it with --set deployment.engine={target.engines[0]}"
        )
    # Asked last: what a target cannot hold is only worth telling of a design whose engine it runs.
    problem = target.problem(design)
    if problem is not None:
        raise InputError(f"--to {name}: {problem}")
    return target
