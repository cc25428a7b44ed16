"""The elasticities of a sweep: which are known, of which measures, and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.results.schema import nearest_quantile

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


def rows_with_elasticities(ds: xr.Dataset) -> np.ndarray:
    """Positions along ``config`` of the configurations that ran and whose elasticities are known.

    A cost that was fitted to whole iterations does not know their operators: its configurations have none.
    """
    # Latencies have a dimension of quantiles, the others none: flattened to (config, all else).
    finite = [np.isfinite(ds[f"{name}_elasticity"].values.reshape(ds.sizes["config"], -1)).any(1) for name in MEASURES]
    return np.flatnonzero((ds["status"].values == OK) & np.any(finite, axis=0))


def measures_of(ds: xr.Dataset, rows: np.ndarray) -> list[str]:
    """The names of the measures whose elasticities are known in ``rows``.

    Cost per token is the price over the output: where the cost is known, the output would say the same and is left out.
    """
    measured = [name for name in MEASURES if np.isfinite(ds[f"{name}_elasticity"].values[rows]).any()]
    return [name for name in measured if not (name == "output_tok_per_s" and "usd_per_mtok" in measured)]


def elasticity(ds: xr.Dataset, name: str, rows: np.ndarray, column: int) -> tuple[np.ndarray, np.ndarray]:
    """The elasticity of a measure to the input at position ``column`` of ``input``, and its error; both (row,).

    The error is the root of the sum of two squares: of the Monte-Carlo standard error, and of what the finite step of
    the difference is off by.
    """
    figures = [ds[f"{name}_elasticity{suffix}"].values[rows, column] for suffix in ("", "_stderr", "_step_error")]
    nearest = nearest_quantile(ds, 0.9)
    slope, chance, step = (values[:, nearest] if values.ndim > 1 else values for values in figures)
    return slope, np.hypot(chance, step)
