"""``trtllm-serve`` and its YAML, by the table in ``trtllm.json``; it is written here, and not read.

Keys of the YAML are flags that begin with ``config.``. Of two spellings of a flag the older is written, which versions
before take, too.
"""

from __future__ import annotations

from typing import Any

from evaluator.arguments.flags import EVERY_SERVER, CommandLine, FlagOfKey, StatedPool
from evaluator.arguments.table import Flags, get, put

CONFIG = "config."
_METHODS = {"ngram": "NGram", "mtp": "MTP", "eagle": "Eagle", "draft": "Draft_Target"}

ROWS = (
    FlagOfKey("pipeline_parallel", "--pp_size", 1),
    FlagOfKey("expert_parallel", "--ep_size", 1),
    FlagOfKey("batching.max_num_seqs", "--max_batch_size"),
    FlagOfKey("batching.max_num_batched_tokens", "--max_num_tokens"),
    FlagOfKey("batching.policy", "config.enable_chunked_prefill", "mixed", {"chunked": True, "mixed": False}),
    FlagOfKey("kv.memory_fraction", "--kv_cache_free_gpu_memory_fraction", 0.9),
    FlagOfKey("kv.block_tokens", "config.kv_cache_config.tokens_per_block", 32),
    FlagOfKey("kv.capacity_tokens", "config.kv_cache_config.max_tokens"),
    FlagOfKey("kv.prefix_caching", "config.kv_cache_config.enable_block_reuse", True, {True: True, False: False}),
    FlagOfKey(
        "kv.admission",
        "config.scheduler_config.capacity_scheduler_policy",
        "reserve",
        {"reserve": "GUARANTEED_NO_EVICT", "on_demand": "MAX_UTILIZATION"},
    ),
    FlagOfKey(
        "batching.planning",
        "config.disable_overlap_scheduler",
        "asynchronous",
        {"asynchronous": False, "at_once": True, "queued": True},
    ),
)


def _write(server: StatedPool) -> Flags:
    flags: Flags = {"--backend": "pytorch"}
    tensor, ranks = server["tensor_parallel"] or 1, server["data_parallel"] or 1
    # Attention data-parallelism is over the devices of one tensor-parallel group; ranks of a dense model are servers
    # apart.
    together = ranks if server.experts else 1
    flags["--tp_size"] = tensor * together
    flags["config.enable_attention_dp"] = together > 1  # each device is a rank then
    kv = server["precision.kv"]
    flags["config.kv_cache_config.dtype"] = kv if kv in ("fp8", "nvfp4") else "auto"
    if server["attention_backend"] == "flashinfer":
        flags["config.attn_backend"] = "FLASHINFER"  # of prompts, too
    if server.cached_prefixes:
        flags["config.kv_cache_config.enable_block_reuse"] = True
    if server.longest is not None:
        flags["--max_seq_len"] = server.longest
    if server["role"] in ("prefill", "decode"):
        flags["config.cache_transceiver_config.backend"] = "NIXL"
        flags["config.cache_transceiver_config.max_tokens_in_buffer"] = server.longest or 8192
    if server["role"] == "prefill":
        flags["config.disable_overlap_scheduler"] = True  # which such servers do not have
    if (drafts := server["speculative"]) is not None:
        flags["config.speculative_config.decoding_type"] = _METHODS[drafts["method"]]
        flags["config.speculative_config.max_draft_len"] = drafts["tokens"]
        if drafts["method"] == "mtp":
            flags["config.speculative_config.num_nextn_predict_layers"] = drafts["tokens"]
        if drafts["method"] in ("draft", "eagle"):
            flags["config.speculative_config.speculative_model_dir"] = server.draft or "DRAFT_MODEL_ID"
    return flags


def _read(flags: Flags, tree: dict[str, Any]) -> tuple[str, ...]:
    """What the server will do, so that ``deploy`` can say where that is not the design; only its own flags are read."""
    devices = flags["--tp_size"]
    apart = flags["config.enable_attention_dp"]
    tree["data_parallel"], tree["tensor_parallel"] = (devices, 1) if apart else (1, devices)
    if flags.get("config.attn_backend") == "FLASHINFER":
        tree["attention_backend"] = "flashinfer"
    dtype = flags["config.kv_cache_config.dtype"]
    put(tree, "precision", {"weights": "checkpoint", "activations": "bf16", "kv": "bf16" if dtype == "auto" else dtype})
    # The overlap scheduler plans ahead under any policy; here only chunks are planned ahead (``policies``), so that
    # the key says nothing beside whole prompts.
    if get(tree, "batching.planning") == "asynchronous" and get(tree, "batching.policy") != "chunked":
        tree["batching"].pop("planning")
    if "config.cache_transceiver_config.backend" in flags:
        tree.pop("role")  # servers learn it from the one before them
    return tuple(flags)


TRTLLM = CommandLine(
    engine="trtllm",
    program=("trtllm-serve", "serve"),
    model_flag=None,
    rows=ROWS,
    does={
        "kv.watermark": 0.0,
        "kv.full_prompt": False,
        "batching.packing": "fcfs",
        "batching.long_prefill_token_threshold": 0,
        **EVERY_SERVER,
    },
    write=_write,
    read=_read,
)
