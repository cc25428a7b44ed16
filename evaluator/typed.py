"""The scenario file as Python types: dictionaries that editors complete and type checkers check.

``evaluator.sweep(Scenario(workload=Workload(...), deployment=Deployment(...)))`` takes what YAML would hold. At run
time all of them are plain dictionaries, and what the loader refuses of a file it refuses of them. Quantities are SI
numbers or texts with a unit (``80GB``, ``50ms``).

Written by ``evaluator.scenario.python_types`` from the tables of keys (``make typed``): change those, not this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict


class PoissonArrivals(TypedDict, total=False):
    """Poisson arrivals."""

    process: Literal["poisson"]
    """How requests are sent: by a random process, by users in a closed loop, or at a trace's times."""
    rate_rps: float | str
    """Mean rate of the arrivals, requests per second."""


class GammaArrivals(TypedDict, total=False):
    """Gamma arrivals."""

    process: Literal["gamma"]
    """How requests are sent: by a random process, by users in a closed loop, or at a trace's times."""
    rate_rps: float | str
    """Mean rate of the arrivals, requests per second."""
    cv: float
    """Coefficient of variation of the gaps; 1 is Poisson."""


class UniformArrivals(TypedDict, total=False):
    """Uniform arrivals."""

    process: Literal["uniform"]
    """How requests are sent: by a random process, by users in a closed loop, or at a trace's times."""
    rate_rps: float | str
    """Mean rate of the arrivals, requests per second."""


class NormalArrivals(TypedDict, total=False):
    """Normal arrivals."""

    process: Literal["normal"]
    """How requests are sent: by a random process, by users in a closed loop, or at a trace's times."""
    rate_rps: float | str
    """Mean rate of the arrivals, requests per second."""
    std_s: float | str
    """Standard deviation of the gaps."""


class BurstArrivals(TypedDict, total=False):
    """Burst arrivals."""

    process: Literal["burst"]
    """How requests are sent: by a random process, by users in a closed loop, or at a trace's times."""
    rate_rps: float | str
    """Mean rate of the arrivals, requests per second."""
    on_s: float | str
    """How long a burst lasts."""
    off_s: float | str
    """How long it is quieter between two bursts."""
    factor: float
    """The rate in a burst over rate_rps, which stays the mean."""


class AllAtOnceArrivals(TypedDict, total=False):
    """All at once arrivals."""

    process: Literal["all_at_once"]
    """How requests are sent: by a random process, by users in a closed loop, or at a trace's times."""


class ClosedLoopArrivals(TypedDict, total=False):
    """Closed loop arrivals."""

    process: Literal["closed_loop"]
    """How requests are sent: by a random process, by users in a closed loop, or at a trace's times."""
    users: int
    """How many send their next request when the one before is answered."""


class TraceArrivals(TypedDict, total=False):
    """Trace arrivals."""

    process: Literal["trace"]
    """How requests are sent: by a random process, by users in a closed loop, or at a trace's times."""
    file: str
    """CSV, Parquet or JSONL with arrival_s, prompt_tokens, output_tokens."""
    scale: float
    """More than 1 sends the trace that many times as fast."""


class SourceLengths(TypedDict, total=False):
    """Source lengths."""

    source: Literal["azure-code-2023", "azure-conv-2023"] | str
    """A named distribution of the catalog, or a formula: fixed, lognormal, normal, uniform, zipf."""


class TraceLengths(TypedDict, total=False):
    """Trace lengths."""

    trace: str
    """CSV, Parquet or JSONL with prompt_tokens and output_tokens."""


class FixedLengths(TypedDict, total=False):
    """Fixed lengths."""

    source: Literal["fixed"]
    """A named distribution of the catalog, or a formula: fixed, lognormal, normal, uniform, zipf."""
    prompt_tokens: int
    """Tokens of all prompts."""
    output_tokens: int
    """Tokens of all outputs."""


class LognormalLengths(TypedDict, total=False):
    """Lognormal lengths."""

    source: Literal["lognormal"]
    """A named distribution of the catalog, or a formula: fixed, lognormal, normal, uniform, zipf."""
    prompt_mean: float
    """Mean tokens of prompts, before rounding and clips."""
    prompt_cv: float
    """Coefficient of variation of prompts."""
    prompt_min: int
    """Fewest tokens of prompts."""
    prompt_max: int
    """Most tokens of prompts."""
    output_mean: float
    """Mean tokens of outputs, before rounding and clips."""
    output_cv: float
    """Coefficient of variation of outputs."""
    output_min: int
    """Fewest tokens of outputs."""
    output_max: int
    """Most tokens of outputs."""


