"""The rates that turn work into time: a small pytree of numbers, all traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np

from evaluator.catalog.efficiency import OperatorEfficiency
from evaluator.catalog.hardware import Hardware
from evaluator.cost.arrays import PerClass, PerDtype, PerLevel, PerSize, Scalar
from evaluator.cost.dtypes import COMPUTE_DTYPES, PEAK_FALLBACKS
from evaluator.cost.kernel import OpClass
from evaluator.errors import InputError
from evaluator.records import Same

if TYPE_CHECKING:
    from evaluator.catalog import Calibration

NARROW_DTYPES = {"fp8": "8bit", "int8": "8bit", "fp4": "4bit", "mxfp8": "mx4"}
"""Products computed in these have efficiencies of their own, in classes with these suffixes: they reach less of a
higher peak. ``mx4``: experts in mxfp4, the only weights that meet mxfp8."""

OP_CLASSES: tuple[str, ...] = (
    *get_args(OpClass), "gemm_8bit", "grouped_gemm_8bit", "gemm_4bit", "grouped_gemm_4bit", "grouped_gemm_mx4",
)  # fmt: skip
"""Operator classes that carry efficiencies; the order of the ``op_class`` axis. The last are of NARROW_DTYPES."""

UNPACKED = {
    "gemm_4bit": "gemm", "grouped_gemm_4bit": "grouped_gemm_w4", "expert_elementwise_4bit": "expert_elementwise_w4",
}  # fmt: skip
"""Whose figures products in fp4 have on devices without units for it, where they are computed in 16 bits."""

GROUP_SIZES = (2, 4, 8)
"""Devices per node for which a collective has figures of its own."""

GROUPED = ("all_reduce", "all_gather", "all_to_all", "dispatch", "combine")
"""Collectives that have such figures; the ``size`` axis is GROUP_SIZES of the first, then of the second, and so on."""

PIPELINED = slice(GROUPED.index("dispatch") * len(GROUP_SIZES), None)
"""The part of the ``size`` axis whose kernels send inside a node and between nodes at the same time."""

HANDOVER_BYTES = 8.0 * 2**20
"""Message from which vLLM leaves an all-reduce to NCCL (``CustomAllreduce``, ``max_size``)."""

GROUP_FIGURES = {"launch_s": "launch_s", "bandwidth_efficiency": "efficiency", "ramp_s": "ramp_s",
                 "half_bytes": "half_bytes", "handover_s": "handover_s", "token_s": "token_s",
                 "far_efficiency": "far"}  # fmt: skip
"""Figures of a collective (``catalog.GroupEfficiency``), and what follows ``group_`` in the names of their leaves."""


class Rates(NamedTuple):
    """Hardware and calibration as arrays, float64; ``arrays`` names the axes. Any leaf may be traced, differentiated or
    batched by vmap."""

    peak_flops: PerDtype  # FLOP/s
    memory_bandwidth: Scalar  # byte/s
    link_bandwidth: PerLevel  # byte/s per device and direction, link efficiency included
    link_latency_s: PerLevel  # s per message
    flops_efficiency: PerClass  # of the peak
    bandwidth_efficiency: PerClass  # of the bandwidth
    knee: PerClass  # sharpness of the roofline, see ``roofline.roofline``
    launch_s: PerClass  # s per kernel
    step_overhead_s: Scalar  # s of host time per iteration
    sequence_overhead_s: Scalar  # s of host time per sequence
    dispatch_s: Scalar  # s that an iteration takes at least
    activation_efficiency: PerClass  # of the bandwidth, for activations
    prologue: PerClass  # elements of the inner dimension that a tile costs on top
    wave_share: PerClass  # how much of the FLOPs is done in whole waves
    wave_tiles: PerClass  # tiles in a wave
    depth_s: PerClass  # s per element of the inner dimension of a product
    tile_pass_s: PerClass  # s per element of the inner dimension of a product, for one whole tile
    quantise_bytes: PerClass  # bytes per element of a product's input, to quantise it
    quantise_row_s: PerClass  # s per row of a product's input, to quantise it
    fill_rows: PerClass  # rows with which the tiles of a touched expert are filled up
    filled_rows: PerClass  # rows with which every expert held is filled up, touched or not
    crowded_bandwidth: PerClass  # of that bandwidth, for weights, with more tokens than experts
    score_flops: PerClass  # FLOPs that an attention score takes beside its products
    score_knee: PerClass  # how little of them is hidden behind the products
    fill: PerClass  # query rows x heads that fill the device
    tile: PerClass  # query rows that a prompt takes at least, per head
    packed_tile: PerClass  # the same per KV head, where its heads share a tile
    diagonal: PerClass  # attended tokens lost per query row
    head_token_s: PerClass  # s per query row and head
    query_bytes: PerClass  # bytes per element of the queries that a prefill call moves on top
    cache_bytes: PerClass  # traffic of a prefill call's own tokens that stays in the cache
    store_s: PerClass  # s per prompt token and element of its keys
    head_sequence_s: PerClass  # s per sequence and head
    kv_head_sequence_s: PerClass  # s per sequence and KV head
    join_s: PerClass  # s per layer in iterations with decodes
    spread: PerClass  # KV heads' worth of context that a decode call waits for on top
    unsplit_s: PerClass  # s per token attended to of a context that is not split, head size 128
    window_rows: PerClass  # query rows computed for one in windowed decodes
    beside_context_s: PerClass  # s per query head and token that a decode attends to beside prompts, head size 128
    beside_walk_s: PerClass  # s per token of one context that one processor reads by itself, head size 128
    beside_head_s: PerClass  # s per decode and query head beside prompts
    beside_tile_s: PerClass  # s per decode, query head and tile of a prompt's chunk
    beside_knee: PerClass  # how little of a long walk is hidden behind the rest
    beside_cache_bytes: PerClass  # keys and values of a KV head that stay in the cache for its next query head
    beside_resident: PerClass  # query heads of decodes that run at the same time
    unequal: PerClass  # longest over mean context of the decodes in a batch, less 1
    late_beyond: PerClass  # of waiting for the longest, what is left at least with more decodes than fill the device
    group_launch_s: PerSize  # collectives: s per call
    group_efficiency: PerSize  # of the link's bandwidth, as ``bandwidth_efficiency``
    group_ramp_s: PerSize  # s beyond launch and volume that a large message takes
    group_half_bytes: PerSize  # message that takes half of it
    group_handover_s: PerSize  # s on top from HANDOVER_BYTES on
    group_token_s: PerSize  # s per token sent
    group_far: PerSize  # of the bandwidth of links between nodes
    expert_skew: Scalar  # variance of the experts' popularity
    graph_tokens: Scalar  # batches are padded to multiples of so many tokens (0: they are not)


def rates(hardware: Hardware | Sequence[Hardware], calibration: Calibration) -> Rates:
    """Rates of a device under a calibration set.

    Those of several devices, whose links have as many levels and all or none of which ``has_fp4``, have a leading axis
    ``device`` in what is theirs and not the calibration's: peaks (device, dtype), memory bandwidth (device, 1), links
    (device, level).
    """
    devices = [hardware] if isinstance(hardware, Hardware) else hardware
    unpacked = {} if has_fp4(devices[0]) else UNPACKED
    sets = (calibration.of(unpacked.get(name, name)) for name in OP_CLASSES)
    figures = _figures(
        tuple(map(Same, sets)),
        tuple(Same(calibration.of(name)) for name in GROUPED),
        tuple(name in calibration.efficiencies for name in GROUPED),
    )
    bandwidth, latency_s = (
        np.array([[getattr(link, name) for link in device.links] for device in devices], dtype=float)
        for name in ("bandwidth", "latency_s")
    )
    of_devices = peaks(devices), memory_bandwidth(devices), bandwidth * calibration.link_efficiency, latency_s
    if isinstance(hardware, Hardware):  # a single one has no axis of devices
        of_devices = of_devices[0][0], of_devices[1][0, 0], of_devices[2][0], of_devices[3][0]
    return Rates(
        *of_devices,
        step_overhead_s=np.float64(calibration.step_overhead_s),
        sequence_overhead_s=np.float64(calibration.sequence_overhead_s),
        dispatch_s=np.float64(calibration.dispatch_s),
        expert_skew=np.float64(calibration.expert_skew),
        graph_tokens=np.float64(calibration.graph_tokens),
        **figures,
    )


def has_fp4(hardware: Hardware) -> bool:
    """Whether a device has units for fp4 and other numbers in scaled blocks.

    On others products in fp4 have the figures of ``UNPACKED``.
    """
    return "fp4" in hardware.peak_flops


def peaks(devices: Sequence[Hardware]) -> np.ndarray:
    """FLOP/s of each device in each dtype, (device, dtype). Errors: InputError of ``peak_flops``."""
    return np.array(
        [[peak_flops(_stated(device), dtype, device.name) for dtype in COMPUTE_DTYPES] for device in devices]
    )


def _stated(hardware: Hardware) -> dict[str, float]:
    """The peaks of a device, with that of mxfp8 where it has units for scaled blocks: as many FLOP/s as in fp8."""
    blocks = has_fp4(hardware) and "fp8" in hardware.peak_flops
    return {"mxfp8": hardware.peak_flops["fp8"]} | dict(hardware.peak_flops) if blocks else dict(hardware.peak_flops)


def memory_bandwidth(devices: Sequence[Hardware]) -> np.ndarray:
    """byte/s of each device, (device, 1), to divide what operators move (operator,)."""
    return np.array([[device.memory_bandwidth] for device in devices], dtype=float)


@lru_cache(maxsize=256)
def _figures(
    sets: tuple[Same[OperatorEfficiency], ...],
    grouped: tuple[Same[OperatorEfficiency], ...],
    stated: tuple[bool, ...],
) -> dict[str, np.ndarray]:
    """The leaves of a calibration set, by class and by size. A sweep over devices asks for the same ones each time.

    A collective that is not ``stated`` has the figures of the one that stands in for it, but none by group.
    """
    by_class = {
        name: np.array([getattr(efficiency.of, name) for efficiency in sets], dtype=float)
        for name in (field.name for field in fields(OperatorEfficiency))
        if name != "devices"
    }
    # A set that does not state a collective has the figures of another (``catalog``), whose groups are of other
    # messages: size 0 asks for figures without any.
    groups = [
        efficiency.of.among(size if is_stated else 0)
        for efficiency, is_stated in zip(grouped, stated, strict=True)
        for size in GROUP_SIZES
    ]
    by_size = {
        f"group_{leaf}": np.array([getattr(efficiency, figure) for efficiency in groups], dtype=float)
        for figure, leaf in GROUP_FIGURES.items()
    }
    by_size["group_far"] = np.where(by_size["group_far"] > 0.0, by_size["group_far"], by_size["group_efficiency"])
    # The arrays are cached and shared by all that ask for this set: a write would change every later plan.
    for values in (figures := by_class | by_size).values():
        values.setflags(write=False)
    return figures


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
