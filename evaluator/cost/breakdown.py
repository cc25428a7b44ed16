"""Where an iteration's time goes, operator by operator, and which rate binds each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evaluator.catalog.calibration import SORT
from evaluator.catalog.hardware import Hardware
from evaluator.cost.coefficients import Coefficients, coefficients, mesh, reach
from evaluator.cost.fold import fold_rates
from evaluator.cost.iteration import (
    NO_ADAPTERS,
    AdapterGroups,
    BatchStatistics,
    adapters_named,
    experts_touched,
    iteration_time,
)
from evaluator.cost.kernel import Operator
from evaluator.cost.lanes import stack
from evaluator.cost.rates import Rates, rates
from evaluator.cost.unit_times import unit_times

if TYPE_CHECKING:
    from evaluator.catalog import Calibration

BOUNDS = ("compute", "memory", "network", "overhead")
HOST = "host"
"""The class of what is no operator: the host's time."""


@dataclass(frozen=True)
class OperatorTime:
    """One operator in one iteration, on one device. ``share`` is of the iteration's time.

    ``bound`` is the largest of: FLOPs over their rate (compute), bytes over theirs (memory), messages, their
    latency and their start (network), and what starting the kernels takes (overhead).
    """

    name: str
    op_class: str
    time_s: float
    share: float
    flops: float
    bytes: float
    message_bytes: float
    bound: str


class SequenceRows(NamedTuple):
    """Tokens of a decoding sequence in an iteration, and of how many of them the head computes scores."""

    queries: float
    sampled: float


ROWS = SequenceRows(1.0, 1.0)
"""Where nothing is drafted."""


def scaling_statistics(
    batch: BatchStatistics,
    log_expert_missed: float,
    skew: float = 0.0,
    rows: SequenceRows = ROWS,
    adapters: AdapterGroups = NO_ADAPTERS[1],
) -> dict[str, tuple[float, float, float]]:
    """X, Y and Z of every scaling (see ``Operator``) in this batch."""
    tokens = rows.queries * batch.decodes + batch.prefill_tokens
    sequences = rows.sampled * batch.decodes + batch.prefill_sequences
    return {
        "tokens": (tokens, 1.0, tokens),
        "linear_tokens": (tokens, 1.0, tokens),
        "sequences": (sequences, 1.0, sequences),
        "linear_sequences": (sequences, 1.0, sequences),
        "experts": (tokens, experts_touched(log_expert_missed, tokens, skew), tokens),
        "gathered": (tokens, 0.0, tokens),
        "adapters": (tokens, adapters_named(adapters, batch.decodes + batch.prefill_sequences), tokens),
        "prefill": (batch.prefill_area, 1.0, batch.prefill_context),
        "prefill_window": (batch.prefill_window_area, 1.0, batch.prefill_window_context),
        "decode": (batch.decode_context, 1.0, batch.decode_context),
        "decode_window": (batch.decode_window_context, 1.0, batch.decode_window_context),
    }


class _Amounts(NamedTuple):
    """What a batch asks of every operator, (operator,): X, Y, Z (``Operator``), and tokens computed in attention."""

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    computed: np.ndarray  # times ``token_bytes``: queries, outputs, new keys and values


def breakdown(
    operators: tuple[Operator, ...],
    hardware: Hardware,
    calibration: Calibration,
    batch: BatchStatistics,
    rows: SequenceRows = ROWS,
) -> tuple[OperatorTime, ...]:
    """Time, work and bound of every operator and of the host, in the order of the operators; scalar batch.

    Each time is ``iteration_time`` of the operator alone, so the times add up to that of the whole. ``rows``: with
    speculative decoding, of a sequence that decodes.
    """
    if SORT not in calibration.efficiencies:
        operators = tuple(kernel for kernel in operators if kernel.op_class != SORT)
    rate = rates(hardware, calibration)
    links = reach(hardware), mesh(hardware), calibration.tuned_experts()
    # Each operator as a cost of its own, without the host: it works once per iteration, whatever the operators.
    single = [fold_rates(coefficients((kernel,), *links), rate, overheads=False) for kernel in operators]
    alone_s = iteration_time(stack(single), batch, queries=rows.queries, sampled=rows.sampled)
    times = np.broadcast_to(alone_s, (len(operators),))
    host, total = _host(rate, batch, times.sum())

    work = coefficients(operators, *links)
    statistics = scaling_statistics(
        batch, work.log_expert_missed, float(rate.expert_skew), rows, AdapterGroups(*work.popularity)
    )
    # The bound is judged by amounts and rates, not by the folded cost, which no longer knows the sides of a sum.
    amounts = _amounts(operators, statistics, batch)
    bounds = np.argmax(_sides(work, rate, amounts), axis=0)
    moved = work.weight_bytes * amounts.y + work.activation_bytes * amounts.z + work.token_bytes * amounts.computed
    operator_times = [
        OperatorTime(
            name=operator.name,
            op_class=operator.op_class,
            time_s=float(times[number]),
            share=float(times[number] / total),
            flops=float(work.flops[number] * amounts.x[number]),
            bytes=float(moved[number]),
            message_bytes=float(work.message_bytes[number] * amounts.z[number]),
            bound=BOUNDS[int(bounds[number])],
        )
        for number, operator in enumerate(operators)
    ]
    return tuple(operator_times) + tuple(
        OperatorTime(name, HOST, float(time), float(time / total), 0.0, 0.0, 0.0, "overhead")
        for name, time in host.items()
    )


def _host(rate: Rates, batch: BatchStatistics, device_s: float) -> tuple[dict[str, float], float]:
    """Seconds of the host by cause, and of the whole iteration.

    Where the host runs ahead, an iteration takes ``dispatch_s`` at least: what the device lacks of it is the host's.
    """
    sequences = batch.decodes + batch.prefill_sequences
    host = {"host.step": rate.step_overhead_s, "host.sequences": rate.sequence_overhead_s * sequences}
    total = device_s + sum(host.values())
    if rate.dispatch_s > total:
        host["host.dispatch"], total = rate.dispatch_s - total, rate.dispatch_s
    return host, total


def _amounts(
    operators: tuple[Operator, ...], statistics: dict[str, tuple[float, float, float]], batch: BatchStatistics
) -> _Amounts:
    x, y, z = np.array([statistics[operator.scaling] for operator in operators], dtype=float).T
    phase_tokens = {"prefill": batch.prefill_tokens, "decode": batch.decodes}
    computed = np.array(
        [phase_tokens.get(operator.scaling.removesuffix("_window"), 0.0) for operator in operators], dtype=float
    )
    return _Amounts(x, y, z, computed)


def _sides(work: Coefficients, rate: Rates, amounts: _Amounts) -> np.ndarray:
    """Seconds that each of BOUNDS takes by itself, (bound, operator)."""
    x, y, z, computed = amounts
    unit = unit_times(work, rate)
    # Starting a collective is part of its measured latency, so that it counts for the network and not as overhead.
    collective = work.steps.any(axis=1)
    started = np.where(collective, 0.0, work.launches * rate.launch_s[work.op_class])
    return np.array(
        [
            unit.flop_s * x + unit.padding_s * y + unit.filled_s,
            # Kernels without a tuned configuration read weights slower where tokens are more than experts.
            (unit.weight_s + unit.crowded_s * (x > unit.crowd)) * y + unit.activation_s * z + unit.traffic_s * computed,
            unit.message_s * z + unit.fixed_s - started,
            started,
        ]
    )
