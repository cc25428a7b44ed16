"""``vllm serve``: EngineArgs and the server's arguments of vLLM, by the table in ``vllm.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluator.arguments.flags import EVERY_SERVER, CommandLine, FlagOfKey, StatedPool
from evaluator.arguments.table import Flags, get, put

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_KV = {"fp8": "fp8", "int8": "int8_per_token_head", "int4": "int4_per_token_head", "nvfp4": "nvfp4"}
_METHODS = {"ngram": "ngram", "mtp": "mtp", "eagle": "eagle3", "draft": "draft_model"}
TIERS = "/mnt/kv-tiers"
"""Where the storage of tiers behind host memory is mounted, in flags that are written; the n-th is n-NAME."""
_GIB = 1 << 30
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # ``LoRAConfig.max_lora_rank``
_EXCHANGES = {
    "gather": "allgather_reducescatter", "deepep": "deepep_high_throughput", "deepep_low_latency": "deepep_low_latency",
    "nvlink": "flashinfer_nvlink_one_sided", "all_to_all": "deepep_v2",  # which is NCCL's, and as fast as its links
}  # fmt: skip
_ALSO_EXCHANGES = {"naive": "gather", "flashinfer_nvlink_two_sided": "nvlink", "flashinfer_all2allv": "nvlink"}
_THRESHOLDS = {"--dbo-decode-token-threshold": 32, "--dbo-prefill-token-threshold": 512}
"""Tokens of a rank from which on vLLM splits its batch in two, by default (``replica.scenario.overlap``)."""
_ADAPTED = {"attention": ["qkv_proj", "o_proj"], "feed_forward": ["gate_up_proj", "down_proj"]}
_PACKED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj",
           "up_proj": "gate_up_proj"}  # fmt: skip
"""The matrix that each of a checkpoint's is part of: its name stands for the whole (``is_in_target_modules``)."""
_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}

ROWS = (
    FlagOfKey("tensor_parallel", "--tensor-parallel-size", 1),
    FlagOfKey("pipeline_parallel", "--pipeline-parallel-size", 1),
    FlagOfKey("data_parallel", "--data-parallel-size", 1),
    FlagOfKey("decode_context_parallel", "--decode-context-parallel-size", 1),
    FlagOfKey("prefill_context_parallel", "--prefill-context-parallel-size", 1),
    FlagOfKey("eager", "--enforce-eager", None, {True: True, False: False}),
    FlagOfKey("precision.activations", "--dtype", "bf16", _DTYPES, {"auto": "bf16", "half": "fp16", "float": "fp32"}),
    FlagOfKey("batching.max_num_seqs", "--max-num-seqs"),
    FlagOfKey("batching.max_num_batched_tokens", "--max-num-batched-tokens"),
    FlagOfKey("batching.policy", "--enable-chunked-prefill", "chunked", {"chunked": True, "mixed": False}),
    FlagOfKey("batching.long_prefill_token_threshold", "--long-prefill-token-threshold", 0),
    FlagOfKey("batching.packing", "--scheduling-policy", "fcfs", {"fcfs": "fcfs", "priority": "priority"}),
    FlagOfKey(
        "batching.planning",
        "--async-scheduling",
        "asynchronous",
        {"asynchronous": True, "queued": False, "at_once": False},
    ),
    # ``CacheConfig`` of 0.28: 0.92, where versions before had 0.9
    FlagOfKey("kv.memory_fraction", "--gpu-memory-utilization", 0.92),
    FlagOfKey("kv.block_tokens", "--block-size", 16),
    FlagOfKey("kv.watermark", "--watermark", 0.0),
    FlagOfKey("kv.full_prompt", "--scheduler-reserve-full-isl", True, {True: True, False: False}),
    FlagOfKey("kv.prefix_caching", "--enable-prefix-caching", True, {True: True, False: False}),
)


def _write(server: StatedPool) -> Flags:
    # In the order in which the command line has them; of a flag that two parts say, the later holds.
    flags = _write_dtypes(server) | _write_experts(server)
    if server["attention_backend"] == "flashinfer":
        flags |= {"--attention-backend": "FLASHINFER", "--attention-config": {"use_trtllm_attention": False}}
    flags |= _write_limits(server)
    if server["api_servers"] is not None:
        flags["--api-server-count"] = server["api_servers"]
    if (drafts := server["speculative"]) is not None:
        config = {"method": _METHODS[drafts["method"]], "num_speculative_tokens": drafts["tokens"]}
        if drafts["method"] in ("draft", "eagle"):
            config["model"] = server.draft or "DRAFT_MODEL_ID"
        flags["--speculative-config"] = config
    return flags | _write_adapters(server) | _write_transfer(server)


