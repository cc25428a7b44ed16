"""Isolated kernels, as the sets that were fitted to them predict them: by device, engine and class of operator.

Each set names its tables (``fit.data``), and rows are chosen, kept aside and predicted as ``evaluator calibrate`` does
it, so that a slice is what stands in the set's own ``fit.errors`` on a sample of the same rows, by the cost model of
today. Like there, kernels under 20 us are left out: of those most is the launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluator.calibrate.devices import PROCESSORS, UNKNOWN
from evaluator.calibrate.errors import LONG_S
from evaluator.calibrate.run import judge
from evaluator.calibrate.selection import SMALL, ClassRows, select, thin
from evaluator.calibrate.table import Table, read_table
from evaluator.catalog import load_calibration, load_hardware
from evaluator.catalog.calibration import Calibration
from evaluator.catalog.store import names
from evaluator.cost.rates import rates
from tests.benchmarks.accuracy.slices import judged

FILE = "aic_gemm.parquet"
"""Without it there are no tables of kernels."""
EVERY = 11
"""Of tables of more than LARGE rows each so many-th is taken; a prime, since tables are grids in a fixed order."""
LARGE = 50_000
MOST = 256
"""Rows of a slice, at most, evenly over their times."""
FEWEST = 10
"""Rows that a slice has at least: the median of fewer moves with a single shape."""


def rows(data: Path, sets: Sequence[str] = (), every: int = EVERY, most: int | None = MOST) -> Iterator[pd.DataFrame]:
    """The errors of the rows that are judged, set by set; ``sets``: of these alone."""
    tables: dict[str, Table] = {}
    for name in sets or names("calibrations"):
        calibration = load_calibration(name, "any", foreign=True)
        if name.endswith(".serving"):  # whose kernels are those of the set of kernels
            continue
        files = [entry["file"] for entry in calibration.fit.get("data", ()) if "rows_used" in calibration.fit]
        if not files or not all((data / file).exists() for file in files):
            continue
        for file in set(files) - set(tables):
            tables[file] = read_table(data / file, lambda frame: frame.iloc[:: every if len(frame) > LARGE else 1])
        yield from _of_set(calibration, [tables[file] for file in files], most)


def _of_set(calibration: Calibration, tables: list[Table], most: int | None) -> Iterator[pd.DataFrame]:
    device = load_hardware(calibration.hardware)
    own = [replace(table, rows=table.rows[table.rows["hardware"] == device.name]) for table in tables]
    parts, _ = select(own, device.name, PROCESSORS.get(device.name, UNKNOWN), calibration.engine)
    rate = rates(device, calibration)
    for part in parts:
        aside, kept = _aside(part, calibration.fit["rows_used"])
        if (count := min(most or len(aside), aside.sum())) < FEWEST:
            continue
        chosen = thin(replace(part, fitted=aside), count)
        # Each shape of an array is compiled anew: rows are repeated until they are ``most``.
        table = judge(_some(part, np.resize(chosen, most or count)), rate, device).iloc[:count]
        of = f"{device.name}, {calibration.engine}, {part.label}{'' if kept else ' (as fitted)'}"
        yield judged("kernels", [of] * count, "time", table["predicted_s"], table["time_s"])


def _some(part: ClassRows, at: np.ndarray) -> ClassRows:
    return replace(part, rows=part.rows.iloc[at].reset_index(drop=True), fold=part.fold[at], fitted=part.fitted[at])


def _aside(part: ClassRows, used: Mapping[str, Any]) -> tuple[np.ndarray, bool]:
    """Which rows of a class are judged, and whether the fit left these out: of a class that had few it did not."""
    long = (part.rows["time_s"] >= LONG_S).to_numpy()
    kept = used.get(part.label, SMALL + 1) > SMALL
    return long & (part.fold == 0) if kept else long, kept
