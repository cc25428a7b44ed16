"""Datasets of sweeps that nobody ran (latencies bend up at the capacity of each design), and their comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from evaluator.metrics import quantile_levels, summarise
from evaluator.results.chances import with_chances
from evaluator.results.dataset import to_dataset
from evaluator.results.schema import attributes
from tests.metrics.build import outcomes

LEVELS = np.array([0.5, 0.9, 0.95, 0.99])
NO_ROOM = "infeasible: weights of {:.1f} GB per device do not fit in 43.2 GB; use more tensor_parallel"


@dataclass(frozen=True)
class Axis:
    name: str
    values: tuple[Any, ...]
    changes: tuple[dict[str, Any], ...]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Objective:
    metric: str
    statistic: str
    bound_s: float
    request_class: str = ""


OBJECTIVES = (Objective("ttft", "p90", 1.5), Objective("tpot", "p90", 0.07))


def axis(name: str, *values: Any) -> Axis:
    return Axis(name, values, tuple({name: value} for value in values))


HARDWARE = axis("deployment.hardware", "h100-sxm", "l40s", "mi300x")
PARALLEL = axis("deployment.tensor_parallel", 2, 4, 8)
POLICY = axis("deployment.batching.policy", "chunked", "continuous")
RATE = axis("workload.arrivals.rate_rps", *map(float, range(1, 9)))


BATCHING = Axis(
    "deployment.batching",
    ("policy=chunked,max_num_batched_tokens=512", "policy=continuous,max_num_batched_tokens=none"),
    (
        {"deployment.batching.policy": "chunked", "deployment.batching.max_num_batched_tokens": 512},
        {"deployment.batching.policy": "continuous", "deployment.batching.max_num_batched_tokens": None},
    ),
)


def sweep(*axes: Axis, objectives: tuple[Objective, ...] = OBJECTIVES, price: bool = True, room: bool = True) -> Any:
    """A dataset over the grid; the L40S has no room below tp 4, and nothing has any when ``room`` is false."""
    count = math.prod(len(a.values) for a in axes)
    steps = np.unravel_index(np.arange(count), [len(a.values) for a in axes]) if axes else ()
    written = {a.name: np.array(a.values, dtype=object)[step] for a, step in zip(axes, steps, strict=True)}
    hardware = written.get(HARDWARE.name, np.full(count, "h100-sxm"))
    parallel = written.get(PARALLEL.name, np.full(count, 4)).astype(float)
    rate = written.get(RATE.name, np.full(count, 2.0)).astype(float)
    speed = np.array([{"l40s": 0.25, "mi300x": 1.3}.get(str(h), 1.0) for h in hardware]) * parallel**0.8
    load = rate / (2.0 * speed)
    over = load > 1
    absent = (hardware == "l40s") & (parallel < 4) if room else np.ones(count, dtype=bool)
    ttft = 0.25 / speed + np.where(over, 200 * (load - 1), 0.02 * load / np.maximum(1 - load, 1e-3))
    tpot = 0.03 / speed * parallel**0.3 * (1 + 2.5 * np.minimum(load, 1) ** 2)
    delivered = 200 * np.minimum(rate, 2.0 * speed)
    metrics = {"output_tok_per_s": delivered, "tok_per_s_per_gpu": delivered / parallel, "tok_per_s_per_user": 1 / tpot}
    for name, value in (("ttft_s", ttft), ("tpot_s", tpot), ("e2e_s", ttft + 200 * tpot)):
        metrics[name] = value[:, None] * np.array([1.0, 1.3, 1.5, 2.0])
        metrics[f"{name}_mean"], metrics[f"{name}_stderr"] = value, 0.05 * metrics[name]
    metrics["utilisation"] = np.minimum(load, 1.0)
    metrics["slo_attainment"] = np.where(metrics["ttft_s"][:, 1] < 1.5, 1.0, 0.2) if objectives else rate * np.nan
    metrics["usd_per_mtok"] = parallel * 3.0 / 3600 / delivered * 1e6 if price else rate * np.nan
    for name, value in metrics.items():
        metrics[name] = np.where(absent.reshape(-1, *[1] * (value.ndim - 1)), np.nan, value)
    metrics["saturated"] = over & ~absent
    met = (metrics["ttft_s"][:, 1] <= 1.5) & (metrics["tpot_s"][:, 1] <= 0.07)
    metrics["slo_met"] = met & ~absent & bool(objectives)
    metrics["status"] = np.where(absent, [NO_ROOM.format(140 / p) for p in parallel], "ok")
    metrics["engine"], metrics["provenance"] = np.full(count, "iteration"), np.full(count, "datasheet")
    metrics["calibration_set"] = np.full(count, "datasheet")
    return to_dataset(metrics, LEVELS, axes, attributes("which gpu", "name: x\n", [0, 1], "datasheet", objectives))


def with_objectives(ds: xr.Dataset, error: float = 0.1, confidence: float = math.nan) -> xr.Dataset:
    """A dataset of ``sweep`` with what a run says of its OBJECTIVES, and the chances that follow."""
    shape = (ds.sizes["config"], len(OBJECTIVES))
    ratio = np.stack([ds[f"{bound.metric}_s"].values[:, 1] / bound.bound_s for bound in OBJECTIVES], axis=-1)
    figures = {
        "ratio": ratio,
        "ratio_stderr": 0.01 * ratio,
        "mean_error": np.where(np.isnan(ratio), np.nan, error),
        "model_error": np.where(np.isnan(ratio), np.nan, error),
        "headroom": 1.0 / ratio,
        "growth": np.where(np.isnan(ratio), np.nan, 1.0),
        "confidence": np.full(shape, confidence),
    }
    named = {f"objective_{name}": (("config", "objective"), values) for name, values in figures.items()}
    labels = [f"{bound.metric} {bound.statistic}" for bound in OBJECTIVES]
    return with_chances(ds.assign(named).assign_coords(objective=labels))


def same(first: xr.Dataset, second: xr.Dataset) -> None:
    """Equal to the bit but for the attributes."""
    xr.testing.assert_equal(first, second)


def measured(axes=(), **changes):
    count = int(np.prod([len(a.values) for a in axes])) if axes else 1
    metrics = summarise(outcomes(configs=count, requests=60, warmup=10, **changes), quantile_levels(()))
    return to_dataset(metrics, quantile_levels(()), axes, attributes("t", "name: t\n", (0, 1), "datasheet"))
