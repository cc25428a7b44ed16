"""What holds the best designs back, as text: the elasticities of a sweep in a table for a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.report.elasticities import MEASURES, elasticity, measures_of
from evaluator.report.ranking import ranking
from evaluator.report.table.columns import KEPT, WIDTH, Column, lines_of
from evaluator.results.growth import RATES

if TYPE_CHECKING:
    import xarray as xr

ROWS = 3


def elasticity_table(ds: xr.Dataset, top: int = ROWS, width: int = WIDTH) -> str:
    """By how many percent 1 % more of each input changes the best ``top`` configurations, with errors.

    Inputs that make no difference are left out. ``ds`` is of a sweep with sensitivity, in which something can run.
    """
    order, _ = ranking(ds, np.flatnonzero(ds["status"].values == OK))
    best, shown = order[:top], measures_of(ds, order[:top])
    places = tuple(str(index + 1) if name == shown[0] else "" for index in range(best.size) for name in shown)
    if not shown:
        return "What limits the best configurations is not known: iterations measured as a whole do not tell."
    columns = [
        Column("#", "", places, KEPT),
        Column("1 % more of", "changes", tuple(MEASURES[name] for _ in best for name in shown), KEPT, text=True),
    ]
    for position, label in enumerate(ds["input"].values.tolist()):
        # (design, measure) in C order, as the columns before it have their rows.
        figures_of_measures = [np.stack(elasticity(ds, name, best, position), axis=-1) for name in shown]
        cells = tuple(_change(*figures) for figures in np.stack(figures_of_measures, axis=1).reshape(-1, 2).tolist())
        head, _, unit = label.partition("_")
        if any(cells):
            columns.append(Column(head, unit, cells, KEPT if label in RATES else 50))
    which = f"best {best.size} configurations" if best.size > 1 else "best configuration"
    heading = f"What limits the {which}: change in % for 1 % more of an input, ± chance and step"
    return "\n".join([heading, "", *lines_of(columns, width)])


def _change(slope: float, error: float) -> str:
    """An elasticity and its error, as ``-0.31 ±0.02``; empty where the input makes no difference."""
    if math.isnan(slope):
        return "-"
    # Exactly 0: the input enters no time of this design (a link on one device). ``not >`` for an error that is NaN.
    if slope == 0.0 and not error > 0.0:
        return ""
    return f"{slope:+.2f} ±{f'{error:.2f}' if math.isfinite(error) else '?   '}"
