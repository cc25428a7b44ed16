"""What holds for every run, for tests of sweeps and of single runs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from evaluator.metrics import OK

TIMES = ["arrival_s", "scheduled_s", "first_token_s", "last_token_s"]


def plausible(ds: xr.Dataset) -> None:
    """What holds for every design that ran."""
    ran = ds.isel(config=np.flatnonzero(ds["status"].values == OK))
    for name in ("mfu", "mbu", "utilisation", "kv_used_max", "kv_used_mean"):
        assert ((ran[name] > 0) & (ran[name] <= 1)).all(), name
    assert (ran["kv_used_mean"] <= ran["kv_used_max"]).all()
    for name in ("queue_wait_s", "ttft_s", "tpot_s", "e2e_s", "itl_s"):
        assert np.isfinite(ran[name]).all() and (ran[name].diff("quantile") >= 0).all(), name
    assert (ran["ttft_s"] >= ran["queue_wait_s"]).all() and (ran["e2e_s"] >= ran["ttft_s"]).all()
    assert (ran["throughput_rps"] > 0).all() and (ran["usd_per_mtok"].isnull() | (ran["usd_per_mtok"] > 0)).all()


def ordered(table: pd.DataFrame) -> None:
    """Every time is finite, and they follow each other."""
    times = table[TIMES].to_numpy()
    assert np.isfinite(times).all() and (np.diff(times, axis=1) >= 0).all()
    assert (table["first_token_s"] > table["scheduled_s"]).all()
    assert ((table["last_token_s"] > table["first_token_s"]) == (table["output_tokens"] > 1)).all()
