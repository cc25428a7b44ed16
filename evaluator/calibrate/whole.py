"""Calibration to whole iterations: a polynomial or a table for every model and split in the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from evaluator.calibrate.devices import UNKNOWN
from evaluator.calibrate.errors import statistics
from evaluator.calibrate.forms import FORMS
from evaluator.calibrate.forms.rows import IterationRows
from evaluator.calibrate.iterations import batches
from evaluator.calibrate.selection import select
from evaluator.calibrate.table import Table, read_table
from evaluator.catalog import load_hardware, load_model
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.iterations import AXES, TERMS, Iterations, MeasuredPhase
from evaluator.cost.fitted import fitted_cost
from evaluator.cost.iteration import iteration_time
from evaluator.errors import InputError

_LOADS = {"prefill": "prefill_tokens", "decode": "decodes"}
"""What the load of a phase is: held-out errors are given on both sides of its median."""


@dataclass(frozen=True)
class FittedIterations:
    """The fits with everything that their document tells.

    ``judged`` has a row per measurement of each fit (``label``), predicted by it (``fitted`` True), and one for each
    time that it was predicted from others. ``notes`` are those of the form, by label.
    """

    name: str
    hardware: str
    form: str
    beyond: str
    axes: tuple[str, ...] | None
    tables: tuple[Table, ...]
    fits: tuple[Iterations, ...]
    judged: pd.DataFrame
    notes: dict[str, dict[str, Any]]
    left_out: dict[str, int]


def fit_iterations(
    tables: Sequence[str | Path | Table],
    hardware: str,
    name: str,
    form: str,
    *,
    axes: Sequence[str] | None = None,
    beyond: str = "refuse",
    precision: tuple[str, str, str] = ("checkpoint", "bf16", "bf16"),
) -> FittedIterations:
    """Fit the iterations of ``hardware`` in these tables, all of which were measured in this precision.

    ``hardware`` is a name of the catalog, or FILE.yaml; ``axes``: of a table, the quantities that time depends on.
    InputError where there are no iterations.
    """
    read = tuple(table if isinstance(table, Table) else read_table(Path(table)) for table in tables)
    for wrong in sorted(set(axes or ()) - set(AXES["prefill"])):
        raise InputError(f"--axes: '{wrong}' is no quantity of an iteration; there are: {', '.join(AXES['prefill'])}")
    device = load_hardware(hardware)
    rows, left = _iteration_rows(read, device, form)
    fits, judged, notes = [], [], {}
    for (model, tensor, expert), part in rows.groupby(["model", "tensor_parallel", "expert_parallel"]):
        # A model that the catalog does not have is refused here, before anything is fitted to it.
        load_model(str(model))
        phases = {}
        for phase, mine in _phases(part):
            label = f"{model} TP {tensor:g}{f' EP {expert:g}' if expert > 1 else ''} {phase}"
            phases[phase], notes[label] = FORMS[form].fit(phase, mine, axes)
            judged.append(_judged(label, form, phase, mine, phases[phase], axes))
        fits.append(Iterations(str(model), int(tensor), int(expert), precision, phases))
    chosen = None if axes is None else tuple(axes)
    table = pd.concat(judged, ignore_index=True)
    return FittedIterations(name, device.name, form, beyond, chosen, read, tuple(fits), table, notes, left)


def _iteration_rows(read: Sequence[Table], device: Hardware, form: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """The rows of whole iterations with work in them, and how many others were left out and why."""
    # The record and not its name: a device that a file describes is none of the catalog's.
    parts, left = select(read, device, UNKNOWN)
    rows = next((part.rows for part in parts if part.op_class == "iteration"), None)
    if rows is None:
        raise InputError(f"a {form} is fitted to whole iterations (op_class iteration), and there are none")
    work = rows["prompts"] * rows["prompt_tokens"] + rows["decodes"]
    # A batch of nothing takes time and is no point that a form could pass through.
    rows, left = rows[work > 0], left | ({"empty batches": int((work == 0).sum())} if (work == 0).any() else {})
    left |= {f"{part.label}: no iterations": len(part.rows) for part in parts if part.op_class != "iteration"}
    return rows, left


def _phases(rows: pd.DataFrame) -> list[tuple[str, IterationRows]]:
    # Without a window: the forms take contexts as they are, whatever layers attend to.
    whole = IterationRows(batches(rows, None), rows["time_s"].to_numpy())
    prefill = whole.batch.prefill_tokens > 0
    by_phase = {"prefill": np.flatnonzero(prefill), "decode": np.flatnonzero(~prefill)}
    return [(phase, whole.take(rows_of_phase)) for phase, rows_of_phase in by_phase.items() if len(rows_of_phase)]


def _judged(
    label: str, form: str, phase: str, rows: IterationRows, fitted: MeasuredPhase, axes: Sequence[str] | None
) -> pd.DataFrame:
    load = _LOADS[phase]

    def frame(part: IterationRows, fit: MeasuredPhase, seen: bool) -> pd.DataFrame:
        columns = {"label": label, "op_class": "iteration", "phase": phase, "fitted": seen}
        # The fit as a cost, by the code that simulations use, so that what is judged is what will be predicted.
        predicted = iteration_time(fitted_cost(form, {phase: fit}), part.batch)
        return pd.DataFrame(
            columns | {"load": getattr(part.batch, load), "time_s": part.time_s, "predicted_s": predicted}
        )

    parts = [frame(rows, fitted, True)]
    for seen, aside in FORMS[form].splits(phase, rows, axes):
        with suppress(InputError):  # a table that cannot do without these rows is not judged on them
            parts.append(frame(rows.take(aside), FORMS[form].fit(phase, rows.take(seen), axes)[0], False))
    return pd.concat(parts, ignore_index=True)


def errors_by_load(judged: pd.DataFrame) -> dict[str, dict[str, dict[str, float]]]:
    """Errors of each fit: in the sample, on rows predicted from others, and of these at low and at high load."""
    summary = {}
    for label, rows in judged.groupby("label", sort=False):
        aside = rows[~rows["fitted"]]
        load, middle = _LOADS[rows["phase"].iloc[0]], aside["load"].median()
        groups = {
            "in_sample": rows[rows["fitted"]],
            "held_out": aside,
            f"held_out, low {load}": aside[aside["load"] <= middle],
            f"held_out, high {load}": aside[aside["load"] > middle],
        }
        summary[str(label)] = {name: statistics(part) for name, part in groups.items() if len(part)}
    return summary


def errors_table(judged: pd.DataFrame) -> str:
    """Mean and 90th percentile of the absolute errors of each fit as text."""
    lines = [f"{'':36s} {'rows':>6s} {'mean':>7s} {'p90':>7s}   held out {'mean':>7s} {'p90':>7s} {'bias':>7s}"]
    for label, groups in errors_by_load(judged).items():
        seen, aside = groups["in_sample"], groups.get("held_out")
        apart = "" if aside is None else f"{'':11s} {aside['mean']:7.1%} {aside['p90']:7.1%} {aside['bias']:+7.1%}"
        lines.append(f"{label:36s} {seen['rows']:6.0f} {seen['mean']:7.1%} {seen['p90']:7.1%}{apart}")
    return "\n".join(lines)


_METHODS = {
    "polynomial": "least squares of errors relative to the expected times, no coefficient below 0; "
    "held out: every fifth shape in turn",
    "table": "means at the knots, levelled where they fall; held out: every knot between two others in turn",
}


def document(fitted: FittedIterations) -> dict[str, Any]:
    """The content of the set's YAML; ``catalog.calibration.read_calibration`` reads it."""
    engines = sorted({engine for table in fitted.tables for engine in table.rows["engine"]} - {"any"})
    versions = sorted({version for table in fitted.tables for version in table.rows["engine_version"]} - {"any"})
    return {
        "name": fitted.name,
        "hardware": fitted.hardware,
        "provenance": "calibrated",
        "form": fitted.form,
        "beyond": fitted.beyond,
        "engine": ", ".join(engines) or "any",
        "engine_version": ", ".join(versions) or "any",
        "iterations": [_entry(fit, fitted.form) for fit in fitted.fits],
        "fit": {
            "method": _METHODS[fitted.form],
            "data": [
                {"file": table.name, "source": table.source, "sha256": table.sha256, "rows": len(table.rows)}
                for table in fitted.tables
            ],
            "rows_left_out": dict(fitted.left_out),
            "errors": errors_by_load(fitted.judged),
            "notes": {label: _plain(note) for label, note in fitted.notes.items()},
        },
    }


