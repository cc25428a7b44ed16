"""The picture of a run over time: load, requests in the system, and latencies, below each other on one axis of time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.report.picture.canvas import canvas, save, title_lines
from evaluator.report.picture.style import BODY, COLOURS, SMALL, grid_lines

if TYPE_CHECKING:
    import xarray as xr

_UNITS = ((86400.0 * 3, 86400.0, "days"), (3600.0 * 3, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "s"))
"""From what length on the axis of time has which unit."""


def plot_over_time(ds: xr.Dataset, path: str | Path, title: str) -> Path:
    """Draw the windows of ``results.over_time``. Errors: as of ``plot``."""
    return save(path, lambda: over_time_figure(ds, title))


def over_time_figure(ds: xr.Dataset, title: str) -> Any:
    """The figure of ``plot_over_time``."""
    fleet = "replicas" in ds or "replicas_up" in ds
    figure = canvas(8.5, 9.8 if fleet else 8.2)
    panels = figure.subplots(5 if fleet else 4, 1, sharex=True)
    figure.subplots_adjust(0.1, 0.09, 0.97, 0.89, hspace=0.28)
    begins, window = ds["time"].values, ds.attrs["window_s"]
    scale, unit = next((scale, unit) for least, scale, unit in _UNITS if begins[-1] + window >= least)
    # A window's value holds for all of it: drawn as steps, from its beginning to its end.
    edges = np.append(begins, begins[-1] + window) / scale

    def steps(axes: Any, values: np.ndarray, **marks: Any) -> None:
        axes.stairs(values, edges, baseline=None, lw=1.5, **marks)

    steps(panels[0], ds["arrivals_rps"].values, color=COLOURS[0], label="arrive")
    steps(panels[0], ds["completions_rps"].values, color=COLOURS[1], label="are completed")
    for number, (name, label) in enumerate((("refused_rps", "are refused"), ("lost_rps", "are lost")), 3):
        if name in ds:
            steps(panels[0], ds[name].values, color=COLOURS[number], label=label)
    panels[0].set_ylabel("requests/s", fontsize=BODY)
    steps(panels[1], ds["in_system"].values, color=COLOURS[2], label="in the system")
    panels[1].set_ylabel("requests", fontsize=BODY)
    if fleet:
        pools = ds["pool"].values.tolist() if "pool_replicas" in ds else []
        for number, pool in enumerate(pools):
            steps(panels[2], ds["pool_replicas"].sel(pool=pool).values, color=COLOURS[number], label=pool)
        if "replicas" in ds and not pools:
            steps(panels[2], ds["replicas"].values, color=COLOURS[3], label="there, starting and draining ones too")
        if "replicas_up" in ds:
            steps(panels[2], ds["replicas_up"].values, color=COLOURS[4], label="serve, and have not failed")
        panels[2].set_ylabel("replicas", fontsize=BODY)
    for axes, (name, label, factor) in zip(
        panels[-2:], (("ttft_s", "TTFT (s)", 1.0), ("tpot_s", "TPOT (ms)", 1e3)), strict=True
    ):
        for number, level in enumerate(ds["quantile"].values):
            values = factor * ds[name].isel(quantile=number).values
            steps(axes, values, color=COLOURS[number], label=f"p{100 * level:g}")
        axes.set_ylabel(label, fontsize=BODY)
    for axes in panels:
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.98), ncols=6, frameon=False, fontsize=SMALL)
        grid_lines(axes)
    panels[-1].set_xlabel(f"time ({unit})", fontsize=BODY)
    panels[-1].set_xlim(0, edges[-1])
    seeds = ds.attrs["seeds"]
    subtitle = f"windows of {window:g} s; latencies by the time of arrival" + (
        f"; {seeds} seeds together" if seeds > 1 else ""
    )
    title_lines(figure, title, subtitle)
    return figure
