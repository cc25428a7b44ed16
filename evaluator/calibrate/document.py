"""The fitted set as a document: efficiencies with errors, what they were fitted on, and how well."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd

from evaluator.calibrate.errors import error_summary
from evaluator.calibrate.parameters import PRIOR_SIGMA
from evaluator.calibrate.run import Calibrated
from evaluator.catalog.calibration import (
    OPERATOR_CLASSES,
    OPTIONAL_CLASSES,
    OPTIONAL_COLLECTIVES,
    Calibration,
    base_class,
    is_collective,
)
from evaluator.catalog.efficiency import BEYOND_ROOFLINE, GroupEfficiency, figures_of

_ROOFLINE = ("flops_efficiency", "bandwidth_efficiency", "knee", "launch_s")
_OF_EVERY_MODEL = {"gemm", "attention_prefill", "attention_decode"}
NUISANCES = ("expert_skew",)
"""Parameters of how a measurement was made, not of the device: reported, never shipped as a figure."""


def document(fitted: Calibrated) -> dict[str, Any]:
    """The content of the set's YAML; ``catalog.calibration.read_calibration`` reads it."""
    fitted_values = {
        parameter.name: float(value)
        for parameter, value in zip(fitted.result.parameters, fitted.result.values, strict=True)
        if parameter.name not in NUISANCES
    }
    labels = {str(label) for label in fitted.judged["label"]}
    dispatch_s = fitted_values.get("dispatch_s", fitted.base.dispatch_s)
    # In the order of the file: what it is, its figures, where these are from, and how good the fit was.
    return {
        "name": fitted.name,
        "hardware": fitted.hardware.name,
        "provenance": _provenance(fitted, labels),
        **_engine(fitted.judged),
        "efficiencies": _efficiencies(fitted.base, fitted_values, fitted.wave_tiles),
        "link_efficiency": fitted.base.link_efficiency,
        "step_overhead_s": _rounded(fitted_values.get("step_overhead_s", fitted.base.step_overhead_s)),
        "sequence_overhead_s": _rounded(fitted_values.get("sequence_overhead_s", fitted.base.sequence_overhead_s)),
        **({"dispatch_s": _rounded(dispatch_s)} if dispatch_s else {}),
        "sources": _sources(fitted, labels),
        "fit": _fit(fitted),
    }


def _provenance(fitted: Calibrated, labels: set[str]) -> str:
    """Where most of an iteration's time is from: measured here, or in part in the set that the fit began with."""
    # A fit in which no row identified any parameter is the starting set under another name.
    if not np.isfinite(fitted.result.errors).any():
        return fitted.base.provenance
    # By the classes themselves: products in 8 bits tell nothing of those in 16, which are of the start without rows.
    whole = "iteration" in labels or labels >= _OF_EVERY_MODEL
    # What a data sheet leaves open is known to be; the figures of another device look as if they were measured here.
    return "calibrated" if whole or fitted.base.provenance == "datasheet" else "extrapolated"


def _engine(judged: pd.DataFrame) -> dict[str, str]:
    """The engine that most rows are of, and its versions."""
    engine = str(judged["engine"].mode()[0])
    versions = sorted(set(judged.loc[judged["engine"] == engine, "engine_version"]))
    return {"engine": engine, "engine_version": ", ".join(versions)}


def _efficiencies(base: Calibration, fitted_values: Mapping[str, float], tiles: float) -> dict[str, Any]:
    # Paths are CLASS.FIGURE, or CLASS.SIZE.FIGURE of a collective's group.
    fitted = {path.split(".")[0] for path in fitted_values}
    stated = fitted | set(base.efficiencies)
    classes = [*OPERATOR_CLASSES, *(name for name in OPTIONAL_CLASSES if name in stated)]
    classes += [name for name in OPTIONAL_COLLECTIVES if name in fitted or name in base.efficiencies]
    return {name: _class(name, base, fitted_values, tiles) for name in classes}


def _class(name: str, base: Calibration, fitted_values: Mapping[str, float], tiles: float) -> dict[str, Any]:
    start = base.of(name)
    names = _ROOFLINE if not is_collective(name) else ("bandwidth_efficiency", "launch_s")
    figures: dict[str, Any] = {
        figure: fitted_values.get(f"{name}.{figure}", getattr(start, figure)) for figure in names
    }
    if not is_collective(name):
        # Those beyond the roofline that the starting set has; how many tiles a wave has is the device's own.
        beyond = {figure: getattr(start, figure) for figure in figures_of(base_class(name))}
        beyond.pop("wave_tiles", None)
        figures |= {figure: value for figure, value in beyond.items() if value != BEYOND_ROOFLINE[figure].neutral}
    prefix = f"{name}."
    rest = {path.removeprefix(prefix): value for path, value in fitted_values.items() if path.startswith(prefix)}
    # A collective has figures by the number of devices, each of which was measured by itself.
    groups: dict[int, dict[str, float]] = {}
    for path, value in rest.items():
        size, _, figure = path.rpartition(".")
        if size:
            groups.setdefault(int(size), {})[figure] = _rounded(value)
        else:
            figures[figure] = value
    # How many tiles a wave has says something only where part of the work is counted in waves.
    if figures.get("wave_share"):
        figures["wave_tiles"] = tiles
    shown: dict[str, Any] = {figure: _rounded(value) for figure, value in figures.items()}
    # Groups that were not measured keep the base's figures, if the base states this collective itself.
    stated = start.devices if name in base.efficiencies else {}
    groups = {size: _group(group) for size, group in stated.items()} | groups
    return shown | ({"devices": dict(sorted(groups.items()))} if groups else {})


