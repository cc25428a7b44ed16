"""Figures of models/delta_rule/ENGINE.yaml, from aiconfigurator's kernels (``aic_gdn.parquet``):
``python -m tests.benchmarks.delta_rule DATA [ENGINE]``.

vLLM's own tables have FlashInfer's kernel on Hopper and Blackwell, and Triton's (flash-linear-attention) on others; of
Hopper and Blackwell that one is in SGLang's tables. Fitted by least squares of log times, calls of 16 to 65,536 tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from evaluator.cost.iteration import DeltaRuleRows, delta_rule_time
from evaluator.yaml import dumps_yaml

FILE = "aic_gdn.parquet"
DEVICES = {
    "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200-sxm", "b300_sxm": "b300-sxm", "gb200": "gb200",
    "gb300": "gb300", "l40s": "l40s", "rtx_pro_6000_server": "rtx-pro-6000-server",
}  # fmt: skip
_SGLANG = ("sglang", "chunk_gated_delta_rule")
KERNELS = {
    "vllm": {
        "flashinfer": [("vllm", "chunk_gated_delta_rule_flashinfer")],
        "triton": [("vllm", "chunk_gated_delta_rule_triton"), _SGLANG],
    },
    "sglang": {"triton": [_SGLANG]},
    "trtllm": {"triton": [("trtllm", "chunk_gated_delta_rule")]},
}
"""Tables of an engine's kernels, by the engine that runs them; the first that has the device."""
HEADS = (32, 66, 108, 132, 148, 188, 264, 296, 400, 592)
"""Of heads at a time those are tried that a device's processors hold, about one to four each."""
LONG_US = 100.0


def calls(data: Path, kernel: str, device: str, engine: str = "vllm") -> pd.DataFrame:
    """Measured calls of an engine's kernel on a device of the table, medians of repetitions."""
    table = pd.read_parquet(data / FILE)
    table = table[(table["gpu"] == device) & ~table["is_suspect"] & (table["phase"] == "prefill")]
    tokens = table["tokens_per_sequence"] * table["batch_size"]
    table = table[(tokens <= 65536) & (table["tokens_per_sequence"] >= 16)]
    for measured, name in KERNELS[engine][kernel]:
        of_engine = table[(table["engine"] == measured) & (table["kernel"] == name)]
        if len(of_engine):
            shape = ["num_v_heads", "tokens_per_sequence", "batch_size"]
            return of_engine.groupby(shape, as_index=False)["latency_us"].median()
    return table.iloc[:0]


def predicted_us(found: pd.DataFrame, start_us: float, walk_ns: float, head_ns: float, heads: float) -> np.ndarray:
    """Of each call, by the cost model."""
    each = found["num_v_heads"].to_numpy(float)
    row = DeltaRuleRows(start_us, 1e-3 * walk_ns, 1e-3 * head_ns * each, each / heads)
    prompts = found["batch_size"].to_numpy(float)
    return np.asarray(delta_rule_time(row, prompts * found["tokens_per_sequence"].to_numpy(float), prompts))


def fitted(found: pd.DataFrame) -> tuple[tuple[float, ...], np.ndarray]:
    """Start (us), walk and work (ns) and heads at a time, with the relative error of each call."""
    measured = found["latency_us"].to_numpy()

    def off(values: np.ndarray, heads: float) -> np.ndarray:
        return np.log(predicted_us(found, *np.exp(values), heads) / measured)

    fits = [least_squares(off, np.log([20, 40, 1]), args=(heads,), loss="soft_l1", f_scale=0.1) for heads in HEADS]
    best = min(range(len(HEADS)), key=lambda place: fits[place].cost)
    return (*np.exp(fits[best].x), float(HEADS[best])), np.expm1(off(fits[best].x, HEADS[best]))


def main(data: Path, engine: str = "vllm") -> None:
    """Tell the section ``kernels`` of the file."""
    listed: dict[str, dict] = {}
    for kernel in KERNELS[engine]:
        for device, name in DEVICES.items():
            found = calls(data, kernel, device, engine)
            if found.empty:
                continue
            (start, walk, head, heads), errors = fitted(found)
            long = np.abs(errors[found["latency_us"].to_numpy() > LONG_US])
            listed.setdefault(kernel, {})[name] = {
                **{key: float(f"{value:.4g}") for key, value in
                   (("start_s", 1e-6 * start), ("walk_s", 1e-9 * walk), ("head_token_s", 1e-9 * head))},
                "heads": heads,
                "errors": {"median": round(float(np.median(long)), 3), "p90": round(float(np.quantile(long, 0.9)), 3)},
            }  # fmt: skip
    print(dumps_yaml({"kernels": {kernel: {"devices": devices} for kernel, devices in listed.items()}}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