def _entry(fit: Iterations, form: str) -> dict[str, Any]:
    dtypes = dict(zip(("weights", "activations", "kv"), fit.precision, strict=True))
    common = {"model": fit.model, "tensor_parallel": fit.tensor_parallel, "expert_parallel": fit.expert_parallel}
    return common | {"precision": dtypes} | {name: _phase(name, phase, form) for name, phase in fit.phases.items()}


def _phase(name: str, phase: MeasuredPhase, form: str) -> dict[str, Any]:
    ranges = {quantity: list(ends) for quantity, ends in phase.ranges.items()}
    if form == "polynomial":
        factors = {term: value for term, value in zip(TERMS[name], phase.coefficients, strict=True) if value > 0}
        return _plain({"ranges": ranges, "coefficients": factors})
    # An axis with a single knot says nothing, and is left out of the file.
    axes = {axis: list(knots) for axis, knots in zip(AXES[name], phase.knots, strict=True) if len(knots) > 1}
    return _plain({"ranges": ranges, "axes": axes, "seconds": list(phase.seconds)})


def _plain(value: Any) -> Any:
    """Six significant digits: more than an iteration is known to; rounding keeps what ascends."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() else float(f"{value:.6g}")
    return value


def written(content: dict[str, Any]) -> str:
    """The document as YAML text."""
    head = "# Written by `evaluator calibrate`; the section `fit` says on what, and how far off it is.\n"
    return head + yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True)