def _group(group: GroupEfficiency) -> dict[str, float]:
    """The figures of a group that differ from their defaults."""
    return {
        figure.name: _rounded(getattr(group, figure.name))
        for figure in fields(group)
        if getattr(group, figure.name) != figure.default
    }


def _sources(fitted: Calibrated, labels: set[str]) -> dict[str, str]:
    tables = ", ".join(sorted({table.source for table in fitted.tables}))
    labels_of: dict[str, set[str]] = {"p2p": set()}
    # An iteration tells of all three together, and of none of them alone.
    iteration = {"gemm", "attention_prefill", "attention_decode"} if "iteration" in labels else set()
    sources = {}
    for name in OPERATOR_CLASSES:
        # No table has point-to-point messages, so that their source is always the set that the fit began with.
        measured = labels_of.get(name, {name}) & labels or (name in iteration)
        sources[name] = f"fitted ({tables})" if measured else f"as in the set {fitted.base.name}, not measured here"
    for name in ("link_efficiency", "step_overhead_s", "sequence_overhead_s"):
        overhead = name != "link_efficiency" and "iteration" in labels
        sources[name] = f"fitted ({tables})" if overhead else f"as in the set {fitted.base.name}, not measured here"
    return sources


def _fit(fitted: Calibrated) -> dict[str, Any]:
    result = fitted.result
    parameters = {}
    for parameter, value, error in zip(result.parameters, result.values, result.errors, strict=True):
        entry: dict[str, Any] = {"value": _rounded(value), "unit": parameter.unit}
        parameters[parameter.name] = entry | _certainty(error)
    return {
        "method": (
            "least squares of log ratios, soft L1; standard errors are of the fit, not of the transfer to an engine; "
            f"prior: log or logit, standard deviation {PRIOR_SIGMA:g}, around the starting value"
        ),
        "data": [
            {"file": table.name, "source": table.source, "sha256": table.sha256, "rows": len(table.rows)}
            for table in fitted.tables
        ],
        "rows_used": {str(label): int(count) for label, count in fitted.judged.groupby("label").size().items()},
        "rows_left_out": dict(fitted.left_out),
        # Of the parameters that were kept: how near the fit came to not telling one of them.
        "smallest_singular_value": _rounded(float(np.min(result.singular_values))),
        "errors": error_summary(fitted.judged),
        "parameters": parameters,
    }


def _certainty(error: float) -> dict[str, Any]:
    if np.isnan(error):
        return {"held_at_prior": True}
    return {"standard_error": _rounded(error)} if np.isfinite(error) else {"too_few_rows": True}


def _rounded(value: float) -> float:
    """Four significant digits: more than any of these figures is known to."""
    return float(f"{float(value):.4g}")


def written(content: Mapping[str, Any]) -> str:
    """The document as YAML text, figures of one class on one line."""
    lines = ["# Written by `evaluator calibrate`; the section `fit` says on what, and how far off it is."]
    _write(content, 0, lines)
    return "\n".join(lines) + "\n"


def _write(content: Mapping[Any, Any], depth: int, lines: list[str]) -> None:
    space = "  " * depth
    for key, value in content.items():
        if isinstance(value, Mapping) and _in_block(value):
            lines.append(f"{space}{_scalar(key)}:")
            _write(value, depth + 1, lines)
        elif isinstance(value, Mapping) and depth == 0:
            lines.append(f"{space}{key}:")
            lines += [f"{space}  {_scalar(name)}: {_scalar(inner)}" for name, inner in value.items()]
        elif isinstance(value, list):
            lines.append(f"{space}{key}:")
            lines += [f"{space}  - {_flow(inner)}" for inner in value]
        else:
            lines += textwrap.wrap(
                f"{space}{_scalar(key)}: {_flow(value)}", 118, subsequent_indent=space + "  ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip


def _in_block(value: Mapping[Any, Any]) -> bool:
    """Whether a mapping is written one key a line: nested ones, and keys that a line break would split."""
    return any(isinstance(inner, Mapping | list) for inner in value.values()) or any(" " in str(key) for key in value)


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):  # keys too: devices in a group
        return f"{value:g}" if isinstance(value, float) else str(value)
    plain = value.replace("_", "").replace(".", "").replace("-", "").isalnum() and value[:1].isalpha()
    return value if plain else "'" + value.replace("'", "''") + "'"