def _write_dtypes(server: StatedPool) -> Flags:
    flags: Flags = {}
    weights, activations, kv = (server[f"precision.{part}"] for part in ("weights", "activations", "kv"))
    if weights == "fp8" and "fp8" not in server.checkpoint:
        flags["--quantization"] = "fp8"  # wide weights are made narrow as they are loaded
    if activations not in _DTYPES:
        flags["--dtype"] = "bfloat16"  # what is not narrow inside of matrix products
    # `auto` is the dtype of the model, which takes the bytes of any KV in 16 bits.
    return flags | {"--kv-cache-dtype": _KV.get(kv, "auto")}


def _write_experts(server: StatedPool) -> Flags:
    flags: Flags = {}
    if (server["expert_parallel"] or 1) > 1:
        flags["--enable-expert-parallel"] = True  # over all devices of all ranks, whatever their number
        # Ranks that split prompts exchange tokens, too (``FusedMoEParallelConfig.use_all2all_kernels``); without either
        # kind of ranks every device has all tokens.
        if (server["data_parallel"] or 1) * (server["prefill_context_parallel"] or 1) > 1:
            flags["--all2all-backend"] = _EXCHANGES[server["expert_exchange"]]
            if server["two_batch_overlap"]:
                flags["--enable-dbo"] = True
                # Of those without figures of their own it is the one that vLLM splits batches for (``VllmConfig``).
                if server["expert_exchange"] == "all_to_all":
                    flags["--all2all-backend"] = "nixl_ep"
        if server["redundant_experts"]:
            flags["--enable-eplb"] = True
            flags["--eplb-config"] = {"num_redundant_experts": server["redundant_experts"]}
    return flags


def _write_limits(server: StatedPool) -> Flags:
    flags: Flags = {}
    if server["kv.capacity_tokens"] is not None:
        # Stated, since the server's own profiling run would find some other number, and with it another concurrency.
        flags["--num-gpu-blocks-override"] = server["kv.capacity_tokens"] // (
            server["kv.block_tokens"] * (server["decode_context_parallel"] or 1)
        )
    if server.cached_prefixes:
        flags["--enable-prefix-caching"] = True  # else nothing could be cached that the load says is
    if server.longest is not None:
        flags["--max-model-len"] = server.longest
        # A bound above the longest request, which vLLM refuses, bounds nothing.
        threshold = server["batching.long_prefill_token_threshold"] or 0
        flags["--long-prefill-token-threshold"] = min(threshold, server.longest)
        budget = server["batching.max_num_batched_tokens"]
        if server["batching.policy"] == "mixed" and budget is not None:
            # ``SchedulerConfig.verify_max_model_len``: without chunks an iteration has room for the longest request
            flags["--max-num-batched-tokens"] = max(budget, server.longest)
    return flags


def _write_adapters(server: StatedPool) -> Flags:
    if (lora := server["lora"]) is None:
        return {}
    # Room is made for adapters of this rank; those of a lower one have it, too.
    rank = next((rank for rank in _RANKS if rank >= lora["rank"]), _RANKS[-1])
    flags = {"--enable-lora": True, "--max-loras": lora["max_loras"], "--max-lora-rank": rank}
    return flags | ({"--lora-target-modules": _ADAPTED[lora["modules"]]} if lora["modules"] in _ADAPTED else {})


def _write_transfer(server: StatedPool) -> Flags:
    flags: Flags = {}
    if server["kv.offload_bytes"] is not None:
        flags["--kv-offloading-size"] = server["kv.offload_bytes"] / _GIB
        more: dict[str, Any] = {"offload_prompt_only": False} if server["kv.offload_answers"] else {}
        if tiers := server["kv.offload_tiers"]:
            # Of its tiers (``SecondaryTierFactory``) the one that takes any storage which is mounted.
            roots = [f"{TIERS}/{number}-{tier['storage'] or 'tier'}" for number, tier in enumerate(tiers)]
            more["spec_name"] = "TieringOffloadingSpec"
            more["secondary_tiers"] = [{"type": "fs", "root_dir": root} for root in roots]
        if more:
            # What vLLM adds for the size (``VllmConfig._post_init_kv_transfer_config``) leaves this as it is.
            flags["--kv-transfer-config"] = {"kv_connector_extra_config": more}
    if server["role"] in _ROLES:
        flags["--kv-transfer-config"] = {"kv_connector": "NixlConnector", "kv_role": _ROLES[server["role"]]}
    return flags