class NormalLengths(TypedDict, total=False):
    """Normal lengths."""

    source: Literal["normal"]
    """A named distribution of the catalog, or a formula: fixed, lognormal, normal, uniform, zipf."""
    prompt_mean: float
    """Mean tokens of prompts, before rounding and clips."""
    prompt_std: float
    """Standard deviation of prompts, tokens."""
    prompt_min: int
    """Fewest tokens of prompts."""
    prompt_max: int
    """Most tokens of prompts."""
    output_mean: float
    """Mean tokens of outputs, before rounding and clips."""
    output_std: float
    """Standard deviation of outputs, tokens."""
    output_min: int
    """Fewest tokens of outputs."""
    output_max: int
    """Most tokens of outputs."""


class UniformLengths(TypedDict, total=False):
    """Uniform lengths."""

    source: Literal["uniform"]
    """A named distribution of the catalog, or a formula: fixed, lognormal, normal, uniform, zipf."""
    prompt_min: int
    """Fewest tokens of prompts."""
    prompt_max: int
    """Most tokens of prompts."""
    output_min: int
    """Fewest tokens of outputs."""
    output_max: int
    """Most tokens of outputs."""


class ZipfLengths(TypedDict, total=False):
    """Zipf lengths."""

    source: Literal["zipf"]
    """A named distribution of the catalog, or a formula: fixed, lognormal, normal, uniform, zipf."""
    prompt_exponent: float
    """Exponent of the law of prompts; 0 is uniform."""
    prompt_min: int
    """Fewest tokens of prompts."""
    prompt_max: int
    """Most tokens of prompts."""
    output_exponent: float
    """Exponent of the law of outputs; 0 is uniform."""
    output_min: int
    """Fewest tokens of outputs."""
    output_max: int
    """Most tokens of outputs."""


class Auto(TypedDict, total=False):
    """As many as it takes to decide the objectives."""

    most: int
    """Most requests of a seed."""


class Requests(TypedDict, total=False):
    """Requests."""

    auto: Auto
    """As many as it takes to decide the objectives."""


class Turns(TypedDict, total=False):
    """Turns."""

    mean: float
    """Mean of a geometric number of turns, before the clip."""
    max: int
    """Most turns of a session."""


class MeanThinkS(TypedDict, total=False):
    """Mean think s."""

    mean: float | str
    """Mean of exponential times."""


class Sessions(TypedDict, total=False):
    """Sessions."""

    system_prompts: int
    """How many prefixes the requests share; each begins with one of them."""
    system_tokens: int
    """Tokens of each; the prompt of the drawn length follows them."""
    turns: int | Turns
    """Requests of a session, each with all that was said before; drawn prompts are the new text of a turn."""
    think_s: float | str | MeanThinkS
    """Seconds after which a session sends its next turn."""
    think_from: Literal["answer", "arrival"]
    """They begin with the last token of the turn before, or with its arrival however long it takes."""
    hash_block_tokens: int
    """Tokens of a block of the column hash_ids of a trace."""


class Reasoning(TypedDict, total=False):
    """Reasoning."""

    scale: float
    """Output tokens of every path over those drawn; 8 to 32 is usual."""
    branches: int
    """Sequences that continue one prompt side by side."""
    first: int
    """The request ends with so many of its branches; with the last where absent."""
    branch_lengths: Literal["drawn", "same"]
    """Each branch draws its output length, or all have the same."""


class Model(TypedDict, total=False):
    """Model."""

    share: float
    """Of all requests, relative to the shares of the other models."""
    lengths: (
        SourceLengths | TraceLengths | FixedLengths | LognormalLengths | NormalLengths | UniformLengths | ZipfLengths
    )
    """Of this model's requests; as those of the workload if absent."""


class Pipeline(TypedDict, total=False):
    """Pipeline."""

    share: float
    """Of all requests, relative to the shares of the other pipelines."""
    lengths: (
        SourceLengths | TraceLengths | FixedLengths | LognormalLengths | NormalLengths | UniformLengths | ZipfLengths
    )
    """Of this pipeline's requests; as those of the workload if absent."""


