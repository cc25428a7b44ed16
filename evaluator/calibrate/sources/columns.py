"""Columns that several sources have: devices and dtypes in the catalog's words, and the sizes of attention."""

from __future__ import annotations

import pandas as pd

HARDWARE = {
    "a100_sxm": "a100-sxm", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "l40s": "l40s",
    "b200_sxm": "b200-sxm", "b300_sxm": "b300-sxm", "rtx_pro_6000_server": "rtx-pro-6000-server",
    "A100-80GB": "a100-sxm", "H100-80GB": "h100-sxm", "a100-80gb": "a100-sxm", "h100-80gb": "h100-sxm",
    "h100-80gb-pcap": "h100-sxm-capped", "a100_dgx": "a100-sxm", "h100_dgx": "h100-sxm", "RTXPRO6000": "rtx-pro-6000",
    "RTX4090": "rtx-4090", "H20": "h20", "H800": "h800",
}  # fmt: skip

DTYPES = {
    "bfloat16": "bf16", "half": "fp16", "fp8": "fp8", "fp8_block": "fp8_block", "int8": "int8", "bf16": "bf16",
    "nvfp4": "nvfp4", "int4_wo": "int4", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4",
}  # fmt: skip


def hardware(column: pd.Series) -> pd.Series:
    """Names of the catalog; an unknown device keeps the source's name."""
    return column.map(HARDWARE).fillna(column)


def dtype(column: pd.Series) -> pd.Series:
    """Dtypes of the catalog; an unknown one keeps the source's name."""
    return column.map(DTYPES).fillna(column)


def attention_by_phase(frame: pd.DataFrame, new: str) -> dict[str, pd.Series]:
    """Class and sizes of rows whose ``phase`` tells decodes from prompts; ``new``: which column has a prompt's tokens.

    A decode is one token of each sequence.
    """
    decodes = frame["phase"] == "decode"
    return {
        "op_class": decodes.map({True: "attention_decode", False: "attention_prefill"}),
        "new_tokens": frame[new].where(~decodes, 1),
        "heads": frame["num_heads"],
        "kv_heads": frame["num_kv_heads"],
        "head_dim": frame["head_dim"],
    }
