"""The power of a busy device, against the runs of Splitwise that it was fitted to."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import least_squares

from evaluator.metrics.power import BUSY, BYTES, FLOPS, busy_power

PEAK_FLOPS, PEAK_BANDWIDTH = 312e12, 2.039e12  # A100 80 GB SXM
MODELS = {"llama2-70b": (69e9, 2 * 2 * 8 * 128 * 80), "bloom-176b": (176e9, 2 * 2 * 14336 * 70)}  # parameters, KV bytes


@pytest.fixture(scope="module")
def runs(data_folder) -> pd.DataFrame:
    """MFU, MBU and power (as a part of the TDP) of runs on A100, means over prefill and decode."""
    table = pd.read_csv(data_folder / "splitwise_perf_model.csv")
    known = (table["gpu"] == "a100-80gb") & table["average_power_fraction"].notna() & (table["prompt_tokens"] < 8192)
    table = table[known & ~table["is_suspect"] & ~table["is_exact_duplicate"]]
    weights, kv = (table["model"].map({name: figures[at] for name, figures in MODELS.items()}) for at in (0, 1))
    devices, batch = table["tensor_parallel_size"], table["batch_size"]
    prompt_s, token_s = table["prompt_time_s"], table["token_time_s"]
    share = prompt_s / (prompt_s + token_s * (table["output_tokens"] - 1))
    context = (table["prompt_tokens"] + table["output_tokens"] / 2) * batch
    prefill_flops = 2 * weights * table["prompt_tokens"] * batch / prompt_s
    decode_bytes = (2 * weights + kv * context) / token_s
    mfu = share * prefill_flops + (1 - share) * 2 * weights * batch / token_s
    mbu = share * 2 * weights / prompt_s + (1 - share) * decode_bytes
    return pd.DataFrame(
        {
            "mfu": mfu / devices / PEAK_FLOPS,
            "mbu": mbu / devices / PEAK_BANDWIDTH,
            "part": table["average_power_fraction"],
        }
    )


def test_the_constants_are_those_of_the_fit(runs):
    def error(at: np.ndarray) -> np.ndarray:
        return np.minimum(at[0] + at[1] * runs["mbu"] + at[2] * runs["mfu"], 1.0) - runs["part"]

    assert len(runs) == 200
    np.testing.assert_allclose(least_squares(error, (0.5, 0.5, 0.5)).x, (BUSY, BYTES, FLOPS), rtol=2e-3)


def test_the_error_is_as_stated(runs):
    ones = np.ones(len(runs))
    part = busy_power(ones, 0.2 * ones, runs["mfu"].to_numpy(), runs["mbu"].to_numpy())
    assert np.abs(part - runs["part"]).mean() == pytest.approx(0.021, abs=5e-4)


def test_power_is_between_idle_and_tdp():
    mfu, mbu = np.array([0.0, 0.5, 0.0, np.nan]), np.array([0.0, 0.9, 0.0, 0.1])
    idle = np.array([100.0, 100.0, 300.0, 100.0])
    np.testing.assert_allclose(busy_power(np.full(4, 700.0), idle, mfu, mbu), [700 * BUSY, 700.0, 300.0, np.nan])
