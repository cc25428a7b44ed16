"""The measures of a picture, one for each panel, with the limits between which they are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evaluator.report.picture.layout import Layout
from evaluator.results.schema import nearest_quantile, objectives_of

if TYPE_CHECKING:
    import xarray as xr

CUT = 5.0  # times the objective: how much longer a latency is, is of no interest


@dataclass(frozen=True)
class Panel:
    """One measure: values and standard errors (config,), NaN-able; ``bound`` is the objective in ``unit``."""

    label: str
    values: np.ndarray
    stderr: np.ndarray | None
    bound: float | None
    log: bool = False
    top: float | None = None
    unit: str = ""


def _latency(ds: xr.Dataset, metric: str, title: str, scale: float, unit: str, log: bool) -> Panel:
    """A latency at the statistic of its objective, p90 without one."""
    wanted = [bound for bound in objectives_of(ds) if bound["metric"] == metric and not bound.get("class")]
    # The first bound of a metric sets the panel: with two of them (p50 and p99) there would be two panels of one
    # latency.
    statistic = wanted[0]["statistic"] if wanted else "p90"
    name = f"{metric}_s"
    if statistic == "mean":
        values, stderr = ds[f"{name}_mean"].values, ds.get(f"{name}_mean_stderr")
    else:
        nearest = nearest_quantile(ds, float(statistic[1:]) / 100.0)
        values, stderr = ds[name].values[:, nearest], ds.get(f"{name}_stderr")
        stderr = None if stderr is None else stderr[:, nearest]
    bound = wanted[0]["bound_s"] * scale if wanted else None
    error = None if stderr is None else stderr.values * scale
    return Panel(f"{title} {statistic} ({unit})", values * scale, error, bound, log, unit=unit)


def panels_of(ds: xr.Dataset, layout: Layout) -> list[Panel]:
    """The latencies and what else matters: requests within the objectives, or where there is none how long a session
    takes (a conversation, a task of agents), or output per GPU."""
    panels = [
        _latency(ds, "ttft", "TTFT", 1.0, "s", log=True),
        _latency(ds, "tpot", "TPOT", 1e3, "ms", log=bool(objectives_of(ds))),
    ]
    if objectives_of(ds):
        values = 100.0 * ds["slo_attainment"].values
        # Above 100, so that a curve at 100 % is not hidden by the frame.
        panels.append(Panel("requests within SLO (%)", values, None, None, top=104.0))
    elif "session_s_mean" in ds and np.isfinite(ds["session_s_mean"].values[layout.rows]).any():
        panels.append(Panel("session, mean (s)", ds["session_s_mean"].values, None, None))
    else:
        panels.append(Panel("output tokens/s per GPU", ds["tok_per_s_per_gpu"].values, None, None))
    # TPOT is unknown where every output has one token.
    return [panel for panel in panels if np.isfinite(panel.values[layout.rows]).any()]


def log_limits(calm: np.ndarray, bound: float | None) -> tuple[float, float]:
    """Around the points that are not saturated; with an objective up to ``CUT`` times it, if any fits."""
    if bound is None:
        return 0.7 * calm.min(), 4.0 * calm.max()
    # The last term: where every design is beyond the cut, the axis still spans what there is.
    return 0.7 * min(calm.min(), bound), max(min(4.0 * max(calm.max(), bound), CUT * bound), 2.0 * calm.min())