def _read(flags: Flags, tree: dict[str, Any]) -> tuple[str, ...]:
    read_flags = _read_dtypes_and_attention(flags, tree)
    read_flags += _read_experts(flags, tree) if flags.get("--enable-expert-parallel") else []
    if "--num-gpu-blocks-override" in flags:
        read_flags.append("--num-gpu-blocks-override")
        block = get(tree, "kv.block_tokens") * tree.get("decode_context_parallel", 1)
        put(tree, "kv.capacity_tokens", flags["--num-gpu-blocks-override"] * block)
    if flags.get("--api-server-count", 0) > 0:  # 0: engines without a server, whose clients come to another node
        read_flags.append("--api-server-count")
        tree["api_servers"] = flags["--api-server-count"]
    drafts = flags.get("--speculative-config")
    if drafts is not None:
        read_flags.append("--speculative-config")
        tree["speculative"] = _drafts(drafts)
    if flags.get("--enable-lora"):
        read_flags += ["--enable-lora", "--max-loras", "--max-lora-rank"]
        modules = _adapted(flags.get("--lora-target-modules"))
        read_flags += ["--lora-target-modules"] if modules is not None else []
        rank = flags.get("--max-lora-rank", 16)
        tree["lora"] = {"max_loras": flags.get("--max-loras", 1), "rank": rank, "modules": modules or "all"}
    read_flags += _read_offload(flags, tree)
    role = flags.get("--kv-transfer-config", {}).get("kv_role")
    if role in _ROLES.values():
        read_flags.append("--kv-transfer-config")
        tree["role"] = next(name for name, word in _ROLES.items() if word == role)
    if get(tree, "batching.policy") != "chunked":  # nothing else plans ahead here (``policies``)
        tree["batching"].pop("planning", None)
    return tuple(read_flags)


def _read_dtypes_and_attention(flags: Flags, tree: dict[str, Any]) -> list[str]:
    read_flags: list[str] = []
    quantization = flags.get("--quantization")
    put(tree, "precision.weights", "fp8" if quantization == "fp8" else "checkpoint")
    # Another format is the checkpoint's own, which the name of the model says; the flag then tells nothing, and is
    # listed so.
    read_flags += ["--quantization"] if quantization in (None, "fp8") else []
    dtype = str(flags.get("--kv-cache-dtype", "auto"))
    # e4m3 and e5m2 take the same bytes; how they round is no matter of time.
    narrow = {word: kv for kv, word in _KV.items()} | dict.fromkeys(("fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"), "fp8")
    put(tree, "precision.kv", narrow.get(dtype, get(tree, "precision.activations")))
    read_flags += ["--kv-cache-dtype"] if dtype in ("auto", "bfloat16", "float16", *narrow) else []
    # On Blackwell the backend runs TensorRT-LLM's kernels where nothing is said (``use_trtllm_attention``).
    # Another backend has no such kernels, and is listed, as are other keys of the configuration.
    attention = flags.get("--attention-config", {})
    backends = {str(word).upper() for word in (flags.get("--attention-backend"), attention.get("backend")) if word}
    if attention.get("use_trtllm_attention") is False and backends <= {"FLASHINFER"}:
        tree["attention_backend"] = "flashinfer"
        read_flags.append("--attention-backend")
        read_flags += ["--attention-config"] if attention.keys() <= {"use_trtllm_attention", "backend"} else []
    return read_flags


