"""The rates that turn work into time: a small pytree of numbers, all traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.cost.dtypes import COMPUTE_DTYPES, PEAK_FALLBACKS
from evaluator.cost.kernel import OpClass

if TYPE_CHECKING:
    from evaluator.catalog import Calibration

OP_CLASSES: tuple[str, ...] = get_args(OpClass)
"""Operator classes that carry efficiencies; the order of the ``op_class`` axis."""


class Rates(NamedTuple):
    """Hardware and calibration as arrays, float64. Axes: ``dtype`` (COMPUTE_DTYPES), ``level`` (links, nearest first),
    ``op_class`` (OP_CLASSES). Any leaf may be traced, differentiated or batched."""

    peak_flops: Any  # (dtype,) FLOP/s
    memory_bandwidth: Any  # () byte/s
    link_bandwidth: Any  # (level,) byte/s per device and direction, link efficiency included
    link_latency_s: Any  # (level,) s per message
    flops_efficiency: Any  # (op_class,)
    bandwidth_efficiency: Any  # (op_class,)
    knee: Any  # (op_class,) sharpness of the roofline, see ``iteration.roofline``
    launch_s: Any  # (op_class,) s per kernel
    step_overhead_s: Any  # () s of host time per iteration
    sequence_overhead_s: Any  # () s of host time per sequence


def rates(hardware: Hardware, calibration: Calibration) -> Rates:
    """Rates of a device under a calibration set."""
    sets = [calibration.efficiencies[name] for name in OP_CLASSES]
    by_class = np.array([(each.flops_efficiency, each.bandwidth_efficiency, each.knee, each.launch_s) for each in sets])
    links = np.array([(link.bandwidth, link.latency_s) for link in hardware.links], dtype=float).reshape(-1, 2)
    return Rates(
        np.array([peak_flops(hardware.peak_flops, dtype) for dtype in COMPUTE_DTYPES]),
        np.float64(hardware.memory_bandwidth),
        links[:, 0] * calibration.link_efficiency,
        links[:, 1],
        by_class[:, 0],
        by_class[:, 1],
        by_class[:, 2],
        by_class[:, 3],
        np.float64(calibration.step_overhead_s),
        np.float64(calibration.sequence_overhead_s),
    )


def peak_flops(peaks: Mapping[str, float], dtype: str) -> float:
    """FLOP/s in a dtype, or in the next wider one that the hardware has a unit for; ValueError if it states none."""
    for candidate in PEAK_FALLBACKS[dtype]:
        if candidate in peaks:
            return float(peaks[candidate])
    if peaks:
        return float(next(iter(peaks.values())))
    raise ValueError("hardware without any peak FLOP/s")
