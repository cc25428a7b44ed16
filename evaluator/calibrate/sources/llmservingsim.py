"""LLMServingSim (casys-kaist/LLMServingSim, MIT): kernels of vLLM on RTX PRO 6000 and RTX 4090, of JAX on TPU v6e.

Layers, attention of prompts and decodes together, decodes of unequal contexts, and MoE layers, as one TP rank has them.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from evaluator.calibrate.sources.columns import attention_by_phase, hardware


class _Shape(NamedTuple):
    hidden: int
    inner: int  # 0: experts
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


_LLAMA = "meta-llama/Llama-3.1-8B"
_MODELS = {
    _LLAMA: _Shape(4096, 14336, 32, 8, 128, 128256),
    "Qwen/Qwen3-32B": _Shape(5120, 25600, 64, 8, 128, 151936),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": _Shape(2048, 0, 32, 4, 128, 151936),
}
"""From each model's config.json."""
SKEW_CALLS = 3.0
_EXPERTS = {"hidden": 2048, "intermediate": 768, "top_k": 8, "experts": 128, "gated": 1.0}
"""Of Qwen3-30B-A3B, the one MoE model there."""


def _shapes(frame: pd.DataFrame) -> pd.DataFrame:
    """The shape of the model of every row; the profile of Llama-3.1-8B alone does not name it. KeyError for others."""
    names = frame["model"] if "model" in frame else pd.Series(_LLAMA, frame.index)
    return pd.DataFrame([_MODELS[name] for name in names], index=frame.index)


def layers(frame: pd.DataFrame) -> pd.DataFrame:
    """The layer profiles: products and elementwise kernels. The sampler, of many small kernels, is left out."""
    shape, tensor = _shapes(frame), frame["tensor_parallel_size"]
    heads, kv_heads = shape.heads * shape.head_dim / tensor, shape.kv_heads * shape.head_dim / tensor
    products = {
        "qkv_proj": (heads + 2 * kv_heads, shape.hidden),
        "o_proj": (shape.hidden, heads),
        "gate_up_proj": (2 * shape.inner / tensor, shape.hidden),
        "down_proj": (shape.hidden, shape.inner / tensor),
        "lm_head": (shape.vocabulary / tensor, shape.hidden),
    }
    moved = {
        # Elements read and written for each token: gate and up in and one out; with the residual two in and two
        # out; what is changed in place once in and once out; a row of the table read and written.
        "act_fn": 3 * shape.inner / tensor,
        "layernorm": 4 * shape.hidden,
        "qk_norm": 2 * (heads + kv_heads),
        "rotary_emb": 2 * (heads + kv_heads),
        "embedding": 2 * shape.hidden,
    }
    tokens, time_s = frame["num_tokens"], frame["latency_us"] * 1e-6
    common = pd.DataFrame(
        {"hardware": hardware(frame["gpu"]), "kernel": frame["layer"], "engine": "vllm", "time_s": time_s}
    )
    parts = [
        common.assign(op_class="gemm", m=tokens, n=n, k=k)[frame["layer"] == name] for name, (n, k) in products.items()
    ]
    parts += [
        common.assign(op_class="elementwise", bytes=2.0 * elements * tokens)[frame["layer"] == name]
        for name, elements in moved.items()
    ]
    return pd.concat(parts, ignore_index=True)


def tpu_layers(frame: pd.DataFrame) -> pd.DataFrame:
    """``lls_tpu_v6e_layers``: the feed-forward's three products as one of as many columns, and the heads' products.

    XLA merges neighbours, so that the time of one of the three may stand under the name of another; their sum is right.
    ``o_proj`` is left out: its weights were fetched while attention ran, and it is above the memory's bandwidth.
    """
    shape = _MODELS[_LLAMA]
    times = frame[frame["measured_model"] == _LLAMA].pivot_table(
        index="num_tokens", columns="layer", values="latency_us"
    )
    feed_forward = times.reindex(columns=["gate_proj", "up_proj", "down_proj"]).sum(axis=1)
    # With one token the head's weights were fetched before, too.
    products = {
        "gate_up_down": (3 * shape.inner, feed_forward),
        "q_proj": (shape.heads * shape.head_dim, times["q_proj"]),
        "lm_head": (shape.vocabulary, times["lm_head"][times.index > 1]),
    }
    common = {"op_class": "gemm", "hardware": "tpu-v6e", "engine": "vllm", "k": shape.hidden}
    parts = [
        pd.DataFrame(common | {"kernel": name, "m": time.index, "n": n, "time_s": time.to_numpy() * 1e-6})
        for name, (n, time) in products.items()
    ]
    return pd.concat(parts, ignore_index=True)


