"""Every key of a scenario's ``deployment`` and ``slo``: what it holds and what it is where absent.

A new key is one line here; those of ``workload`` are in ``workload_keys``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from evaluator.catalog.engines import ENGINES
from evaluator.cost.parallel import EXCHANGES
from evaluator.cost.precision import Precision
from evaluator.policies import POLICIES
from evaluator.scenario.fields import (
    Field,
    Place,
    Reader,
    Schema,
    Table,
    choice,
    count,
    flag,
    known,
    number,
    quantity,
    shown,
)
from evaluator.scenario.figures import device_reader, model_reader
from evaluator.scenario.pool_keys import pools_reader, router_reader, transfer_reader
from evaluator.scenario.pools import STAGE, pools_of, stage_pools_of
from evaluator.scenario.scenario import Batching, Deployment, KvCache, Objective, Routers, Transfer
from evaluator.scenario.speculative_keys import speculative_reader
from evaluator.scenario.tables import read_section, schema_of, section, section_schema
from evaluator.scenario.unsaid import told

DTYPES = ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4")

WEIGHTS = (*DTYPES, "fp8_block")
"""Those of weights: fp8 with a scale per block of 128 x 128, as DeepSeek publishes it, too."""

MOST_REPLICAS = 10_000

PRECISION: Table = {
    "weights": Field(choice("checkpoint", *WEIGHTS), Precision.weights, "Weights; checkpoint: as published."),
    "activations": Field(choice(*DTYPES), Precision.activations, "Activations, and the inputs of matrix products."),
    "kv": Field(choice(*DTYPES), Precision.kv, "The KV cache."),
}

# Those registered when a file is read or a schema written, so that a policy of one's own counts.
_policy = Reader(lambda value, place: choice(*POLICIES)(value, place), lambda: schema_of(choice(*POLICIES)))

_OF_ENGINE = "where absent as the engine has it"

BATCHING: Table = {
    "policy": Field(_policy, None, f"How the scheduler forms the batch of an iteration; {_OF_ENGINE}."),
    "max_num_seqs": Field(count(), None, f"Most sequences of an iteration; {_OF_ENGINE}."),
    "max_num_batched_tokens": Field(
        count(),
        Batching.max_num_batched_tokens,
        f"Most tokens of an iteration; {_OF_ENGINE}, and room for the longest prompt where it is computed whole.",
    ),
    "long_prefill_token_threshold": Field(
        count(least=0),
        Batching.long_prefill_token_threshold,
        "With chunks, the most prompt tokens of one request in an iteration; 0: no bound.",
    ),
    "packing": Field(choice("fcfs", "least_work_left"), Batching.packing, "Which waiting request is looked at first."),
    "tau": Field(
        number(above=0, most=1000),
        Batching.tau,
        "Engine request: a request decodes all the time among 1 / tau of those that it finds; 2.5 in BestServe.",
    ),
}

KV: Table = {
    "admission": Field(
        choice("reserve", "on_demand"),
        KvCache.admission,
        "reserve: a request enters if its whole KV fits. on_demand: KV is taken as tokens come, with preemption.",
    ),
    "memory_fraction": Field(
        number(above=0, most=1),
        None,
        "Part of a device's memory for weights, activations and KV (vllm), for weights and KV (sglang), or of what "
        f"weights and activations leave for KV (trtllm); {_OF_ENGINE}.",
    ),
    "block_tokens": Field(count(), None, f"Tokens of a block of the KV cache; {_OF_ENGINE}."),
    "watermark": Field(
        number(least=0, most=0.5), KvCache.watermark, "on_demand: part of the cache that an admission leaves free."
    ),
    "preemption": Field(
        choice("recompute", "swap"), KvCache.preemption, "on_demand: what becomes of a preempted request's KV."
    ),
    "swap_bandwidth": Field(
        quantity("byte/s", above=0), KvCache.swap_bandwidth, "Bytes per second of a device to host memory."
    ),
    "swap_bytes": Field(
        quantity("byte", least=0),
        KvCache.swap_bytes,
        "Host memory per device for it; as much as it takes where absent.",
    ),
    "capacity_tokens": Field(
        count(),
        KvCache.capacity_tokens,
        "Tokens that the cache of a replica holds, as the log of an engine states it; what fits where absent.",
    ),
    "prefix_caching": Field(
        flag,
        KvCache.prefix_caching,
        "Whether blocks of prompts and outputs that are known by their content are computed once.",
    ),
}


def _check_kv(found: KvCache, place: Place) -> None:
    """How fast a preempted sequence is copied to host memory is for the user to say."""
    if found.preemption == "swap" and found.swap_bandwidth is None:
        raise place.key("swap_bandwidth").error(
            "is required with preemption swap: bytes per second of one device to host memory, such as 25GB/s"
        )


def _find_calibration(name: str) -> Any:
    from evaluator.catalog.store import find

    return find("calibrations", name)


def _names(kind: str) -> Callable[[], list[str]]:
    def names() -> list[str]:
        from evaluator.catalog.store import names

        return names(kind)

    return names


def _calibration() -> Reader:
    named = known(_find_calibration, _names("calibrations"))

    def schema() -> Schema:
        chosen = [{"const": name} for name in _chosen()]
        return {"anyOf": [*chosen, *named.schema()["anyOf"]]}  # type: ignore[operator]

    def read(value: Any, place: Place) -> str:
        return value if isinstance(value, str) and value in _chosen() else named(value, place)

    return Reader(read, schema)


def _chosen() -> tuple[str, ...]:
    from evaluator.catalog.choice import CHOSEN

    return CHOSEN


def _absent(table: Table, build: Callable[..., Any]) -> Any:
    """A section of which a file says nothing."""
    return build(**{key: field.default for key, field in table.items()})


_MOST_REPLICAS = "simulate one replica under its share of the rate, or fewer replicas and scale the result"

REPLICA: Table = {
    "model": Field(model_reader, says="A model of the catalog, or {like: NAME} with other layers, heads or experts."),
    "hardware": Field(device_reader, says="A device of the catalog, or {like: NAME} with other figures."),
    "precision": Field(section(PRECISION, Precision), Precision(), "The number formats."),
    "engine": Field(
        choice(*ENGINES),
        Deployment.engine,
        "The serving engine: its kernels and host with calibration auto, and the defaults of its scheduler.",
    ),
    "calibration": Field(
        _calibration(),
        "auto",
        "Operator efficiencies. auto: the best set for this hardware and engine; transferred: the median of other "
        "devices' sets; datasheet; or a name of the catalog.",
    ),
    "replicas": Field(count(most=MOST_REPLICAS, remedy=_MOST_REPLICAS), 1, "Identical copies of the model."),
    "tensor_parallel": Field(count(most=4096), 1, "Devices that share every layer of a replica."),
    "pipeline_parallel": Field(count(most=4096), 1, "Groups of devices that each hold some of the layers."),
    "expert_parallel": Field(
        count(most=4096), 1, "Parts into which the experts of a layer are divided; devices of a part share each expert."
    ),
    "data_parallel": Field(
        count(most=4096),
        1,
        "Ranks of a replica, of tensor_parallel x pipeline_parallel devices each, with a scheduler and a KV cache of "
        "their own, to which the limits of batching and kv apply; the router chooses among the ranks of all replicas. "
        "Experts are spread over the devices of all ranks, which then run in lockstep.",
    ),
    "redundant_experts": Field(
        count(least=0, most=4096), 0, "Second copies of popular experts in each layer, placed by a balancer (EPLB)."
    ),
    "expert_exchange": Field(
        choice(*EXCHANGES),
        Deployment.expert_exchange,
        "How data-parallel ranks send tokens to the experts: all states are gathered everywhere (vLLM's and SGLang's "
        "default), or all_to_all sends each to the devices of its experts (DeepEP and its kin).",
    ),
    "batching": Field(section(BATCHING, Batching), _absent(BATCHING, Batching), "The scheduler of a replica."),
    "kv": Field(section(KV, KvCache, check=_check_kv), _absent(KV, KvCache), "The KV cache of a replica."),
    "speculative": Field(
        speculative_reader, None, "Speculative decoding: tokens are drafted and verified together; absent: none are."
    ),
    "usd_per_device_hour": Field(
        quantity("USD/h", least=0), None, "Price of a device; that of the catalog where absent."
    ),
}
"""What is said of the replicas of one pool."""

DEPLOYMENT: Table = {
    **{key: field for key, field in REPLICA.items() if key != "usd_per_device_hour"},
    "router": Field(
        router_reader,
        "round_robin",
        "Which replica a request goes to; with prefill and decode pools also {prefill: ROUTER, decode: ROUTER}.",
    ),
    "role": Field(
        choice("mixed", "prefill", "decode"), "mixed", "Which phases the replicas compute; the other is elsewhere."
    ),
    "usd_per_device_hour": REPLICA["usd_per_device_hour"],
    "pools": Field(
        pools_reader(REPLICA),
        None,
        "Pools of one role or of prefill and decode, by name; keys beside them hold for each that says nothing.",
    ),
    "transfer": Field(transfer_reader(DTYPES), Transfer(), "How KV comes from the prefill to the decode pools."),
}


def _check_capacity(found: Deployment, place: Place) -> None:
    """The cache holds a block."""
    stated = found.kv.capacity_tokens
    if stated is not None and stated < (block := told(found).kv.block_tokens):
        raise place.key("kv.capacity_tokens").error(
            f"{stated} tokens are less than a block of {block}; raise it or lower block_tokens"
        )


def _check_deployment(found: Deployment, place: Place) -> None:
    """What several pools and the keys beside them may not say together."""
    for name, pool in stage_pools_of(found).items():
        if pool.speculative is not None:
            raise place.key(f"pools.{name}.speculative").error("is for pools that decode; leave it out of a stage's")
        _check_kv(pool.kv, place.key(f"pools.{name}.kv"))
        _check_capacity(pool, place.key(f"pools.{name}"))
    if found.pools is None or all(pool.role == STAGE for pool in found.pools.values()):
        _check_capacity(found, place)
        if isinstance(found.router, Routers):
            raise place.key("router").error("routers by role are for a prefill and a decode pool: add deployment.pools")
        return
    if found.role != "mixed":
        raise place.key("role").error("say the role in each of the pools, not beside them")
    if isinstance(found.router, Routers) and all(pool.role in ("mixed", STAGE) for pool in found.pools.values()):
        raise place.key("router").error("routers by role are for a prefill and a decode pool; give one name here")
    for name, pool in pools_of(found):
        _check_kv(pool.kv, place.key(f"pools.{name}.kv"))
        _check_capacity(pool, place.key(f"pools.{name}"))


deployment_reader = section(DEPLOYMENT, Deployment, check=_check_deployment)

LONGEST_BARE_BOUND = 600.0
"""Seconds. Nobody waits longer for an answer, so that a larger bare number was meant in milliseconds."""

_STATISTIC = re.compile(r"p([0-9]+(?:\.[0-9]+)?)")
_bound = quantity("s", above=0)


def _objectives(value: Any, place: Place) -> tuple[Objective, ...]:
    read = read_section(value, SLO, place)
    relax = read["relax"]
    found = tuple(
        Objective(metric, statistic, bound * (1.0 + relax), relax)
        for metric in value
        if metric in METRICS
        for statistic, bound in read[metric]
    )
    if relax and not found:
        raise place.key("relax").error("relaxes bounds, and there is none; add one such as ttft: {p90: 1s}")
    return found


def _statistics(value: Any, place: Place) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, Mapping) or not value:
        raise place.error(f"expected bounds such as {{p90: 1.5s}}, got {shown(value)}")
    for name in value:
        match = _STATISTIC.fullmatch(str(name))
        percent = float(match.group(1)) if match else math.nan
        if name != "mean" and not 0 < percent < 100:
            raise place.key(name).error("unknown statistic; allowed: mean, or a percentile such as p50, p90, p99.9")
    return tuple((str(name), _bound(bound, place.key(name))) for name, bound in value.items())


def check_bare_bound(value: Any, place: Place) -> None:
    """Refuses a bound as a file gives it, without a unit, that can only have been meant in milliseconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and LONGEST_BARE_BOUND < value < math.inf:
        raise place.error(f"{value:g} is {value:,g} s; write '{value:g}s' if you mean it, or '{value:g}ms'")


def _statistics_schema() -> Schema:
    plain, text = _bound.schema["anyOf"]  # type: ignore[index]
    bound = {"anyOf": [{**plain, "maximum": LONGEST_BARE_BOUND}, text]}
    return {
        "type": "object",
        "properties": {"mean": bound},
        "patternProperties": {f"^{_STATISTIC.pattern}$": bound},
        "additionalProperties": False,
        "minProperties": 1,
    }


_SAYS = {
    "ttft": "Time to the first token, from the arrival.",
    "tpot": "Time per output token after the first.",
    "itl": "Gaps between successive tokens, pooled over all tokens.",
    "e2e": "Time to the last token, from the arrival.",
    "queue_wait": "Time until a request is first scheduled.",
}
METRICS = tuple(_SAYS)
SLO: Table = {
    **{metric: Field(Reader(_statistics, _statistics_schema()), (), says) for metric, says in _SAYS.items()},
    "relax": Field(number(least=0, most=10), 0.0, "Every bound is taken 1 + relax times as large (BestServe: 0.1)."),
}

read_slo = Reader(_objectives, lambda: section_schema(SLO))
"""{ttft: {p90: 1.5s}, e2e: {mean: 10s}} -> objectives, in the order written."""
