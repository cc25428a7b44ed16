"""How far predictions are from measurements: by class, fitted or held out, by size and by load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

LONG_S = 20e-6
"""Kernels above this are what a step consists of; the shorter ones are mostly launches."""

SIZES = ((0.0, 20e-6, "under 20 us"), (20e-6, 1e-4, "20 to 100 us"), (1e-4, 1e-3, "0.1 to 1 ms"),
         (1e-3, np.inf, "above 1 ms"))  # fmt: skip

_LOADS = {"gemm": "m", "grouped_gemm": "tokens", "attention_prefill": "new_tokens", "attention_decode": "batch",
          "mla_prefill": "new_tokens", "mla_decode": "batch",
          "attention_mixed": "decodes", "iteration": "decodes"}  # fmt: skip
"""What the load of a class is; it is split at the median of the rows."""


def statistics(rows: pd.DataFrame) -> dict[str, float]:
    """Median and 90th percentile of the absolute relative error, the median signed one, and how many rows."""
    error = (rows["predicted_s"] / rows["time_s"] - 1).to_numpy()
    size = np.abs(error)
    return {
        "rows": len(rows),
        "median": round(float(np.median(size)), 4),
        "mean": round(float(np.mean(size)), 4),
        "p90": round(float(np.quantile(size, 0.9)), 4),
        "bias": round(float(np.median(error)), 4),
    }


def error_summary(judged: pd.DataFrame) -> dict[str, Any]:
    """Errors by class; within it in and out of the sample (long kernels), then held-out ones by size and load."""
    summary = {}
    for label, rows in judged.groupby("label"):
        # Of short kernels the launch is most of the time, and tells little of the efficiencies that are judged here.
        long = rows if rows["op_class"].iloc[0] == "iteration" else rows[rows["time_s"] >= LONG_S]
        aside = rows[~rows["fitted"]]
        groups = {"in_sample": long[long["fitted"]], "held_out": long[~long["fitted"]]}
        groups |= {f"held_out, {name}": aside[aside["time_s"].between(low, high)] for low, high, name in SIZES}
        load = _LOADS.get(str(rows["op_class"].iloc[0]))
        if load is not None:
            far = long[~long["fitted"]]
            # The median of those rows themselves, so that both halves have as many.
            middle = far[load].median()
            groups |= {
                f"held_out, low {load}": far[far[load] <= middle],
                f"held_out, high {load}": far[far[load] > middle],
            }
        summary[str(label)] = {name: statistics(part) for name, part in groups.items() if len(part)}
    return summary


def error_table(judged: pd.DataFrame) -> str:
    """The summary's first two lines per class as text."""
    lines = [f"{'class':20s} {'rows':>7s} {'median':>8s} {'p90':>8s} {'bias':>8s}   held out, kernels above 20 us"]
    for label, groups in error_summary(judged).items():
        judged_errors = groups.get("held_out", groups.get("in_sample"))
        if judged_errors:
            note = "" if "held_out" in groups else "   (in sample)"
            shown = f"{judged_errors['median']:8.1%} {judged_errors['p90']:8.1%} {judged_errors['bias']:+8.1%}{note}"
            lines.append(f"{label:20s} {judged_errors['rows']:7.0f} {shown}")
    return "\n".join(lines)
