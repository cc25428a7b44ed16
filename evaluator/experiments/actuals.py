"""Measurements of experiments (CSV) -> rows by experiment; what cannot be read is a note beside what can."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path

from evaluator.errors import InputError
from evaluator.experiments.entry import as_number
from evaluator.experiments.experiment import POOLED, MeasuredMetrics
from evaluator.experiments.specifications import identifier
from evaluator.yaml import read_text

THROUGHPUT = "throughput_req_per_s"
COUNTED = "implied_mean_output_tokens"
_COLUMN = re.compile(r"(ttft|itl|tpot|e2e)_(mean|avg|median|p\d+(?:\.\d+)?)_(us|ms|s)")
_STATISTIC = {"avg": "mean", "median": "p50"}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_LIKE_A_METRIC = re.compile(r"ttft|itl|tpot|e2e|latency|throughput|tok\w*_per|median|(^|_)p\d\d")
_EMPTY = ("", "-", "--", "n/a", "na", "nan", "null", "none")
_ALL = (*_EMPTY, "all", "pooled", "total")


def read_actuals(path: str | Path) -> dict[str, tuple[MeasuredMetrics, ...]]:
    """Rows by exp_id, seconds and 1/s; empty cells are not measured. InputError where the file is no such table."""
    # Excel begins a CSV with a byte order mark, which would be part of the first column's name.
    text = read_text(path).removeprefix("\ufeff")
    # Tables come from spreadsheets of all countries: the separator is the one that the heading has most of.
    heading = text.split("\n", 1)[0]
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=heading.count))
    try:
        names = [(name or "").strip().lower() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not readable as CSV ({error})") from None
    columns = {name: metric for name in names if (metric := column_metric(name))}
    if "exp_id" not in names or not columns:
        raise InputError(f"{path}: expected columns exp_id, stage_index and measurements such as ttft_mean_ms")
    # A column that looks like a measurement and is not read (ttft_p90 without a unit) would be missed by who wrote it.
    unread = [name for name in names if name not in columns and _LIKE_A_METRIC.search(name)]
    metrics: dict[str, list[MeasuredMetrics]] = {}
    for number, row in enumerate(rows, 1):
        # csv puts cells beyond the heading under None, as a list, and gives None for those that a short row lacks.
        cells = {name: (value or "").strip() for name, value in row.items() if name and isinstance(value, str | None)}
        key = identifier(cells.get("exp_id"))
        metrics.setdefault(key, []).append(_row(number, cells, columns, unread))
    return {key: tuple(rows) for key, rows in metrics.items()}


def column_metric(name: str) -> tuple[str, float] | None:
    """A column's metric and its unit in seconds or 1/s; None for another column."""
    if name == THROUGHPUT:
        return "throughput_rps", 1.0
    match = _COLUMN.fullmatch(name)
    if match is None:
        return None
    statistic = _STATISTIC.get(match[2], match[2])
    if statistic.startswith("p"):
        percent = float(statistic[1:])
        if percent > 100:
            return None
        # p99.0 and p99 are one metric, called as results call it.
        statistic = f"p{percent:g}"
    return f"{match[1]}_{statistic}", _SECONDS[match[3]]


def _row(
    number: int, cells: Mapping[str, str], columns: Mapping[str, tuple[str, float]], unread: list
) -> MeasuredMetrics:
    notes = [f"column {name} is not read" for name in unread if cells.get(name, "").lower() not in _EMPTY]

    def number_in(name: str) -> float | None:
        text = cells.get(name, "")
        value = as_number(text)
        if text.lower() in _EMPTY or (value is not None and math.isnan(value)):
            return None
        if value is None or not 0 <= value < math.inf:
            # A single cell that is no number costs that figure and not the comparison: such tables are long, and
            # written by hand.
            notes.append(f"row {number}: {name} {text!r} is no measurement")
            return None
        return value

    read = {metric: (number_in(name), unit) for name, (metric, unit) in columns.items()}
    values = {metric: value * unit for metric, (value, unit) in read.items() if value is not None}
    return MeasuredMetrics(_stage(cells.get("stage_index", "")), values, number_in(COUNTED), tuple(notes))


def _stage(text: str) -> int:
    """The stage of a row; below -1 for one that no specification has."""
    if text.lower() in _ALL:
        return POOLED
    stage = as_number(text)
    # NaN is not equal to itself; the bound keeps infinity from `int`, which raises for it.
    return int(stage) if stage is not None and stage == stage and abs(stage) < 1e9 and stage == int(stage) else -2
