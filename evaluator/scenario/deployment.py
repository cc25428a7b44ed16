"""``deployment``: what serves the requests, one pool of identical replicas or several pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from evaluator.catalog.api_servers import ApiServerTimes
from evaluator.catalog.attention_kernels import AUTO, BACKENDS
from evaluator.catalog.choice import CHOSEN
from evaluator.catalog.engines import DEFAULT_ENGINE, ENGINES, serving_engine
from evaluator.catalog.store import find
from evaluator.catalog.what_if import WhatIf
from evaluator.cost.parallel import EXCHANGES, GATHER
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.keys import (
    REQUIRED,
    Place,
    Reader,
    Schema,
    absent,
    choice,
    count,
    flag,
    hardware_name,
    in_catalog,
    key,
    model_name,
    named,
    no_key,
    number,
    optional,
    quantity,
    schema_of,
    section,
    section_of,
    shown,
    table_of,
    written,
)
from evaluator.kv_managers import MANAGERS
from evaluator.policies import POLICIES
from evaluator.routing import Choice
from evaluator.scenario.adapters import Lora, lora_reader
from evaluator.scenario.autoscaling import Autoscaling, autoscaling_reader
from evaluator.scenario.failures import Failures, failures_reader
from evaluator.scenario.feed_forward_apart import FeedForwardApart, feed_forward_apart_reader
from evaluator.scenario.host import HostSpeed, api_server_times_reader, host_reader
from evaluator.scenario.offload import OffloadTier, offload_tiers_reader
from evaluator.scenario.pipeline import Stage
from evaluator.scenario.routers import Routers, Split, router_reader, split_reader, written_routers
from evaluator.scenario.transfer import Transfer, transfer_reader
from evaluator.speculation import Speculative, decode_tokens, speculative_reader

MOST_REPLICAS = 10_000
STAGE = "stage"
"""The role of a pool that computes no part of the answers, for stages of the pipeline."""
PHASES = ("mixed", "prefill", "decode")
"""The roles of pools that give the answers."""

# Those registered when a file is read or a schema written, so that a policy of one's own counts.
_policy = Reader(lambda value, place: choice(*POLICIES)(value, place), lambda: schema_of(choice(*POLICIES)))


def _registered_manager(value: Any, place: Place) -> str:
    if not MANAGERS:
        raise place.error(f"no KV manager {shown(value)} is registered; see docs/parts.md")
    return choice(*MANAGERS)(value, place)


# No names in the schema: which managers there are, only the program that registers them knows.
_manager = Reader(_registered_manager, lambda: {"type": "string"})

PRIORITY, SHORTEST_FIRST = "priority", "shortest_first"  # of ``packing``
BY_PRIORITY = (PRIORITY, SHORTEST_FIRST)
"""Packings that rank requests by a number: it decides which is admitted next and, short of KV, which is preempted."""
AT_ONCE, QUEUED, ASYNCHRONOUS = "at_once", "queued", "asynchronous"
PLANNINGS = (AT_ONCE, QUEUED, ASYNCHRONOUS)
"""When a scheduler plans the next batch."""

_OF_ENGINE = "where absent as the engine has it"


@dataclass(frozen=True)
class Batching:
    """``max_num_batched_tokens`` None: as the engine has it, with room for the longest prompt where that is whole.

    As read from a file, ``policy``, ``max_num_seqs`` and ``planning`` are None where it does not say them, which means
    the engine's defaults (``engine_defaults``); the values here are those of vLLM 0.15 on a small device.

    ``tau`` is of the request-level engine alone, which lets a request decode all the time among a share 1 / tau of
    those that it finds. BestServe takes 2.5, which lets all decode too fast (``plan.request_level``).
    """

    # Defaults in Python and absence in a file differ here: a record made by hand is a vLLM on a small device, a file
    # that says nothing means the engine and device that it names, which are known only when all keys are.
    policy: str = key(
        _policy, "chunked", f"How the scheduler forms the batch of an iteration; {_OF_ENGINE}.", absent=None
    )
    max_num_seqs: int = key(count(), 256, f"Most sequences of an iteration; {_OF_ENGINE}.", absent=None)
    max_num_batched_tokens: int | None = key(
        count(),
        None,
        f"Most tokens of an iteration; {_OF_ENGINE}, and room for the longest prompt where it is computed whole.",
    )
    # vLLM's own names for what is vLLM's, so that a line of its configuration can be copied (`SchedulerConfig`).
    long_prefill_token_threshold: int = key(
        count(least=0), 0, "With chunks, the most prompt tokens of one request in an iteration; 0: no bound."
    )
    # Ours, not vLLM's `--scheduling-policy`, which has fcfs and priorities alone.
    packing: str = key(
        choice("fcfs", "least_work_left", PRIORITY, SHORTEST_FIRST, "longest_prefix"),
        "fcfs",
        "Which waiting request is looked at first. priority: policy chunked; the smallest priority of workload.classes "
        "or of a trace's column, and where KV runs short the largest gives way, as vLLM with --scheduling-policy "
        "priority. shortest_first: likewise by the output that is predicted for each, the fewest tokens first. "
        "longest_prefix: policy token_ratio; whoever finds most in the prefix cache, as SGLang with "
        "--schedule-policy lpm.",
    )
    prediction_error: float = key(
        number(least=0, most=10),
        0.0,
        "Packing shortest_first: a prediction is the true output times e to a normal number of this standard "
        "deviation; 0: it is true.",
    )
    aging_tokens_per_s: float = key(
        number(least=0),
        0.0,
        "Packing shortest_first: so many tokens shorter counts a request for each second that it has been there, so "
        "that long ones are not passed for ever; 0: they are.",
    )
    # SGLang's own names for what is SGLang's (`ServerArgs`).
    max_queued_requests: int | None = key(
        count(),
        None,
        "Most requests that wait at a replica: who comes to find so many is refused, as by SGLang and by gateways; no "
        "bound where absent.",
    )
    schedule_conservativeness: float = key(
        number(above=0, most=100),
        1.0,
        "Policy token_ratio: scales the part of their tokens that running requests are expected to generate.",
    )
    max_prefill_tokens: int = key(
        count(),
        16384,
        "Policy token_ratio: most prompt tokens of an iteration, beside max_num_batched_tokens, which bounds chunks.",
    )
    enable_mixed_chunk: bool = key(
        flag, False, "Policy token_ratio: decodes join the iterations of prompts, where there is KV for them."
    )
    # As vLLM's `async_scheduling` or its batch queue of a pipeline (`EngineCore.step_with_batch_queue`): one key, since
    # a scheduler plans by one of them.
    planning: str = key(
        choice(*PLANNINGS),
        AT_ONCE,
        "When a batch is planned. at_once: as soon as a pipeline rank is free. queued: as by vLLM's engine core, which "
        "waits for its oldest batch. asynchronous: before the tokens of the batch under way are known. Where absent as "
        "the table of the engine's defaults has it.",
        absent=None,
    )
    tau: float = key(
        number(above=0, most=1000),
        1.0,
        "Engine request: a request decodes all the time among 1 / tau of those that it finds; 2.5 in BestServe.",
    )


@dataclass(frozen=True)
class KvCache:
    """``admission`` reserve: a request enters only if its whole KV fits, prompt and output.

    on_demand: KV is taken as tokens come, and where it runs out the request admitted last is preempted: computed anew,
    or copied to ``swap_bytes`` of host memory per device (None: as much as it takes) at ``swap_bandwidth`` (byte/s of a
    device). ``prefix_caching``: blocks whose content is known (``Sessions``, or columns of a trace) are computed once;
    those of mere system prompts then stay in the cache, others are evicted in the order in which they were last used.
    ``offload_bytes``: what is evicted is found in host memory (``reference.host_cache``), ``offload_tiers``: or behind
    it (``reference.offload_stores``).
    As read from a file ``admission``, ``memory_fraction``, ``block_tokens``, ``full_prompt`` and ``prefix_caching`` are
    None where it does not say them: then they are the engine's (``engine_defaults``).
    """

    admission: str = key(
        choice("reserve", "on_demand"),
        "reserve",
        "reserve: a request enters if its whole KV fits. on_demand: KV is taken as tokens come, with preemption. Where "
        "absent as the engine has it, if policy and limits let it.",
        absent=None,
    )
    # One key for three meanings, as engines' own flags have them (`catalog.engines`): a part of different wholes.
    memory_fraction: float = key(
        number(above=0, most=1),
        0.9,
        "Part of a device's memory for weights, activations and KV (vllm), for weights and KV (sglang), or of what "
        f"weights and activations leave for KV (trtllm); {_OF_ENGINE}.",
        absent=None,
    )
    block_tokens: int = key(count(), 16, f"Tokens of a block of the KV cache; {_OF_ENGINE}.", absent=None)
    # vLLM v0 kept 0.01 of its blocks free, lest the next decode preempt what was just admitted.
    watermark: float = key(
        number(least=0, most=0.5), 0.0, "on_demand: part of the cache that an admission leaves free."
    )
    full_prompt: bool = key(
        flag,
        False,
        "on_demand: a request enters only where its whole prompt fits, as in vLLM with scheduler_reserve_full_isl; "
        f"{_OF_ENGINE}.",
        absent=None,
    )
    preemption: str = key(
        choice("recompute", "swap"), "recompute", "on_demand: what becomes of a preempted request's KV."
    )
    # No default: what a host's memory takes depends on the machine, and the catalog of devices does not know hosts
    # (`check_kv`).
    swap_bandwidth: float | None = key(
        quantity("byte/s", above=0), None, "Bytes per second of a device to host memory."
    )
    swap_bytes: float | None = key(
        quantity("byte", least=0), None, "Host memory per device for it; as much as it takes where absent."
    )
    offload_bytes: float | None = key(
        quantity("byte", above=0),
        None,
        "Host memory of a replica (of each rank, with data_parallel) under its prefix cache, over all of its devices; "
        "none where absent. Blocks are copied there, found there, and loaded from there while others run.",
    )
    offload_bandwidth: float | None = key(
        quantity("byte/s", above=0), None, "Bytes per second of a device to that memory, and as many from it."
    )
    offload_answers: bool = key(
        flag, False, "Whether blocks of answers are copied to it, too; those of prompts alone are vLLM's default."
    )
    # The words of SGLang's `--hicache-write-policy`; vLLM has the first alone.
    offload_write: str = key(
        choice("write_through", "write_through_selective", "write_back"),
        "write_through",
        "When a block is copied to it: as it is computed; when a second request has it while it is on the device; or, "
        "answers too, when the device takes it for another.",
    )
    offload_tiers: tuple[OffloadTier, ...] = key(
        offload_tiers_reader,
        (),
        "Storage behind that memory, of which a replica has one each, or several share one: [nvme, {storage: "
        "rack-pool, shared_by: all}]. What comes to host memory is written to all; asked in this order.",
    )
    capacity_tokens: int | None = key(
        count(),
        None,
        "Tokens that the cache of a replica holds, as the log of an engine states it; what fits where absent.",
    )
    prefix_caching: bool = key(
        flag,
        False,
        "Whether blocks of prompts and outputs that are known by their content are computed once. Where absent as the "
        "engine has it, if turns, sessions or hash_ids say what is in the blocks, of one pool without stages.",
        absent=None,
    )
    layer_groups: bool = key(
        flag,
        False,
        "Whether the layers of a hybrid model (windows, chunks or states beside full attention) keep their KV in "
        "groups that take blocks from one pool, as by vLLM's hybrid KV cache manager. The reference computes it; "
        "without it a sequence takes the bytes that its layers keep.",
    )
    manager: str | None = key(
        _manager, None, "A KV manager that a program of one's own has registered (docs/parts.md); else the engine's."
    )


def check_kv(kv: KvCache, place: Place) -> None:
    """Refuses swapping, and an offload, without a bandwidth: how fast KV is copied to host memory is for the user to
    say."""
    if kv.preemption == "swap" and kv.swap_bandwidth is None:
        raise place.key("swap_bandwidth").error(
            "is required with preemption swap: bytes per second of one device to host memory, such as 25GB/s"
        )
    if kv.offload_bytes is not None and kv.offload_bandwidth is None:
        raise place.key("offload_bandwidth").error(
            "is required with offload_bytes: bytes per second of one device to host memory, such as 50GB/s"
        )
    if kv.offload_tiers and kv.offload_bytes is None:
        raise place.key("offload_bytes").error(
            "is required with offload_tiers: all that goes to them and comes from them goes through host memory"
        )


def check_engine(pool: Pool, place: Place) -> None:
    """Refuses a release that the engine's table does not know, and two keys that say different plannings."""
    if pool.engine_version is not None:
        try:
            serving_engine(pool.engine).release(pool.engine_version)
        except InputError as error:
            raise place.key("engine_version").error(str(error)) from None
    of_vllm, planning = pool.async_scheduling, pool.batching.planning
    # Both may be said where they agree: a deployment that was imported has vLLM's word, a sweep beside it ours.
    if of_vllm is not None and planning is not None and of_vllm != (planning == ASYNCHRONOUS):
        raise place.key("async_scheduling").error(
            f"is {str(of_vllm).lower()} beside batching.planning: {planning}; say the one or the other"
        )


