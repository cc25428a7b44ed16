"""Every key of a scenario file in one place: what it holds and what it is where absent. A new key is one line here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.policies import POLICIES
from evaluator.scenario.fields import (
    Field,
    Place,
    Reader,
    Table,
    choice,
    count,
    did_you_mean,
    known,
    listed,
    many,
    number,
    quantity,
    read_section,
    resolve_file,
    section,
    text,
    variant,
)
from evaluator.scenario.scenario import Arrivals, Batching, KvCache, Lengths, Objective

DTYPES = ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4")
METRICS = ("ttft", "tpot", "itl", "e2e", "queue_wait")

# Named in the design, not built yet: refused by name wherever they stand.
LATER_TOP = ("pipeline",)
LATER_DEPLOYMENT = ("pools", "transfer")
LATER_ROUTERS = ("least_kv", "least_tokens", "heavy_light")

RATE: Table = {"rate_rps": Field(quantity("1/s", above=0))}


def _file(folder: Path) -> Reader:
    return lambda value, place: resolve_file(text(value, place), (folder, Path.cwd()), place)


def arrival_tables(folder: Path) -> Mapping[str, Table]:
    """The keys of each arrival process, beside ``process``. Relative files are looked for in ``folder`` first."""
    return {
        "poisson": RATE,
        "gamma": {**RATE, "cv": Field(number(above=0))},
        "uniform": RATE,
        "normal": {**RATE, "std_s": Field(quantity("s", least=0))},
        "burst": {
            **RATE,
            "on_s": Field(quantity("s", above=0)),
            "off_s": Field(quantity("s", above=0)),
            "factor": Field(number(above=0)),
        },
        "all_at_once": {},
        "closed_loop": {"users": Field(count(most=10**6))},
        "trace": {"file": Field(_file(folder)), "scale": Field(number(above=0), 1.0)},
    }


def _arrivals(process: str, values: dict[str, Any], place: Place) -> Arrivals:
    arrivals = Arrivals(process, **values)
    if process == "burst":
        share = values["factor"] * values["on_s"] / (values["on_s"] + values["off_s"])
        if share > 1 + 1e-12:
            most = (values["on_s"] + values["off_s"]) / values["on_s"]
            raise place.key("factor").error(
                f"the bursts alone would exceed rate_rps: must be at most (on_s + off_s) / on_s = {most:g}, "
                f"got {values['factor']:g}"
            )
    return arrivals


_TOKENS = Field(count())
_MEAN = Field(number(above=0, most=1e9))


def _both(**columns: Field) -> dict[str, Field]:
    """The same keys for the prompt and for the output."""
    return {f"{side}_{key}": field for side in ("prompt", "output") for key, field in columns.items()}


_CLIPS = {"min": Field(count(), 1), "max": Field(count(), None)}

LENGTHS: Mapping[str, Table] = {
    "fixed": _both(tokens=_TOKENS),
    "lognormal": _both(mean=_MEAN, cv=Field(number(above=0)), **_CLIPS),
    "normal": _both(mean=_MEAN, std=Field(number(least=0)), **_CLIPS),
    "uniform": _both(min=_TOKENS, max=_TOKENS),
    "zipf": _both(exponent=Field(number(least=0, most=20)), min=Field(count(), 1), max=Field(count(most=10**7))),
}
"""The keys of each length formula. ``mean``, ``cv`` and ``std`` are those before rounding and before the clips."""


def lengths_reader(folder: Path) -> Reader:
    """Reads {source: NAME, ...} or {trace: FILE}."""

    def read(value: Any, place: Place) -> Lengths:
        if isinstance(value, Mapping) and value.get("trace") is not None:
            trace: Table = {"trace": Field(_file(folder))}
            return Lengths("trace", file=read_section(value, trace, place)["trace"])
        if isinstance(value, Mapping) and value.get("source") is None:
            raise place.key("source").error(f"is required: {listed(LENGTHS)}, a name of the catalog, or trace: FILE")
        if isinstance(value, Mapping) and str(value["source"]) not in LENGTHS:
            name = _catalog_lengths(value["source"], place.key("source"))
            read_section(value, {"source": Field(text), "trace": Field(text, None)}, place)  # nothing beside it
            return Lengths(name)
        return formula(value, place)

    return read


def _catalog_lengths(value: Any, place: Place) -> str:
    try:
        return known(_load_lengths)(value, place)
    except InputError as error:
        raise InputError(f"{error}; or a formula: {listed(LENGTHS)}{did_you_mean(value, LENGTHS)}") from None


def _formula(source: str, values: dict[str, Any], place: Place) -> Lengths:
    for side in ("prompt", "output"):
        low, high = values.get(f"{side}_min"), values.get(f"{side}_max")
        if low is not None and high is not None and high < low:
            raise place.key(f"{side}_max").error(f"must be at least {side}_min = {low}, got {high}")
    return Lengths(source, {key: entry for key, entry in values.items() if entry is not None})


formula = variant("source", LENGTHS, _formula)


def workload_table(folder: Path) -> Table:
    """The keys of ``workload``. None: filled in from the other keys (``workload.finish``)."""
    return {
        "arrivals": Field(variant("process", arrival_tables(folder), _arrivals)),
        "lengths": Field(lengths_reader(folder), None),
        "requests": Field(count(most=10**8), None),
        "warmup_requests": Field(count(least=0), None),
        "seeds": Field(many(count(least=0, most=2**63 - 1)), (0,)),
        "cached_tokens": Field(count(least=0), 0),
    }


PRECISION: Table = {
    "weights": Field(choice("checkpoint", *DTYPES), Precision.weights),
    "activations": Field(choice(*DTYPES), Precision.activations),
    "kv": Field(choice(*DTYPES), Precision.kv),
}

ROUTERS = ("random", "round_robin", "least_outstanding", "least_work")


def _policy(value: Any, place: Place) -> str:
    return choice(*POLICIES)(value, place)  # those registered when the file is read


BATCHING: Table = {
    "policy": Field(_policy, Batching.policy),
    "max_num_seqs": Field(count(), Batching.max_num_seqs),
    "max_num_batched_tokens": Field(count(), Batching.max_num_batched_tokens),
    "long_prefill_token_threshold": Field(count(least=0), Batching.long_prefill_token_threshold),
    "packing": Field(choice("fcfs", "least_work_left"), Batching.packing),
}

KV: Table = {
    "admission": Field(choice("reserve", "on_demand"), KvCache.admission),
    "memory_fraction": Field(number(above=0, most=1), KvCache.memory_fraction),
    "block_tokens": Field(count(), KvCache.block_tokens),
    "watermark": Field(number(least=0, most=0.5), KvCache.watermark),
    "preemption": Field(choice("recompute", "swap"), KvCache.preemption),
    "swap_bandwidth": Field(quantity("byte/s", above=0), KvCache.swap_bandwidth),
    "swap_bytes": Field(quantity("byte", least=0), KvCache.swap_bytes),
}


def read_kv(value: Any, place: Place) -> KvCache:
    """The section ``kv``. How fast a preempted sequence is copied to host memory is for the user to say."""
    found = KvCache(**read_section(value, KV, place))
    if found.preemption == "swap" and found.swap_bandwidth is None:
        raise place.key("swap_bandwidth").error(
            "is required with preemption swap: bytes per second of one device to host memory, such as 25GB/s"
        )
    return found


def _load_model(name: str) -> Any:
    from evaluator.catalog import load_model

    return load_model(name)


def _load_hardware(name: str) -> Any:
    from evaluator.catalog import load_hardware

    return load_hardware(name)


def _load_lengths(name: str) -> Any:
    from evaluator.catalog import load_lengths

    return load_lengths(name)


def _find_calibration(name: str) -> Any:
    from evaluator.catalog.store import find

    return find("calibrations", name)


def _calibration(value: Any, place: Place) -> str:
    return value if value == "auto" else known(_find_calibration)(value, place)  # auto: the best set for the hardware


def _figures(read: Reader, kind: str) -> Reader:
    def refuse(value: Any, place: Place) -> Any:
        if isinstance(value, Mapping):
            raise place.error(
                f"expected the name of a {kind}: setting or sweeping its figures is not implemented yet; "
                f"put a copy of its file with the figures you want into a folder models/{kind} of your own"
            )
        return read(value, place)

    return refuse


DEPLOYMENT: Table = {
    "model": Field(_figures(known(_load_model), "llm")),
    "hardware": Field(_figures(known(_load_hardware), "hardware")),
    "precision": Field(section(PRECISION, Precision), Precision()),
    "calibration": Field(_calibration, "datasheet"),
    "replicas": Field(count(most=10**6), 1),
    "tensor_parallel": Field(count(most=4096), 1),
    "pipeline_parallel": Field(count(most=4096), 1),
    "expert_parallel": Field(count(most=4096), 1),
    "batching": Field(section(BATCHING, Batching), Batching()),
    "kv": Field(read_kv, KvCache()),
    "router": Field(choice(*ROUTERS, later=LATER_ROUTERS), "round_robin"),
    "role": Field(choice("mixed", "prefill", "decode"), "mixed"),
    "usd_per_device_hour": Field(quantity("USD/h", least=0), None),
}

_STATISTIC = re.compile(r"p([0-9]+(?:\.[0-9]+)?)")
_bound = quantity("s", above=0)


def read_slo(value: Any, place: Place) -> tuple[Objective, ...]:
    """{ttft: {p90: 1.5s}, e2e: {mean: 10s}} -> objectives, in the order written."""
    bounds: Table = dict.fromkeys(METRICS, Field(_statistics, ()))
    by_metric = read_section(value, bounds, place)
    return tuple(Objective(metric, statistic, bound) for metric in value for statistic, bound in by_metric[metric])


def _statistics(value: Any, place: Place) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, Mapping) or not value:
        raise place.error(f"expected bounds such as {{p90: 1.5s}}, got {value!r}")
    for name in value:
        match = _STATISTIC.fullmatch(str(name))
        percent = float(match.group(1)) if match else math.nan
        if name != "mean" and not 0 < percent < 100:
            raise place.key(name).error("unknown statistic; allowed: mean, or a percentile such as p50, p90, p99.9")
    return tuple((str(name), _bound(bound, place.key(name))) for name, bound in value.items())
