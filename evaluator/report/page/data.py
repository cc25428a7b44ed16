"""What the scripts of a page read: the designs shown, the best first, as one JSON text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.report.axes import ShownAxis
from evaluator.report.elasticities import MEASURES as ELASTIC
from evaluator.report.elasticities import elasticity, rows_with_elasticities
from evaluator.report.page.axes import axis_json
from evaluator.report.page.columns import ColumnPart, Measure, levels, measure_json, part_of, scale_of
from evaluator.report.picture.style import COLOURS
from evaluator.report.ranking import too_short
from evaluator.report.search import question_of, serves
from evaluator.results.schema import objectives_of

if TYPE_CHECKING:
    import xarray as xr

_TEXTS = ("status", "engine", "provenance", "calibration_set", "model_error_basis", "search_status", "goodput_limit")
MEETS, RUNS, MISSES, SATURATED, CANNOT_RUN = (
    "meets objectives",
    "runs",
    "misses objectives",
    "saturated",
    "cannot run",
)
ELASTIC_ROWS = 200
"""Designs whose elasticities a page holds, the best."""
# The colours of pictures, lighter on a dark ground; the last is for text-like marks.
COLOURS_ON_DARK = ("#4FA8E0", "#FF8A3D", "#2EC29A", "#E59AC4", "#F2B632", "#8FD0F7", "#A99BE8", "#BBBBBB")


def states(ds: xr.Dataset) -> np.ndarray:
    """What became of each design, (config,) text: one of the five words of this module."""
    able, over = ds["status"].values == OK, ds["saturated"].values
    met = serves(ds) if "search" in ds.attrs else ds["slo_met"].values
    # Without objectives nothing can be missed: such designs only run.
    calm = MISSES if objectives_of(ds) or "search" in ds.attrs else RUNS
    # The first that holds: a design that meets the objectives is not shown as saturated too, in a run whose queue
    # only began to grow.
    return np.select([~able, met.astype(bool), over.astype(bool)], [CANNOT_RUN, MEETS, SATURATED], calm)


def page_json(
    ds: xr.Dataset,
    rows: np.ndarray,
    ranks: np.ndarray,
    measures: Sequence[Measure],
    axes: Sequence[ShownAxis],
    anatomy: dict[str, Any] | None = None,
) -> str:
    """The designs at the positions ``rows`` along ``config``, which have these ``ranks`` (0 is the best), as JSON.

    ``anatomy`` is that of the best design.
    """
    simple = {
        "total": ds.sizes["config"],
        "ranks": ranks.tolist(),
        "objectives": [
            {"key": bound.measure.key, "part": bound.part.name, "bound": bound.most}
            for bound in bounds_of(ds, measures)
        ],
        "palette": {"light": COLOURS, "dark": COLOURS_ON_DARK},
        "elasticities": _elasticities(ds, rows),
        "search": question_of(ds) if "search" in ds.attrs else None,
        "axes": [axis_json(ds, axis, rows) for axis in axes],
        "anatomy": anatomy,
    }
    texts = {name: ds[name].values[rows] for name in _TEXTS if name in ds}
    texts["states"] = states(ds)[rows]
    texts["steady"] = np.where(too_short(ds)[rows], "no", "yes")
    # Joined by hand: the measures are JSON already, with their digits, and must not pass ``json.dumps`` again.
    entries = [f"{json.dumps(name)}:{levels(values)}" for name, values in texts.items()]
    entries.append(f'"measures":[{",".join(map(measure_json, measures))}]')
    entries.append(f'"saturated":{json.dumps(ds["saturated"].values[rows].astype(int).tolist())}')
    return f"{json.dumps(simple, allow_nan=False)[:-1]},{','.join(entries)}}}"


@dataclass(frozen=True)
class Bound:
    """An objective: ``part`` of ``measure`` is to be at most ``most``, in the unit of the page."""

    measure: Measure
    part: ColumnPart
    most: float

    @property
    def words(self) -> str:
        """The bound and its unit."""
        return f"{self.most:g} {self.measure.unit}"


def bounds_of(ds: xr.Dataset, measures: Sequence[Measure]) -> list[Bound]:
    """The objectives of the scenario, of the measures that are there."""
    by_key, bounds = {measure.key: measure for measure in measures}, []
    for key, bound in zip(keys_of_bounds(ds), objectives_of(ds), strict=True):
        whose = str(bound.get("class", ""))
        part = part_of(measures, key, f"{whose} {bound['statistic']}".strip())
        if part is not None:
            # Rounded: 0.05 s times 1000 is 50.000000000000004 ms, which a reader would see.
            bounds.append(Bound(by_key[key], part, float(f"{bound['bound_s'] * scale_of(key, 's')[1]:.6g}")))
    return bounds


def keys_of_bounds(ds: xr.Dataset) -> list[str]:
    """The variable that each objective of the scenario is about."""
    return [
        f"class_{bound['metric']}_s" if bound.get("class") else f"{bound['metric']}_s" for bound in objectives_of(ds)
    ]


def _elasticities(ds: xr.Dataset, rows: np.ndarray) -> dict[str, Any] | None:
    """Elasticities of the best rows of the page that have any, with their errors; None where the sweep has none."""
    if "input" not in ds.coords or not (with_elasticities := rows_with_elasticities(ds)).size:
        return None
    # ``rows`` is the best first, so that the first ones with elasticities are the best of them.
    places = np.flatnonzero(np.isin(rows, with_elasticities))[:ELASTIC_ROWS]
    inputs = ds["input"].values.tolist()

    def table(name: str) -> dict[str, Any]:
        pairs = [elasticity(ds, name, rows[places], position) for position in range(len(inputs))]
        slopes, errors = (np.stack(figures, axis=-1) for figures in zip(*pairs, strict=True))
        return {"key": name, "label": ELASTIC[name], "slopes": _rounded(slopes), "errors": _rounded(errors)}

    meaning = str(ds["input"].attrs.get("description", ""))
    return {
        "inputs": inputs,
        "about": meaning,
        "rows": places.tolist(),
        "measures": [table(name) for name in ELASTIC if f"{name}_elasticity" in ds],
    }


def _rounded(table: np.ndarray) -> list[list[float | None]]:
    return [[float(f"{v:.4g}") if np.isfinite(v) else None for v in row] for row in table.tolist()]
