"""Predictions beside measurements, row by row -> one line per slice, and what became worse since the last table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluator.catalog.model import LinearAttention, Model, Recurrence, StateSpace

KEYS = ["campaign", "slice", "metric"]
JUDGED = ("median_pct", "mean_absolute_pct")
ERRORS = "Errors by slice of all measurements at hand, signed where not said otherwise"
POINTS, SHARE = 2.0, 0.1
"""A slice is worse by so many points, or by such a share of its error where that is less."""
FINEST = 0.5
"""Points below which a difference is told of no slice: reading a table's digits is no more exact."""


def judged(
    campaign: str, part: Sequence[str], metric: str, predicted: pd.Series, measured: pd.Series, **drawn: Iterable[Any]
) -> pd.DataFrame:
    """Rows of a campaign: which slice each is of, and its error in %.

    ``drawn`` is what pictures need beside: how many sequences ran ``at`` a time, and the ``kind`` of model.
    """
    error = 100.0 * (predicted / measured - 1.0)
    found = pd.DataFrame({"campaign": campaign, "slice": list(part), "metric": metric, "error_pct": error.to_numpy()})
    found["predicted"], found["measured"] = np.asarray(predicted), np.asarray(measured)
    for name, values in drawn.items():
        found[name] = list(values)
    return found[found["error_pct"].notna()]


def kind_of(model: Model) -> str:
    """The kind of model that slices and pictures tell apart: with layers that have a state, with experts, or dense."""
    if any(isinstance(layers.mixer, LinearAttention | StateSpace | Recurrence) for layers in model.layers):
        return "state"
    return "experts" if model.has_experts else "dense"


def by_slice(rows: pd.DataFrame) -> pd.DataFrame:
    """A line per slice: rows, median signed error, median and mean absolute error, the middle 68 %, in %."""
    grouped = rows.groupby(KEYS, sort=True)["error_pct"]
    return pd.DataFrame(
        {
            "rows": grouped.size(),
            "median_pct": grouped.median(),
            "median_absolute_pct": grouped.apply(lambda error: error.abs().median()),
            "mean_absolute_pct": grouped.apply(lambda error: error.abs().mean()),
            "p16_pct": grouped.quantile(0.16),
            "p84_pct": grouped.quantile(0.84),
        }
    ).round(1)


def read(path: Path) -> pd.DataFrame:
    """A table as ``write`` leaves it."""
    return pd.read_csv(path, comment="#").set_index(KEYS)


def write(table: pd.DataFrame, path: Path, of: str = ERRORS) -> None:
    """The table as a CSV whose first line says what it has ``of`` the measurements and what wrote it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"# {of}: `make accuracy` writes it.\n"
    path.write_text(head + table.to_csv(), encoding="utf-8")


def worse(before: pd.DataFrame, after: pd.DataFrame) -> list[str]:
    """What a change made worse: slices that no longer run, and errors that grew by 2 points or a tenth."""
    told = [f"{' / '.join(key)}: no longer runs" for key in before.index.difference(after.index)]
    for key in before.index.intersection(after.index):
        for column in JUDGED:
            was, now = abs(before.loc[key, column]), abs(after.loc[key, column])
            if now - was > max(FINEST, min(POINTS, SHARE * was)):
                told.append(
                    f"{' / '.join(key)}: {column} {before.loc[key, column]:+.1f} -> {after.loc[key, column]:+.1f}"
                )
    return told
