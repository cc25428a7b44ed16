"""Predicted against measured, one panel per class."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.calibrate.errors import statistics
from evaluator.calibrate.run import Calibrated
from evaluator.calibrate.whole import FittedIterations
from evaluator.errors import InputError

MOST_POINTS = 2000


def draw(fitted: Calibrated | FittedIterations, path: Path) -> None:
    """Draw the held-out rows of every class; InputError without matplotlib."""
    if find_spec("matplotlib") is None:
        raise InputError(f"{path}: pictures need matplotlib; install it with: pip install matplotlib")
    import matplotlib
    from matplotlib.figure import Figure

    classes = list(fitted.judged.groupby("label"))
    columns = min(4, len(classes))
    lines = -(-len(classes) // columns)
    with matplotlib.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(3.2 * columns, 3.0 * lines), layout="constrained")
        axes = np.atleast_1d(figure.subplots(lines, columns)).ravel()
        for axis in axes[len(classes) :]:
            axis.set_visible(False)
        for axis, (label, rows) in zip(axes, classes, strict=False):
            _panel(axis, str(label), rows)
        figure.suptitle(f"{fitted.name}: predicted against measured, held-out rows", fontsize=10)
        figure.savefig(path, dpi=130)


def _panel(axis: Any, label: str, rows: Any) -> None:
    aside = rows[~rows["fitted"]] if (~rows["fitted"]).any() else rows
    shown = aside.iloc[np.unique(np.linspace(0, len(aside) - 1, MOST_POINTS).astype(int))]
    unit, scale = ("ms", 1e3) if shown["time_s"].min() > 1e-3 else ("us", 1e6)
    measured, predicted = shown["time_s"] * scale, shown["predicted_s"] * scale
    ends = [min(measured.min(), predicted.min()), max(measured.max(), predicted.max())]
    draw = axis.loglog if ends[1] > 4 * ends[0] else axis.plot  # less than a decade has no room for its labels
    draw(measured, predicted, ".", ms=2, color="#0072B2", alpha=0.4, rasterized=True)
    axis.plot(ends, ends, color="#444444", lw=0.8)
    for factor in (0.8, 1.25):
        axis.plot(ends, [end * factor for end in ends], color="#444444", lw=0.5, ls=":")
    errors = statistics(aside)
    axis.set_title(
        f"{label}\nmedian {errors['median']:.1%}, p90 {errors['p90']:.1%}, {errors['rows']:,} rows", fontsize=8
    )
    axis.set_xlabel(f"measured ({unit})")
    axis.set_ylabel(f"predicted ({unit})")
