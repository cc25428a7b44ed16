"""What a dataset says of itself: the schema's version and the attributes, all of them text, written and read again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.metrics.outcomes import Objective
from evaluator.version import __version__

if TYPE_CHECKING:
    import xarray as xr

SCHEMA_VERSION = "1"


def attributes(
    name: str, scenario_text: str, seeds: Sequence[int], calibration: str, objectives: Iterable[Objective] = ()
) -> dict[str, str]:
    """Global attributes, all text: versions, the scenario with its hash, seeds, calibration set, objectives, time."""
    bounds = [{"metric": o.metric, "statistic": o.statistic, "bound_s": o.bound_s} for o in objectives]
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
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def axes_of(ds: xr.Dataset) -> list[list[str]]:
    """The coordinates of every swept axis; the first of each names the axis. Empty for a single configuration."""
    return json.loads(ds.attrs.get("coordinates_of", "[]"))


def nearest_quantile(ds: xr.Dataset, level: float) -> int:
    """The position along ``quantile`` of the reported quantile that is nearest to ``level``, a fraction."""
    return int(np.argmin(np.abs(ds["quantile"].values - level)))


def objectives_of(ds: xr.Dataset) -> list[dict[str, Any]]:
    """The scenario's objectives as dictionaries with metric, statistic and bound_s."""
    return json.loads(ds.attrs.get("objectives", "[]"))
