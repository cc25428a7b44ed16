"""InferSim (alibaba/InferSim, Apache-2.0): DeepGEMM's products in fp8 blocks and bf16 attention of H800 and H20.

Its grouped GEMMs time both products of experts apart, without routing; MLA rows have the latent's dims for head dims.
Neither is the operator that a fused call is, so they are left out.
"""

from __future__ import annotations

import pandas as pd

from evaluator.calibrate.sources.columns import attention_by_phase, dtype, hardware


def gemm(frame: pd.DataFrame) -> pd.DataFrame:
    """``infersim_gemm``, one row per shape: fp8 in blocks, which stands for all fp8 where nothing else was measured."""
    # Repetitions of a shape were measured in the same run: one is enough.
    frame = frame.drop_duplicates(["gpu", "m", "k", "n"])
    rows = pd.DataFrame(
        {
            "op_class": "gemm",
            "hardware": hardware(frame["gpu"]),
            "dtype": "fp8_block",
            "m": frame["m"],
            "n": frame["n"],
            "k": frame["k"],
            "time_s": frame["latency_us"] * 1e-6,
        }
    )
    return pd.concat([rows, rows.assign(dtype="fp8")], ignore_index=True)


def attention(frame: pd.DataFrame) -> pd.DataFrame:
    """``infersim_attention``: MHA and GQA. H20 with 64 heads and 2 KV heads is a kernel without split KV: not taken."""
    # Ten times slower at batch 1 than its neighbours; upstream's file (mha/decode/h20/64-2-128.csv) has no header,
    # either.
    odd = (frame["gpu"] == "H20") & (frame["num_heads"] == 64) & (frame["num_kv_heads"] == 2)
    frame = frame[(frame["attention"] == "mha") & ~odd]
    decodes = frame["phase"] == "decode"
    return pd.DataFrame(
        attention_by_phase(frame, "kv_len_tokens")
        | {
            "hardware": hardware(frame["gpu"]),
            "kv_dtype": dtype(frame["kv_cache_dtype"]),
            "batch": frame["batch_size"].where(decodes, 1),  # a prompt is one sequence here
            "past_tokens": frame["kv_len_tokens"].where(decodes, 0),
            "time_s": frame["latency_us"] * 1e-6,
        }
    )


CONVERTERS = (
    ("InferSim gemm", {"gpu", "m", "n", "k", "latency_us", "mfu"}, gemm),
    ("InferSim attention", {"mla_dim_1", "phase", "kv_len_tokens", "mfu"}, attention),
)
