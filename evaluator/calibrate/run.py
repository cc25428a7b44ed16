"""``calibrate``: from tables to a fitted set, its document and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from evaluator.calibrate import iterations, kernels
from evaluator.calibrate.devices import PROCESSORS, UNKNOWN, Processors
from evaluator.calibrate.fit import Fit, Fitting, Target
from evaluator.calibrate.parameters import (
    FITTED,
    Parameter,
    class_parameters,
    fixed,
    group_parameters,
    scalar_parameter,
)
from evaluator.calibrate.selection import SMALL, ClassRows, select, thin
from evaluator.calibrate.table import Table, read_tables
from evaluator.catalog import Calibration, load_calibration, load_hardware
from evaluator.catalog.calibration import TUNED, is_collective
from evaluator.catalog.efficiency import figures_of
from evaluator.catalog.engines import ENGINES
from evaluator.catalog.hardware import Hardware
from evaluator.cost.coefficients import reach
from evaluator.cost.rates import GROUPED, Rates, rates
from evaluator.errors import InputError

MOST_ROWS = 2500
"""Rows of one class that a fit uses at most; all rows are judged."""


@dataclass(frozen=True)
class Calibrated:
    """A fitted set with everything that its document tells. ``judged`` has one row per measurement."""

    name: str
    hardware: Hardware
    base: Calibration
    tables: tuple[Table, ...]
    result: Fit
    judged: pd.DataFrame  # label, rows' columns, fitted, time_s, predicted_s
    left_out: dict[str, int]
    wave_tiles: float  # tiles in a wave of this device


def calibrate(
    tables: Sequence[str | Path | Table],
    hardware: str,
    name: str,
    *,
    engine: str | None = None,
    start: str = "datasheet",
) -> Calibrated:
    """Fit the set ``name`` of ``hardware`` to measurements; ``start`` is the set it starts from and keeps near to.

    ``engine`` chooses among the kernels of several serving engines.
    """
    # Before anything is traced: float32 Jacobians do not identify what is fitted here.
    jax.config.update("jax_enable_x64", True)
    read = tuple(table if isinstance(table, Table) else read_tables([table])[0] for table in tables)
    device = load_hardware(hardware)
    processors = PROCESSORS.get(device.name, UNKNOWN)
    base = _as_fast_a_processor(load_calibration(start, device.name, foreign=True), device)
    parts, left = select(read, device, processors, engine)
    rate = _starting_rates(device, base, processors)
    parameters = _parameters(parts, rate, processors)
    fitting = Fitting(rate, parameters, [_target(part, thin(part, MOST_ROWS), device) for part in parts])
    result = fitting.fit()
    # All errors NaN: every parameter was held at its prior.
    if not result.identified.any():
        raise InputError(f"{', '.join(table.name for table in read)}: no parameter depends on these rows")
    judged = [
        _rotated(part, fitting, device) if _rotates(part) else judge(part, result.rates, device) for part in parts
    ]
    return Calibrated(
        name, device, base, read, result, pd.concat(judged, ignore_index=True), left, float(processors.tiles)
    )


def _as_fast_a_processor(base: Calibration, device: Hardware) -> Calibration:
    """The set of another device, where no processor reads more per second than one of that device does.

    A processor keeps so many bytes on their way from memory. An H20 has 78 of them at 4 TB/s, an H200 132 at 4.8 TB/s:
    at the H200's rate per processor they read 71 % of what they would at its fraction of the bandwidth. Of several sets
    choose for a start the device with the most bandwidth per processor: what its processors read is limited by
    themselves, as it would be here. Where they wait for their memory they could read more than they were seen to, and
    the rate that is taken from them is too low.
    """
    ours, theirs = PROCESSORS.get(device.name, UNKNOWN), PROCESSORS.get(base.hardware, UNKNOWN)
    if base.hardware == device.name or not (ours.tiles and theirs.tiles):
        return base
    rate = load_hardware(base.hardware).memory_bandwidth / theirs.tiles
    share = min(1.0, rate * ours.tiles / device.memory_bandwidth)
    return replace(
        base,
        efficiencies={
            name: figures
            if is_collective(name)
            else replace(figures, bandwidth_efficiency=share * figures.bandwidth_efficiency)
            for name, figures in base.efficiencies.items()
        },
    )


def _starting_rates(device: Hardware, base: Calibration, processors: Processors) -> Rates:
    rate = rates(device, base)
    if not processors.tiles:
        return rate
    # How many tiles run at once is the device's own, never fitted: the share of the work that is done in waves is.
    products = ("gemm", "gemm_8bit", "gemm_block", "gemm_4bit")
    return fixed(rate, {name: {"wave_tiles": float(processors.tiles)} for name in products})


def _parameters(parts: Sequence[ClassRows], rate: Rates, processors: Processors) -> list[Parameter]:
    """The parameters that these classes of measurement can tell of."""
    labels = {part.label for part in parts}
    wanted = {label for label in labels if label in FITTED}
    # Either class needs the other's figures: mixed calls have both, and ``attention_decode`` has the launch.
    if "attention_mixed" in labels or "attention_prefill" in labels:
        wanted |= {"attention_prefill", "attention_decode"}
    if "mla_prefill" in labels:
        wanted.add("mla_decode")  # which has the launch of both
    if "iteration" in labels:
        wanted |= {"gemm", "attention_prefill", "attention_decode"}
    for part in parts:
        if part.op_class == "grouped_gemm":
            # What surrounds the experts' products is in a call's time, and has figures of its own.
            wanted |= set(kernels.routing_classes(part.rows))
    parameters: list[Parameter] = []
    for label in sorted(wanted):
        parameters += class_parameters(label, rate, _untold(parts, processors))
    for collective in GROUPED:
        parameters += group_parameters(collective, _group_sizes(parts, collective), rate)
    if any(kernels.of_unknown_skew(part.rows).any() for part in parts if part.op_class == "grouped_gemm"):
        parameters.append(scalar_parameter("expert_skew", rate))
    if "iteration" in labels:
        parameters += [
            scalar_parameter(name, rate) for name in ("step_overhead_s", "sequence_overhead_s", "dispatch_s")
        ]
    return parameters


def _group_sizes(parts: Sequence[ClassRows], collective: str) -> list[int]:
    """How many devices take part in the collective in these rows."""
    groups = [part.rows["devices"] for part in parts if part.label == collective]
    if collective == "all_reduce":
        groups += [part.rows["tensor_parallel"] for part in parts if part.label == "iteration"]
    return sorted(set(pd.concat(groups).astype(int))) if groups else []


def _untold(parts: Sequence[ClassRows], processors: Processors) -> list[str]:
    """Figures that no row of these classes can tell of: they stay away from the set."""
    decodes = [part.rows for part in parts if part.op_class == "attention_decode"]
    prompts = {engine for part in parts if part.op_class == "attention_prefill" for engine in part.rows["engine"]}
    mixed = any(part.op_class == "attention_mixed" for part in parts)
    can_tell = {
        **{figure: mixed for figure in figures_of("attention_decode") if figure.startswith("beside_")},
        "wave_share": processors.tiles > 0,
        "crowded_bandwidth": any(part.label == TUNED for part in parts),  # of untuned kernels, where they are known
        "query_bytes": any(ENGINES[engine].copies_queries for engine in prompts & set(ENGINES)),
        "unsplit_s": any((rows["heads"] == rows["kv_heads"]).any() for rows in decodes),
        "window_rows": any((rows["window"] > 0).any() for rows in decodes),
    }
    return [figure for figure, is_told in can_tell.items() if not is_told]


def _predictor(part: ClassRows, rows: pd.DataFrame, device: Hardware) -> Any:
    make = iterations.predictor if part.op_class == "iteration" else None
    return make(rows, reach(device)) if make else kernels.predictor(part.op_class, rows, reach(device))


def _target(part: ClassRows, indices: np.ndarray, device: Hardware) -> Target:
    rows = part.rows.iloc[indices].reset_index(drop=True)
    return Target(part.label, _predictor(part, rows, device), rows["time_s"].to_numpy())


def judge(part: ClassRows, rate: Rates, device: Hardware) -> pd.DataFrame:
    """The rows of a class with what these rates predict."""
    predicted = np.asarray(_predictor(part, part.rows, device)(rate))
    return part.rows.assign(label=part.label, fitted=part.fitted, predicted_s=predicted)


def _rotates(part: ClassRows) -> bool:
    """Whether a class is judged by rotation: it is small, and has more than one shape to leave out."""
    return len(part.rows) <= SMALL and len(set(part.fold)) > 1


def _rotated(part: ClassRows, fitting: Fitting, device: Hardware) -> pd.DataFrame:
    """A class of few rows, every row predicted by a fit that has not seen its shape."""
    rows = part.rows.assign(label=part.label, fitted=False, predicted_s=np.nan)
    for fold in sorted(set(part.fold)):
        seen, aside = np.flatnonzero(part.fold != fold), np.flatnonzero(part.fold == fold)
        # Only this class is fitted anew: of the others it has no figure, or has them from this fit.
        result = fitting.fit({part.label: seen})
        rows.loc[aside, "predicted_s"] = np.asarray(_predictor(part, part.rows.iloc[aside], device)(result.rates))
    return rows
