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

HANDOVER_BYTES = 8.0 * 2**20
"""Message from which vLLM leaves an all-reduce to NCCL (``CustomAllreduce``, ``max_size``)."""

REDUCE_FIGURES = {"launch_s": "launch_s", "bandwidth_efficiency": "efficiency", "ramp_s": "ramp_s",
                  "half_bytes": "half_bytes", "handover_s": "handover_s"}  # fmt: skip
"""Figures of a group in a set, and what follows ``reduce_`` in the names of their leaves in ``Rates``."""


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
    dispatch_s: Any  # () s that an iteration takes at least
    activation_efficiency: Any  # (op_class,) of the bandwidth, for activations
    prologue: Any  # (op_class,) elements of the inner dimension that a tile costs on top
    wave_share: Any  # (op_class,) how much of the FLOPs is done in whole waves
    wave_tiles: Any  # (op_class,) tiles in a wave
    score_flops: Any  # (op_class,) FLOPs that an attention score takes beside its products
    score_knee: Any  # (op_class,) how little of them is hidden behind the products
    fill: Any  # (op_class,) query rows x heads that fill the device
    tile: Any  # (op_class,) query rows that a prompt takes at least, per head
    packed_tile: Any  # (op_class,) the same per KV head, where its heads share a tile
    diagonal: Any  # (op_class,) attended tokens lost per query row
    head_token_s: Any  # (op_class,) s per query row and head
    cache_bytes: Any  # (op_class,) traffic of a prefill call's own tokens that stays in the cache
    store_s: Any  # (op_class,) s per prompt token and element of its keys
    head_sequence_s: Any  # (op_class,) s per sequence and head
    kv_head_sequence_s: Any  # (op_class,) s per sequence and KV head
    join_s: Any  # (op_class,) s per layer in iterations with decodes
    spread: Any  # (op_class,) KV heads' worth of context that a decode call waits for on top
    unsplit_s: Any  # (op_class,) s per token attended to of a context that is not split, head size 128
    window_rows: Any  # (op_class,) query rows computed for one in windowed decodes
    reduce_launch_s: Any  # (size,) all-reduce: s per call
    reduce_efficiency: Any  # (size,) of the link's bandwidth, as ``bandwidth_efficiency``
    reduce_ramp_s: Any  # (size,) s beyond launch and volume that a large message takes
    reduce_half_bytes: Any  # (size,) message that takes half of it
    reduce_handover_s: Any  # (size,) s on top from HANDOVER_BYTES on
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
    by_size = {
        f"reduce_{leaf}": np.array([getattr(each, figure) for each in reduces], dtype=float)
        for figure, leaf in REDUCE_FIGURES.items()
    }
    links = np.array([(link.bandwidth, link.latency_s) for link in hardware.links], dtype=float).reshape(-1, 2)
    return Rates(
        np.array([peak_flops(hardware.peak_flops, dtype, hardware.name) for dtype in COMPUTE_DTYPES]),
        np.float64(hardware.memory_bandwidth),
        links[:, 0] * calibration.link_efficiency,
        links[:, 1],
        step_overhead_s=np.float64(calibration.step_overhead_s),
        sequence_overhead_s=np.float64(calibration.sequence_overhead_s),
        dispatch_s=np.float64(calibration.dispatch_s),
        expert_skew=np.float64(calibration.expert_skew),
        graph_tokens=np.float64(calibration.graph_tokens),
        **by_size,
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
