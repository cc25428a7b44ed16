"""``python -m sglang.launch_server``: ServerArgs of SGLang, by the table in ``sglang.json``."""

from __future__ import annotations

from typing import Any

from evaluator.arguments.flags import EVERY_SERVER, CommandLine, FlagOfKey, StatedPool
from evaluator.arguments.table import Flags, get, put

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_KV = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}
_METHODS = {"ngram": "NGRAM", "mtp": "NEXTN", "eagle": "EAGLE3", "draft": "STANDALONE"}
_EXCHANGES = {
    "gather": "none", "deepep": "deepep", "deepep_low_latency": "deepep", "nvlink": "flashinfer",
    "all_to_all": "deepep_v2",  # which is NCCL's, and as fast as its links
}  # fmt: skip
_DEEPEP_MODES = {"deepep": "normal", "deepep_low_latency": "low_latency"}

ROWS = (
    FlagOfKey("pipeline_parallel", "--pp-size", 1),
    FlagOfKey("eager", "--disable-cuda-graph", None, {True: True, False: False}),
    FlagOfKey("precision.activations", "--dtype", "bf16", _DTYPES, {"auto": "bf16", "half": "fp16", "float": "fp32"}),
    FlagOfKey("batching.packing", "--schedule-policy", "fcfs", {"fcfs": "fcfs", "longest_prefix": "lpm"}),
    FlagOfKey("batching.max_queued_requests", "--max-queued-requests"),
    FlagOfKey("batching.schedule_conservativeness", "--schedule-conservativeness", 1.0),
    FlagOfKey("kv.memory_fraction", "--mem-fraction-static"),
    FlagOfKey("kv.block_tokens", "--page-size"),
    FlagOfKey("kv.prefix_caching", "--disable-radix-cache", True, {True: False, False: True}),
)


def _write(server: StatedPool) -> Flags:
    # In the order in which the command line has them; of a flag that two parts say, the later holds.
    flags = _write_layout(server) | _write_dtypes(server) | _write_kv(server) | _write_batching(server)
    return flags | _write_options(server) | _write_drafts(server) | _write_role(server)


def _together(server: StatedPool) -> int:
    """Data-parallel ranks that are groups of attention within one tensor-parallel group, as those that share experts
    are; ranks of a dense model are copies. Requests and chunks of such a group are divided among its ranks
    (``ModelRunner``, ``parallel_hook``)."""
    return server["data_parallel"] or 1 if server.experts else 1


def _write_layout(server: StatedPool) -> Flags:
    flags: Flags = {}
    tensor, ranks = server["tensor_parallel"] or 1, server["data_parallel"] or 1
    # The ranks over which prompts are split lie within the group, too (``handle_context_parallelism``).
    prefill = server["prefill_context_parallel"] or 1
    flags["--tp-size"] = tensor * _together(server) * prefill
    if prefill > 1:
        flags |= {"--attn-cp-size": prefill, "--enable-prefill-cp": True, "--cp-strategy": "zigzag"}
    if ranks > 1:
        flags["--attn-dp-size" if server.experts else "--dp-size"] = ranks
    experts = server["expert_parallel"] or 1
    if experts > 1:
        flags["--ep-size"] = experts
        flags["--moe-a2a-backend"] = _EXCHANGES[server["expert_exchange"]]
        if server["expert_exchange"] in _DEEPEP_MODES:
            flags["--deepep-mode"] = _DEEPEP_MODES[server["expert_exchange"]]
        if server["two_batch_overlap"]:
            flags["--enable-two-batch-overlap"] = True
        if server["redundant_experts"]:
            flags["--enable-eplb"] = True
            flags["--ep-num-redundant-experts"] = server["redundant_experts"]
    return flags


def _write_dtypes(server: StatedPool) -> Flags:
    flags: Flags = {}
    if server["precision.weights"] == "fp8" and "fp8" not in server.checkpoint:
        # Only where the checkpoint is wider: one in fp8 says so itself, with its scales.
        flags["--quantization"] = "fp8"
    if server["precision.activations"] not in _DTYPES:
        flags["--dtype"] = "bfloat16"
    return flags | {"--kv-cache-dtype": _KV.get(server["precision.kv"], "auto")}


def _write_kv(server: StatedPool) -> Flags:
    flags: Flags = {}
    context = server["decode_context_parallel"] or 1
    if context > 1:  # not said where it is 1, since older releases do not have the flag
        flags["--dcp-size"] = context
    if server["kv.capacity_tokens"] is not None:
        # Of each rank, which keeps a share of every sequence (``KVCacheConfigurator.logical_token_capacity``)
        flags["--max-total-tokens"] = server["kv.capacity_tokens"] // context
    return flags


