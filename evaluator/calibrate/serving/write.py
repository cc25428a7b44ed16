"""A fitted set as a calibration YAML that reads back equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from evaluator.calibrate.serving.fit import FitResult
from evaluator.calibrate.serving.parameters import OWN_PARAMETERS, SERVED
from evaluator.catalog.calibration import HOST, SORT, Calibration, OperatorEfficiency, is_collective

_RUNS = "serving runs"
_IN_A_COLLECTIVE = ("bandwidth_efficiency", "launch_s")


def calibration_text(set_: Calibration, fitted: FitResult, base: Calibration, header: str, of: str = _RUNS) -> str:
    """The set's YAML; ``header`` says what it was fitted on and how well, as comments; ``of``: what its runs were."""
    comments = "".join(f"# {line}".rstrip() + "\n" for line in header.splitlines())
    document = document_of(set_) | {"sources": _sources(fitted, base, of)}
    return comments + yaml.safe_dump(document, sort_keys=False, width=118, allow_unicode=True)


def write_calibration(path: Path, set_: Calibration, fitted: FitResult, base: Calibration, header: str) -> None:
    """``calibration_text`` into a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(calibration_text(set_, fitted, base, header), encoding="utf-8")


def document_of(calibration: Calibration) -> dict[str, Any]:
    """What the file of a set states, but for its sources."""
    given = {
        field_of_set.name: getattr(calibration, field_of_set.name)
        for field_of_set in fields(calibration)
        if field_of_set.name != "sources"
    }
    classes = given.pop("efficiencies")
    given.pop("rests_on")  # follows from the rest
    own_server = given.pop("own_server")
    # First in the file, as people look for them; the rest only where it differs from a default.
    document: dict[str, Any] = {name: given.pop(name) for name in ("name", "hardware", "provenance")}
    document["efficiencies"] = {name: _figures(name, efficiency) for name, efficiency in classes.items()}
    defaults = {field_of_set.name: _default(field_of_set) for field_of_set in fields(Calibration)}
    document |= {name: _plain(value) for name, value in given.items() if value != defaults[name]}
    if own_server is not None:
        document["own_server"] = _plain(own_server.document())
    return document


def _figures(name: str, efficiency: OperatorEfficiency) -> dict[str, Any]:
    """What the file states of a class: the figures without a default (of a collective only two) and those changed."""
    stated = {}
    for figure in fields(efficiency):
        required = figure.default is MISSING and figure.default_factory is MISSING
        unstated = required and is_collective(name) and figure.name not in _IN_A_COLLECTIVE
        value = getattr(efficiency, figure.name)
        if figure.name == "activation_efficiency" and value == efficiency.bandwidth_efficiency:
            continue  # as for the weights, which is what a class without it means
        if not unstated and (required or value != _default(figure)):
            stated[figure.name] = _plain(value)
    return stated


def _default(figure: Field) -> Any:
    return figure.default_factory() if figure.default_factory is not MISSING else figure.default


def _plain(value: Any) -> Any:
    """Numbers with six digits; dataclasses and mappings as plain dicts."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _sources(fitted: FitResult, base: Calibration, of: str) -> dict[str, str]:
    """Where each figure is from: the base set, and what the fit has made of it."""
    notes: dict[str, list[str]] = {}
    for parameter in OWN_PARAMETERS:
        if parameter.name not in fitted.values:
            continue
        value, error = fitted.values[parameter.name], 100 * fitted.errors[parameter.name]
        text = f"{parameter.name} {value:.4g} +- {error:.0f} % ({parameter.meaning})"
        if fitted.prior_share[parameter.name] > 0.5:
            # More than half of its variance is the prior's: the value is rather an assumption.
            text += ", of which the data say little"
        for figure in parameter.figures:
            notes.setdefault(figure, []).append(text)
    sources = {figure: f"as in the set {base.name}" for figure in base.sources if figure not in notes}
    whole = (*HOST, SORT)
    # Host and sort are fitted as they are; other figures are multiples of the base set's.
    for figure, texts in notes.items():
        rest = "" if figure in whole else f"; base set {base.name}"
        sources[figure] = f"fitted to {of}: {'; '.join(texts)}{rest}"
    # Last, so that what a fit says of a class does not replace what is known of it beside the fit.
    for name, served_figures in SERVED.get(base.name, {}).items():
        sources[name] += f"; {served_figures.source}"
    return sources