class Workload(TypedDict, total=False):
    """What is asked of the servers."""

    arrivals: (
        PoissonArrivals
        | GammaArrivals
        | UniformArrivals
        | NormalArrivals
        | BurstArrivals
        | AllAtOnceArrivals
        | ClosedLoopArrivals
        | TraceArrivals
    )
    """When requests are sent."""
    lengths: (
        SourceLengths | TraceLengths | FixedLengths | LognormalLengths | NormalLengths | UniformLengths | ZipfLengths
    )
    """How long prompts and outputs are."""
    requests: int | Literal["auto"] | Requests
    """Requests per seed; 1,000, or the whole trace, where absent. auto, or {auto: {most: 50000}}: as many as it takes
    to decide the objectives.
    """
    warmup_requests: int
    """First requests cut from the statistics, not from the run; where absent a tenth, or two for each user."""
    cooldown_requests: int
    """Last requests cut from the statistics; where absent as many as warmup_requests, but at most a tenth, and none of
    a trace or of requests all at once.
    """
    find_warmup: bool
    """Whether what a run takes to settle after that is cut, too (MSER-5)."""
    seeds: Sequence[int]
    """Repetitions of every design with other random numbers."""
    cached_tokens: int
    """Leading prompt tokens whose KV is there already, where a trace does not say."""
    sessions: Sessions
    """What requests have in common: prompts, and their senders."""
    reasoning: Reasoning
    """Longer outputs, on one path or several branches."""
    models: Mapping[str, float | Model]
    """Which models the requests ask for: {MODEL: SHARE} or {MODEL: {share: SHARE, lengths: {...}}}."""
    pipelines: Mapping[str, float | Pipeline]
    """Which ways through the pipeline the requests take: {NAME: SHARE} or {NAME: {share: SHARE, lengths: {...}}};
    stages say with only whom they serve.
    """


ModelName: TypeAlias = Literal[
    "bge-reranker-v2-m3",
    "bloom-176b",
    "codellama-34b",
    "deepseek-r1",
    "deepseek-v2-lite",
    "deepseek-v3",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "deepseek-v4-pro",
    "e5-base",
    "e5-mistral-7b",
    "glm-4.5-air",
    "glm-4.6",
    "glm-4.7",
    "glm-4.7-flash",
    "glm-5",
    "gpt-oss-120b",
    "gpt-oss-20b",
    "kimi-k2",
    "kimi-k2.5",
    "llama-2-70b",
    "llama-2-7b",
    "llama-3.1-405b",
    "llama-3.1-70b",
    "llama-3.1-8b",
    "llama-4-maverick-17b-128e",
    "llama-4-scout-17b-16e",
    "llama-4-scout-17b-16e-fp8",
    "minimax-m2",
    "mistral-nemo-12b",
    "mixtral-8x22b",
    "mixtral-8x7b",
    "nemotron-h-56b",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "qwen3-14b",
    "qwen3-235b-a22b",
    "qwen3-30b-a3b",
    "qwen3-32b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-next-80b-a3b",
    "qwen3.5-35b-a3b",
    "qwen3.5-397b-a17b",
    "yi-34b",
]


HardwareName: TypeAlias = Literal[
    "a100-pcie",
    "a100-sxm",
    "a30",
    "a40",
    "ascend-910b3",
    "b200-sxm",
    "b300-sxm",
    "cpu-grace",
    "cpu-sapphire-rapids",
    "gaudi3",
    "gb200",
    "gb300",
    "h100-pcie",
    "h100-sxm",
    "h20",
    "h200-sxm",
    "l4",
    "l40s",
    "mi300x",
    "mi325x",
    "rtx-4090",
    "rtx-pro-6000",
    "tpu-ironwood",
    "tpu-v5e",
    "tpu-v6e",
]


WeightsName: TypeAlias = Literal[
    "checkpoint", "fp32", "bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4", "fp8_block"
]


class Precision(TypedDict, total=False):
    """Precision."""

    weights: WeightsName
    """Weights; checkpoint: as published."""
    activations: Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]
    """Activations, and the inputs of matrix products."""
    kv: Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]
    """The KV cache."""


