"""The picture of a run over time: load, requests in the system, and latencies, below each other on one axis of time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    contents = [_rates(ds), _in_system(ds), *([_replicas(ds)] if fleet else []), *_latencies(ds)]
    # Answers of one token have no time per token: an empty panel would look as if it were 0.
    contents = [(label, lines) for label, lines in contents if any(np.isfinite(line.values).any() for line in lines)]
    figure = canvas(8.5, 1.8 + 1.6 * len(contents))
    panels = figure.subplots(len(contents), 1, sharex=True)
    figure.subplots_adjust(0.1, 0.09, 0.97, 0.89, hspace=0.28)
    begins, window = ds["time"].values, ds.attrs["window_s"]
    scale, unit = next((scale, unit) for least, scale, unit in _UNITS if begins[-1] + window >= least)
    # A window's value holds for all of it: drawn as steps, from its beginning to its end.
    edges = np.append(begins, begins[-1] + window) / scale
    for axes, (label, lines) in zip(panels, contents, strict=True):
        for line in lines:
            axes.stairs(line.values, edges, baseline=None, lw=1.5, color=COLOURS[line.colour], label=line.label)
        axes.set_ylabel(label, fontsize=BODY)
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


class _Line(NamedTuple):
    """One value per window, (time,), with the number of its colour."""

    values: np.ndarray
    colour: int
    label: str


_Panel = tuple[str, list[_Line]]
"""What its axis is labelled, and its lines."""


def _rates(ds: xr.Dataset) -> _Panel:
    names = {"arrivals_rps": (0, "arrive"), "completions_rps": (1, "are completed"), "refused_rps": (3, "are refused"),
             "lost_rps": (4, "are lost")}  # fmt: skip
    return "requests/s", [_Line(ds[name].values, *marks) for name, marks in names.items() if name in ds]


def _in_system(ds: xr.Dataset) -> _Panel:
    return "requests", [_Line(ds["in_system"].values, 2, "in the system")]


def _replicas(ds: xr.Dataset) -> _Panel:
    """Replicas of each of several pools, else of all; where replicas fail, those that serve beside them."""
    pools = ds["pool"].values.tolist() if "pool_replicas" in ds else []
    lines = [_Line(ds["pool_replicas"].sel(pool=pool).values, number, pool) for number, pool in enumerate(pools)]
    if "replicas" in ds and not pools:
        lines.append(_Line(ds["replicas"].values, 3, "there, starting and draining ones too"))
    if "replicas_up" in ds:
        lines.append(_Line(ds["replicas_up"].values, 4, "serve, and have not failed"))
    return "replicas", lines


def _latencies(ds: xr.Dataset) -> list[_Panel]:
    levels = ds["quantile"].values
    panels: list[_Panel] = []
    for name, label, factor in (("ttft_s", "TTFT (s)", 1.0), ("tpot_s", "TPOT (ms)", 1e3)):
        of_levels = factor * ds[name].transpose("quantile", "time").values
        lines = [_Line(values, number, f"p{100 * levels[number]:g}") for number, values in enumerate(of_levels)]
        panels.append((label, lines))
    return panels
