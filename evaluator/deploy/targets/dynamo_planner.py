"""Dynamo's planner for a prefill and a decode pool that scale, where it has their rule.

Fields are those of ``PlannerConfig`` and the service is that of ``dynamo/planner/tests/manual/scaling`` in the wheel
of ai-dynamo 1.6.1 (Apache-2.0).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evaluator.deploy.design import Design
from evaluator.deploy.launch import NO_AUTOSCALER, Launch
from evaluator.scenario.autoscaling import OUTPUT_RATE, OUTSTANDING, PROMPT_RATE, PROMPT_TOKENS, TREND

_PREDICTORS = {True: "kalman", False: "constant"}
"""Its forecast of a level with a trend, and the last value."""


def scaled(design: Design, launches: list[Launch]) -> list[Launch]:
    """The launches of a design, with what its planner does in another way in the place of that there is none."""
    if planner_config(design, launches) is None:
        return launches
    return [replace(launch, remarks=(_unlike(launch), *_others(launch))) for launch in launches]


def planner_service(design: Design, launches: Sequence[Launch], version: str) -> dict[str, Any] | None:
    """The service of the planner; None where replicas do not come and go, or by another rule."""
    config = planner_config(design, launches)
    if config is None:
        return None
    container = {
        "image": f"nvcr.io/nvidia/ai-dynamo/dynamo-planner:{version}",
        "command": ["python3", "-m", "dynamo.planner"],
        "args": ["--config", json.dumps(config)],
    }
    return {"componentType": "planner", "replicas": 1, "extraPodSpec": {"mainContainer": container}}


def planner_config(design: Design, launches: Sequence[Launch]) -> dict[str, Any] | None:
    """Its configuration; None where it has no rule that is that of the pools."""
    pools = {launch.pool.role: launch.pool for launch in launches}
    scaling = {role: pool.keys.get("autoscaling") for role, pool in pools.items()}
    prefill, decode = scaling.get("prefill"), scaling.get("decode")
    if not prefill or not decode or prefill["every_s"] != decode["every_s"]:
        return None
    rule = _by_objectives(prefill, decode) or _by_load(prefill, decode)
    if rule is None:
        return None
    return {
        "environment": "kubernetes",
        "backend": design.engine,
        "mode": "disagg",
        **rule,
        "prefill_min_endpoint": prefill["min_replicas"],
        "decode_min_endpoint": decode["min_replicas"],
        "prefill_engine_num_gpu": pools["prefill"].devices,
        "decode_engine_num_gpu": pools["decode"].devices,
        "max_gpu_budget": design.autoscaling_devices or _devices(launches),
    }


def beyond_budget(design: Design, launches: Sequence[Launch]) -> list[str]:
    """What to know of a budget of devices that all replicas together exceed."""
    devices, budget = _devices(launches), design.autoscaling_devices
    if budget is None or devices <= budget:
        return []
    return [f"all replicas take {devices} GPUs, and max_gpu_budget is {budget}; start with fewer"]


def _devices(launches: Sequence[Launch]) -> int:
    return sum(launch.pool.replicas * launch.pool.devices for launch in launches)


def _by_objectives(prefill: dict[str, Any], decode: dict[str, Any]) -> dict[str, Any] | None:
    planned = prefill["metric"] == PROMPT_RATE and decode["metric"] in (OUTPUT_RATE, OUTSTANDING)
    if not planned or prefill.get("within_s") is None or decode.get("within_s") is None:
        return None
    return {
        "optimization_target": "sla",
        "enable_throughput_scaling": True,
        "enable_load_scaling": False,
        "throughput_adjustment_interval_seconds": _interval(prefill),
        "ttft_ms": 1e3 * prefill["within_s"],
        "itl_ms": 1e3 * decode["within_s"],
        "load_predictor": _PREDICTORS[TREND in (prefill["predictor"], decode["predictor"])],
    }


def _by_load(prefill: dict[str, Any], decode: dict[str, Any]) -> dict[str, Any] | None:
    stepped = prefill.get("lower") is not None and decode.get("lower") is not None
    if not stepped or (prefill["metric"], decode["metric"]) != (PROMPT_TOKENS, "kv"):
        return None
    return {
        "optimization_target": "load",
        "load_adjustment_interval_seconds": _interval(prefill),
        "prefill_scale_up_queue_tokens": math.ceil(prefill["target"]),
        "prefill_scale_down_queue_tokens": math.floor(prefill["lower"]),
        "decode_scale_up_kv_rate": 100.0 * decode["target"],
        "decode_scale_down_kv_rate": 100.0 * decode["lower"],
    }


def _interval(scaling: dict[str, Any]) -> int:
    """Whole seconds between looks, which its fields are in; with 0 it would look without a pause."""
    return max(1, round(scaling["every_s"]))


def _unlike(launch: Launch) -> str:
    """What the planner does not do as the design."""
    scaling = launch.pool.keys["autoscaling"]
    lacks = [key for key in ("cooldown_s", "tolerance") if scaling[key]]
    # It goes by what it saw since its last look; a trend is its predictor's.
    lacks += ["window_s"] * (scaling["predictor"] != TREND and scaling["window_s"] > scaling["every_s"])
    without = f", without {' and '.join(lacks)}" if lacks else ""
    interval = _interval(scaling)
    often = f", every {interval} s in place of {scaling['every_s']:g} s" if interval != scaling["every_s"] else ""
    return f"autoscaling: Dynamo's planner scales it by its own estimates of a worker{without}{often}"


def _others(launch: Launch) -> tuple[str, ...]:
    return tuple(remark for remark in launch.remarks if not remark.endswith(NO_AUTOSCALER))
