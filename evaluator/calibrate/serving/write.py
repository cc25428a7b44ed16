"""A fitted set as a calibration YAML that reads back equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from evaluator.calibrate.serving.fit import FitResult
from evaluator.calibrate.serving.parameters import PARAMETERS
from evaluator.catalog.calibration import HOST, SORT, Calibration, OperatorEfficiency, is_collective

_IN_A_COLLECTIVE = ("bandwidth_efficiency", "launch_s")


def calibration_text(set_: Calibration, fitted: FitResult, base: Calibration, header: str) -> str:
    """The set's YAML; ``header`` says what it was fitted on and how well, as comments."""
    comments = "".join(f"# {line}".rstrip() + "\n" for line in header.splitlines())
    document = document_of(set_) | {"sources": _sources(fitted, base)}
    return comments + yaml.safe_dump(document, sort_keys=False, width=118, allow_unicode=True)


def write_calibration(path: Path, set_: Calibration, fitted: FitResult, base: Calibration, header: str) -> None:
    """``calibration_text`` into a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(calibration_text(set_, fitted, base, header), encoding="utf-8")


def document_of(calibration: Calibration) -> dict[str, Any]:
    """What the file of a set states, but for its sources."""
    given = {each.name: getattr(calibration, each.name) for each in fields(calibration) if each.name != "sources"}
    classes = given.pop("efficiencies")
    given.pop("rests_on")  # follows from the rest
    found: dict[str, Any] = {name: given.pop(name) for name in ("name", "hardware", "provenance")}
    found["efficiencies"] = {name: _figures(name, one) for name, one in classes.items()}
    defaults = {each.name: _default(each) for each in fields(Calibration)}
    found |= {name: _plain(value) for name, value in given.items() if value != defaults[name]}
    return found


def _figures(name: str, one: OperatorEfficiency) -> dict[str, Any]:
    """What the file states of a class: the figures without a default (of a collective only two) and those changed."""
    kept = {}
    for each in fields(one):
        required = each.default is MISSING and each.default_factory is MISSING
        unstated = required and is_collective(name) and each.name not in _IN_A_COLLECTIVE
        value = getattr(one, each.name)
        if each.name == "activation_efficiency" and value == one.bandwidth_efficiency:
            continue  # as for the weights, which is what a class without it means
        if not unstated and (required or value != _default(each)):
            kept[each.name] = _plain(value)
    return kept


def _default(each: Field) -> Any:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def _plain(value: Any) -> Any:
    """Numbers with six digits; dataclasses and mappings as plain dicts."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _sources(fitted: FitResult, base: Calibration) -> dict[str, str]:
    """Where each figure is from: the base set, and what the fit has made of it."""
    notes: dict[str, list[str]] = {}
    for parameter in PARAMETERS:
        if parameter.name not in fitted.values:
            continue
        value, error = fitted.values[parameter.name], 100 * fitted.errors[parameter.name]
        told = f"{parameter.name} {value:.4g} +- {error:.0f} % ({parameter.meaning})"
        if fitted.prior_share[parameter.name] > 0.5:
            told += ", of which the data say little"
        for figure in parameter.figures:
            notes.setdefault(figure, []).append(told)
    found = {figure: f"as in the set {base.name}" for figure in base.sources if figure not in notes}
    whole = (*HOST, SORT)
    for figure, told_all in notes.items():
        rest = "" if figure in whole else f"; base set {base.name}"
        found[figure] = f"fitted to serving runs: {'; '.join(told_all)}{rest}"
    return found
