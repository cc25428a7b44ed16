"""A CSV of points: one row for each run of a server, from a table, a paper, or a generator that is not read here."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from evaluator.errors import InputError
from evaluator.experiments.actuals import column_metric
from evaluator.experiments.generators.measured_run import MeasuredRun, closed_loop, number_in, open_loop

NAME = "points"
LOADS = ("concurrency", "rate_rps")
LENGTHS = ("prompt_tokens", "output_tokens")
LAYOUT = ("tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel", "replicas")
DEPLOYMENT = (*LAYOUT, "engine", "engine_version", "calibration")
_OTHERS = ("requests", "model", "hardware", "gpu")
_RATES = {"throughput_rps": "throughput_rps", "throughput_req_per_s": "throughput_rps",
          "output_tok_per_s": "output_tok_per_s", "total_tok_per_s": "total_tok_per_s"}  # fmt: skip
CYCLES, LEAST = 10, 200
"""Requests of a point that does not say how many: so many for each user, and no fewer than these."""


def recognised(text: str) -> bool:
    """Whether the heading has a load and a measurement with its unit; a table of requests has arrivals instead."""
    heading = text.split("\n", 1)[0]
    # Spreadsheets write semicolons or tabs; only the names matter here, so that all three are one.
    names = {name.strip().strip('"').lower() for name in heading.replace(";", ",").replace("\t", ",").split(",")}
    if "exp_id" in names:  # measurements of experiments, whose specification is another file
        return False
    return bool(names & set(LOADS)) and any(name in _RATES or column_metric(name) for name in names)


def read(text: str, label: str) -> list[MeasuredRun]:
    """A run for each row. An empty cell is not stated, or not measured."""
    heading = text.split("\n", 1)[0]
    # The separator is the one that stands most often in the heading, in which no name has any of the three.
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=heading.count))
    reader.fieldnames = [(name or "").strip().lower() for name in reader.fieldnames or ()]
    runs = []
    for number, row in enumerate(reader, 1):
        cells = {
            name: value.strip() for name, value in row.items() if name and isinstance(value, str) and value.strip()
        }
        if cells:
            try:
                runs.append(_run(cells, f"{label} row {number}"))
            except InputError as error:
                raise InputError(f"row {number}: {error}") from None
    if not runs:
        raise InputError("there is no row below the heading")
    return runs


def _run(cells: Mapping[str, str], label: str) -> MeasuredRun:
    metrics: dict[str, float] = {}
    unread: list[str] = []
    for name in cells:
        metric, unit = (_RATES[name], 1.0) if name in _RATES else column_metric(name) or (None, 1.0)
        # Such as ttft_mean_ms beside ttft_mean_s: the one read last would win without a word.
        if metric in metrics:
            raise InputError(f"{name}: another column has {metric}, too; leave one of them empty")
        if metric is not None:
            metrics[metric] = number_in(cells, name, 0.0) * unit
        elif name not in (*LOADS, *LENGTHS, *DEPLOYMENT, *_OTHERS):
            unread.append(name)
    stated = [name for name in LOADS if name in cells]
    # A concurrency beside a rate would be a bound that holds requests back, which no simulation here has.
    if len(stated) != 1:
        raise InputError(f"needs one of {' and '.join(LOADS)}, has {' and '.join(stated) or 'none'}")
    load = number_in(cells, stated[0], 1e-6)
    users = load if stated[0] == "concurrency" else 0
    layout: dict[str, Any] = {name: cells[name] for name in DEPLOYMENT if name in cells}
    # After the texts of all columns of a deployment, of which numbers take the place.
    layout |= {name: int(number_in(cells, name, 1)) for name in LAYOUT if name in cells}
    count = int(number_in(cells, "requests", 1)) if "requests" in cells else max(LEAST, int(CYCLES * users))
    prompts, outputs = (number_in(cells, name, 1) if name in cells else None for name in LENGTHS)
    return MeasuredRun(
        label,
        NAME,
        closed_loop(load, "concurrency") if users else open_loop(load, "rate_rps"),
        count,
        metrics,
        prompts,
        outputs,
        model=cells.get("model"),
        gpu=cells.get("hardware", cells.get("gpu")),
        deployment=layout,
        # A metric without its unit, or a layout by another word (tp), would be missed by who wrote the table.
        notes=(f"columns not read: {', '.join(unread)}",) if unread else (),
    )
