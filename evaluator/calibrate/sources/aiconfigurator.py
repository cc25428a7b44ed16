"""aiconfigurator (ai-dynamo/aiconfigurator, Apache-2.0): isolated kernels and collectives, CUDA-graph timing.

Kernels are those of vLLM, TensorRT-LLM (``trtllm``) and SGLang; the column ``engine`` tells whose a row is.
``message_size_bytes`` is derived from upstream's number of elements. ``library`` names the library that a kernel is of
where several engines call it (FlashInfer, FlashAttention, Marlin): see ``selection.select``.
Which experts a MoE call visits follows from the rule that its collector routes by (``routing``). By a power law an
expert-parallel rank gets the load of the fullest one, which is chance: those rows go, and those routed by groups, too,
and calls that visit something else (``_visits_unknown``).
Experts of Nemotron 3 have no gate; no column tells that either, but their shapes do (A100's older table gates them).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from evaluator.calibrate.sources.columns import dtype, hardware
from evaluator.calibrate.sources.routing import GROUPS, balanced_visits, power_law_visits
from evaluator.catalog.hardware import load_hardware

BLACKWELL = ("b200_sxm", "b300_sxm", "gb200", "gb300")

WORKSTATION = "rtx_pro_6000_server"
"""Blackwell's chip for workstations (GB202), for which engines have other kernels than for data centres."""

TINY_ROWS, TINY = 4, 1024
"""Products of so few rows, and inputs and outputs at most, take the time in which their kernels start."""

TRTLLM_GROUP = 32
"""Query heads per KV head for which TensorRT-LLM has decode kernels (XQA); it decodes others ten times slower."""

LIBRARIES = {"flashinfer": "FlashInfer", "trtllm_mla": "FlashInfer", "flash_att": "FlashAttention", "marlin": "Marlin"}
"""Parts of the names of kernels, and the libraries that have them."""

TRTLLM_GENERATED = "moe_torch_flow_min_latency"
"""TensorRT-LLM's generated kernels for experts in nvfp4."""

OLDEST = "0.14.0"
"""vLLM's version in the table of A100, the older one: other shapes are in it, and other routing."""

