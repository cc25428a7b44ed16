"""The rates that turn work into time: a small pytree of numbers, all traced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from evaluator.catalog.calibration import OperatorEfficiency
from evaluator.catalog.hardware import Hardware
from evaluator.cost.dtypes import COMPUTE_DTYPES, PEAK_FALLBACKS
from evaluator.cost.kernel import OpClass
from evaluator.errors import InputError

if TYPE_CHECKING:
    from evaluator.catalog import Calibration

NARROW_DTYPES = ("fp8", "int8", "fp4")
"""Products in these have efficiencies of their own: they reach less of a higher peak."""

OP_CLASSES: tuple[str, ...] = (*get_args(OpClass), "gemm_8bit", "grouped_gemm_8bit")
"""Operator classes that carry efficiencies; the order of the ``op_class`` axis. The last two are of NARROW_DTYPES."""

GROUP_SIZES = (2, 4, 8)
"""Devices per node for which an all-reduce has figures of its own; the ``size`` axis."""


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
    activation_efficiency: Any  # (op_class,) of the bandwidth, for activations
    prologue: Any  # (op_class,) elements of the inner dimension that a tile costs on top
    wave_share: Any  # (op_class,) how much of the FLOPs is done in whole waves
    wave_tiles: Any  # (op_class,) tiles in a wave
    score_flops: Any  # (op_class,) FLOPs per attention score beyond the products
    fill: Any  # (op_class,) prompt tokens x heads that fill the device
    diagonal: Any  # (op_class,) attended tokens lost per prompt token
    head_token_s: Any  # (op_class,) s per prompt token and head
    head_sequence_s: Any  # (op_class,) s per sequence and head
    kv_head_sequence_s: Any  # (op_class,) s per sequence and KV head
    reduce_launch_s: Any  # (size,) all-reduce: s per call
    reduce_efficiency: Any  # (size,) of the link's bandwidth, as ``bandwidth_efficiency``
    reduce_ramp_s: Any  # (size,) s beyond launch and volume that a large message takes
    reduce_half_bytes: Any  # (size,) message that takes half of it
    expert_skew: Any  # () variance of the experts' popularity
    graph_tokens: Any  # () batches are padded to multiples of so many tokens (0: they are not)


def rates(hardware: Hardware, calibration: Calibration) -> Rates:
    """Rates of a device under a calibration set."""
    sets = [calibration.of(name) for name in OP_CLASSES]
    by_class = {
        name: np.array([getattr(each, name) for each in sets], dtype=float)
        for name in (field.name for field in fields(OperatorEfficiency))
        if name != "devices"
    }
    reduces = [calibration.of("all_reduce").among(size) for size in GROUP_SIZES]
    by_size = np.array([(e.launch_s, e.bandwidth_efficiency, e.ramp_s, e.half_bytes) for e in reduces], dtype=float)
    links = np.array([(link.bandwidth, link.latency_s) for link in hardware.links], dtype=float).reshape(-1, 2)
    return Rates(
        np.array([peak_flops(hardware.peak_flops, dtype, hardware.name) for dtype in COMPUTE_DTYPES]),
        np.float64(hardware.memory_bandwidth),
        links[:, 0] * calibration.link_efficiency,
        links[:, 1],
        step_overhead_s=np.float64(calibration.step_overhead_s),
        sequence_overhead_s=np.float64(calibration.sequence_overhead_s),
        reduce_launch_s=by_size[:, 0],
        reduce_efficiency=by_size[:, 1],
        reduce_ramp_s=by_size[:, 2],
        reduce_half_bytes=by_size[:, 3],
        expert_skew=np.float64(calibration.expert_skew),
        graph_tokens=np.float64(calibration.graph_tokens),
        **by_class,
    )


def peak_flops(peaks: Mapping[str, float], dtype: str, hardware: str = "the hardware") -> float:
    """FLOP/s in a dtype, else in the first of its ``PEAK_FALLBACKS`` that there is a unit for; InputError without one.

    ``hardware`` is its name in that message.
    """
    for candidate in PEAK_FALLBACKS[dtype]:
        if candidate in peaks:
            return float(peaks[candidate])
    raise InputError(
        f"{hardware}: peak_flops states {', '.join(peaks) or 'nothing'}; for {dtype} it needs one of "
        f"{', '.join(PEAK_FALLBACKS[dtype])}"
    )