def tpu_attention(frame: pd.DataFrame) -> pd.DataFrame:
    """``lls_tpu_v6e_attention``: XLA's attention of a chunk on its history, and of decodes of equal contexts."""
    decodes = frame["phase"] == "decode"
    return pd.DataFrame(
        attention_by_phase(frame, "prefill_chunk_tokens")
        | {
            "hardware": "tpu-v6e",
            "engine": "vllm",
            "batch": frame["batch_size"].where(decodes, 1),
            "past_tokens": frame["kv_len_tokens"],
            "time_s": frame["latency_p50_us"] * 1e-6,
        }
    )


def attention(frame: pd.DataFrame) -> pd.DataFrame:
    """The attention profiles: one chunk on its history, beside decodes of equal context, and either by itself."""
    chunk, decodes, seen = (
        frame[name] for name in ("prefill_chunk_tokens", "num_decode_seqs", "decode_kv_tokens_per_seq")
    )
    return _calls(frame, chunk, frame["prefill_past_kv_tokens"], decodes, seen, frame["latency_us"])


def skew(frame: pd.DataFrame) -> pd.DataFrame:
    """Decodes of unequal contexts, alone and beside a chunk: the mean context, and how much longer the longest is.

    Times are of SKEW_CALLS calls: those of equal contexts are so many times what the attention profile has of the same
    call (median 3.00, quartiles 2.99 and 3.02 over all of them), which upstream does not say.
    """
    mean = (frame["nb"] * frame["kv_big"] + (frame["n"] - frame["nb"]) * frame["kvs"]) / frame["n"]
    calls = _calls(frame, frame["pc"], frame["kp"], frame["n"], mean, frame["t_skew_us"] / SKEW_CALLS)
    # Relative to the mean, so that one figure holds for short and long contexts; 0 is what the other table has.
    return calls.assign(unequal=frame["kv_big"] / mean - 1.0)


def _calls(
    frame: pd.DataFrame, chunk: pd.Series, past: pd.Series, decodes: pd.Series, seen: pd.Series, time_us: pd.Series
) -> pd.DataFrame:
    shape, tensor = _shapes(frame), frame["tensor_parallel_size"]
    alone = chunk == 0
    # By what is in the call: chunks and decodes, or either alone.
    kinds = pd.Series("attention_mixed", frame.index).mask(alone, "attention_decode")
    return pd.DataFrame(
        {
            "op_class": kinds.mask(decodes == 0, "attention_prefill"),
            "hardware": hardware(frame["gpu"]),
            "engine": "vllm",
            # In our columns `batch` counts prompts where there is a chunk, and sequences where decodes are alone.
            "batch": decodes.where(alone, 1).astype(float),
            "new_tokens": chunk,
            "past_tokens": seen.where(alone, past),
            "decodes": decodes,
            "decode_context": seen,
            "heads": shape.heads / tensor,
            "kv_heads": shape.kv_heads / tensor,
            "head_dim": shape.head_dim,
            "time_s": time_us * 1e-6,
        }
    )


def moe(frame: pd.DataFrame) -> pd.DataFrame:
    """The MoE profile: tokens that visit so many of the experts in all."""
    return pd.DataFrame(
        {
            "op_class": "grouped_gemm",
            "hardware": hardware(frame["gpu"]),
            "engine": "vllm",
            "tokens": frame["tokens"],
            "expert_parallel": 1.0,
            "experts_touched": frame["activated_experts"],
            "time_s": frame["latency_us"] * 1e-6,
        }
        | _EXPERTS
    )


CONVERTERS = (
    ("LLMServingSim layers", {"layer", "row_unit", "latency_us"}, layers),
    ("LLMServingSim attention", {"prefill_chunk_tokens", "num_decode_seqs"}, attention),
    ("LLMServingSim skew", {"kvs", "kv_big", "t_skew_us"}, skew),
    ("LLMServingSim layers of a TPU", {"layer", "measured_model", "num_tokens", "latency_us"}, tpu_layers),
    ("LLMServingSim attention of a TPU", {"prefill_chunk_tokens", "latency_p50_us"}, tpu_attention),
    ("LLMServingSim experts", {"tokens", "activated_experts", "latency_us"}, moe),
)
