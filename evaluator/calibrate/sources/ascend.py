"""aiconfigurator-npu (hudingyi688/aiconfigurator-npu): operators of vllm-ascend 0.18.0 on an Ascend 910B.

Each was timed alone, in captured graphs. Products of 8 bits are without the quantisation of their inputs, which the
calls of experts include. A call of experts is one card's share: both products and the combine for all tokens of its
``ep_size`` cards, under a routing that is taken as even.
"""

from __future__ import annotations

import pandas as pd

from evaluator.calibrate.sources.columns import attention_by_phase

DEVICES = {"ascend 910b": "ascend-910b"}
DTYPES = {"bf16": "bf16", "w8a8": "int8"}
_ENGINE = {"engine": "vllm", "engine_version": "0.18.0"}


def gemm(frame: pd.DataFrame) -> pd.DataFrame:
    """``ascend_910b_matmul``."""
    sizes = {name: frame[name] for name in "mnk"}
    return pd.DataFrame(_common(frame, "gemm") | {"dtype": frame["precision"].map(DTYPES)} | sizes)


def attention(frame: pd.DataFrame) -> pd.DataFrame:
    """``ascend_910b_attention``: whole prompts, and decodes of equal contexts; keys and values in 16 bits."""
    decodes = frame["phase"] == "decode"
    return pd.DataFrame(
        _common(frame, "attention_decode")
        | attention_by_phase(frame, "kv_len_tokens")
        | {"batch": frame["batch_size"], "past_tokens": frame["kv_len_tokens"].where(decodes, 0)}
    )


def experts(frame: pd.DataFrame) -> pd.DataFrame:
    """``ascend_910b_moe``."""
    return pd.DataFrame(
        _common(frame, "grouped_gemm")
        | {
            "dtype": frame["precision"].map(DTYPES),
            "tokens": frame["num_tokens"],
            "hidden": frame["hidden_size"],
            "intermediate": frame["intermediate_size"],
            "top_k": frame["top_k"],
            "experts": frame["num_experts"],
            "expert_parallel": frame["ep_size"],
        }
    )


def _common(frame: pd.DataFrame, op_class: str) -> dict[str, object]:
    named = frame["device"].map(DEVICES).fillna(frame["device"])
    return {"op_class": op_class, "hardware": named, "time_s": frame["latency_us"] * 1e-6} | _ENGINE


CONVERTERS = (
    ("aiconfigurator-npu matmul", {"device", "operator", "precision", "m", "n", "k", "latency_us"}, gemm),
    ("aiconfigurator-npu attention", {"device", "phase", "num_kv_heads", "kv_len_tokens", "latency_us"}, attention),
    ("aiconfigurator-npu experts", {"device", "ep_size", "local_experts", "latency_us"}, experts),
)
