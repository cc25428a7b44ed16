"""How sure it is that designs meet their objectives: the chances of a dataset, and what a confidence makes of them.

They follow from what each row says of its objectives (``metrics.chance``) and from the same design at other rates,
which tell its headroom (``metrics.headroom``): so they are made once all rows are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.chance import OF_AN_OBJECTIVE, is_sure, joint_chance, objective_chance, spread
from evaluator.metrics.headroom import headrooms
from evaluator.metrics.latency import VARIABLE
from evaluator.metrics.outcomes import OK
from evaluator.metrics.variables import VARIABLES
from evaluator.results.growth import LatencyGrowth

if TYPE_CHECKING:
    import xarray as xr

CHANGED = ("objective_headroom", "objective_growth", "objective_chance", "slo_chance", "slo_met", "class_slo_met")
"""What ``with_chances`` makes or changes."""


def with_chances(ds: xr.Dataset) -> xr.Dataset:
    """The dataset with the chance of each objective and of all, and with slo_met by the confidence asked for.

    Nothing changes in one without objectives.
    """
    if "objective_ratio" not in ds:
        return ds
    told = {name: ds[name].values for name in (*OF_AN_OBJECTIVE, "objective_headroom", "objective_confidence")}
    told["objective_headroom"], told["objective_growth"] = _headroom(ds)
    chances = objective_chance(told["objective_headroom"], spread(*(told[name] for name in OF_AN_OBJECTIVE)))
    columns = {name: told[name] for name in ("objective_headroom", "objective_growth")}
    columns |= {"objective_chance": chances, "slo_chance": joint_chance(chances, ~np.isnan(told["objective_ratio"]))}
    confidence = told["objective_confidence"]
    if np.isfinite(confidence).any():
        # Not by the slo_met that is there: shards, which know some of the rates, have said theirs already.
        holds = np.where(np.isnan(confidence), ~(told["objective_ratio"] > 1.0), is_sure(chances, confidence))
        columns |= _judged(ds, holds, ~np.isnan(told["objective_ratio"]))
    return ds.assign({name: _described(name, values) for name, values in columns.items()})


def _judged(ds: xr.Dataset, holds: np.ndarray, bounded: np.ndarray) -> dict[str, np.ndarray]:
    """slo_met and class_slo_met by which objectives hold, and which a design has, (config, objective)."""

    def met(places: Sequence[int]) -> np.ndarray:
        of_these, there = holds[:, places], bounded[:, places]
        return (of_these | ~there).all(axis=1) & there.any(axis=1)

    labels = list(map(str, ds["objective"].values))
    columns = {"slo_met": met(range(len(labels))) & ~ds["saturated"].values.astype(bool)}
    if "class_slo_met" in ds:
        of_classes = [
            [place for place, label in enumerate(labels) if label.endswith(f" of {name}")]
            for name in ds["class"].values.tolist()
        ]
        columns["class_slo_met"] = np.stack([met(places) for places in of_classes], axis=1)
    return columns


def _headroom(ds: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Headroom and growth of the objectives, (config, objective): by the other rates of each design, else by the
    elasticities of its mean latencies to all inputs, else by its own run alone."""
    ratio = ds["objective_ratio"].values
    headroom, growth = ds["objective_headroom"].values.copy(), ds["objective_growth"].values.copy()
    whole, saturated = LatencyGrowth(ds), ds["saturated"].values.astype(bool)
    rows = np.flatnonzero((ds["status"].values == OK) & ~saturated)
    for place, label in enumerate(ds["objective"].values):
        by_inputs = whole.by_inputs(VARIABLE[str(label).partition(" ")[0]], rows)
        known = rows[np.isfinite(by_inputs)]
        if known.size:
            growth[known, place] = np.maximum(by_inputs[np.isfinite(by_inputs)], 1.0)
            with np.errstate(divide="ignore"):
                headroom[known, place] = ratio[known, place] ** (-1.0 / growth[known, place])
    with np.errstate(divide="ignore"):
        log_ratio = np.log(ratio)
    for designs, log_rate in whole.by_rates():
        log_headroom, grown = headrooms(log_rate, log_ratio[designs], saturated[designs])
        known = np.isfinite(log_headroom)
        headroom[designs] = np.where(known, np.exp(log_headroom), headroom[designs])
        growth[designs] = np.where(known, grown, growth[designs])
    return headroom, growth


def _described(name: str, values: np.ndarray) -> tuple[tuple[str, ...], np.ndarray, dict[str, str]]:
    variable = VARIABLES[name]
    attrs = {"units": variable.units, "long_name": variable.long_name, "description": variable.description}
    return variable.dims[: values.ndim], values, attrs