def _write_batching(server: StatedPool) -> Flags:
    flags: Flags = {}
    together = _together(server)
    if server["batching.max_num_seqs"] is not None:
        flags["--max-running-requests"] = server["batching.max_num_seqs"] * together
    budget = server["batching.max_num_batched_tokens"]
    if server["batching.policy"] == "chunked":
        flags["--enable-mixed-chunk"] = True
        if budget is not None:
            flags["--chunked-prefill-size"] = budget * together
    elif server["batching.policy"] == "token_ratio":  # SGLang's own order: chunks in iterations of their own
        flags["--enable-mixed-chunk"] = bool(server["batching.enable_mixed_chunk"])
        if server["batching.max_prefill_tokens"] is not None:
            flags["--max-prefill-tokens"] = server["batching.max_prefill_tokens"]
        if budget is not None:
            flags["--chunked-prefill-size"] = budget * together
    else:  # prompts are computed whole, as many in an iteration as the budget takes
        flags["--chunked-prefill-size"] = -1
        if budget is not None:
            flags["--max-prefill-tokens"] = budget
    return flags


def _write_options(server: StatedPool) -> Flags:
    flags: Flags = {}
    if server["attention_backend"] == "flashinfer":  # of decodes; that of prompts stays the engine's choice
        flags["--decode-attention-backend"] = "flashinfer"
    if server["api_servers"] is not None:
        flags["--tokenizer-worker-num"] = server["api_servers"]
    flags["--disable-overlap-schedule"] = server["batching.planning"] != "asynchronous"
    if server.cached_prefixes:
        flags["--disable-radix-cache"] = False
    if server.longest is not None:
        flags["--context-length"] = server.longest
    return flags


def _write_drafts(server: StatedPool) -> Flags:
    if (drafts := server["speculative"]) is None:
        return {}
    flags = {
        "--speculative-algorithm": _METHODS[drafts["method"]],
        "--speculative-num-steps": drafts["tokens"],
        "--speculative-num-draft-tokens": drafts["tokens"] + 1,  # with the token of the model itself
    }
    if drafts["method"] != "ngram":
        flags["--speculative-eagle-topk"] = 1  # a chain and no tree, as here
    if drafts["method"] in ("draft", "eagle"):
        flags["--speculative-draft-model-path"] = server.draft or "DRAFT_MODEL_ID"
    return flags


def _write_role(server: StatedPool) -> Flags:
    flags: Flags = {}
    drafts = server["speculative"]
    if server["role"] in ("prefill", "decode"):
        flags["--disaggregation-mode"] = server["role"]
        flags["--disaggregation-transfer-backend"] = "nixl"
    if server["role"] == "decode":
        # A decode server has no prefix cache without this flag, whatever --disable-radix-cache says
        # (``handle_pd_disaggregation``), and refuses it beside some drafts (``handle_speculative_decoding``).
        # Prefixes that the load says are cached are those of prefills.
        cached = bool(server["kv.prefix_caching"]) and (drafts is None or drafts["method"] in ("mtp", "eagle"))
        flags["--disaggregation-decode-enable-radix-cache"] = cached
        flags["--disable-radix-cache"] = not cached
    return flags


def _read(flags: Flags, tree: dict[str, Any]) -> tuple[str, ...]:
    # --dp-size with --enable-dp-attention is the older spelling of --attn-dp-size.
    copies = flags.get("--dp-size", 1)
    together = flags.get("--attn-dp-size") or (copies if flags.get("--enable-dp-attention") else 1) or 1
    read_flags = _read_layout(flags, tree, together, copies)
    read_flags += _read_kv_and_dtypes(flags, tree)
    read_flags += _read_batching(flags, tree, together)
    if "--tokenizer-worker-num" in flags:
        read_flags.append("--tokenizer-worker-num")
        tree["api_servers"] = flags["--tokenizer-worker-num"]
    if "--speculative-algorithm" in flags:
        read_flags += ["--speculative-algorithm", "--speculative-num-steps", "--speculative-num-draft-tokens"]
        read_flags += ["--speculative-eagle-topk", "--speculative-draft-model-path"]
        tree["speculative"] = _drafts(flags)
    mode = flags.get("--disaggregation-mode", "null")
    if mode in ("prefill", "decode"):
        read_flags += ["--disaggregation-mode", "--disaggregation-transfer-backend"]
        tree["role"] = mode
    if mode == "decode":
        cached = "--disaggregation-decode-enable-radix-cache"
        read_flags.append(cached)
        put(tree, "kv.prefix_caching", bool(flags.get(cached)))
    return tuple(read_flags)


