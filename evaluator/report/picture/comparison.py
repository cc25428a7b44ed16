"""The pictures of a comparison: errors over the load, and how often our own error bars held."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.accuracy import SHARE
from evaluator.errors import InputError
from evaluator.report.picture.canvas import canvas, save, title_lines
from evaluator.report.picture.style import BODY, COLOURS, GREY, SMALL, grid_lines
from evaluator.units import counted

if TYPE_CHECKING:
    import pandas as pd

NAMES = {"ttft_mean": "TTFT", "tpot_mean": "TPOT", "itl_mean": "ITL", "e2e_mean": "E2E",
         "throughput_rps": "requests/s", "output_tok_per_s": "output tokens/s"}  # fmt: skip
"""The metrics that are drawn, in this order."""
MOST_BARS = 60
"""Error bars of a metric; more of them are a cloud that hides the points."""
WIDEST = 3.0
"""Expected errors to which the curve of what held goes; a larger error is a failure of the model, not of its bar."""


def plot_comparison(table: pd.DataFrame, path: str | Path) -> Path:
    """Draw the rows of a comparison: signed errors of the means over the load, with the expected error as a bar.

    Where rows have an expected error (``expected_error_pct``) a second panel has the share of the figures whose error
    was within so many times the expected one, beside that of a normal distribution with the same 68 %: a curve below
    it tells of bars that are too narrow, one above it of bars that are too wide.
    Errors: as of ``plot``; InputError where nothing was compared.
    """
    return save(path, lambda: comparison_figure(table))


def comparison_figure(table: pd.DataFrame) -> Any:
    """The figure of ``plot_comparison``."""
    rows = table[table["metric"].isin(NAMES) & table["error_pct"].notna()]
    if not len(rows):
        raise InputError("nothing was compared: there is no error to draw")
    expected = rows.get("expected_error_pct")
    # Without expected errors the panel of what they held would be empty.
    judged = expected is not None and bool(expected.notna().any())
    width, height = (10.5, 4.6) if judged else (6.8, 4.6)
    figure = canvas(width, height)
    grid = figure.subplots(1, 2 if judged else 1, squeeze=False, width_ratios=[3, 2] if judged else [1])
    figure.subplots_adjust(0.8 / width, 0.2, 1 - 0.3 / width, 0.75, wspace=0.28)
    _errors(grid[0, 0], rows)
    if judged:
        _held(grid[0, 1], rows[rows["expected_error_pct"].notna()])
    of_runs = f"{_some(rows['model'], 'models')} on {_some(rows['hardware'], 'devices')}"
    left = title_lines(figure, "Predicted against measured", f"{counted(rows['exp_id'].nunique(), 'run')}: {of_runs}")
    sets = (
        f"Calibration: {_some(rows['calibration'], 'sets')}.  Bars: the error that was expected (68 of 100 are closer)."
    )
    figure.text(left, 0.12 / height, sets if judged else sets.partition("  ")[0], fontsize=SMALL, color=GREY)
    return figure


def _errors(axes: Any, rows: pd.DataFrame) -> None:
    """Signed errors over the mean number of requests in the system, a colour for each metric."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    metrics = [name for name in NAMES if (rows["metric"] == name).any()]
    axes.axhline(0, color="black", lw=0.8)
    for number, metric in enumerate(metrics):
        mine = rows[rows["metric"] == metric].sort_values("concurrency", kind="stable")
        # Side by side: the metrics of one run have the same load, and would hide each other.
        along = mine["concurrency"].to_numpy(float) * 1.035 ** (number - (len(metrics) - 1) / 2)
        errors = mine["error_pct"].to_numpy(float)
        if "expected_error_pct" in mine and len(mine) <= MOST_BARS:
            # A figure of which no error is expected has a bar of length 0, which is none.
            bars = np.nan_to_num(mine["expected_error_pct"].to_numpy(float))
            axes.errorbar(along, errors, yerr=bars, fmt="none", ecolor=COLOURS[number], alpha=0.35, lw=1.2)
        axes.plot(along, errors, ls="", marker="o", ms=4, color=COLOURS[number], label=NAMES[metric])
    axes.set_xscale("log")
    # Plain numbers at 1, 2 and 5: loads often span less than a factor of ten, of which powers of ten say nothing.
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("requests in the system, mean (predicted)", fontsize=BODY)
    axes.set_ylabel("predicted / measured - 1 (%)", fontsize=BODY)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(metrics), frameon=False, fontsize=SMALL,
                handletextpad=0.1, columnspacing=1.0, borderaxespad=0.1)  # fmt: skip
    grid_lines(axes)


def _held(axes: Any, rows: pd.DataFrame) -> None:
    """The share of figures whose error was at most k times the expected one, over k."""
    from scipy.special import erf, erfinv

    ratios = np.sort((rows["error_pct"].abs() / rows["expected_error_pct"]).to_numpy(float))
    shares = 100 * np.arange(1, len(ratios) + 1) / len(ratios)
    # From 0, and to the panel's end: without both the curve would begin at the smallest ratio and end within the panel.
    axes.step([0, *ratios, max(WIDEST, ratios[-1])], [0, *shares, 100], where="post", color=COLOURS[0], lw=1.7,
              label=f"measured ({len(ratios)} figures)")  # fmt: skip
    along = np.linspace(0, WIDEST, 200)
    # One expected error is the half-width that holds SHARE of the figures, not a standard deviation.
    axes.plot(along, 100 * erf(along * erfinv(SHARE)), color=GREY, lw=1.2, ls="--", label="a normal distribution")
    axes.plot([1], [100 * SHARE], marker="o", ms=6, ls="", color="black", label=f"stated: {100 * SHARE:.0f} %")
    axes.set_xlim(0, WIDEST)
    axes.set_ylim(0, 102)
    axes.set_xlabel("error / expected error", fontsize=BODY)
    axes.set_ylabel("figures within (%)", fontsize=BODY)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.12, 1.0), ncols=3, frameon=False, fontsize=SMALL,
                handletextpad=0.3, columnspacing=0.9, borderaxespad=0.1)  # fmt: skip
    grid_lines(axes)


def _some(values: Sequence[Any], kind: str) -> str:
    """The values where they are one or two, else how many there are of the ``kind``."""
    different = [str(value) for value in dict.fromkeys(values)]
    return " and ".join(different) if len(different) <= 2 else f"{len(different)} {kind}"