def _read_experts(flags: Flags, tree: dict[str, Any]) -> list[str]:
    ranks = tree.get("data_parallel", 1) * tree.get("prefill_context_parallel", 1)
    tree["expert_parallel"] = tree.get("tensor_parallel", 1) * ranks
    # The default of 0.28 with ranks that have tokens of their own; without them there is nothing to exchange.
    exchange = flags.get("--all2all-backend", "allgather_reducescatter")
    read_as = {backend: ours for ours, backend in _EXCHANGES.items()} | _ALSO_EXCHANGES
    # What has no figures of its own sends each token to the devices of its experts, as all but these do.
    tree["expert_exchange"] = "gather" if ranks == 1 else read_as.get(exchange, "all_to_all")
    tree["redundant_experts"] = flags.get("--eplb-config", {}).get("num_redundant_experts", 0)
    read_flags = ["--enable-expert-parallel", "--all2all-backend", "--enable-eplb", "--eplb-config"]
    if ranks > 1 and flags.get("--enable-dbo"):
        tree["two_batch_overlap"] = True
        read_flags += ["--enable-dbo", *(flag for flag, tokens in _THRESHOLDS.items() if flags.get(flag) == tokens)]
    return read_flags


def _adapted(names: Sequence[str] | None) -> str | None:
    """Which matrices ``--lora-target-modules`` gives adapters, in our words; None where we have none for them."""
    if names is None:
        return "all"
    named = {_PACKED.get(name, name) for name in names}
    groups = {ours: set(theirs) for ours, theirs in _ADAPTED.items()}
    groups["all"] = set().union(*groups.values())
    return next((ours for ours, group in groups.items() if group == named), None)


def _read_offload(flags: Flags, tree: dict[str, Any]) -> list[str]:
    """Host memory under the prefix cache, said by its size or by the connector; its bandwidth no flag says."""
    transfer = flags.get("--kv-transfer-config", {})
    more, size = transfer.get("kv_connector_extra_config", {}), flags.get("--kv-offloading-size")
    if transfer.get("kv_connector") == "OffloadingConnector" and "cpu_bytes_to_use" in more:
        put(tree, "kv.offload_bytes", float(more["cpu_bytes_to_use"]))
    elif size is not None and flags.get("--kv-offloading-backend", "native") == "native":
        put(tree, "kv.offload_bytes", float(size) * _GIB)
    else:
        return []
    put(tree, "kv.offload_answers", not more.get("offload_prompt_only", True))
    # How fast tiers behind host memory are, and what they keep, no flag says.
    tiers = ("--kv-transfer-config",) if not more.get("secondary_tiers") else ()
    names = ("--kv-offloading-size", "--kv-offloading-backend", *tiers)
    return [flag for flag in names if flag in flags]


def _drafts(config: dict[str, Any]) -> dict[str, Any]:
    """What is drafted; how much of it is accepted no command line says."""
    method = str(config.get("method", "draft_model" if "model" in config else "ngram"))
    name = next((ours for ours, word in _METHODS.items() if word == method), None)
    if name is None:
        # Methods are many (eagle, eagle3, deepseek_mtp, qwen3_next_mtp): of each kind the time follows from layers
        # and tokens alone.
        name = "eagle" if method.startswith("eagle") else "mtp" if method.endswith("mtp") else method
    drafts = {"method": name, "tokens": config.get("num_speculative_tokens", 1)}
    return {**drafts, "model": config["model"]} if name == "draft" else drafts


VLLM = CommandLine(
    engine="vllm",
    program=("vllm", "serve"),
    model_flag=None,
    rows=ROWS,
    does={"kv.admission": "on_demand", **EVERY_SERVER},
    write=_write,
    read=_read,
    approximated={
        "--lora-target-modules": ("lora", "adapters of all linear layers are taken"),
        "--fully-sharded-loras": ("lora", "one of an adapter's two products is sharded here, as without the flag"),
        **{flag: ("two_batch_overlap", f"{tokens} tokens are taken") for flag, tokens in _THRESHOLDS.items()},
    },
    # By ``add_cli_args`` of vllm/engine/arg_utils.py in 0.8.5 to 0.28.0; 0.23 was not looked at, and for
    # --lora-target-modules and --decode-context-parallel-size nothing before 0.28. --api-server-count is of
    # vllm/entrypoints/openai/cli_args.py, and not there in 0.9.0.1.
    since={
        "--api-server-count": (0, 9, 2),
        "--eplb-config": (0, 10),
        "--async-scheduling": (0, 10),
        "--all2all-backend": (0, 11, 2),
        "--enable-dbo": (0, 11, 2),  # earlier without the flag above, which it needs
        "--scheduler-reserve-full-isl": (0, 19),
        "--watermark": (0, 24),
        "--lora-target-modules": (0, 28),
        "--decode-context-parallel-size": (0, 28),
    },
)
