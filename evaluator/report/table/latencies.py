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
    bounded = [(str(bound["metric"]), str(bound["statistic"]), bound.get("class", "")) for bound in objectives_of(ds)]
    of_all = [entry for entry in bounded if not entry[2]]
    first = [next((entry for entry in of_all if entry[0] == metric), (metric, "p90", "")) for metric in ALWAYS]
    # ``dict.fromkeys``: the same statistic may have two bounds, in a scenario and in its sweep.
    more = [entry for entry in dict.fromkeys(bounded) if entry not in first and entry[0] in _HEADS]
    return [
        Column(f"{of_class} {_HEADS[metric]} {statistic}".strip(), "ms", cells(1e3 * values[rows]), column_rank)
        for entries, column_rank in ((first, rank), (more, other))
        for metric, statistic, of_class in entries
        for values in (latency_at(ds, metric, statistic, of_class),)
    ]


def latency_at(ds: xr.Dataset, metric: str, statistic: str, of_class: str = "") -> np.ndarray:
    """A latency in seconds, (config,): its mean, or the reported quantile nearest to ``p90`` and the like.

    ``of_class``: of the requests of that class, else of all.
    """
    values = ds.sel({"class": of_class}) if of_class else ds
    name = f"class_{metric}_s" if of_class else f"{metric}_s"
    if statistic == "mean":
        return values[f"{name}_mean"].values
    return values[name].values[:, nearest_quantile(ds, float(statistic[1:]) / 100.0)]