def _read_layout(flags: Flags, tree: dict[str, Any], together: int, copies: int) -> list[str]:
    tree["data_parallel"] = together if together > 1 else copies
    prefill = flags.get("--attn-cp-size", 1) if flags.get("--enable-prefill-cp") else 1
    tree["prefill_context_parallel"] = prefill
    tensor = flags.get("--tp-size", 1)
    tree["tensor_parallel"] = max(tensor // (together * prefill), 1)
    experts = flags.get("--ep-size", 1)
    backend = str(flags.get("--moe-a2a-backend", "none"))
    exchanged = backend != "none"
    if exchanged and "--ep-size" not in flags:
        experts = tensor  # DeepEP and its kin spread experts over all devices (``moe_hook``)
    tree["expert_parallel"] = experts
    # Ranks that split prompts have tokens of their own, too, as data-parallel ones do.
    own_tokens = tree["data_parallel"] * prefill > 1
    tree["expert_exchange"] = _exchange(flags, backend) if exchanged and own_tokens else "gather"
    tree["two_batch_overlap"] = tree["expert_exchange"] != "gather" and flags.get("--enable-two-batch-overlap", False)
    tree["redundant_experts"] = flags.get("--ep-num-redundant-experts", 0)
    # Read whether they are there or not: `keys` looks for what of the given flags is not among them.
    read_flags = ["--tp-size", "--dp-size", "--attn-dp-size", "--enable-dp-attention", "--ep-size", "--moe-a2a-backend"]
    read_flags += ["--deepep-mode", "--enable-eplb", "--ep-num-redundant-experts"]
    read_flags += ["--enable-two-batch-overlap"] if tree["two_batch_overlap"] else []
    return read_flags + (["--attn-cp-size", "--enable-prefill-cp", "--cp-strategy"] if prefill > 1 else [])


def _read_kv_and_dtypes(flags: Flags, tree: dict[str, Any]) -> list[str]:
    read_flags = ["--dcp-size", "--max-total-tokens"]
    context = flags.get("--dcp-size", 1)
    tree["decode_context_parallel"] = context
    if "--max-total-tokens" in flags:
        put(tree, "kv.capacity_tokens", flags["--max-total-tokens"] * context)
    quantization = flags.get("--quantization")
    put(tree, "precision.weights", "fp8" if quantization == "fp8" else "checkpoint")
    read_flags += ["--quantization"] if quantization == "fp8" else []
    dtype = str(flags.get("--kv-cache-dtype", "auto"))
    narrow = {word: kv for kv, word in _KV.items()} | {"fp8_e5m2": "fp8"}
    put(tree, "precision.kv", narrow.get(dtype, get(tree, "precision.activations")))
    read_flags += ["--kv-cache-dtype"] if dtype in ("auto", "bf16", "bfloat16", *narrow) else []
    # ``--attention-backend`` is of prompts, too, and of devices on which nobody measured these kernels: it is listed.
    if flags.get("--decode-attention-backend") == "flashinfer":
        tree["attention_backend"] = "flashinfer"
        read_flags.append("--decode-attention-backend")
    return read_flags


def _read_batching(flags: Flags, tree: dict[str, Any], together: int) -> list[str]:
    if "--max-running-requests" in flags:
        put(tree, "batching.max_num_seqs", max(flags["--max-running-requests"] // together, 1))
    chunk = flags.get("--chunked-prefill-size")
    # With chunks the policy is left to the engine's defaults, which know what SGLang's own order goes with.
    put(tree, "batching.enable_mixed_chunk", bool(flags.get("--enable-mixed-chunk")))
    most = flags.get("--max-prefill-tokens")
    if isinstance(chunk, int) and chunk <= 0:  # prompts are whole, and the tokens of an iteration bounded by the other
        put(tree, "batching.policy", "continuous")
        if most is not None:
            put(tree, "batching.max_num_batched_tokens", most)
    else:
        if chunk is not None:
            put(tree, "batching.max_num_batched_tokens", max(chunk // together, 1))
        if most is not None:
            put(tree, "batching.max_prefill_tokens", most)
    if flags.get("--disable-overlap-schedule"):
        put(tree, "batching.planning", "at_once")
    else:
        # Not ``planning``, which would be refused where the defaults make the policy another one than SGLang's own.
        tree["async_scheduling"] = True
    read_flags = ["--max-running-requests", "--enable-mixed-chunk", "--chunked-prefill-size", "--max-prefill-tokens"]
    return [*read_flags, "--disable-overlap-schedule"]


def _exchange(flags: Flags, backend: str) -> str:
    if backend != "deepep":
        return {word: ours for ours, word in _EXCHANGES.items()}.get(backend, "all_to_all")
    mode = flags.get("--deepep-mode", "auto")
    # `auto` takes the normal kernels for prompts and those of low latency for decodes (``DeepEPMode.resolve``): by
    # the server's role, and one with both roles computes its prompts on the former.
    if mode == "low_latency" or (mode == "auto" and flags.get("--disaggregation-mode") == "decode"):
        return "deepep_low_latency"
    return "deepep"


def _drafts(flags: Flags) -> dict[str, Any]:
    algorithm = str(flags["--speculative-algorithm"])
    method = next((ours for ours, word in _METHODS.items() if word == algorithm), None)
    method = method or ("eagle" if algorithm.startswith("EAGLE") else algorithm)
    steps = flags.get("--speculative-num-steps") or flags.get("--speculative-num-draft-tokens", 2) - 1
    drafts: dict[str, Any] = {"method": method, "tokens": steps}
    if method == "draft":
        drafts["model"] = flags.get("--speculative-draft-model-path")
    return drafts


SGLANG = CommandLine(
    engine="sglang",
    program=("python3", "-m", "sglang.launch_server"),
    model_flag="--model-path",
    rows=ROWS,
    does={
        "kv.admission": "on_demand",
        "kv.watermark": 0.0,
        "kv.full_prompt": False,
        "batching.long_prefill_token_threshold": 0,
        **EVERY_SERVER,
    },
    write=_write,
    read=_read,
)
