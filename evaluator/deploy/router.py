"""The router before the replicas, as its own command: vllm-router 0.1.17 and sglang-router 0.3.2.

Options are those of ``vllm_router/router_args.py`` and ``sglang_router/router_args.py`` of these wheels (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping

from evaluator.deploy.design import Design, router_keys, router_name
from evaluator.deploy.launch import Launch, quoted

ROUTER = "router.sh"
PORT = 9000
BOOTSTRAP = 8998  # SGLang: --disaggregation-bootstrap-port
CACHE_AWARE = "cache_aware"
_COMMON = {
    "random": "random",
    "round_robin": "round_robin",
    "prefix_aware": CACHE_AWARE,
    "prefix_approximate": CACHE_AWARE,
}
POLICIES: Mapping[str, Mapping[str, str]] = {
    "vllm": _COMMON | {"session": "consistent_hash"},
    "sglang": _COMMON | {"session": "manual"},
}
"""Our routers -> their policies. ``power_of_two`` takes the less loaded of two, which comes nearest to the least."""
NEAREST = "power_of_two"
_OF_CACHE_AWARE = {
    "threshold": "--cache-threshold",
    "imbalance": "--balance-abs-threshold",
    "imbalance_ratio": "--balance-rel-threshold",
}
"""Our keys -> its options, whose defaults are ours."""
_PROGRAMS = {"vllm": ("vllm-router",), "sglang": ("python3", "-m", "sglang_router.launch_router")}


def has_router(design: Design) -> bool:
    """Whether there is more than one server to choose among."""
    return sum(pool.replicas for pool in design.pools) > 1


def policies(design: Design) -> tuple[dict[str, str], list[str]]:
    """(option -> policy, what differs from the design's routers)."""
    by_phase = design.router_of_phase
    options = {f"--{phase}-policy": by_phase[phase] for phase in by_phase} or {"--policy": design.router}
    chosen: dict[str, str] = {}
    remarks: list[str] = []
    for option, wanted in options.items():
        name = router_name(wanted)
        policy = POLICIES[design.engine].get(name)
        if policy is None:
            remarks.append(f"router {name}: the router has no such policy, and takes {NEAREST}")
        chosen[option] = policy or NEAREST
        if policy == CACHE_AWARE:
            keys = router_keys(wanted)
            if keys.pop("scores", None):
                remarks.append(f"router {name}: the router goes by thresholds and not by scores")
            # Both phases share the options: those of the prefill side, which comes first, are taken.
            for key, option_of_key in _OF_CACHE_AWARE.items():
                if key in keys and chosen.setdefault(option_of_key, str(keys[key])) != str(keys[key]):
                    remarks.append(
                        f"router {name}: the router has one {option_of_key} for both phases, {chosen[option_of_key]}"
                    )
            remarks += _unlike(name, {key: keys[key] for key in keys if key not in _OF_CACHE_AWARE})
    models = dict.fromkeys(pool.model.name for pool in design.pools)
    if len(models) > 1:
        remarks.append(
            f"the router does not choose by model: send requests for {' and '.join(models)} to servers of their own, "
            "as a gateway does"
        )
    return chosen, remarks


def _unlike(name: str, others: Mapping[str, object]) -> list[str]:
    """What the routers' ``cache_aware`` does not do as one of our routers by prefixes with these other keys."""
    if name == "prefix_aware":
        return [
            f"router {name}: the router's {CACHE_AWARE} hears of no cache and goes by what it has sent; "
            "router prefix_approximate simulates it"
        ]
    by = f"router {name}: the router counts what it remembers in characters (--max-tree-size), not by"
    return [f"{by} {', '.join(others)}"] if others else []


def router_words(design: Design, launches: list[Launch], hosts: Mapping[str, str], domains: bool = False) -> list[str]:
    """The whole command where servers are hosts of their own; ``domains``: of a Service, as pods of a StatefulSet."""
    options = [word for option in words(design, launches, hosts, domains) for word in option]
    return [*_PROGRAMS[design.engine], *options, "--host", "0.0.0.0", "--port", str(PORT)]


def words(
    design: Design, launches: list[Launch], hosts: Mapping[str, str] | None = None, domains: bool = False
) -> list[list[str]]:
    """The words of each option. ``hosts``: of each pool, where its replicas are reached by one name each."""
    options, _ = policies(design)
    if not design.phases:
        urls = [url for launch in launches for url in _urls(launch, hosts, domains)]
        return [["--worker-urls", *urls], *([option, policy] for option, policy in options.items())]
    apart = "--vllm-pd-disaggregation" if design.engine == "vllm" else "--pd-disaggregation"
    # Each server's option stands on a line of its own, since SGLang's prefill servers have the bootstrap
    # port behind the address.
    lines = [[apart]]
    for launch in launches:
        for number, url in enumerate(_urls(launch, hosts, domains)):
            bootstrap = []
            if design.engine == "sglang" and launch.pool.role == "prefill":
                bootstrap = [str(BOOTSTRAP if hosts else BOOTSTRAP + number)]  # each its own where all share a host
            lines.append([f"--{launch.pool.role}", url, *bootstrap])
    return [*lines, *([option, policy] for option, policy in options.items())]


def _urls(launch: Launch, hosts: Mapping[str, str] | None, domains: bool) -> list[str]:
    if hosts is not None:
        host = hosts[launch.pool.name]
        under = f".{host}" if domains else ""
        # All replicas have one port where each is a host; on one machine the port tells them apart.
        return [f"http://{host}-{n}{under}:{launch.port}" for n in range(launch.pool.replicas)]
    return [f"http://127.0.0.1:{launch.port + n}" for n in range(launch.pool.replicas)]


def router_script(design: Design, launches: list[Launch]) -> dict[str, str]:
    """``router.sh``; nothing where there is one server."""
    if not has_router(design):
        return {}
    _, remarks = policies(design)
    lines = ["#!/bin/sh", f"# The router before the servers; clients go to port {PORT}."]
    lines += [f"# not the same: {remark}" for remark in remarks]
    lines += [f"exec {quoted(_PROGRAMS[design.engine])} \\"]
    lines += [f"  {quoted(option)} \\" for option in words(design, launches)]
    return {ROUTER: "\n".join([*lines, f"  --host 0.0.0.0 --port {PORT}", ""])}