_calibration_set = in_catalog("calibrations", lambda name: find("calibrations", name))


def _calibration(value: Any, place: Place) -> str:
    return value if isinstance(value, str) and value in CHOSEN else _calibration_set(value, place)


def _calibration_schema() -> Schema:
    return {"anyOf": [*({"const": name} for name in CHOSEN), *schema_of(_calibration_set)["anyOf"]]}


def _read_release(value: Any, place: Place) -> str:
    """Whether the engine has it is for the whole of the keys to say (``check_engine``)."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise place.error(f"expected a release such as '0.15', got {shown(value)}")
    # YAML reads 0.15 as a number. (0.10 would lose its zero, which is why the examples are in quotes.)
    return str(value)


_release = Reader(_read_release, {"anyOf": [{"type": "string"}, {"type": "number"}]})


_ONE_REPLICA = "simulate one replica under its share of the rate, or fewer replicas and scale the result"


@dataclass(frozen=True)
class Pool:
    """Identical replicas. Of one of several pools a file may leave out all but the role: then a key is None, as is each
    key of ``precision``, ``batching`` and ``kv``, and what is said beside the pools holds (``pools.pools_of``).

    ``weight`` is the pool's share of the requests, relative to the other pools that serve the same phase and model;
    None: its replicas, so that every replica gets as many. Its ``router`` is said beside the pools.
    """

    # The two keys without a default come first, and may be given by position; all others are keyword-only, so that a
    # key added in their midst moves none of them.
    model: str | WhatIf = key(
        model_name, says="A model of the catalog, or {like: NAME} with other layers, heads or experts."
    )
    hardware: str | WhatIf = key(hardware_name, says="A device of the catalog, or {like: NAME} with other figures.")
    _: KW_ONLY
    precision: Precision = key(section(Precision), Precision(), "The number formats.")
    engine: str = key(
        choice(*ENGINES),
        DEFAULT_ENGINE,
        "The serving engine: its kernels and host with calibration auto, and the defaults of its scheduler.",
    )
    engine_version: str | None = key(
        _release,
        None,
        "Release of the engine, such as '0.15', whose defaults hold where nothing is said (evaluator catalog engines); "
        "the newest of their table where absent.",
    )
    async_scheduling: bool | None = key(
        flag,
        None,
        "Whether the engine plans the next batch before the tokens of the one under way are known, as "
        "batching.planning asynchronous or at_once says in our words.",
    )
    attention_backend: str = key(
        choice(*BACKENDS),
        AUTO,
        "Kernels of decode attention: the engine's own choice, or FlashInfer's own (SGLang: --attention-backend "
        "flashinfer; vLLM on Blackwell: use_trtllm_attention false), which unpack KV in 8 bits.",
    )
    eager: bool = key(
        flag,
        False,
        "The engine captures no CUDA graphs (vLLM: --enforce-eager), so that its host launches the kernels of every "
        "iteration.",
    )
    calibration: str = key(
        Reader(_calibration, _calibration_schema),
        "auto",
        "Operator efficiencies. auto: the best set for this hardware and engine; transferred: the median of other "
        "devices' sets; datasheet; or a name of the catalog.",
    )
    host: str | HostSpeed | None = key(
        host_reader,
        None,
        "The CPU that schedules, launches and streams: one of the catalog whose file says its host_speed, or {speed: "
        "1.3}; absent: the host on which the calibration set was measured.",
    )
    api_servers: int | None = key(
        count(most=4096),
        None,
        "Processes of a replica that talk to clients (vLLM's --api-server-count, SGLang's --tokenizer-worker-num), "
        "among which requests are shared out in turn; where absent as the engine has it.",
    )
    api_server_times: ApiServerTimes | None = key(
        api_server_times_reader,
        None,
        "What an API server takes of its processor, on the host of the calibration set: tokens wait there for one "
        "another. Where absent as the calibration set has it, and of one that does not tell nothing waits.",
    )
    replicas: int = key(count(most=MOST_REPLICAS, remedy=_ONE_REPLICA), 1, "Identical copies of the model.")
    tensor_parallel: int = key(count(most=4096), 1, "Devices that share every layer of a replica.")
    pipeline_parallel: int = key(count(most=4096), 1, "Groups of devices that each hold some of the layers.")
    expert_parallel: int = key(
        count(most=4096),
        1,
        "Parts into which the experts of a layer are divided; devices of a part share each expert.",
    )
    data_parallel: int = key(
        count(most=4096),
        1,
        "Ranks of a replica, of tensor_parallel x pipeline_parallel devices each, with a scheduler and a KV cache of "
        "their own, to which the limits of batching and kv apply; the router chooses among the ranks of all replicas. "
        "Experts are spread over the devices of all ranks, which then run in lockstep.",
    )
    redundant_experts: int = key(
        count(least=0, most=4096), 0, "Second copies of popular experts in each layer, placed by a balancer (EPLB)."
    )
    expert_exchange: str = key(
        choice(*EXCHANGES),
        GATHER,
        "How data-parallel ranks send tokens to the experts: all states are gathered everywhere (vLLM's and SGLang's "
        "default), or each goes to the devices of its experts by NCCL's all_to_all, by DeepEP's normal or low-latency "
        "kernels, or by TensorRT-LLM's over nvlink.",
    )
    two_batch_overlap: bool = key(
        flag,
        False,
        "Whether a batch is split in two halves, one of which computes while the other exchanges tokens with the "
        "experts (vLLM's --enable-dbo, SGLang's --enable-two-batch-overlap).",
    )
    decode_context_parallel: int = key(
        count(most=4096),
        1,
        "Parts into which the KV of a sequence is split along its tokens, over devices of the tensor-parallel group "
        "that would keep the same KV heads (vLLM's --decode-context-parallel-size).",
    )
    prefill_context_parallel: int = key(
        count(most=4096),
        1,
        "Copies of the tensor-parallel group over which the tokens of prompts are split; each keeps the whole KV, and "
        "experts are spread over all of them (vLLM's --prefill-context-parallel-size, SGLang's --attn-cp-size).",
    )
    feed_forward_apart: FeedForwardApart | None = key(
        feed_forward_apart_reader,
        None,
        "Devices of their own for feed-forwards, which micro-batches reach from those for attention in turn (AFD); "
        "absent: each device computes both.",
    )
    batching: Batching = key(section(Batching), Batching(), "The scheduler of a replica.", absent=absent(Batching))
    kv: KvCache = key(section(KvCache, check_kv), KvCache(), "The KV cache of a replica.", absent=absent(KvCache))
    speculative: Speculative | None = key(
        speculative_reader, None, "Speculative decoding: tokens are drafted and verified together; absent: none are."
    )
    lora: Lora | None = key(
        lora_reader, None, "LoRA adapters that the engine holds beside the model, as workload.adapters are named."
    )
    autoscaling: Autoscaling | None = key(
        autoscaling_reader, None, "Replicas that come and go, of which replicas are the most; absent: all are there."
    )
    failures: Failures | None = key(
        failures_reader,
        None,
        "Replicas that fail and are repaired, and what becomes of their requests; absent: none does.",
    )
    # No key of a pool, but ``Deployment`` has it here: messages and the schema list keys in the order of the fields.
    router: Choice | Routers = no_key("round_robin")
    role: str = key(
        choice(*PHASES, STAGE),
        "mixed",
        "Which phases of a request the replicas compute; stage: none, they serve stages of the pipeline.",
        absent=REQUIRED,
    )
    usd_per_device_hour: float | None = key(
        quantity("USD/h", least=0), None, "Price of a device; that of the catalog where absent."
    )
    weight: float | None = key(
        number(above=0),
        None,
        "Share of the requests, relative to the other pools of this role and model; as many as its replicas where "
        "absent.",
    )

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of all replicas: each has a scheduler and a KV cache, and routers choose among them."""
        return self.replicas * self.data_parallel

    @property
    def shared_block_tokens(self) -> int:
        """Tokens of a block of the KV cache on all ranks that share a sequence's, which schedulers see as one."""
        return self.kv.block_tokens * self.decode_context_parallel

    @property
    def decode_tokens(self) -> int:
        """Tokens that a decode takes of an iteration: one, or with drafts as many as it verifies."""
        return decode_tokens(self.speculative)


