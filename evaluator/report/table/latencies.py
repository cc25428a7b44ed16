"""The latencies of a ranked table: each at the statistic that its objective bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from evaluator.report.table.columns import Column
from evaluator.results.schema import nearest_quantile, objectives_of

if TYPE_CHECKING:
    import xarray as xr

_HEADS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "queue_wait": "wait"}
ALWAYS = ("ttft", "tpot")
"""Latencies that a table shows in any case, at p90 where they have no objective."""


def latency_columns(
    ds: xr.Dataset, rows: np.ndarray, cells: Callable[[np.ndarray], tuple[str, ...]], rank: int, other: int
) -> list[Column]:
    """TTFT and TPOT, of ``rank``, then all else that has an objective, of rank ``other``; of ``rows`` in ms.

    A latency with several objectives is shown at the first, and at the others with the rank of those.
    """
    bounded = [(str(bound["metric"]), str(bound["statistic"])) for bound in objectives_of(ds)]
    first = [next((pair for pair in bounded if pair[0] == metric), (metric, "p90")) for metric in ALWAYS]
    # ``dict.fromkeys``: the same statistic may have two bounds, in a scenario and in its sweep.
    more = [pair for pair in dict.fromkeys(bounded) if pair not in first and pair[0] in _HEADS]
    return [
        Column(f"{_HEADS[metric]} {statistic}", "ms", cells(1e3 * _values(ds, metric, statistic)[rows]), column_rank)
        for pairs, column_rank in ((first, rank), (more, other))
        for metric, statistic in pairs
    ]


def _values(ds: xr.Dataset, metric: str, statistic: str) -> np.ndarray:
    """A latency in seconds, (config,): its mean, or the reported quantile nearest to ``p90`` and the like."""
    if statistic == "mean":
        return ds[f"{metric}_s_mean"].values
    return ds[f"{metric}_s"].values[:, nearest_quantile(ds, float(statistic[1:]) / 100.0)]
