"""Random systems as scenario files: what can be said of a system, drawn together from two seeds.

A *structure* says which parts there are: those that programs are compiled for, so that its systems share a few of them.
A system of it draws all else: devices, limits, lengths, rates, routers of a kind, sizes of caches, chances. A structure
asks for little that ``plan.checks`` refuses together; what is refused all the same is counted by the command.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.systems import Draw

REQUESTS = 40
PLAIN_MODELS = ("llama-3.1-8b", "qwen3-8b")
MODELS = (*PLAIN_MODELS, "llama-3.1-8b", "gpt-oss-20b", "qwen3-30b-a3b", "deepseek-v2-lite", "nemotron-h-56b")
"""Full attention, windows with experts, experts, one latent for all heads, and states beside attention."""
EXPERTS = "qwen3-30b-a3b"
KEEPING = (*PLAIN_MODELS, "qwen3-30b-a3b", "deepseek-v2-lite")
ONE_RANK = ("offload", "groups", "adapters")
"""Parts that there are in no pipeline."""
DEVICES = ("h100-sxm", "h200-sxm", "mi300x", "b200-sxm")
SHARING = ("round_robin", "random")
LOOKING = ("least_outstanding", "least_work", "least_kv", "least_tokens", "least_context")
REFERENCE_ALONE = ("offload", "autoscaling", "shedding", "adapters", "reports", "groups", "branches", "failures")
"""Parts that the vectorised engine lacked when this was written, or has in few programs: a quarter of the structures
has one. The plan says which of the systems both simulators compute, and those are compared."""

_OF_ROLE = {
    "mixed": (("prompt_tokens", 300), ("prompt_rate", 2000), ("ttft", 0.1)),
    "prefill": (("prompt_tokens", 300), ("prompt_rate", 2000), ("ttft", 0.1)),
    "decode": (("output_rate", 400), ("tpot", 0.01)),
}
"""What a fleet goes by where its pool has a role, with a target."""

_MODELS = ("encode", "retrieve", "guard")
"""Stages that compute a model, or serve in batches."""

Tree = dict[str, Any]


def structure(seed: int) -> Tree:
    """The parts of a structure by name."""
    draw = Draw(seed)
    extra = draw.one(*REFERENCE_ALONE) if draw.one(True, False, False, False) else None
    layout = draw.one("one", "one", "one", "pools", "apart", "apart", "ranks")
    if extra not in (None, "branches"):
        layout = "apart" if extra == "autoscaling" and layout in ("pools", "apart") else "one"
    client = draw.one("open", "open", "closed", "turns", "turns", "conversations", "thinking")
    order = draw.one("plain", "plain", "chunks", "priority", "token_ratio", "asynchronous", "lightllm", "orca")
    if extra in ("offload", "groups", "adapters"):
        order = draw.one("plain", "chunks")
    of_extra = {"autoscaling": ("open", "turns"), "shedding": ("open", "turns"), "offload": ("turns", "conversations"),
                "failures": ("open", "turns", "closed", "conversations", "thinking"),
                "branches": ("open", "closed", "thinking")}  # fmt: skip
    if extra in of_extra:
        client = draw.one(*of_extra[extra])
    if layout == "ranks" or (layout != "one" and order == "token_ratio"):
        order = draw.one("plain", "chunks")
    lone = order in ("priority", "token_ratio", "asynchronous")
    rarely = lone and order != "asynchronous"
    if rarely and draw.one(True, True, False):  # what depends on one another is the reference's in these orders
        client = {"closed": "open", "conversations": "turns", "thinking": "open"}.get(client, client)
    admission = draw.one("reserve", "on_demand", "on_demand", "swap")
    if layout != "one" or client in ("closed", "conversations", "thinking") or order != "plain":
        admission = draw.one("reserve", "on_demand")
    admission = {"lightllm": "on_demand", "token_ratio": "on_demand", "orca": "reserve"}.get(order, admission)
    if order == "priority":
        admission = ("reserve", "on_demand")[seed % 2]
    if extra in ("offload", "groups"):
        admission = "on_demand"
    turns = client in ("turns", "conversations")
    cached = turns and extra not in ("adapters", "branches") and order != "lightllm" and admission != "swap"
    cached = cached and (extra == "offload" or draw.one(True, True, False))
    many_models = layout in ("pools", "apart") and not turns and extra is None and draw.one(True, False)
    # Prefix caches and adapters are of layers that keep every token; order by peaks, too.
    adapters = extra == "adapters" or (not cached and not many_models and draw.one(True, False, False, False))
    plain = many_models or adapters or order in ("lightllm", "token_ratio")
    model = draw.one(*(PLAIN_MODELS if plain else KEEPING if cached else MODELS))
    if layout == "ranks":
        model, adapters = EXPERTS, False
    if extra == "groups":
        model = "gpt-oss-20b"
    drafts = not lone and order != "lightllm" and extra not in ("offload", "groups", "branches")
    waits = client in ("closed", "conversations", "thinking")
    stages = extra in (None, "branches") and order != "token_ratio"
    stages = stages and draw.one(True, False)
    parts = {
        "seed": seed,
        "layout": layout,
        "client": client,
        "order": order,
        "admission": admission,
        "cached": cached,
        "models": model if not many_models else PLAIN_MODELS,
        "looks": extra != "branches" and draw.one(True, False) and not (rarely and draw.one(True, True, False)),
        "drafts": drafts and draw.one(True, False, False),
        "pipeline": draw.one(1, 1, 1, 2, 3) if not lone and layout != "ranks" and extra not in ONE_RANK else 1,
        "stages": _stages(draw, cached, waits) if stages else (),
        "adapters": adapters,
        "classes": order == "priority" or draw.one(True, False, False),
        "backpressure": layout == "apart" and order not in ("lightllm", "orca") and draw.one(True, False),
        "calibration": draw.one("datasheet", "datasheet", "auto"),
        "extra": extra,
        "agents": client == "conversations" and draw.one(True, False),
    }
    if extra == "autoscaling":  # what a fleet in a program goes with; the rest is the reference's
        other = {"token_ratio": "chunks"}.get(order, order)
        whole = "reserve" if other in ("priority", "orca") else "on_demand"
        parts |= {"looks": True, "cached": False, "pipeline": 1, "order": other, "admission": whole}
        parts["backpressure"] = False  # pools in one loop have no fleets in its program
    return parts


def _stages(draw: Draw, cached: bool, waits: bool) -> tuple[str, ...]:
    """Kinds of stages in front of the LLM and behind it; one at least. ``waits``: somebody waits for answers."""
    again = draw.one(["again"], *[[]] * (3 if waits else 9))
    # On one clock with the pools the reference alone has models and batches of stages.
    each = not (waits or again) or draw.one(True, False, False, False)
    # A prefix cache does not know what is in tokens that stages add.
    kinds = () if cached else ("preprocess", "encode", "retrieve", "kv_fetch", "tool")
    some = [kind for kind in (*kinds, "detokenise", "guard") if each or kind not in _MODELS]
    some = [kind for kind in some if draw.one(True, False, False)]
    return tuple(some + again) or ("detokenise",)


def system(parts: Tree, number: int) -> Tree:
    """A system of a structure, as the tree of a scenario file."""
    rng_seed = np.random.SeedSequence([parts["seed"], number]).generate_state(1)[0]
    draw = Draw(int(rng_seed))
    tree: Tree = {"name": f"random-{parts['seed']}-{number}"}
    deployment = _deployment(parts, draw)
    tree["workload"] = _workload(parts, draw)
    tree["deployment"] = deployment
    if parts["stages"]:
        tree["pipeline"] = _pipeline(parts, draw, deployment)
    return tree


# --- the requests


def _workload(parts: Tree, draw: Draw) -> Tree:
    turns = parts["client"] in ("turns", "conversations")
    workload: Tree = {
        "arrivals": _arrivals(parts, draw),
        "lengths": _lengths(parts, draw, short=turns),
        "requests": REQUESTS,
        "warmup_requests": 0,
        "cooldown_requests": 0,
        "seeds": [parts["seed"]],
    }
    sessions: Tree = {}
    if turns:
        sessions["turns"] = draw.one(2, 4, {"mean": 2.5, "max": 6})
    if turns or parts["client"] == "thinking":
        sessions["think_s"] = draw.one(0.03, 0.4, {"mean": 0.2})
    if parts["client"] == "turns":
        sessions["think_from"] = "arrival"
    if parts["agents"]:
        sessions["agents"] = {"fan_out": draw.one(1, 2, 3), "depth": draw.one(0, 1, 2), "share": draw.one(0.0, 0.5, 1)}
        sessions["turns"] = draw.one(1, 2)
    if parts["cached"] and draw.one(True, False):
        sessions |= {"system_prompts": draw.one(1, 3), "system_tokens": draw.one(17, 64, 300)}
    if sessions:
        workload["sessions"] = sessions
    elif draw.one(True, False, False):
        workload["cached_tokens"] = draw.one(5, 40)
    if not isinstance(parts["models"], str):
        share = draw.one(0.3, 0.6)
        workload["models"] = dict(
            zip(parts["models"], (share, {"share": 1 - share, "lengths": _lengths(parts, draw, True)}), strict=True)
        )
    if parts["classes"]:
        workload["classes"] = {
            "interactive": {"share": 0.6, "priority": draw.one(0, 1)},
            "batch": {
                "share": 0.4,
                "priority": draw.one(0, 2, 5),
                **({} if turns else {"lengths": _lengths(parts, draw)}),
            },
        }
    if parts["adapters"]:
        named = draw.one(1, 3) if parts["extra"] != "adapters" else draw.one(3, 6)
        workload["adapters"] = {"count": named, "zipf": draw.one(0.0, 1.1)}
    if parts["extra"] == "branches":
        branches = draw.one(2, 3)
        workload["reasoning"] = {
            "branches": branches,
            "first": draw.one(1, branches),
            "branch_lengths": draw.one("drawn", "same"),
        }
    elif draw.one(True, False, False, False):
        workload["reasoning"] = {"scale": draw.one(0.5, 2.0)}
    return workload


def _arrivals(parts: Tree, draw: Draw) -> Tree:
    if parts["client"] in ("closed", "thinking") or (parts["client"] == "conversations" and draw.one(True, False)):
        return {"process": "closed_loop", "users": draw.one(1, 3, 12)}
    rate = draw.one(2.0, 15.0, 60.0)
    return draw.one(
        {"process": "poisson", "rate_rps": rate},
        {"process": "poisson", "rate_rps": rate},
        {"process": "gamma", "rate_rps": rate, "cv": draw.one(0.3, 3.0)},
        {"process": "uniform", "rate_rps": rate},
        {"process": "burst", "rate_rps": rate, "on_s": 0.5, "off_s": 1.5, "factor": 3.0},
        {"process": "varying", "rate_rps": rate, "profile": [["0s", 1], ["1s", 5], ["2s", 0.5]], "period_s": "3s"},
        *([{"process": "all_at_once"}] if parts["client"] == "open" else []),
    )


def _lengths(parts: Tree, draw: Draw, short: bool = False) -> Tree:
    prompt, output = draw.one(60, 300) if short else draw.one(200, 2500), draw.one(12, 60, 160)
    # Where users wait for answers, equal lengths would end at one time on several replicas, and who of them sends first
    # is then a matter of the last bit of a clock, which is no difference between simulators.
    waits = parts["client"] not in ("open", "turns")
    return draw.one(
        {"source": "uniform", "prompt_min": 1, "prompt_max": prompt, "output_min": 1, "output_max": output},
        {"source": "uniform", "prompt_min": 41, "prompt_max": prompt, "output_min": 1, "output_max": output},
        *([] if waits else [{"source": "fixed", "prompt_tokens": prompt, "output_tokens": output}]),
    )


# --- what serves them


def _deployment(parts: Tree, draw: Draw) -> Tree:
    layout, several = parts["layout"], not isinstance(parts["models"], str)
    deployment: Tree = {"calibration": parts["calibration"], "hardware": draw.one(*DEVICES)}
    if parts["calibration"] == "auto":  # one set, so that costs are of one form
        deployment["hardware"] = "h100-sxm"
    deployment["model"] = parts["models"][0] if several else parts["models"]
    if draw.one(True, False, False):
        deployment["precision"] = {"weights": draw.one("bf16", "fp8"), "kv": draw.one("bf16", "fp8")}
    if parts["adapters"]:
        most = draw.one(1, 2) if parts["extra"] == "adapters" else 4
        deployment["lora"] = {"max_loras": most, "rank": draw.one(8, 64)}
        if parts["extra"] == "adapters" and draw.one(True, False):
            deployment["lora"]["load_bandwidth"] = "5GB/s"
    if parts["backpressure"] or layout == "apart":
        groups = 1
        deployment["transfer"] = draw.transfer() | {"backpressure": parts["backpressure"], "groups": groups}
    if layout in ("one", "ranks"):
        return deployment | _pool(parts, draw) | {"router": _router(parts, draw)}
    models = parts["models"] if several else (parts["models"],)
    roles = ("prefill", "decode") if layout == "apart" else ("mixed",)
    # In one loop mixed pools beside these are the reference's.
    alone = not (parts["looks"] or parts["backpressure"]) and parts["client"] in ("open", "turns")
    if layout == "apart" and alone and parts["extra"] is None and parts["seed"] % 4 < 2:
        roles = (*roles, "mixed")
        deployment["split"] = {"prompt_tokens_above": draw.one(None, 100, 400)}
    # As many pools in all systems of a structure: their number is compiled in.
    each = 1 if layout == "apart" and (parts["seed"] % 3 or parts["extra"] == "autoscaling") else 2
    pools: Tree = {}
    for role in roles:
        for model in models:
            for number in range(each if not several else 1):
                pool = {"role": role, "model": model} | _pool(parts, draw, role)
                pools[f"{role[0]}{model[0]}{number}"] = pool
    router: Any = _router(parts, draw, several=len(pools) > len(roles))
    if layout == "apart":
        router = {"prefill": router, "decode": _router(parts, draw, several=len(pools) > len(roles))}
    return deployment | {"pools": pools, "router": router}


def _router(parts: Tree, draw: Draw, several: bool = False) -> Any:
    if parts["extra"] == "reports":
        return "vllm_ranks"
    if parts["looks"]:
        looking: list[Any] = list(LOOKING)
        if parts["cached"] and not several:
            looking += [_by_prefixes(draw)] * 5
        return draw.one(*looking)
    sharing: list[Any] = list(SHARING)
    if parts["layout"] == "one":
        sharing.append({"heavy_light": {"prompt_tokens": draw.one(50, 400), "heavy_replicas": 1}})
        if parts["client"] in ("turns", "conversations"):
            sharing += ["session", "session"]
    return draw.one(*sharing)


def _by_prefixes(draw: Draw) -> Tree:
    keys: Tree = {"threshold": draw.one(0.0, 0.3), "imbalance": draw.one(1, 4)}
    if draw.one(True, False, False):
        keys["scores"] = draw.one({}, {"queue": 0.0}, {"prefix": 1.0, "kv": 0.0})
    if draw.one(True, False):
        late = {"events_delay_s": draw.one(0.0, 0.05, 1.0), "predicted_ttl_s": draw.one(None, None, 0.5)}
        return {"prefix_aware": keys | {name: value for name, value in late.items() if value is not None}}
    kept = {"memory_blocks": draw.one(None, 3, 30, 300), "ttl_s": draw.one(None, 0.3, 3.0)}
    return {"prefix_approximate": keys | {name: value for name, value in kept.items() if value is not None}}


def _pool(parts: Tree, draw: Draw, role: str = "mixed") -> Tree:
    extra = parts["extra"]
    # Replicas decide whether several run together, which is another program: the same in all systems of a structure.
    several = (2, 3) if parts["seed"] % 4 else (1,)
    pool: Tree = {"tensor_parallel": draw.one(1, 2), "replicas": draw.one(*several)}
    if parts["models"] == "nemotron-h-56b":
        pool["tensor_parallel"] = draw.one(2, 4)
    if parts["pipeline"] > 1:
        pool["pipeline_parallel"] = parts["pipeline"]
    if parts["layout"] == "ranks":
        pool |= {"tensor_parallel": 1, "replicas": 1, "data_parallel": 2, "expert_parallel": 2}
        if draw.one(True, False):
            pool["expert_exchange"] = "all_to_all"
    if extra == "reports":
        pool |= {"replicas": 1, "data_parallel": draw.one(2, 3)}
    if extra == "autoscaling":
        metric, target = draw.one(("outstanding", 4), ("waiting", 2), ("kv", 0.3), *_OF_ROLE[role])
        pool["replicas"] = draw.one(2, 4)
        pool["autoscaling"] = {"metric": metric, "target": target, "every_s": draw.one(0.3, 1.0)}
        pool["autoscaling"] |= {"window_s": draw.one(0.0, 1.0), "cooldown_s": 2.0, "start_up_s": draw.one(0.0, 0.7)}
        if draw.one(True, False, False):
            pool["autoscaling"]["lower"] = 0.4 * target
        if pool["autoscaling"]["window_s"] > pool["autoscaling"]["every_s"] and metric not in ("ttft", "tpot"):
            pool["autoscaling"]["predictor"] = draw.one("mean", "trend")
    if extra == "failures":
        pool["failures"] = {"mtbf_s": draw.one(0.5, 3.0), "mttr_s": draw.one(0.2, 1.0), "max_tries": draw.one(2, 5)}
        # Without an answer or an error to wait for, users send all that they have.
        kept = ("lost", "resent") if parts["client"] in ("open", "turns") else ("resent",)
        pool["failures"] |= {"requests": draw.one(*kept), "noticed_after_s": draw.one(0.0, 0.3)}
        if draw.one(True, False):
            pool["autoscaling"] = {"target": 4, "every_s": 0.5, "window_s": 0.5, "cooldown_s": 1.0, "start_up_s": 0.2}
    if parts["models"] == "deepseek-v2-lite" and role == "mixed" and not parts["drafts"] and parts["seed"] % 2:
        # One for some structures, the other for others, since the cost of ranks that split prompts has its own form.
        if parts["seed"] % 4 == 1:
            pool["prefill_context_parallel"] = draw.one(2, 4)
        elif draw.one(True, False):
            pool["decode_context_parallel"] = pool["tensor_parallel"]
    alone = parts["layout"] != "ranks" and parts["pipeline"] == 1 and not (parts["drafts"] or parts["adapters"])
    if alone and parts["models"] in (EXPERTS, "gpt-oss-20b") and role == "mixed" and parts["seed"] % 3 == 0:
        # As a whole structure has it, since the cost of sides that micro-batches pass in turn has its own form.
        apart = {"devices": draw.one(2, 4, 8), "attention_ranks": draw.one(1, 2), "micro_batches": draw.one(1, 2, 3)}
        if extra not in ("groups", "reports"):
            pool["feed_forward_apart"] = apart
    pool["batching"], pool["kv"] = _batching(parts, draw), _kv(parts, draw)
    if parts["drafts"] and role != "prefill":
        tokens = draw.one(1, 3)
        pool["speculative"] = {"method": "ngram", "tokens": tokens, "acceptance": draw.one(0.3, 0.8)}
    return pool


def _batching(parts: Tree, draw: Draw) -> Tree:
    order, admission = parts["order"], parts["admission"]
    policies: tuple[str, ...] = ("chunked", "continuous", "mixed", *(["static"] if admission == "reserve" else []))
    if order in ("chunks", "priority", "asynchronous") or parts["extra"] in ("offload", "groups", "adapters"):
        policies = ("chunked",)
    policies = {"token_ratio": ("token_ratio",), "lightllm": ("lightllm",), "orca": ("orca",)}.get(order, policies)
    batching: Tree = {"policy": draw.one(*policies), "max_num_seqs": draw.one(2, 4, 8, 32), "planning": "at_once"}
    if batching["policy"] in ("chunked", "token_ratio"):
        # A full batch of decodes with their drafts must fit into an iteration.
        batching["max_num_batched_tokens"] = draw.one(128, 256, 512, 2048)
    if order == "chunks":
        batching["packing"] = draw.one("fcfs", "least_work_left")
        batching["long_prefill_token_threshold"] = draw.one(16, 100)
    if order == "priority":
        batching["packing"] = "priority"
        if parts["layout"] == "one" and not parts["stages"] and draw.one(True, False):  # one pool, and nothing else
            batching |= {"packing": "shortest_first", "prediction_error": draw.one(0.0, 0.5, 2.0)}
            if parts["client"] not in ("closed", "conversations", "thinking"):
                batching["aging_tokens_per_s"] = draw.one(0.0, 10.0, 1000.0)
    if order == "asynchronous":
        batching["planning"] = "asynchronous"
    if order == "token_ratio":
        batching["schedule_conservativeness"] = draw.one(0.1, 1.0)
        if parts["cached"] and draw.one(True, False):
            batching["packing"] = "longest_prefix"
    if parts["extra"] == "shedding":
        batching["max_queued_requests"] = draw.one(1, 4)
    return batching


def _kv(parts: Tree, draw: Draw) -> Tree:
    admission = parts["admission"]
    kv: Tree = {"admission": "reserve" if admission == "reserve" else "on_demand", "prefix_caching": parts["cached"]}
    kv["block_tokens"] = 1 if parts["order"] == "lightllm" else draw.one(1, 16, 16, 64)
    if parts["extra"] != "groups":
        # From a cache that holds little more than the longest request to one that is never full.
        capacity = draw.one(700, 1500, 3200, 6000, None, None)
        if capacity is not None:
            kv["capacity_tokens"] = capacity
    else:
        kv |= {"layer_groups": True, "memory_fraction": draw.one(0.2, 0.5)}
    if admission != "reserve" and parts["order"] not in ("token_ratio", "lightllm"):
        kv["full_prompt"] = draw.one(True, False)
        kv["watermark"] = draw.one(0.0, 0.0, 0.05)
    if admission == "swap":
        kv |= {"preemption": "swap", "swap_bandwidth": draw.one("2GB/s", "50GB/s")}
        if draw.one(True, False):
            kv["swap_bytes"] = "100MB"
    if parts["extra"] == "offload":
        kv |= {"offload_bytes": draw.one("50MB", "1GB"), "offload_bandwidth": draw.one("5GB/s", "50GB/s")}
        kv["offload_answers"] = draw.one(True, False)
        kv["offload_write"] = draw.one("write_through", "write_through", "write_through_selective", "write_back")
        disk, shared = {"storage": "nvme", "capacity": "1GB"}, {"storage": "rack-pool", "shared_by": "all"}
        kv["offload_tiers"] = draw.one([], [disk], [shared], [disk, shared])
    return kv


# --- the stages around the LLM


def _pipeline(parts: Tree, draw: Draw, deployment: Tree) -> list[Any]:
    def pool(name: str, hardware: str) -> str:
        deployment.setdefault("pools", {})[name] = {
            "role": "stage",
            "hardware": hardware,
            "replicas": draw.one(1, 2),
            "batching": {"max_num_seqs": draw.one(2, 8)},
        }
        return name

    made: dict[str, Any] = {
        "preprocess": lambda: {"seconds": draw.one(0.0, 0.01), "seconds_per_token": 1e-5, "servers": draw.one(None, 2),
                               "tokens": draw.one(0, 20)},
        "encode": lambda: {"model": "qwen3.5-vision", "patches": 512, "tokens": 128, "images": draw.one(1, 2),
                           "pool": pool("vision", "l40s"), "link": draw.one(None, "pcie-gen4-x4")},
        "retrieve": lambda: {"pool": pool("cpu", "cpu-grace"), "documents": 2, "tokens_per_document": draw.one(10, 60),
                             "index": {"centroids": 1e5, "probes": draw.one(10, 50), "points_per_probe": 2000,
                                       "dimensions": 768}, "max_batch": draw.one(1, 8)},
        "kv_fetch": lambda: {"tiers": [{"storage": "nvme", "hit": draw.one(0.3, 0.9), "shared_by": "all"}],
                             "share": draw.one(0.2, 0.6)},
        "tool": lambda: {"seconds": draw.one(0.01, 0.2), "distribution": draw.one("fixed", "exponential"),
                         "tokens": draw.one(0, 30), "servers": draw.one(None, 2)},
        "detokenise": lambda: {"seconds_per_token": 1e-4, "servers": draw.one(None, 1)},
        "guard": lambda: {"kind": "guard", "model": "qwen3-0.6b", "pool": pool("small", "l40s")},
        "again": lambda: {"seconds": 0.05, "tokens": draw.one(0, 20), "back_to": "prefill", "times": draw.one(1, 2)},
    }  # fmt: skip
    kinds = {"detokenise": "postprocess", "guard": "postprocess", "again": "tool"}

    def stage(kind: str) -> Tree:
        keys = {name: value for name, value in made[kind]().items() if value is not None}
        return {"stage": kinds.get(kind, kind), **keys}

    before = [stage(kind) for kind in parts["stages"] if kind not in kinds]
    return [*before, "prefill", "decode", *(stage(kind) for kind in parts["stages"] if kind in kinds)]


# --- what is in a system


def features(tree: Tree) -> frozenset[str]:
    """The parts of a system, by the names that the docs have."""
    workload, deployment = tree["workload"], tree["deployment"]
    sessions, arrivals = workload.get("sessions", {}), workload["arrivals"]
    said = deployment.get("pools", {})
    pools = [deployment | pool for pool in said.values() if pool["role"] != "stage"] or [deployment]
    roles, stages = {pool.get("role", "mixed") for pool in pools}, tree.get("pipeline", [])
    kinds = {stage["stage"] for stage in stages if isinstance(stage, dict)}
    models = {pool.get("model", deployment["model"]) for pool in pools}
    router = deployment.get("router", "round_robin")
    routers = [router[role] for role in ("prefill", "decode")] if "prefill" in roles else [router]
    names = {next(iter(each)) if isinstance(each, dict) else each for each in routers}
    batching, kv = [pool["batching"] for pool in pools], [pool["kv"] for pool in pools]
    adapters, lora = workload.get("adapters"), deployment.get("lora")
    several = sum(pool.get("replicas", 1) * pool.get("data_parallel", 1) for pool in pools) > len(roles)
    has = {
        "closed loop": arrivals["process"] == "closed_loop",
        "rate that moves": arrivals["process"] in ("burst", "varying"),
        "turns at their own times": sessions.get("turns", 1) != 1 and sessions.get("think_from") == "arrival",
        "conversations": sessions.get("turns", 1) != 1 and sessions.get("think_from") != "arrival",
        "users who think": "think_s" in sessions and arrivals["process"] == "closed_loop",
        "agents": "agents" in sessions,
        "system prompts": "system_tokens" in sessions,
        "branches": "branches" in workload.get("reasoning", {}),
        "classes": "classes" in workload,
        "several models": len(models) > 1,
        "prefill and decode apart": "prefill" in roles,
        "mixed pools beside them": {"prefill", "mixed"} <= roles,
        "several pools of a role": len(pools) > len(roles),
        "back-pressure": bool(deployment.get("transfer", {}).get("backpressure")),
        "several replicas": several,
        "routers that look": several and bool(names & {*LOOKING, "shared_queue", "vllm_ranks"}),
        "router by prefixes": bool(names & {"prefix_aware", "prefix_approximate"}),
        "router by what it sent": "prefix_approximate" in names,
        "router that hears late": any(
            keys.get("events_delay_s") or keys.get("predicted_ttl_s")
            for each in routers
            if isinstance(each, dict)
            for keys in each.values()
        ),
        "router by scores": any(
            "scores" in keys for each in routers if isinstance(each, dict) for keys in each.values()
        ),
        "router by sessions": "session" in names,
        "pipeline ranks": any(pool.get("pipeline_parallel", 1) > 1 for pool in pools),
        "data-parallel ranks": any(pool.get("data_parallel", 1) > 1 for pool in pools),
        "ranks in lockstep": any(pool.get("expert_parallel", 1) > 1 for pool in pools),
        "drafts": any("speculative" in pool for pool in pools),
        "decode context parallel": any(pool.get("decode_context_parallel", 1) > 1 for pool in pools),
        "prefill context parallel": any(pool.get("prefill_context_parallel", 1) > 1 for pool in pools),
        "feed-forwards apart": any("feed_forward_apart" in pool for pool in pools),
        "autoscaling": any("autoscaling" in pool for pool in pools),
        "failures": any("failures" in pool for pool in pools),
        "priorities": any(each.get("packing") == "priority" for each in batching),
        "order by predicted lengths": any(each.get("packing") == "shortest_first" for each in batching),
        "shedding": any("max_queued_requests" in each for each in batching),
        "planned ahead": any(each["planning"] == "asynchronous" for each in batching),
        "admission by ratio": any(each["policy"] == "token_ratio" for each in batching),
        "admission by peaks": any(each["policy"] == "lightllm" for each in batching),
        "KV on demand": any(each["admission"] == "on_demand" for each in kv),
        "swapping": any(each.get("preemption") == "swap" for each in kv),
        "prefix cache": any(each["prefix_caching"] for each in kv),
        "host memory": any("offload_bytes" in each for each in kv),
        "stores behind it": any(each.get("offload_tiers") for each in kv),
        "layer groups": any(each.get("layer_groups") for each in kv),
        "adapters": adapters is not None,
        "more adapters than places": bool(adapters and lora and adapters["count"] > lora["max_loras"]),
        "experts": bool(models & {"gpt-oss-20b", EXPERTS, "deepseek-v2-lite"}),
        "windows": "gpt-oss-20b" in models,
        "states": "nemotron-h-56b" in models,
        "encoder": "encode" in kinds,
        "retrieval": "retrieve" in kinds,
        "KV from tiers": "kv_fetch" in kinds,
        "guard": any(isinstance(stage, dict) and stage.get("kind") == "guard" for stage in stages),
        "loop over the LLM": any(isinstance(stage, dict) and "back_to" in stage for stage in stages),
        "stages": bool(kinds),
    }
    return frozenset(name for name, applies in has.items() if applies)
