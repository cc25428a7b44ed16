"""Efficiencies of an operator class: the plain roofline, and the figures of real kernels beyond it.

A new figure takes three lines: a field of ``OperatorEfficiency`` here, a leaf of the same name in ``cost.rates.Rates``,
and the formula that it enters in ``cost.unit_times``. Reading it from a set, writing it to one and fitting it follow
from what ``_figure`` says of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Figure:
    """What reading and fitting must know of a figure beyond the plain roofline."""

    classes: tuple[str, ...]  # operator classes that may state it, and those that stand in for them
    neutral: float  # the value that leaves the plain roofline
    unit: str  # 1: a number without one
    high: float  # the largest value allowed; inf: none
    start: float  # where a fit starts, and stays without data, if a set has not the figure
    fitted: bool  # it is one of those that every fit of its classes looks for


def _figure(
    neutral: float,
    *classes: str,
    unit: str = "1",
    high: float = math.inf,
    start: float = 1e-9,
    fitted: bool = True,
) -> Any:
    return field(default=neutral, metadata={"figure": Figure(classes, neutral, unit, high, start, fitted)})


@dataclass(frozen=True)
class GroupEfficiency:
    """An all-reduce among so many devices of a node: launch + volume / bandwidth + ramp m / (m + half) + handover."""

    launch_s: float
    bandwidth_efficiency: float  # of the link's bandwidth; above 1 where the switch reduces
    ramp_s: float = 0.0  # what a message much larger than ``half_bytes`` takes on top
    half_bytes: float = 1.0
    handover_s: float = 0.0  # on top, for messages so large that the engine leaves them to NCCL
    token_s: float = 0.0  # per token that a device sends around experts, however wide and to however many
    far_efficiency: float = 0.0  # as ``bandwidth_efficiency``, of links between nodes (0: the same)


@dataclass(frozen=True)
class OperatorEfficiency:
    """Fractions of peak in (0, 1], roofline knee in [0, 1] (0: the classic maximum), launch seconds per call.

    For a collective ``bandwidth_efficiency`` is relative to what the link reaches (``Calibration.link_efficiency``),
    and ``flops_efficiency`` and ``knee`` mean nothing (1 and 0). The other figures leave the plain roofline where they
    are at their defaults; ``evaluator.cost.unit_times`` says what each does.
    """

    flops_efficiency: float
    bandwidth_efficiency: float
    knee: float
    launch_s: float
    # of the bandwidth, for activations (0: the same as for weights)
    activation_efficiency: float = _figure(0.0, "gemm", "grouped_gemm", high=1.0, fitted=False)
    # elements of the inner dimension that a tile costs on top
    prologue: float = _figure(0.0, "gemm", "grouped_gemm", unit="elements", start=100.0)
    # how much of the FLOPs is done in whole waves of tiles
    wave_share: float = _figure(0.0, "gemm", high=1.0, start=0.2)
    # tiles in a wave: one per multiprocessor
    wave_tiles: float = _figure(1.0, "gemm", fitted=False)
    # seconds per element of the inner dimension that a product takes on top, however few its tiles
    depth_s: float = _figure(0.0, "gemm", unit="s", start=5e-10, fitted=False)
    # seconds per element of the inner dimension that a processor takes for one whole tile
    tile_pass_s: float = _figure(0.0, "gemm", unit="s", start=2e-9, fitted=False)
    # bytes per element of its input that a product moves before it starts, to quantise it
    quantise_bytes: float = _figure(0.0, "gemm", unit="byte", start=3.0, fitted=False)
    # seconds per row of its input that this takes on top, whatever its width
    quantise_row_s: float = _figure(0.0, "gemm", unit="s", start=1e-9, fitted=False)
    # rows with which the tiles of a touched expert are filled up
    fill_rows: float = _figure(0.0, "grouped_gemm", unit="rows", start=16.0)
    # rows with which every expert held is filled up, touched or not
    filled_rows: float = _figure(0.0, "grouped_gemm", unit="rows", start=127.0, fitted=False)
    # of that bandwidth, for weights, once more tokens than it holds experts come to a device
    crowded_bandwidth: float = _figure(1.0, "grouped_gemm", high=1.0, start=0.7, fitted=False)
    # FLOPs that an attention score takes beside its products
    score_flops: float = _figure(0.0, "attention_prefill", unit="FLOP", start=400.0)
    # 0: the longer of both counts, 1: their sum
    score_knee: float = _figure(1.0, "attention_prefill", high=1.0, start=0.3)
    # query rows x heads that fill the device
    fill: float = _figure(0.0, "attention_prefill", unit="rows x heads", start=1.5e4)
    # query rows that a prompt takes at least, per head
    tile: float = _figure(0.0, "attention_prefill", unit="rows", start=50.0)
    # the same per KV head
    packed_tile: float = _figure(0.0, "attention_prefill", unit="rows", start=50.0)
    # attended tokens lost per query row, head size 128
    diagonal: float = _figure(0.0, "attention_prefill", unit="tokens", start=60.0)
    # seconds per query row and head
    head_token_s: float = _figure(0.0, "attention_prefill", unit="s", start=2e-11)
    # bytes per element of the queries that a call moves on top, where an engine copies them first
    query_bytes: float = _figure(0.0, "attention_prefill", unit="byte", start=4.0)
    # traffic of a call's own tokens that stays in the cache
    cache_bytes: float = _figure(0.0, "attention_prefill", unit="byte", start=3e7)
    # seconds per prompt token and element of its keys
    store_s: float = _figure(0.0, "attention_prefill", unit="s", start=5e-12)
    # seconds per sequence and head
    head_sequence_s: float = _figure(0.0, "attention_decode", unit="s", start=1e-9)
    # seconds per sequence and KV head
    kv_head_sequence_s: float = _figure(0.0, "attention_decode", unit="s", start=1e-8)
    # seconds per layer in iterations with decodes
    join_s: float = _figure(0.0, "attention_decode", unit="s", start=5e-6)
    # KV heads' worth of context that a call waits for on top
    spread: float = _figure(0.0, "attention_decode", unit="KV heads", start=1.0)
    # seconds per token of the mean context where it is not split, head size 128
    unsplit_s: float = _figure(0.0, "attention_decode", unit="s", start=5e-9)
    # query rows computed for one in windowed layers
    window_rows: float = _figure(1.0, "attention_decode", unit="rows", start=1.0)
    # seconds per query head and token that a decode attends to beside prompts, head size 128 (0: as alone)
    beside_context_s: float = _figure(0.0, "attention_decode", unit="s", start=1.5e-10)
    # seconds per token of one context that one processor reads by itself, head size 128
    beside_walk_s: float = _figure(0.0, "attention_decode", unit="s", start=2e-8)
    # seconds per decode and query head beside prompts
    beside_head_s: float = _figure(0.0, "attention_decode", unit="s", start=2e-8)
    # seconds per decode, query head and tile of 128 rows of a prompt's chunk
    beside_tile_s: float = _figure(0.0, "attention_decode", unit="s", start=4e-9)
    # 0: the longer of the longest walk and all the work, 1: their sum
    beside_knee: float = _figure(0.0, "attention_decode", high=1.0, start=0.4)
    # keys and values of one KV head that stay in the cache until its next query head (0: all do)
    beside_cache_bytes: float = _figure(0.0, "attention_decode", unit="byte", start=1e8)
    # query heads of decodes that run at the same time
    beside_resident: float = _figure(0.0, "attention_decode", unit="heads", start=250.0)
    # how much longer than the mean the longest context of a batch is, of the mean
    unequal: float = _figure(0.0, "attention_decode", start=1.0, fitted=False)
    # how much of waiting for the longest is left, at least, with more decodes than fill the device
    late_beyond: float = _figure(0.0, "attention_decode", high=1.0, start=1.0, fitted=False)
    # all-reduce: by devices that take part
    devices: Mapping[int, GroupEfficiency] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # 0 stands for "as for weights", filled in here so that no formula has to ask.
        if self.activation_efficiency == 0.0:
            object.__setattr__(self, "activation_efficiency", self.bandwidth_efficiency)

    def among(self, size: int) -> GroupEfficiency:
        """The figures among ``size`` devices: those stated, else those of the class."""
        return self.devices.get(size, GroupEfficiency(self.launch_s, self.bandwidth_efficiency))


BEYOND_ROOFLINE: dict[str, Figure] = {
    field.name: field.metadata["figure"] for field in fields(OperatorEfficiency) if "figure" in field.metadata
}


def figures_of(op_class: str) -> tuple[str, ...]:
    """What a class may state beyond the roofline, in the order of the fields."""
    return tuple(name for name, figure in BEYOND_ROOFLINE.items() if op_class in figure.classes)