# The role is the one key that a pool must say; all others may stand beside the pools.
POOL = {"role": table_of(Pool)["role"], **optional({k: v for k, v in table_of(Pool).items() if k != "role"})}
"""The keys of one of several pools."""


def _check_roles(pools: Mapping[str, Pool], place: Place) -> None:
    """Mixed pools, or a prefill side and a decode side, or both; with any number of pools for stages."""
    if not pools:
        raise place.error("holds no pool: all are null; describe one such as {a: {role: mixed}}, or leave pools out")
    # Pools for stages give no part of an answer, so that they go with either kind.
    pools = {name: pool for name, pool in pools.items() if pool.role != STAGE}
    having = {role: [name for name, pool in pools.items() if pool.role == role] for role in PHASES}
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        if having[role] and not having[other]:
            raise place.error(
                f"the {role} pool {having[role][0]} needs a {other} pool beside it; add one with role: {other}, "
                "or use role: mixed"
            )


@dataclass(frozen=True)
class Deployment(Pool):
    """One pool of identical replicas, or with ``pools`` what holds for each of them that says nothing else.

    ``pipeline`` are the stages by name, in their order; none means prefill and decode.
    """

    _: KW_ONLY
    # Three fields of ``Pool`` are said anew: a deployment's router is not refused as a pool's is, its role may be
    # absent, and it has no weight, for there is nothing beside it.
    router: Choice | Routers = key(
        router_reader,
        "round_robin",
        "Which replica a request goes to; with prefill and decode pools also {prefill: ROUTER, decode: ROUTER}.",
    )
    role: str = key(choice(*PHASES), "mixed", "Which phases the replicas compute; the other is elsewhere.")
    weight: float | None = no_key(None)  # of one of several pools
    pools: Mapping[str, Pool] | None = key(
        named(section_of(POOL, Pool), _check_roles),
        None,
        "Pools of mixed replicas, of prefill and decode, or all of these, by name; keys beside them hold for each that "
        "says nothing.",
    )
    split: Split = key(
        split_reader,
        Split(),
        "With mixed pools beside prefill and decode pools: which requests go to which.",
    )
    transfer: Transfer = key(transfer_reader, Transfer(), "How KV comes from the prefill to the decode pools.")
    autoscaling_devices: int | None = key(
        count(),
        None,
        "Most devices of the pools with autoscaling together, shared out where these want more; no bound where absent.",
    )
    pipeline: Mapping[str, Stage] = no_key({})  # a section of its own
    one_of_several: bool = no_key(False)  # of a pool as ``pools_of`` gives it: others answer beside it

    def written(self) -> dict[str, Any]:
        """As the tree it could have been read from, see ``keys.written``."""
        keys = {name: written(getattr(self, name)) for name in table_of(Deployment)}
        return {**keys, "router": written_routers(self.router)}
