"""MFU and MBU: the time that the work would take at the full peaks, over the time that it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from evaluator.catalog.calibration import SORT
from evaluator.catalog.hardware import Hardware
from evaluator.cost.coefficients import coefficients, reach
from evaluator.cost.iteration import BatchStatistics
from evaluator.cost.kernel import Operator
from evaluator.cost.rates import memory_bandwidth, peaks


class IdealTime(NamedTuple):
    """Seconds at peak per unit of each total. Multiply with sums over iterations, divide by busy time: MFU or MBU."""

    iteration_s: float
    experts_touched_s: float  # per fraction of experts touched, summed over iterations
    token_s: float
    sequence_s: float
    area_s: float
    window_area_s: float
    prefill_context_s: float
    prefill_window_context_s: float
    context_s: float
    window_context_s: float


class IdealTimes(NamedTuple):
    """A replica's work in seconds at the peak of the dtype that each operator computes in, and at full bandwidth.

    MFU and MBU are of what the model asks for. What kernels execute is more where they fill experts up with rows that
    are no token's (``Model.filled_rows``); the device's power is of all of it.
    """

    compute: IdealTime
    memory: IdealTime
    executed_compute: IdealTime
    executed_memory: IdealTime


def ideal_times(operators: tuple[Operator, ...], hardware: Hardware) -> tuple[IdealTime, IdealTime]:
    """(FLOPs, bytes) of these operators in seconds at the peak of the dtype each computes in, and at full bandwidth.

    Sorting the logits is how an engine samples, no work that the model asks for.
    """
    return ideal_times_of(operators, [hardware])[0]


def ideal_times_of(
    operators: tuple[Operator, ...], devices: Sequence[Hardware], filled_rows: float = 0.0
) -> list[tuple[IdealTime, IdealTime]]:
    """``ideal_times`` of each of several devices. ``filled_rows``: rows of no token that every iteration computes in
    each expert held, on top of the operators' FLOPs."""
    # Peaks depend on no link, so that any device of the group gives the structure.
    work = coefficients(tuple(operator for operator in operators if operator.op_class != SORT), reach(devices[0]))
    flop_s = work.flops / np.take(peaks(devices), work.dtype, axis=-1)
    bandwidth = memory_bandwidth(devices)
    row_s = 2.0 * work.inputs * work.outputs * work.matrices / np.take(peaks(devices), work.dtype, axis=-1)
    weight_s, moved_s = work.weight_bytes / bandwidth, work.activation_bytes / bandwidth
    computed_s = work.token_bytes / bandwidth  # attention's own tokens: the same in prefill and decode
    none: Any = np.zeros(len(devices))

    def of(values: np.ndarray, *scalings: str) -> Any:  # (device,)
        indices = (work.scaling[scaling] for scaling in scalings)  # most models have few of the kinds
        sums = [np.take(values, operators_of, axis=-1).sum(axis=-1) for operators_of in indices if operators_of.size]
        return sum(sums, np.zeros(len(devices)))

    compute = IdealTime(
        iteration_s=of(filled_rows * row_s, "experts") if filled_rows else none,
        experts_touched_s=none,
        token_s=of(flop_s, "tokens", "experts", "linear_tokens", "gathered", "adapters"),
        sequence_s=of(flop_s, "sequences", "linear_sequences"),
        area_s=of(flop_s, "prefill"),
        window_area_s=of(flop_s, "prefill_window"),
        prefill_context_s=none,
        prefill_window_context_s=none,
        context_s=of(flop_s, "decode"),
        window_context_s=of(flop_s, "decode_window"),
    )
    # Waves and prologues are no work that a model asks for: utilisation is of the plain FLOPs and bytes.
    memory = IdealTime(
        iteration_s=of(weight_s, "tokens", "sequences"),
        experts_touched_s=of(weight_s, "experts"),
        # Weights of adapters are left out: no total of a run says how many its batches named.
        token_s=of(moved_s, "tokens", "experts", "linear_tokens", "gathered", "adapters")
        + of(computed_s, "prefill", "prefill_window"),
        sequence_s=of(moved_s, "sequences", "linear_sequences"),
        area_s=none,
        window_area_s=none,
        prefill_context_s=of(moved_s, "prefill"),
        prefill_window_context_s=of(moved_s, "prefill_window"),
        context_s=of(moved_s, "decode"),
        window_context_s=of(moved_s, "decode_window"),
    )
    # Columns of fields over devices become a record per device.
    columns: Any = (compute, memory)
    of_device = (zip(*(column.tolist() for column in ideal), strict=True) for ideal in columns)
    return [(IdealTime(*compute_s), IdealTime(*memory_s)) for compute_s, memory_s in zip(*of_device, strict=True)]


def ideal_time(ideal: IdealTime, totals: BatchStatistics, iterations: Any = 1.0, touched: Any = 0.0) -> Any:
    """Seconds at peak of all the work in ``totals`` (batch statistics summed over iterations). Any common shape.

    ``touched`` is the sum over iterations of the fraction of experts touched.
    """
    # At peak the time is linear in the statistics, so that their sums over a run give the sum of its iterations' times.
    tokens = totals.decodes + totals.prefill_tokens
    sequences = totals.decodes + totals.prefill_sequences
    return (
        ideal.iteration_s * iterations
        + ideal.experts_touched_s * touched
        + ideal.token_s * tokens
        + ideal.sequence_s * sequences
        + ideal.area_s * totals.prefill_area
        + ideal.window_area_s * totals.prefill_window_area
        + ideal.prefill_context_s * totals.prefill_context
        + ideal.prefill_window_context_s * totals.prefill_window_context
        + ideal.context_s * totals.decode_context
        + ideal.window_context_s * totals.decode_window_context
    )