CalibrationName: TypeAlias = Literal[
    "a100-sxm-vllm",
    "a100-sxm-vllm.serving",
    "ascend-910b3-bestserve",
    "b200-sxm-sglang",
    "b200-sxm-trtllm",
    "b200-sxm-vllm",
    "b200-sxm-vllm.serving",
    "b300-sxm-sglang",
    "b300-sxm-trtllm",
    "datasheet",
    "h100-sxm-sglang",
    "h100-sxm-trtllm",
    "h100-sxm-vllm",
    "h100-sxm-vllm.serving",
    "h200-sxm-sglang",
    "h200-sxm-trtllm",
    "h200-sxm-vllm",
    "h200-sxm-vllm.serving",
    "l40s-vllm",
    "l40s-vllm.serving",
    "rtx-4090-vllm",
    "rtx-4090-vllm.serving",
    "rtx-pro-6000-vllm",
    "rtx-pro-6000-vllm.serving",
    "vllm.serving",
]


class Batching(TypedDict, total=False):
    """Batching."""

    policy: Literal["static", "continuous", "chunked", "mixed", "orca", "sarathi", "lightllm"]
    """How the scheduler forms the batch of an iteration; where absent as the engine has it."""
    max_num_seqs: int
    """Most sequences of an iteration; where absent as the engine has it."""
    max_num_batched_tokens: int
    """Most tokens of an iteration; where absent as the engine has it, and room for the longest prompt where it is
    computed whole.
    """
    long_prefill_token_threshold: int
    """With chunks, the most prompt tokens of one request in an iteration; 0: no bound."""
    packing: Literal["fcfs", "least_work_left"]
    """Which waiting request is looked at first."""
    tau: float
    """Engine request: a request decodes all the time among 1 / tau of those that it finds; 2.5 in BestServe."""


class Kv(TypedDict, total=False):
    """Kv."""

    admission: Literal["reserve", "on_demand"]
    """reserve: a request enters if its whole KV fits. on_demand: KV is taken as tokens come, with preemption."""
    memory_fraction: float
    """Part of a device's memory for weights, activations and KV (vllm), for weights and KV (sglang), or of what
    weights and activations leave for KV (trtllm); where absent as the engine has it.
    """
    block_tokens: int
    """Tokens of a block of the KV cache; where absent as the engine has it."""
    watermark: float
    """on_demand: part of the cache that an admission leaves free."""
    preemption: Literal["recompute", "swap"]
    """on_demand: what becomes of a preempted request's KV."""
    swap_bandwidth: float | str
    """Bytes per second of a device to host memory."""
    swap_bytes: float | str
    """Host memory per device for it; as much as it takes where absent."""
    capacity_tokens: int
    """Tokens that the cache of a replica holds, as the log of an engine states it; what fits where absent."""
    prefix_caching: bool
    """Whether blocks of prompts and outputs that are known by their content are computed once."""


class Speculative(TypedDict, total=False):
    """Speculative."""

    method: Literal["draft", "mtp", "eagle", "ngram"]
    """Who drafts. draft: a smaller model. mtp: the modules for the tokens after the next that were published with the
    model, each one layer and its head. eagle: a layer with a head that was trained for the model (EAGLE-3). ngram:
    the host, from the text so far.
    """
    tokens: int
    """Tokens drafted for a sequence, and verified, in an iteration."""
    acceptance: float | Sequence[float]
    """Chance that a draft is accepted where all before it were: one rate, or one for each position."""
    model: ModelName | str | Mapping[str, Any]
    """Of method draft, the model that drafts, on the same devices."""
    vocabulary: int
    """Of method eagle, tokens that its head can propose; absent: all of the model."""


RouterName: TypeAlias = Literal[
    "random",
    "round_robin",
    "least_outstanding",
    "least_work",
    "least_tokens",
    "least_kv",
    "least_context",
    "shared_queue",
    "session",
    "prefix_aware",
]


class HeavyLight(TypedDict, total=False):
    """Heavy light."""

    prompt_tokens: int
    """Prompts of at least so many tokens are heavy."""
    heavy_replicas: int
    """The first so many replicas serve them, and only them."""


class HeavyLightRouter(TypedDict, total=False):
    """Heavy light router."""

    heavy_light: HeavyLight


class PrefixAware(TypedDict, total=False):
    """Prefix aware."""

    threshold: float
    """Least part of a prompt in a cache for which it goes there."""
    imbalance: int
    """So many requests more than on another replica are too uneven a load,"""
    imbalance_ratio: float
    """if they are also more than so many times as many."""


class PrefixAwareRouter(TypedDict, total=False):
    """Prefix aware router."""

    prefix_aware: PrefixAware


