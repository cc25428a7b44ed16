"""The elasticities of a sweep: which are known, of which measures, and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.outcomes import OK

if TYPE_CHECKING:
    import xarray as xr

MEASURES = {
    "ttft_s": "TTFT p90",
    "tpot_s": "TPOT p90",
    "slo_attainment": "in SLO",
    "usd_per_mtok": "USD per Mtok",
    "output_tok_per_s": "output tok/s",
}
"""Variables and how they are called; latencies at the quantile nearest to 0.9."""


def told(ds: xr.Dataset) -> np.ndarray:
    """Positions along ``config`` of what ran and whose inputs are known: not those of iterations fitted as a whole."""
    finite = [np.isfinite(ds[f"{name}_elasticity"].values.reshape(ds.sizes["config"], -1)).any(1) for name in MEASURES]
    return np.flatnonzero((ds["status"].values == OK) & np.any(finite, axis=0))


def measures_of(ds: xr.Dataset, rows: np.ndarray) -> list[str]:
    """The measures that are known; of cost and output, which say the same, the cost."""
    known = [name for name in MEASURES if np.isfinite(ds[f"{name}_elasticity"].values[rows]).any()]
    return [name for name in known if not (name == "output_tok_per_s" and "usd_per_mtok" in known)]


def elasticity(ds: xr.Dataset, name: str, rows: np.ndarray, at: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a measure in ``rows`` to the input at position ``at``, and its error; both (row,).

    The error is that of chance and that of the step together: the root of the sum of their squares.
    """
    found = [ds[f"{name}_elasticity{suffix}"].values[rows, at] for suffix in ("", "_stderr", "_step_error")]
    nearest = int(np.argmin(np.abs(ds["quantile"].values - 0.9)))
    slope, chance, step = (values[:, nearest] if values.ndim > 1 else values for values in found)
    return slope, np.hypot(chance, step)
