"""Which designs come first, and by what rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.results.schema import nearest_quantile, objectives_of

if TYPE_CHECKING:
    import xarray as xr


def ranking(ds: xr.Dataset, feasible: np.ndarray) -> tuple[np.ndarray, str]:
    """The rows of ``feasible``, best first, and the rule in words.

    ``feasible`` are positions along ``config`` of configurations that ran. A design that meets the SLO comes before one
    that misses it, one that is not saturated before one that is; among equals the cheaper comes first, or, where not
    all prices are known, the one with the higher throughput per GPU.
    """
    objective, words = _objective(ds, feasible)
    # ``lexsort`` sorts by its last key first: what is appended goes before what is there.
    keys = [objective, ds["saturated"].values[feasible].astype(float)]
    met = ds["slo_met"].values[feasible]
    if met.any():
        keys.append(-met.astype(float))
        words = f"those that meet the SLO first, then by {words}"
    elif objectives_of(ds):
        # Between the objective and saturation: a design that keeps up and misses comes before one that does
        # not keep up.
        keys.insert(1, -np.nan_to_num(ds["slo_attainment"].values[feasible]))
        words = f"none meets the SLO: by SLO attainment, then by {words}"
    else:
        words = f"not saturated first, then by {words}"
    return feasible[np.lexsort(keys)], words


def _objective(ds: xr.Dataset, feasible: np.ndarray) -> tuple[np.ndarray, str]:
    """What is minimised, and its name."""
    name, sign = ranking_measure(ds, feasible)
    if name is None:
        return near(ds, "ttft_s", 0.9)[feasible], "TTFT p90"
    values = ds[name].values[feasible]
    return np.where(np.isnan(values), np.inf, sign * values), _MEASURES[name][1]


_MEASURES = {
    "usd_per_mtok": (1.0, "cost per million output tokens"),
    "tok_per_s_per_gpu": (-1.0, "output tokens/s per GPU"),
}
"""What designs are ranked by: cost first, since that is what is bought; without prices, what a device gives."""


def ranking_measure(ds: xr.Dataset, feasible: np.ndarray) -> tuple[str | None, float]:
    """The variable that ranks the configurations at ``feasible``, and its sign where it is minimised; None: TTFT does,
    as the others are not known."""
    for name, (sign, _) in _MEASURES.items():
        if name in ds and _known(ds[name].values[feasible], name == "usd_per_mtok"):
            return name, sign
    return None, 1.0


def _known(values: np.ndarray, everywhere: bool) -> bool:
    """Whether a measure can rank designs: a price only if every design has one, or those without it would come last."""
    measured = np.isfinite(values)
    return bool(measured.all() if everywhere else measured.any())


def near(ds: xr.Dataset, name: str, level: float) -> np.ndarray:
    """A latency at the reported quantile nearest to ``level``, (config,)."""
    return ds[name].values[:, nearest_quantile(ds, level)]


def too_short(ds: xr.Dataset) -> np.ndarray:
    """Designs whose run was too short for its statistics, (config,) boolean; saturated ones say so by themselves."""
    if "steady" not in ds:
        return np.zeros(ds.sizes["config"], dtype=bool)
    calm = (ds["status"].values == OK) & ~ds["saturated"].values.astype(bool)
    return calm & ~ds["steady"].values.astype(bool)


BUSY_SERVERS = 0.9
"""From here on API servers hold tokens up."""


def held_up(ds: xr.Dataset) -> np.ndarray:
    """Designs whose API servers have hardly the time for their tokens, (config,) boolean."""
    if "api_server_utilisation" not in ds:
        return np.zeros(ds.sizes["config"], dtype=bool)
    return ds["api_server_utilisation"].values >= BUSY_SERVERS  # NaN, of unknown ones, compares as False


def is_constant(ds: xr.Dataset, name: str) -> bool:
    """Whether a coordinate is the same in every row."""
    values = ds[name].values
    return bool((values == values[0]).all())


def front(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the points (point,) that no other beats in both, where more is better, from the largest x down."""
    # Of equal x the largest y first, so that the others do not exceed what came before.
    order = np.lexsort((-y, -x))
    # In order of falling x a point is on the front if its y exceeds that of all before it.
    best = np.maximum.accumulate(np.r_[-np.inf, y[order][:-1]])
    return order[y[order] > best]