class HeavyLightPrefill(TypedDict, total=False):
    """Heavy light prefill."""

    heavy_light: HeavyLight


class PrefixAwarePrefill(TypedDict, total=False):
    """Prefix aware prefill."""

    prefix_aware: PrefixAware


class HeavyLightDecode(TypedDict, total=False):
    """Heavy light decode."""

    heavy_light: HeavyLight


class PrefixAwareDecode(TypedDict, total=False):
    """Prefix aware decode."""

    prefix_aware: PrefixAware


class Router(TypedDict, total=False):
    """Router."""

    prefill: RouterName | HeavyLightPrefill | PrefixAwarePrefill
    """Of the prefill side."""
    decode: RouterName | HeavyLightDecode | PrefixAwareDecode
    """Of the decode side."""


class Pool(TypedDict, total=False):
    """Pool."""

    role: Literal["mixed", "prefill", "decode", "stage"]
    """Which phases of a request the replicas compute; stage: none, they serve stages of the pipeline."""
    model: ModelName | str | Mapping[str, Any]
    """A model of the catalog, or {like: NAME} with other layers, heads or experts."""
    hardware: HardwareName | str | Mapping[str, Any]
    """A device of the catalog, or {like: NAME} with other figures."""
    precision: Precision
    """The number formats."""
    engine: Literal["vllm", "trtllm", "sglang"]
    """The serving engine: its kernels and host with calibration auto, and the defaults of its scheduler."""
    calibration: Literal["auto"] | Literal["transferred"] | CalibrationName | str
    """Operator efficiencies. auto: the best set for this hardware and engine; transferred: the median of other
    devices' sets; datasheet; or a name of the catalog.
    """
    replicas: int
    """Identical copies of the model."""
    tensor_parallel: int
    """Devices that share every layer of a replica."""
    pipeline_parallel: int
    """Groups of devices that each hold some of the layers."""
    expert_parallel: int
    """Parts into which the experts of a layer are divided; devices of a part share each expert."""
    data_parallel: int
    """Ranks of a replica, of tensor_parallel x pipeline_parallel devices each, with a scheduler and a KV cache of
    their own, to which the limits of batching and kv apply; the router chooses among the ranks of all replicas.
    Experts are spread over the devices of all ranks, which then run in lockstep.
    """
    redundant_experts: int
    """Second copies of popular experts in each layer, placed by a balancer (EPLB)."""
    expert_exchange: Literal["gather", "all_to_all"]
    """How data-parallel ranks send tokens to the experts: all states are gathered everywhere (vLLM's and SGLang's
    default), or all_to_all sends each to the devices of its experts (DeepEP and its kin).
    """
    batching: Batching
    """The scheduler of a replica."""
    kv: Kv
    """The KV cache of a replica."""
    speculative: Speculative
    """Speculative decoding: tokens are drafted and verified together; absent: none are."""
    usd_per_device_hour: float | str
    """Price of a device; that of the catalog where absent."""
    weight: float
    """Share of the requests, relative to the other pools of this role and model; as many as its replicas where absent.
    """


class Link(TypedDict, total=False):
    """Link."""

    bandwidth: float | str
    """Bytes per second between a prefill and a decode replica."""
    latency: float | str
    """Seconds until bytes that were sent arrive."""


