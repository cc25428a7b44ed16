"""What a dataset says of itself: the schema's version and the attributes, all of them text, written and read again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.metrics.outcomes import ObjectiveFields
from evaluator.metrics.variables import VARIABLES
from evaluator.version import __version__

if TYPE_CHECKING:
    import xarray as xr

SCHEMA_VERSION = "1"


def attributes(
    name: str, scenario_text: str, seeds: Sequence[int], calibration: str, objectives: Iterable[ObjectiveFields] = ()
) -> dict[str, str]:
    """Global attributes, all text: versions, the scenario with its hash, seeds, calibration set, objectives, time."""
    bounds = [
        {"metric": o.metric, "statistic": o.statistic, "bound_s": o.bound_s}
        | ({"class": o.request_class} if o.request_class else {})
        for o in objectives
    ]
    return {
        "title": name,
        "schema_version": SCHEMA_VERSION,
        "evaluator_version": __version__,
        "jax_version": _installed("jax"),
        "scenario": scenario_text,
        "scenario_sha256": hashlib.sha256(scenario_text.encode()).hexdigest(),
        "seeds": ", ".join(map(str, seeds)),
        "calibration": calibration,
        "objectives": json.dumps(bounds),
        "created": now(),
    }


def now() -> str:
    """The time, as datasets tell when they were made."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


# Variables of text; all others are numbers.
_TEXT = {
    "status",
    "engine",
    "provenance",
    "calibration_set",
    "model_error_basis",
    "goodput_limit",
    "pool_layout",
    "search_status",
}


def problem_of(ds: xr.Dataset) -> str | None:
    """What makes a dataset unusable as a result: an attribute that nobody can read, text for numbers; None: nothing."""
    # A file that somebody edited, or another program wrote, fails here with a name and not deep in a table.
    for name, is_right in (("coordinates_of", _is_axis), ("objectives", _is_objective), ("grid", _is_dimension)):
        try:
            entries = json.loads(ds.attrs.get(name, "[]"))
        except (TypeError, ValueError, RecursionError):
            return f"its attribute {name} is damaged"
        if not isinstance(entries, list) or not all(is_right(entry) for entry in entries):
            return f"its attribute {name} is damaged"
    if "search" in ds.attrs and not _is_search(ds):
        return "its attribute search is damaged"
    lost = [name for axis in axes_of(ds) for name in axis if name not in ds.variables]
    if lost:
        return f"the swept coordinate {lost[0]} is missing"
    wrong = [
        str(name)
        for name, variable in ds.variables.items()
        if name in {*VARIABLES, "config", "quantile"} - _TEXT and variable.dtype.kind not in "biuf"
    ]
    if wrong:
        return f"{wrong[0]} holds no numbers"
    numbers = [str(name) for name in _TEXT & set(ds.data_vars) if ds[name].dtype.kind in "biufcmM"]
    return f"{min(numbers)} holds no texts" if numbers else None


def _is_search(ds: xr.Dataset) -> bool:
    """Whether the attribute says what was searched, and the columns that come of it are there."""
    try:
        question = json.loads(ds.attrs["search"])
    except (TypeError, ValueError, RecursionError):
        return False
    if not isinstance(question, dict) or "rate_rps" not in question or "search_status" not in ds:
        return False
    # A search for a rate has its goodput; one for replicas asks for a rate, and reports none.
    rate = question["rate_rps"]
    return "goodput_rps" in ds if rate is None else type(rate) in (int, float)


def _is_axis(entry: Any) -> bool:
    return isinstance(entry, list) and bool(entry) and all(isinstance(name, str) for name in entry)


def _is_objective(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    named = isinstance(entry.get("metric"), str) and isinstance(entry.get("statistic"), str)
    return named and isinstance(entry.get("bound_s"), int | float)


def _is_dimension(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("dimension"), str) and isinstance(entry.get("size"), int)


def axes_of(ds: xr.Dataset) -> list[list[str]]:
    """The coordinates of every swept axis; the first of each names the axis. Empty for a single configuration."""
    return json.loads(ds.attrs.get("coordinates_of", "[]"))


def quantities(ds: xr.Dataset) -> list[str]:
    """The swept coordinates; the label of a zip or of a design is left out: the quantities behind it are there."""
    names = [name for axis in axes_of(ds) for name in axis]
    labels = [axis[0] for axis in axes_of(ds) if len(axis) > 1 and _is_label(ds[axis[0]])]
    return [name for name in names if name not in labels]


def _is_label(coordinate: xr.DataArray) -> bool:
    """Whether a coordinate names steps that set several keys, instead of being the value of a key (``a.b``)."""
    # The label of a step that nobody named is written ``a=1,b=2``; a step with a name has no key's path
    # for a description.
    return "=" in str(coordinate.values[0]) or "." not in coordinate.attrs.get("description", ".")


def nearest_quantile(ds: xr.Dataset, level: float) -> int:
    """The position along ``quantile`` of the reported quantile that is nearest to ``level``, a fraction."""
    return int(np.argmin(np.abs(ds["quantile"].values - level)))


def objectives_of(ds: xr.Dataset) -> list[dict[str, Any]]:
    """The scenario's objectives as dictionaries with metric, statistic and bound_s, and those of a class with class."""
    return json.loads(ds.attrs.get("objectives", "[]"))
