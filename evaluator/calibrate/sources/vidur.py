"""Vidur (microsoft/vidur, MIT): medians of a layer's operators, and NCCL all-reduces."""

from __future__ import annotations

import pandas as pd

from evaluator.calibrate.sources.columns import hardware


def layer(frame: pd.DataFrame) -> pd.DataFrame:
    """``vidur_mlp``: the four products of a layer, and its elementwise kernels by the bytes they move."""
    # Eight keys of a model are there twice upstream: they would weigh double.
    frame = frame.drop_duplicates(["gpu", "model", "tensor_parallel_size", "num_tokens"])
    products, moved = _layer_sizes(frame)
    common = {"hardware": hardware(frame["gpu"]), "kernel": "", "engine": "vidur"}
    parts = [
        pd.DataFrame(
            common
            | {"op_class": "gemm", "dtype": "fp16", "m": frame["num_tokens"], "n": n, "k": k}
            | {"time_s": frame[column] * 1e-6}
        )
        for column, (n, k) in products.items()
    ]
    parts += [
        pd.DataFrame(
            common
            | {"op_class": "elementwise", "kernel": column, "bytes": 2.0 * elements * frame["num_tokens"]}
            | {"time_s": frame[column] * 1e-6}
        )
        for column, elements in moved.items()
    ]
    rows = pd.concat(parts, ignore_index=True)
    return rows[rows["time_s"] > 0]


def _layer_sizes(frame: pd.DataFrame) -> tuple[dict[str, tuple[pd.Series, pd.Series]], dict[str, pd.Series]]:
    """By column of times: (n, k) of a product of one rank, and the elements that a kernel moves for a token."""
    hidden, tensor = frame["hidden_size"], frame["tensor_parallel_size"]
    head = hidden / frame["num_heads"]
    queries = hidden / tensor
    # Heads fewer than ranks are on each of them.
    keys = (frame["num_kv_heads"] / tensor).clip(lower=1) * head
    inner = frame["intermediate_size"] / tensor
    # The query-key-value and gate-up products are fused, and only the inner side is split.
    products = {
        "attn_pre_proj_us": (queries + 2 * keys, hidden),
        "attn_post_proj_us": (hidden, queries),
        "mlp_up_proj_us": (2 * inner, hidden),
        "mlp_down_proj_us": (hidden, inner),
    }
    # Read and written: a norm in and out, gate and up in and one out, two in and one out.
    moved = {
        "input_layernorm_us": 2 * hidden,
        "post_attention_layernorm_us": 2 * hidden,
        "mlp_act_us": 3 * inner,
        "add_us": 3 * hidden,
    }
    return products, moved


def all_reduce(frame: pd.DataFrame) -> pd.DataFrame:
    """``vidur_all_reduce``: inside one node."""
    # Only whole nodes: messages between nodes cross other links.
    frame = frame[frame["num_gpus"] == frame["gpus_per_node"]]
    return pd.DataFrame(
        {
            "op_class": "all_reduce",
            "hardware": hardware(frame["system"]),
            "engine": "nccl",
            "mode": "eager",
            "devices": frame["num_gpus"],
            "message_bytes": frame["message_size_bytes"],
            "time_s": frame["latency_median_us"] * 1e-6,
        }
    )


CONVERTERS = (
    ("Vidur layer", {"attn_pre_proj_us", "mlp_up_proj_us"}, layer),
    ("Vidur all-reduce", {"system", "gpus_per_node", "latency_median_us"}, all_reduce),
)