class Transfer(TypedDict, total=False):
    """Transfer."""

    link: (
        Literal["ethernet-100g", "ethernet-25g", "inter-rack", "nvlink", "pcie-gen4-x4", "pcie-gen5-x16", "rdma-400g"]
        | str
        | Link
    )
    """A link of the catalog, or {bandwidth: 50GB/s, latency: 5us}."""
    granularity: Literal["cache", "layer"]
    """cache: sent once the prompt is computed. layer: sent layer by layer while it is computed."""
    dtype: Literal["auto", "fp32", "bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]
    """Sent so; auto: as the narrower KV cache of the two."""
    shared: Literal["per_replica", "none"]
    """per_replica: a prefill replica sends one request after the other. none: all at once, none waits."""
    figures: Literal["per_replica", "per_device"]
    """per_replica: the link is of all devices of a replica. per_device: every device has one, and the side with fewer
    devices bounds a transfer.
    """
    groups: int
    """1: any decode replica serves what any prefill replica computed. More: within fixed groups of replicas."""
    backpressure: bool
    """Whether a prefill replica keeps a request's KV until it is sent, which waits for room on the decode side."""


class Deployment(TypedDict, total=False):
    """What serves it."""

    model: ModelName | str | Mapping[str, Any]
    """A model of the catalog, or {like: NAME} with other layers, heads or experts."""
    hardware: HardwareName | str | Mapping[str, Any]
    """A device of the catalog, or {like: NAME} with other figures."""
    precision: Precision
    """The number formats."""
    engine: Literal["vllm", "trtllm", "sglang"]
    """The serving engine: its kernels and host with calibration auto, and the defaults of its scheduler."""
    calibration: Literal["auto"] | Literal["transferred"] | CalibrationName | str
    """Operator efficiencies. auto: the best set for this hardware and engine; transferred: the median of other
    devices' sets; datasheet; or a name of the catalog.
    """
    replicas: int
    """Identical copies of the model."""
    tensor_parallel: int
    """Devices that share every layer of a replica."""
    pipeline_parallel: int
    """Groups of devices that each hold some of the layers."""
    expert_parallel: int
    """Parts into which the experts of a layer are divided; devices of a part share each expert."""
    data_parallel: int
    """Ranks of a replica, of tensor_parallel x pipeline_parallel devices each, with a scheduler and a KV cache of
    their own, to which the limits of batching and kv apply; the router chooses among the ranks of all replicas.
    Experts are spread over the devices of all ranks, which then run in lockstep.
    """
    redundant_experts: int
    """Second copies of popular experts in each layer, placed by a balancer (EPLB)."""
    expert_exchange: Literal["gather", "all_to_all"]
    """How data-parallel ranks send tokens to the experts: all states are gathered everywhere (vLLM's and SGLang's
    default), or all_to_all sends each to the devices of its experts (DeepEP and its kin).
    """
    batching: Batching
    """The scheduler of a replica."""
    kv: Kv
    """The KV cache of a replica."""
    speculative: Speculative
    """Speculative decoding: tokens are drafted and verified together; absent: none are."""
    router: RouterName | HeavyLightRouter | PrefixAwareRouter | Router
    """Which replica a request goes to; with prefill and decode pools also {prefill: ROUTER, decode: ROUTER}."""
    role: Literal["mixed", "prefill", "decode"]
    """Which phases the replicas compute; the other is elsewhere."""
    usd_per_device_hour: float | str
    """Price of a device; that of the catalog where absent."""
    pools: Mapping[str, Pool | None]
    """Pools of one role or of prefill and decode, by name; keys beside them hold for each that says nothing."""
    transfer: Transfer
    """How KV comes from the prefill to the decode pools."""


class PrefillPipeline(TypedDict, total=False):
    """Prefill pipeline."""

    stage: Literal["prefill"]
    """What the stage is."""


class DecodePipeline(TypedDict, total=False):
    """Decode pipeline."""

    stage: Literal["decode"]
    """What the stage is."""
    tokens: int
    """What it gives, such as a call of a tool; the request's output where absent."""
    reasoning: Reasoning
    """Longer outputs, or branches: another place for workload.reasoning."""


class Times(TypedDict, total=False):
    """Times."""

    mean: float
    """Mean of a geometric number of rounds, before the clip."""
    max: int
    """Most rounds."""


class PreprocessPipeline(TypedDict, total=False):
    """Preprocess pipeline."""

    stage: Literal["preprocess"]
    """What the stage is."""
    seconds: float | str
    """Of every request."""
    seconds_per_token: float | str
    """Of every token of the prompt."""
    servers: int
    """Requests at a time, first come, first served; any number where absent, or the pool's replicas."""
    model: ModelName | str | Mapping[str, Any]
    """A small model that reads the prompt on the stage's pool, behind that."""
    tokens: int
    """Tokens that are added to the prompt: a template, what was rewritten."""
    pool: str
    """A pool of deployment.pools with role stage, on whose devices it runs."""
    only: str | Sequence[str]
    """Of workload.pipelines those whose requests pass it; all where absent."""
    back_to: str
    """A stage before it, to which requests go back from here."""
    times: int | Times
    """How often a request comes here and goes back, before it passes the stage by: a number, or {mean: 2, max: 8}."""


class Index(TypedDict, total=False):
    """What is searched."""

    centroids: int
    """Lists of the index."""
    probes: int
    """Lists that a query searches."""
    points_per_probe: float
    """Vectors in a list."""
    kind: Literal["ivf_pq"]
    """An inverted file with product quantisation."""
    dimensions: int
    """Of a vector; the hidden size of the embedding model where absent."""
    pq_bytes: float
    """Of a coded vector; a byte for 8 dimensions where absent."""
    centroid_dtype: Literal["fp32", "bf16", "fp16", "fp8", "int8"]
    """Of centroids and plain vectors."""
    rescored: int
    """Vectors that are compared again with their plain ones."""
    reuse_centroids: bool
    """A batch of queries reads the centroids once, not each for itself."""
    spread: Literal["best", "across_queries", "within_query"]
    """Of queries over cores: each on one, or each on all; best: the faster for the size of the batch."""


class RetrievePipeline(TypedDict, total=False):
    """Retrieve pipeline."""

    stage: Literal["retrieve"]
    """What the stage is."""
    index: Index
    """What is searched."""
    documents: int
    """Documents that are added to the prompt."""
    tokens_per_document: int
    """Tokens that each adds."""
    embedding: ModelName | str | Mapping[str, Any]
    """A model that embeds the prompt; none where absent."""
    embedding_pool: str
    """Where that is done; the stage's pool where absent."""
    reranker: ModelName | str | Mapping[str, Any]
    """A model that reads the prompt with every candidate."""
    reranker_pool: str
    """Where that is done; the stage's pool where absent."""
    candidates: int
    """Documents that the re-ranker reads; as many as it keeps where absent."""
    max_batch: int
    """Queries that are searched for together at most."""
    max_wait_s: float | str
    """How long a query waits for others at most."""
    link: (
        Literal["ethernet-100g", "ethernet-25g", "inter-rack", "nvlink", "pcie-gen4-x4", "pcie-gen5-x16", "rdma-400g"]
        | str
    )
    """Over which the documents come to the model, one request after the other."""
    bytes_per_token: float
    """Of a document's text on the link."""
    pool: str
    """A pool of deployment.pools with role stage, on whose devices it runs."""
    only: str | Sequence[str]
    """Of workload.pipelines those whose requests pass it; all where absent."""
    back_to: str
    """A stage before it, to which requests go back from here."""
    times: int | Times
    """How often a request comes here and goes back, before it passes the stage by: a number, or {mean: 2, max: 8}."""


class Tiers(TypedDict, total=False):
    """Tiers."""

    storage: Literal["cxl", "ddr4", "ddr5", "hbm", "lpddr", "nvme", "object-store", "platform-pool", "rack-pool"] | str
    """A storage of the catalog; absent: described by the other keys."""
    hit: float
    """Of the requests that come to it, the part that finds its context."""
    shared_by: Literal["all"] | int
    """Replicas that share one, its capacity and bandwidth; or all. Instead of the storage's."""
    bandwidth: float | str
    """Instead of the storage's."""
    latency: float | str
    """Of a lookup, whether it finds something or not."""
    capacity: float | str
    """Of KV that it keeps; instead of the storage's."""
    transfers: Literal["any"] | int
    """At a time, each at the whole bandwidth; any: none waits for another."""


class Popularity(TypedDict, total=False):
    """Popularity."""

    contexts: int
    """How many different ones are asked for: users, documents."""
    zipf: float
    """The k-th of them in proportion to k^-zipf; 0: all alike."""
    at_home: bool
    """true: the requests of a context always come to the same tiers. false: to those of any replica."""


class KvFetchPipeline(TypedDict, total=False):
    """Kv fetch pipeline."""

    stage: Literal["kv_fetch"]
    """What the stage is."""
    tiers: Sequence[
        Literal["cxl", "ddr4", "ddr5", "hbm", "lpddr", "nvme", "object-store", "platform-pool", "rack-pool"]
        | str
        | Tiers
    ]
    """Asked one after the other; [] is no cache: all is computed."""
    tokens: int
    """Of the context of each request, in front of its prompt."""
    share: float
    """Of each prompt the leading part that is its context."""
    popularity: Popularity
    """Of the contexts, from which hit rates follow; all tiers keep the last (LRU)."""
    to_decode: bool
    """true: a decode side gets it as well, over the same bandwidth; the prefill side sends only the rest."""
    prefetch: bool
    """true: asked for when the client sends, beside the stages before this one."""
    pool: str
    """A pool of deployment.pools with role stage, on whose devices it runs."""
    only: str | Sequence[str]
    """Of workload.pipelines those whose requests pass it; all where absent."""
    back_to: str
    """A stage before it, to which requests go back from here."""
    times: int | Times
    """How often a request comes here and goes back, before it passes the stage by: a number, or {mean: 2, max: 8}."""


class ToolPipeline(TypedDict, total=False):
    """Tool pipeline."""

    stage: Literal["tool"]
    """What the stage is."""
    seconds: float | str
    """What a call takes, or its mean."""
    distribution: Literal["fixed", "exponential", "lognormal"]
    """Of the time of a call; drawn by seed and request."""
    cv: float
    """lognormal: coefficient of variation, standard deviation over mean."""
    servers: int
    """Calls at a time, first come, first served; any number where absent, or the pool's replicas."""
    tokens: int
    """Tokens of what it gives back, which are added to the prompt."""
    pool: str
    """A pool of deployment.pools with role stage, on whose devices it runs."""
    only: str | Sequence[str]
    """Of workload.pipelines those whose requests pass it; all where absent."""
    back_to: str
    """A stage before it, to which requests go back from here."""
    times: int | Times
    """How often a request comes here and goes back, before it passes the stage by: a number, or {mean: 2, max: 8}."""


class PostprocessPipeline(TypedDict, total=False):
    """Postprocess pipeline."""

    stage: Literal["postprocess"]
    """What the stage is."""
    kind: Literal["detokenise", "guard", "outcome_reward", "process_reward"]
    """What is done."""
    seconds: float | str
    """detokenise: of every request."""
    seconds_per_token: float | str
    """detokenise: of every output token."""
    servers: int
    """detokenise: answers at a time; any number where absent."""
    model: ModelName | str | Mapping[str, Any]
    """The guard or reward model, which runs on the stage's pool."""
    pool: str
    """A pool of deployment.pools with role stage, on whose devices it runs."""
    only: str | Sequence[str]
    """Of workload.pipelines those whose requests pass it; all where absent."""
    back_to: str
    """A stage before it, to which requests go back from here."""
    times: int | Times
    """How often a request comes here and goes back, before it passes the stage by: a number, or {mean: 2, max: 8}."""


class Slo(TypedDict, total=False):
    """Slo."""

    ttft: Mapping[str, float | str]
    """Time to the first token, from the arrival."""
    tpot: Mapping[str, float | str]
    """Time per output token after the first."""
    itl: Mapping[str, float | str]
    """Gaps between successive tokens, pooled over all tokens."""
    e2e: Mapping[str, float | str]
    """Time to the last token, from the arrival."""
    queue_wait: Mapping[str, float | str]
    """Time until a request is first scheduled."""
    relax: float
    """Every bound is taken 1 + relax times as large (BestServe: 0.1)."""


class Budget(TypedDict, total=False):
    """What a design may take, for optimize."""

    devices: int
    """Most devices of a design, all replicas and pools together."""
    usd_per_hour: float | str
    """Most dollars per hour of a design."""
    fill: bool
    """Whether each design gets as many replicas as the budget takes."""


class Demand(TypedDict, total=False):
    """What a design has to serve, for optimize."""

    rate_rps: float | str
    """Requests per second that a design has to serve."""


class Scenario(TypedDict, total=False):
    """Scenario."""

    name: str
    """Names the files of the results."""
    workload: Workload
    """What is asked of the servers."""
    deployment: Deployment
    """What serves it."""
    pipeline: (
        Sequence[
            Literal["prefill", "decode", "preprocess", "retrieve", "kv_fetch", "tool", "postprocess"]
            | PrefillPipeline
            | DecodePipeline
            | PreprocessPipeline
            | RetrievePipeline
            | KvFetchPipeline
            | ToolPipeline
            | PostprocessPipeline
        ]
        | Mapping[
            str,
            Literal["prefill", "decode", "preprocess", "retrieve", "kv_fetch", "tool", "postprocess"]
            | PrefillPipeline
            | DecodePipeline
            | PreprocessPipeline
            | RetrievePipeline
            | KvFetchPipeline
            | ToolPipeline
            | PostprocessPipeline
            | None,
        ]
    )
    """The stages that a request passes; prefill and decode where absent."""
    slo: Slo
    """Objectives: bounds in seconds."""
    budget: Budget
    """What a design may take, for optimize."""
    demand: Demand
    """What a design has to serve, for optimize."""
    sweep: Mapping[str, Any]
    """The axes of the grid, which is their product."""
