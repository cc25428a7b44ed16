"""FlashInfer's own decode attention: fits and errors of models/attention/flashinfer.yaml.

``python -m tests.benchmarks.attention_kernels aic_engines_generation_attention.parquet
aic_devices_generation_attention.parquet`` fits launch, share of the bandwidth and time per sequence and head to
SGLang's calls of it by least squares of log ratios (soft L1), device by device, and prints them with the median and
90th percentile of the absolute errors of calls above 20 us, every combination of heads left out in turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from evaluator.calibrate.errors import LONG_S
from evaluator.calibrate.sources.aiconfigurator import BLACKWELL
from evaluator.calibrate.sources.columns import hardware
from evaluator.catalog import load_hardware
from evaluator.cost.dtypes import BYTES


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per device and dtype of the KV."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.attention_kernels", description=__doc__)
    parser.add_argument("data", nargs="+", type=Path)
    given = parser.parse_args(arguments)
    rows = pd.concat([pd.read_parquet(path) for path in given.data], ignore_index=True)
    # On workstations it is SGLang's usual kernel, whose figures the set there has.
    ours = (rows["kernel"] == "flashinfer") & (rows["engine"] == "sglang") & (rows["window_size_tokens"] == 0)
    rows = rows[ours & (rows["head_dim"] == 128) & rows["gpu"].isin(BLACKWELL)]
    rows = rows.assign(device=hardware(rows["gpu"]))
    for (name, dtype), part in rows.groupby(["device", "kv_cache_dtype"]):
        bandwidth = load_hardware(str(name)).memory_bandwidth
        kv = "fp8" if dtype == "fp8" else "bf16"
        tokens = part["batch_size"].to_numpy(float) * part["kv_len_tokens"].to_numpy(float)
        moved = tokens * part["num_kv_heads"].to_numpy(float) * 2 * 128 * BYTES[kv]
        heads = part["batch_size"].to_numpy(float) * part["num_heads"].to_numpy(float)
        times = part["latency_us"].to_numpy(float) * 1e-6

        def predicted(theta: np.ndarray) -> np.ndarray:
            launch, share, each = np.exp(theta)
            return launch + moved / (bandwidth * share) + heads * each  # noqa: B023

        def fit(chosen: np.ndarray) -> np.ndarray:
            def residuals(theta: np.ndarray) -> np.ndarray:
                return np.log(predicted(theta) / times)[chosen]  # noqa: B023

            bounds = np.log([1e-7, 1e-3, 1e-13]), np.log([1e-3, 1.0, 1e-6])
            return least_squares(residuals, np.log([1e-5, 0.4, 1e-9]), bounds=bounds, loss="soft_l1", f_scale=0.1).x

        errors = np.zeros(len(part))
        shapes = part["num_heads"].astype(str) + "/" + part["num_kv_heads"].astype(str)
        for shape in shapes.unique():
            aside = (shapes == shape).to_numpy()
            errors[aside] = np.abs(predicted(fit(~aside)) / times - 1.0)[aside]
        launch, share, each = np.exp(fit(np.ones(len(part), dtype=bool)))
        long = errors[times >= LONG_S]
        print(
            f"{name:9s} {kv}: {{launch_s: {launch:.3e}, bandwidth_efficiency: {share:.4f}, "
            f"head_sequence_s: {each:.3e}}}  left out {np.median(long):.1%} ({np.quantile(long, 0.9):.0%})"
        )


if __name__ == "__main__":
    main()
