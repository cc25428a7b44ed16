"""Figures of Blackwell's devices under ``filled`` of models/experts/vllm.yaml, from aiconfigurator's calls of SGLang's
experts behind DeepEP (``aic_wideep_moe.parquet``): ``python -m tests.benchmarks.filled_experts DATA``.

Prompts go through the kernel that vLLM calls, ``m_grouped_fp8_gemm_nt_contiguous`` of DeepGEMM, on rows that are whole
tiles of one expert each. Around it the call permutes the rows, activates them, makes them narrow and adds them up, by
elementwise kernels. Few tokens wait for the host, so that those calls tell nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from evaluator.catalog import load_calibration, load_hardware
from evaluator.cost.roofline import roofline
from evaluator.yaml import dumps_yaml

FILE = "aic_wideep_moe.parquet"
DEVICES = {
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200",
}
"""Hopper's are told for comparison with the H800's, whose products were timed by themselves. A GB300's calls scatter
too much (-8 to +9 %)."""
HOST_US = {"h100_sxm": 520.0, "h200_sxm": 520.0, "b200_sxm": 450.0, "b300_sxm": 450.0, "gb200": 1000.0}
"""Calls up to here take the host as long as the device."""
TILE = 128  # rows
MOST_DEVICES = 4
"""That share the experts: with more, a token that comes to a device is seldom one of several of its rows."""
MOVED = {"permuted": (2, 0), "activated": (0, 5), "added": (2, 0)}
"""Bytes of a row, in hidden sizes and in widths of an expert, that the kernels around the products move: permuted in a
byte (read, written); gate and up in two bytes and the result in one; what is added up in two bytes."""


def calls(data: Path, device: str) -> pd.DataFrame:
    """Of evenly routed prompts, with the experts touched and the rows computed."""
    table = pd.read_parquet(data / FILE)
    table = table[(table["engine"] == "sglang") & (table["phase"] == "prefill") & (table["gpu"] == device)]
    table = table[(table["routing_distribution"] == "uniform") & (table["moe_ep_size"] <= MOST_DEVICES)]
    table = table[table["latency_us"] > HOST_US[device]]
    visits = table["num_tokens"] * table["top_k"] / table["moe_ep_size"]
    # Evenly routed rows come expert by expert, in whole tiles.
    touched = np.minimum(table["num_experts"] / table["moe_ep_size"], np.ceil(visits / TILE))
    return table.assign(touched=touched, rows=np.ceil(visits / touched / TILE) * TILE * touched)


def fitted(found: pd.DataFrame, hardware: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares of the peak and of the bandwidth and the knee, their standard errors, and the relative errors of calls."""
    device = load_hardware(hardware)
    elementwise = load_calibration("datasheet", device.name).of("elementwise").bandwidth_efficiency
    columns = ["rows", "touched", "hidden_size", "intermediate_size"]
    rows, touched, hidden, width = (found[column].to_numpy(float) for column in columns)
    flop_s = 6.0 * rows * hidden * width / device.peak_flops["fp8"]
    weight_s = 3.0 * touched * hidden * width / device.memory_bandwidth
    # Read in a byte, written in two.
    moved_s = rows * (3.0 * hidden + 5.0 * width) / device.memory_bandwidth
    around = rows * sum(of_hidden * hidden + of_width * width for of_hidden, of_width in MOVED.values())
    around_s = around / (device.memory_bandwidth * elementwise)
    measured_s = 1e-6 * found["latency_us"].to_numpy(float)

    def off(values: np.ndarray) -> np.ndarray:
        products_s = roofline(flop_s / values[0], weight_s / values[1] + moved_s, values[2])
        return np.log((products_s + around_s + np.exp(values[3])) / measured_s)

    bounds = ([0.2, 0.3, 0.0, np.log(1e-6)], [1.0, 1.0, 1.0, np.log(2.5e-4)])
    fit = least_squares(off, [0.6, 0.9, 0.5, np.log(5e-5)], bounds=bounds)
    free = max(len(found) - len(fit.x), 1)
    errors = np.sqrt(np.diag(np.linalg.pinv(fit.jac.T @ fit.jac)) * 2.0 * fit.cost / free)
    return fit.x, errors, np.expm1(off(fit.x))


def main(data: Path) -> None:
    """Tell the section ``devices`` of ``filled``, and how sure it is."""
    devices = {}
    for device, name in DEVICES.items():
        found = calls(data, device)
        values, errors, off = fitted(found, name)
        figures = dict(zip(("flops_efficiency", "bandwidth_efficiency", "knee"), values, strict=False))
        devices[name] = {
            **{figure: round(float(value), 4) for figure, value in figures.items()},
            "errors": {
                "median": round(float(np.median(np.abs(off))), 3),
                "p90": round(float(np.quantile(np.abs(off), 0.9)), 3),
            },
        }
        print(f"# {name}: {len(found)} calls, +- {', '.join(f'{error:.3f}' for error in errors[:3])}")
    print(dumps_yaml({"devices": devices}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