WEIGHTS_ALONE = ("int4_wo", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8")
"""Dtypes of experts whose checkpoint quantises the weights alone, whatever a kernel then makes of the activations."""


def _common(frame: pd.DataFrame, op_class: str) -> dict[str, object]:
    # Collectives have the version of NCCL or oneCCL in place of an engine's.
    version = next(name for name in ("engine_version", "nccl_version", "library_version") if name in frame)
    return {
        "op_class": op_class,
        "hardware": hardware(frame["gpu"]),
        "engine": frame.get("engine", frame.get("library", "nccl")),
        "engine_version": frame[version],
        "kernel": frame.get("kernel", ""),
        "time_s": frame["latency_us"].astype(float) * 1e-6,
    }


def _sound(frame: pd.DataFrame) -> pd.DataFrame:
    """Without calls that take more than three times as long as a larger one, which newer tables flag."""
    return frame[~frame["is_suspect"].astype(bool)] if "is_suspect" in frame else frame


def _library(kernel: pd.Series) -> pd.Series:
    """The library that each kernel is of; empty for an engine's own."""
    libraries = pd.Series("", kernel.index)
    for part, library in LIBRARIES.items():
        libraries[kernel.str.contains(part)] = library
    return libraries


def gemm(frame: pd.DataFrame) -> pd.DataFrame:
    """``aic_gemm``: products with what quantises their inputs.

    TensorRT-LLM's fp8 with one scale per tensor is taken without its search for the scale (``_scale_known``).
    """
    frame = _sound(frame)
    blocks = frame["dtype"] == "fp8_block"
    engine = frame.get("engine", pd.Series("vllm", frame.index))
    # vLLM's block scales were measured with their launches from Python (60 to 180 us), and SGLang's on Blackwell with
    # 12 us that TensorRT-LLM's calls of the same library, DeepGEMM, do not take.
    late = (engine == "vllm") | ((engine == "sglang") & frame["gpu"].isin(BLACKWELL))
    frame = frame[~(blocks & late)]
    kernel = frame["kernel"].astype(str)
    library = _library(kernel).mask(kernel.str.contains("deepgemm"), "DeepGEMM")
    sizes = {name: frame[name] for name in "mnk"} | {"library": library}
    rows = pd.DataFrame(_common(frame, "gemm") | {"dtype": dtype(frame["dtype"])} | sizes)
    return rows.assign(time_s=_scale_known(rows))


def _scale_known(rows: pd.DataFrame) -> pd.Series:
    """The times of products, those of TensorRT-LLM in fp8 with one scale per tensor as if the scale of their input were
    in the checkpoint, as it is in published ones (ModelOpt's).

    Its collector gives the layer none (``collect_gemm.py``: no ``input_scale``), so that each call looks for the
    largest element first: it reads the input once more, in kernels whose start tiny products tell. These take 8 us more
    than with block scales, whose quantising is one kernel, as that with a known scale is.
    """
    own = rows[rows["engine"] == "trtllm"]
    tiny = own[(own["m"] <= TINY_ROWS) & (own["n"] <= TINY) & (own["k"] <= TINY)]
    medians = tiny.groupby(["hardware", "dtype"], observed=True)["time_s"].median().unstack()
    if not {"fp8", "fp8_block"} <= set(medians):
        return rows["time_s"]
    searched = (rows["engine"] == "trtllm") & (rows["dtype"] == "fp8")
    started_s = rows["hardware"].map(medians["fp8"] - medians["fp8_block"]).astype(float)
    bandwidth = (
        rows["hardware"].map({name: load_hardware(name).memory_bandwidth for name in medians.index}).astype(float)
    )
    read_s = 2.0 * rows["m"] * rows["k"] / bandwidth
    return rows["time_s"].where(~searched, rows["time_s"] - started_s - read_s)


def _attention(frame: pd.DataFrame, op_class: str) -> dict[str, object]:
    return _common(frame, op_class) | {
        "kv_dtype": dtype(frame["kv_cache_dtype"]),
        "batch": frame["batch_size"],
        "heads": frame["num_heads"],
        "kv_heads": frame["num_kv_heads"],
        "head_dim": frame["head_dim"],
        "window": frame["window_size_tokens"],
    }


def prefill(frame: pd.DataFrame) -> pd.DataFrame:
    """``aic_context_attention``: whole prompts, no history."""
    frame = _sound(frame)
    # vLLM's kernel for Intel's GPUs takes up to half as long again within a window as without: it skips nothing, which
    # no figure of a set says.
    frame = frame[(frame["gpu"] != "b60") | (frame["window_size_tokens"] == 0)]
    more = {"new_tokens": frame["prompt_tokens_per_sequence"], "past_tokens": frame["past_kv_tokens"]}
    return pd.DataFrame(_attention(frame, "attention_prefill") | more)[_usual_attention(frame)]


def decode(frame: pd.DataFrame) -> pd.DataFrame:
    """``aic_generation_attention``."""
    frame = _sound(frame)
    rows = pd.DataFrame(_attention(frame, "attention_decode") | {"past_tokens": frame["kv_len_tokens"]})
    many = frame["num_heads"] > TRTLLM_GROUP * frame["num_kv_heads"]
    return rows[_usual_attention(frame) & ~(many & (frame["engine"] == "trtllm"))]


def _usual_attention(frame: pd.DataFrame) -> pd.Series:
    """Not what TensorRT-LLM and SGLang only run on heads that their usual kernels do not know.

    On the workstation's chip FlashInfer is SGLang's usual one.
    """
    kernel = frame["kernel"]
    return ~kernel.isin(("triton", "torch_flow_flashinfer")) & (
        (kernel != "flashinfer") | (frame["gpu"] == WORKSTATION)
    )


def mla(frame: pd.DataFrame) -> pd.DataFrame:
    """``aic_mla``: attention kernels of MLA with the sizes of DeepSeek-V3; a decode attends to its own token, too.

    Modules, vLLM's kernels and SGLang's prefill on Hopper are left out.
    """
    # Measured on latents, as a decode, which takes three times as long as the expanded heads that prompts are computed
    # on. There FlashAttention-3 computes them as any other attention: the sets' `attention_prefill` is within 7 % of
    # vLLM's kernels for up to four prompts of 1 ms and more.
    absorbed = (frame["engine"] == "sglang") & ~frame["gpu"].isin(BLACKWELL) & (frame["phase"] == "prefill")
    # Modules have the products around the kernel, which are gemms of their own here. vLLM's kernels were timed with
    # their launch from Python: 110 us at least, which no CUDA graph has.
    frame = frame[(frame["part"] == "core") & (frame["engine"] != "vllm") & ~absorbed]
    decodes = frame["phase"] == "decode"
    return pd.DataFrame(
        _common(frame, "mla_prefill")
        | {
            "op_class": decodes.map({True: "mla_decode", False: "mla_prefill"}),
            "kv_dtype": dtype(frame["kv_cache_dtype"]),
            "library": _library(frame["kernel"]),
            "batch": frame["batch_size"],
            "new_tokens": frame["tokens_per_sequence"],
            # A decode attends to its own token, too.
            "past_tokens": frame["past_kv_tokens"] + decodes,
            "heads": frame["num_heads"],
            # DeepSeek-V3's config.json (kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim,
            # v_head_dim): no column has them.
            "kv_rank": 512,
            "nope_dim": 128,
            "rope_dim": 64,
            "value_dim": 128,
        }
    )


def moe(frame: pd.DataFrame) -> pd.DataFrame:
    """``aic_moe``: both grouped products of a call, with routing and permutation.

    Block-scaled fp8 counts as fp8, but where both were measured on kernels that engines choose. Weights of 4 bits under
    activations of 16 bits or, on Blackwell, in mxfp8 are those of Kimi K2 (int4) and gpt-oss (mxfp4).
    """
    frame = _sound(frame)
    frame = frame[_usual_experts(frame)]
    frame = frame.assign(grouped=_routed_by_groups(frame))
    # Beside an even routing only one device with all experts shows what its rule visits.
    rule_holds = (frame["routing_distribution"] == "balanced") | ((frame["moe_ep_size"] == 1) & ~frame["grouped"])
    frame = frame[rule_holds & ~_visits_unknown(frame)]
    rows = pd.DataFrame(
        _common(frame, "grouped_gemm")
        | {
            "dtype": dtype(frame["dtype"]).mask(_blocks_alone(frame), "fp8"),
            "activations": frame["dtype"].isin(WEIGHTS_ALONE).map({True: "bf16", False: ""}),
            "library": _library(frame["kernel"]),
            "tokens": frame["num_tokens"],
            "hidden": frame["hidden_size"],
            # Per device, as all shapes of a table are: tensor parallelism divides each expert.
            "intermediate": frame["intermediate_size"] / frame["moe_tp_size"],
            "top_k": frame["top_k"],
            "experts": frame["num_experts"],
            "expert_parallel": frame["moe_ep_size"],
            "gated": (~_nemotron(frame)).astype(float),
        }
    )
    return rows.join(_visits(frame))


def _blocks_alone(frame: pd.DataFrame) -> pd.Series:
    """Calls in fp8 with block scales that stand for all of an engine's fp8 on their device."""
    return (frame["dtype"] == "fp8_block") & ~((frame["engine"] == "trtllm") & (frame["gpu"] == WORKSTATION))


def _routed_by_groups(frame: pd.DataFrame) -> pd.Series:
    """Calls in which the engine routes by groups of experts: those of DeepSeek-V3's shape in vLLM and SGLang, and all
    of TensorRT-LLM's generated kernels, which were measured with DeepSeek's router whatever the shape. A100's older
    table and the other kernels of TensorRT-LLM choose the best experts of all."""
    deepseek = (frame["hidden_size"] == 7168) & (frame["num_experts"] == 256) & (frame["top_k"] == 8)
    asked = deepseek & (frame["engine"] != "trtllm") & (frame["engine_version"] != OLDEST)
    return asked | (frame["kernel"] == TRTLLM_GENERATED)


def _visits_unknown(frame: pd.DataFrame) -> pd.Series:
    """SGLang's calls with expert parallelism of Mixtral and of Gemma 4, which do not visit what the rule says: of 2, 4
    and 8 ranks the measured one takes 1, 1/2 and 1/4 of the time of all visits (Mixtral), or as long as all (Gemma 4,
    whose 16 and 32 ranks take 1/2 and 1/4), where calls of other shapes and engines take 1/2, 1/4 and 1/8."""
    shapes = (frame["num_experts"] == 8) | (frame["hidden_size"] == 2816)
    return shapes & (frame["engine"] == "sglang") & (frame["moe_ep_size"] > 1)


def _visits(frame: pd.DataFrame) -> pd.DataFrame:
    """How many of its experts the measured rank touches (``experts_touched``), and how often it visits them."""
    names = ["num_tokens", "num_experts", "top_k", "moe_ep_size", "routing_distribution", "grouped"]
    by_call = {}
    for key in frame[names].drop_duplicates().itertuples(index=False, name=None):
        tokens, experts, top, ranks, how, grouped = key
        law = how.removeprefix("power_law_")
        shape = int(tokens), int(experts), int(top)
        # A power law's exponent is in its name; what has none is balanced.
        every = balanced_visits(*shape, bool(grouped)) if law == how else power_law_visits(*shape, float(law))
        # Rank 0 holds the first experts, and is the one that was measured.
        mine = every[: experts // ranks]
        by_call[key] = np.count_nonzero(mine), float(mine.sum())
    of_rows = [by_call[key] for key in frame[names].itertuples(index=False, name=None)]
    return pd.DataFrame(of_rows, frame.index, ["experts_touched", "visits"], dtype=float)


def _usual_experts(frame: pd.DataFrame) -> pd.Series:
    """Rows on the kernels that an engine's usual choice is; the others would be averaged with them."""
    kernel, engine = frame["kernel"].astype(str), frame["engine"]
    # The chip for workstations has neither DeepGEMM nor TensorRT-LLM's generated kernels: CUTLASS is what engines run
    # there, in fp8 in half the time of bf16 and in nvfp4 in a third.
    workstation = frame["gpu"] == WORKSTATION
    # FlashInfer's CUTLASS kernel for ModelOpt checkpoints in vLLM: on Hopper it is twice as slow as bf16, and not what
    # other fp8 checkpoints run on.
    left = kernel.str.startswith("vllm_modeloptfp8moe_flashinfer_cutlass") & ~workstation
    # fp8 with one scale per tensor, of TensorRT-LLM and of its kernels that vLLM calls on B200: block scales, with
    # which checkpoints of MoE models are published, take up to 1.7 times as long on Hopper, and 1.2 (few tokens) to 2.5
    # times (many) on B200. On the chip for workstations TensorRT-LLM computes block scales with Triton, in up to three
    # times the time of CUTLASS, and both are of use.
    own = engine.eq("trtllm") & ~workstation
    left |= (own | kernel.str.contains("trtllm_trtllmfp8")) & (frame["dtype"] == "fp8")
    # nvfp4 on CUTLASS: three times as slow as the kernels of TensorRT-LLM's own generator, which its recipes for
    # DeepSeek choose on Blackwell (`moe_config.backend: TRTLLM`) and FlashInfer has, too.
    cutlass = kernel.str.startswith("moe_torch_flow") | kernel.str.contains("nvfp4moe_flashinfer_cutlass")
    left |= cutlass & (frame["dtype"] == "nvfp4") & (kernel != TRTLLM_GENERATED) & ~workstation
    # gpt-oss under 16-bit activations: TensorRT-LLM and SGLang quantise them to mxfp8 on Blackwell. On Hopper SGLang's
    # weights unpacked to 16 bits, which it does where the package of Triton's own kernels is missing.
    left |= (frame["dtype"] == "w4a16_mxfp4") & (frame["gpu"].isin(BLACKWELL) | (kernel == "sglang_fused_moe_triton"))
    # Of eight experts DeepSeek's router, with which these kernels were measured, has no two to a group.
    left |= (kernel == TRTLLM_GENERATED) & (frame["num_experts"] < 2 * GROUPS)
    # 896 experts in mxfp8: narrow shards take a fifth longer than those of all other shapes, and wide ones less.
    left |= (frame["dtype"] == "w4a8_mxfp4_mxfp8") & (frame["num_experts"] == 896)
    # The first runs experts without a gate on Hopper in SGLang, three times as slow. The second is Marlin with mxfp4
    # for 896 experts: its calls of few tokens take three times as long as those for 384 experts in int4, which are
    # nearer to gpt-oss' 128.
    ungated = (kernel == "sglang_flashinfer_cutlass_moe") & ~(workstation & (frame["dtype"] == "nvfp4"))
    left |= ungated | (kernel == "sglang_marlin_moe_situ_as_silu")
    # SGLang takes its Triton kernel on Blackwell for the models alone for which it does not choose TensorRT-LLM's.
    return ~(left | ((kernel == "sglang_fused_moe_triton") & frame["gpu"].isin(BLACKWELL)))


def _nemotron(frame: pd.DataFrame) -> pd.Series:
    """Nemotron 3 Nano has 128 experts on a hidden size of 2,688, Super 512 experts of which a token visits 22."""
    shapes = (frame["hidden_size"] == 2688) | ((frame["num_experts"] == 512) & (frame["top_k"] == 22))
    return shapes & (frame["engine_version"] != OLDEST)


def engine_all_reduce(frame: pd.DataFrame) -> pd.DataFrame:
    """``aic_engines_all_reduce``: an engine's own all-reduce.

    Where an engine captures no graphs (vLLM on Intel's GPUs), calls launched one by one are what its decodes make.
    """
    launched = frame["backend"].fillna("").str.endswith("eager")
    captures = (~launched).groupby([frame["gpu"], frame["engine"]]).transform("any")
    mode = (launched & captures).map({True: "eager", False: "graph"})
    more = {"mode": mode, "devices": frame["num_gpus"], "message_bytes": frame["message_size_bytes"]}
    return pd.DataFrame(_common(frame, "all_reduce") | more)


def custom_all_reduce(frame: pd.DataFrame) -> pd.DataFrame:
    """``aic_custom_all_reduce``: the engine's own all-reduce, and NCCL's beyond its largest message."""
    more = {"mode": frame["mode"], "devices": frame["num_gpus"], "message_bytes": frame["message_size_bytes"]}
    return pd.DataFrame(_common(frame, "all_reduce") | more)


def nccl(frame: pd.DataFrame) -> pd.DataFrame:
    """``aic_nccl``, ``aic_devices_collectives``: all-gather and all-to-all of 16 bits, by NCCL or Intel's oneCCL (an
    engine's all-reduce is another kernel)."""
    frame = frame[(frame["dtype"] == "half") & frame["collective"].isin(["all_gather", "alltoall"])]
    rows = pd.DataFrame(
        _common(frame, "all_gather") | {"devices": frame["num_gpus"], "message_bytes": frame["message_size_bytes"]}
    )
    rows["op_class"] = frame["collective"].map({"all_gather": "all_gather", "alltoall": "all_to_all"})
    return rows


CONVERTERS = (
    ("aiconfigurator gemm", {"gpu", "m", "n", "k", "latency_us", "kernel"}, gemm),
    ("aiconfigurator context attention", {"prompt_tokens_per_sequence", "window_size_tokens"}, prefill),
    ("aiconfigurator generation attention", {"kv_len_tokens", "window_size_tokens"}, decode),
    ("aiconfigurator mla", {"part", "phase", "measured_model"}, mla),
    ("aiconfigurator moe", {"moe_tp_size", "moe_ep_size", "routing_distribution"}, moe),
    ("aiconfigurator custom all-reduce", {"mode", "message_size_bytes", "num_gpus"}, custom_all_reduce),
    ("aiconfigurator all-reduce of engines", {"backend", "message_size_bytes", "num_gpus"}, engine_all_reduce),
    ("aiconfigurator nccl", {"collective", "nccl_version"}, nccl),
    ("aiconfigurator collectives", {"collective", "library_version"}, nccl),
)
