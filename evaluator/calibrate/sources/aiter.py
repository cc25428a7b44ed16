"""AITER (ROCm/aiter, MIT): the kernels that its tuning found fastest for a shape, each alone, on AMD's GPUs.

They are what vLLM and SGLang run on ROCm with AITER, and bounds from below: weights of most shapes stay in the device's
256 MB of Infinity Cache from one call to the next, and no kernel stands beside. Devices are known by their compute
units, which two products share each; a row counts for both.
"""

from __future__ import annotations

import pandas as pd

DEVICES = {"MI300X or MI325X": ("mi300x", "mi325x"), "MI350X or MI355X": ("mi355x",), "MI308X": ("mi308x",)}
"""Names of the catalog. The MI350X has the MI355X' units at a lower clock: winners are taken for the faster one's."""

EXPERT_DTYPES = {"bf16": "bf16", "fp8": "fp8", "mxfp4": "mxfp4"}


def gemm(frame: pd.DataFrame) -> pd.DataFrame:
    """``aiter_gemm``: single products (no batches of them), of several kernels of one shape the fastest."""
    frame = frame[~frame["is_suspect"] & (frame["batch"] == 1)]
    # Files of one repository were tuned at different times: an engine looks the shape up and finds the last winner.
    fastest = frame.sort_values("latency_us").drop_duplicates(["device", "precision", "m", "n", "k"])
    rows = pd.DataFrame(
        {
            "op_class": "gemm",
            "device": fastest["device"],
            "engine": "vllm",
            "dtype": fastest["precision"],
            "m": fastest["m"],
            "n": fastest["n"],
            "k": fastest["k"],
            "time_s": fastest["latency_us"] * 1e-6,
        }
    )
    return _of_devices(rows)


def experts(frame: pd.DataFrame) -> pd.DataFrame:
    """``aiter_fmoe``: both grouped products of a call, under a synthetic routing that is taken as even."""
    # A time that was copied from another number of tokens, or made of fixed shares, is no measurement. Weights that are
    # wider or narrower than their inputs are unpacked by kernels of their own, too few to fit.
    alike = frame["activation_dtype"] == frame["weight_dtype"]
    frame = frame[~frame["is_copied"] & ~frame["is_suspect"] & alike & frame["weight_dtype"].isin(EXPERT_DTYPES)]
    shape = ["device", "weight_dtype", "num_tokens", "num_experts", "topk", "hidden_size", "expert_intermediate_size"]
    fastest = frame.sort_values("latency_us").drop_duplicates(shape)
    rows = pd.DataFrame(
        {
            "op_class": "grouped_gemm",
            "device": fastest["device"],
            "engine": "vllm",
            "dtype": fastest["weight_dtype"].map(EXPERT_DTYPES),
            "tokens": fastest["num_tokens"],
            "hidden": fastest["hidden_size"],
            "intermediate": fastest["expert_intermediate_size"],
            "top_k": fastest["topk"],
            "experts": fastest["num_experts"],
            "expert_parallel": 1.0,
            "time_s": fastest["latency_us"] * 1e-6,
        }
    )
    return _of_devices(rows)


def _of_devices(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows once for each product that has the device's compute units; a device of no name keeps the source's."""
    named = rows["device"].map(lambda device: DEVICES.get(device, (device,)))
    return rows.drop(columns="device").assign(hardware=named).explode("hardware", ignore_index=True)


CONVERTERS = (
    ("AITER gemm", {"compute_units", "precision", "m", "n", "k", "latency_us"}, gemm),
    ("AITER experts", {"compute_units", "topk", "expert_intermediate_size", "latency_us"}, experts),
)
