"""LLMServingSim (casys-kaist/LLMServingSim, MIT): layers and mixed attention of Llama-3.1-8B on RTX PRO 6000."""

from __future__ import annotations

import pandas as pd

from evaluator.calibrate.sources.names import hardware

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 4096, 14336, 32, 8, 128, 128256


def layers(frame: pd.DataFrame) -> pd.DataFrame:
    """The layer profile: products and elementwise kernels. The sampler, of many small kernels, is left out."""
    products = {
        "qkv_proj": lambda tensor: ((HEADS + 2 * KV_HEADS) * HEAD_DIM / tensor, HIDDEN),
        "o_proj": lambda tensor: (HIDDEN, HEADS * HEAD_DIM / tensor),
        "gate_up_proj": lambda tensor: (2 * INNER / tensor, HIDDEN),
        "down_proj": lambda tensor: (HIDDEN, INNER / tensor),
        "lm_head": lambda tensor: (VOCABULARY / tensor, HIDDEN),
    }
    moved = {
        "act_fn": lambda tensor: 3 * INNER / tensor,
        "layernorm": lambda tensor: 4 * HIDDEN,
        "rotary_emb": lambda tensor: 2 * (HEADS + KV_HEADS) * HEAD_DIM / tensor,
        "embedding": lambda tensor: 2 * HIDDEN,
    }
    parts = []
    for name, part in frame.groupby("layer"):
        tensor = part["tensor_parallel_size"]
        common = {
            "hardware": hardware(part["gpu"]),
            "kernel": name,
            "engine": "vllm",
            "time_s": part["latency_us"] * 1e-6,
        }
        if name in products:
            n, k = products[name](tensor)
            parts.append(pd.DataFrame(common | {"op_class": "gemm", "m": part["num_tokens"], "n": n, "k": k}))
        elif name in moved:
            size = 2.0 * moved[name](tensor) * part["num_tokens"]
            parts.append(pd.DataFrame(common | {"op_class": "elementwise", "bytes": size}))
    return pd.concat(parts, ignore_index=True)


def attention(frame: pd.DataFrame) -> pd.DataFrame:
    """The attention profile: one chunk on its history, beside decodes of equal context."""
    tensor = frame["tensor_parallel_size"]
    return pd.DataFrame(
        {
            "op_class": "attention_mixed",
            "hardware": hardware(frame["gpu"]),
            "engine": "vllm",
            "batch": (frame["prefill_chunk_tokens"] > 0).astype(float),
            "new_tokens": frame["prefill_chunk_tokens"],
            "past_tokens": frame["prefill_past_kv_tokens"],
            "decodes": frame["num_decode_seqs"],
            "decode_context": frame["decode_kv_tokens_per_seq"],
            "heads": HEADS / tensor,
            "kv_heads": KV_HEADS / tensor,
            "head_dim": HEAD_DIM,
            "time_s": frame["latency_us"] * 1e-6,
        }
    )


CONVERTERS = (
    ("LLMServingSim layers", {"layer", "row_unit", "latency_us"}, layers),
    ("LLMServingSim attention", {"prefill_chunk_tokens", "num_decode_seqs"}, attention),
)
