"""Folding: from hundreds of operators and the rates of a device to the few parameters of the iteration cost.

A transformer has some ten kinds of kernels per layer kind; simulating millions of iterations cannot afford to visit
each. But the time of most kernels is proportional to one statistic of the batch (tokens, sequences, context read), so
that their seconds per unit add up to one number per statistic, once per configuration. Three steps:

1. ``coefficients``: operators to arrays of FLOPs, bytes and messages, without any rate. NumPy, once per structure.
2. ``unit_times``: arrays divided by the effective rates of a device: seconds per unit of the operator's statistic.
3. ``fold_rates``: seconds summed over the operators of one scaling to ``CostParameters``, for ``iteration_time``.

Not everything can be summed: where FLOPs *or* bytes may bind, depending on the batch, max(a1, b1) + max(a2, b2) is
not max(a1 + a2, b1 + b2). Dense products, grouped products and prefill attention therefore keep a row each
(``OperatorRows``, ``AttentionRows``). Decode attention can be summed in spite of its roofline, because both of its
sides are proportional to the same statistic c: roofline(f c, b c) = c roofline(f, b), the roofline being homogeneous of
degree 1.

A worked example, one device with 100 TFLOP/s and 1 TB/s, all efficiencies 1, knee 0 (the classic maximum), no launch
costs, and three operators:

==================  ============  =========  ==========  ===============  =====================================
operator            scaling       FLOPs (X)  weights(Y)  activations (Z)  seconds
==================  ============  =========  ==========  ===============  =====================================
feed_forward.up     tokens        2e8        2e8 bytes   1e4 bytes        max(2e-6 tokens, 2e-4 + 1e-8 tokens)
attention.decode    decode        1e5        0           1e4 bytes        max(1e-9, 1e-8) context = 1e-8 context
norm                linear_tokens 0          0           3e4 bytes        3e-8 tokens
==================  ============  =========  ==========  ===============  =====================================

fold to ``token_rows`` with the one row (flop 2e-6, weight 2e-4, activation 1e-8), ``context_s`` = 1e-8 and ``token_s``
= 3e-8. Sixteen decodes with 1,000 tokens of context each then take max(3.2e-5, 2.0016e-4) + 1.6e-4 + 4.8e-7 s
= 0.361 ms: the product reads its weights for most of that, the attention its KV. ``tests/cost/test_fold.py`` does it.

It is plain arithmetic on arrays: NumPy for the plan (well under 200 us), JAX for gradients and, by vmap, for grids of
hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.cost.arrays import PerOperator, Scalar, array_namespace, is_traced
from evaluator.cost.coefficients import Coefficients, coefficients, mesh, reach
from evaluator.cost.imbalance import busiest, slowest_share
from evaluator.cost.iteration import (
    AdapterGroups,
    AttentionRows,
    BesideRows,
    CostParameters,
    DeltaRuleRows,
    OperatorRows,
    RampRows,
)
from evaluator.cost.kernel import Operator
from evaluator.cost.rates import GROUP_SIZES, HANDOVER_BYTES, OP_CLASSES, Rates, rates
from evaluator.cost.roofline import roofline
from evaluator.cost.unit_times import UnitTimes, unit_times

if TYPE_CHECKING:
    from evaluator.catalog import Calibration


def fold(
    operators: tuple[Operator, ...], hardware: Hardware, calibration: Calibration, overheads: bool = True
) -> CostParameters:
    """Parameters of the iteration cost of these operators on this hardware, in NumPy float64."""
    work = coefficients(operators, reach(hardware), mesh(hardware), calibration.tuned_experts())
    return fold_rates(work, rates(hardware, calibration), overheads)


def fold_devices(
    operators: tuple[Operator, ...], devices: Sequence[Hardware], calibration: Calibration
) -> CostParameters:
    """``fold`` for many devices whose links join as many devices, with a trailing axis ``device`` in every field.

    The numbers are those of ``fold`` for each of them, to the last digit: what is summed is summed in the same order.
    """
    work = coefficients(operators, reach(devices[0]), mesh(devices[0]), calibration.tuned_experts())
    folded, count = fold_rates(work, rates(devices, calibration)), len(devices)

    def spread(values: Any) -> Any:
        # From (device, operator), in which rates broadcast, to (operator, device): lanes are the last axis
        # (``arrays``).
        if isinstance(values, tuple):
            return type(values)(*(np.broadcast_to(rows, (count, rows.shape[-1])).T for rows in values))
        # What no rate of a device enters, such as the number of experts, is the same on all of them.
        return np.broadcast_to(values, (count,))

    return CostParameters(*map(spread, folded))


def fold_rates(work: Coefficients, rate: Rates, overheads: bool = True) -> CostParameters:
    """Parameters of the iteration cost, NumPy or JAX as ``rate`` is. Differentiable in every leaf of ``rate``.

    Where the rates are those of several devices, fields have a leading axis ``device`` as far as they depend on it.
    ``overheads`` False leaves out the host's time, for the time of single operators.
    """
    times = unit_times(work, rate)
    xp = array_namespace(*times)

    def rows(scaling: str, kind: type[Any] = OperatorRows) -> Any:
        return rows_of(times, kind, work.scaling[scaling])

    def total(values: PerOperator, *scalings: str) -> Scalar:
        # The last axis, since rates of several devices put theirs in front.
        return sum(xp.sum(_take(values, work.scaling[scaling]), axis=-1) for scaling in scalings)

    host = 1.0 if overheads else 0.0
    return CostParameters(
        token_rows=rows("tokens"),
        sequence_rows=rows("sequences"),
        expert_rows=_expert_rows(work, times, rate),
        prefill_rows=rows("prefill", AttentionRows),
        prefill_window_rows=rows("prefill_window", AttentionRows),
        ramp_rows=_ramp_rows(work, times, rate, between_ranks=False),
        expert_ramp_rows=_ramp_rows(work, times, rate, between_ranks=True),
        beside_rows=rows_of(times, BesideRows, _slower_beside_prompts(work, rate)),
        log_expert_missed=xp.asarray(work.log_expert_missed, dtype=float),
        expert_skew=rate.expert_skew,
        # Of layers that differ in it the most, as of the experts touched (``coefficients``).
        **dict(zip(("touched_spread", "touched_least"), map(xp.asarray, busiest(work.placed)), strict=True)),
        graph_tokens=rate.graph_tokens,
        iteration_s=xp.sum(times.fixed_s, axis=-1) + host * rate.step_overhead_s,
        # With data-parallel attention the experts' inputs are the tokens of all ranks: quantising them is in
        # ``expert_rows``.
        token_s=_proportional(work, times, "linear_tokens")
        + total(times.quantise_s, *(("tokens",) if len(work.scaling["gathered"]) else ("tokens", "experts"))),
        sequence_s=_proportional(work, times, "linear_sequences")
        + total(times.quantise_s, "sequences")
        + host * rate.sequence_overhead_s,
        context_s=_homogeneous(work, times, "decode"),
        spread_s=total(times.spread_s, "decode"),
        unsplit_s=total(times.unsplit_s, "decode"),
        late_s=total(times.late_s, "decode"),
        late_decodes=xp.maximum(_of_decodes(work, times.filling), 1e-9),
        late_beyond=_of_decodes(work, times.beyond),
        window_context_s=_homogeneous(work, times, "decode_window"),
        decode_s=total(times.sequence_s, "decode", "decode_window"),
        join_s=total(times.join_s, "decode", "decode_window"),
        prefill_token_s=total(times.store_s, "prefill", "prefill_window"),
        **_large_messages(work, times, rate),
        pieces_s=np.float64(0.0),  # of layers, which operators do not tell: ``host.with_model_host``
        between_s=np.float64(0.0),
        captured_tokens=np.float64(0.0),
        prepared_s=np.float64(0.0),
        adapter_rows=rows("adapters"),
        adapter_groups=AdapterGroups(*work.popularity),
        delta_rule_rows=DeltaRuleRows(*(np.zeros(0),) * len(DeltaRuleRows._fields)),  # ``with_delta_rule``
    )


def _expert_rows(work: Coefficients, times: UnitTimes, rate: Rates) -> OperatorRows:
    """Rows of routed experts. With data-parallel attention all that depends on the tokens of other ranks is among them:
    messages, routing and the quantisation of inputs have one side, so that a row without FLOPs and weights holds them.

    The iteration waits for the device with most visits (``slowest_share``).
    """
    experts, gathered = work.scaling["experts"], work.scaling["gathered"]
    # One rank with its own experts: nothing of other ranks has to be added to the rows.
    if not len(gathered) and not any(work.placed):
        return rows_of(times, OperatorRows, experts)
    indices = np.concatenate([experts, gathered])
    expert_rows, placed = rows_of(times, OperatorRows, indices), [work.placed[index] for index in indices]
    if any(placed):
        xp = array_namespace(*times)
        # The factor is on what grows with visits; every device reads the weights of the experts it holds.
        share = xp.stack(
            [xp.asarray(1.0 if held is None else slowest_share(held, rate.expert_skew)) for held in placed]
        )
        # Kernels that fill up experts compute the visits of all devices on each of them.
        computed = xp.where(expert_rows.filled > 0.0, 1.0, share)
        expert_rows = expert_rows._replace(flop=computed * expert_rows.flop, activation=share * expert_rows.activation)
    if len(gathered):
        expert_rows = expert_rows._replace(
            activation=expert_rows.activation + _take(times.message_s, indices) + _take(times.quantise_s, indices)
        )
    return expert_rows


def _of_decodes(work: Coefficients, values: PerOperator) -> Scalar:
    """A figure of the first kind of decode attention, for a model has one number of KV heads mostly; 0 without any."""
    # A slice, so that a model without decode attention gives an empty sum and not an IndexError under jit.
    return array_namespace(values).sum(_take(values, work.scaling["decode"][:1]), axis=-1)


def _slower_beside_prompts(work: Coefficients, rate: Rates) -> np.ndarray:
    """Indices of the decode attention of which the set says what it takes beside prompts; (operator,) of int.

    Where the figures are traced, and nobody knows whether they are 0, all of them: rows of 0 change nothing.
    """
    decode = work.scaling["decode"]
    ordinary = decode[(work.op_class[decode] == _DECODE) & (work.heads[decode] > 0)]
    stated = rate.beside_context_s[_DECODE]
    return ordinary if is_traced(stated) or np.any(np.asarray(stated)) else ordinary[:0]


# The class alone: MLA has kernels of its own (``mla_decode``), which never mix prompts and decodes in a call.
_DECODE = OP_CLASSES.index("attention_decode")


def _proportional(work: Coefficients, times: UnitTimes, scaling: str) -> Scalar:
    """Seconds per unit of operators that have one side only (FLOPs, bytes or messages; the others are 0)."""
    indices = work.scaling[scaling]
    flop_s, activation_s, message_s = (
        _take(values, indices) for values in (times.flop_s, times.activation_s, times.message_s)
    )
    # Only one of the three is not 0, so that their sum is the roofline, without its square root.
    return array_namespace(*times).sum(flop_s + activation_s + message_s, axis=-1)


def _homogeneous(work: Coefficients, times: UnitTimes, scaling: str) -> Scalar:
    """Seconds per unit of operators with two sides that are proportional to the same statistic: see the module."""
    indices = work.scaling[scaling]
    flop_s, activation_s, knee = (_take(values, indices) for values in (times.flop_s, times.activation_s, times.knee))
    # A knee in each, then a sum: exact, because all sides are proportional to the same statistic.
    return array_namespace(*times).sum(roofline(flop_s, activation_s, knee), axis=-1)


def _large_messages(work: Coefficients, times: UnitTimes, rate: Rates) -> dict[str, Scalar]:
    """What large all-reduces take on top of latency and volume, and from how many tokens on; see ``CostParameters``.

    A calibration states the thresholds in bytes of one call's message. Every all-reduce of an iteration sends the same
    hidden state per token, so that the first one's bytes per token turn them into tokens for all.
    """
    xp = array_namespace(*times)
    reduces = _reduces(work)
    # One is enough, as all send the same state per token; none at all on a single device.
    first = np.flatnonzero(reduces)[:1]
    # ``message_bytes`` is of all launches of an iteration; a call's message is a ``launches``-th of it.
    per_byte = (work.launches / work.message_bytes.clip(1e-9))[first]  # tokens in a byte of one call's message
    return {
        "ramp_s": xp.sum(times.ramp_s * reduces, axis=-1),
        "ramp_tokens": xp.sum(work.size[first] @ rate.group_half_bytes * per_byte) if len(first) else xp.asarray(1.0),
        "handover_s": xp.sum(times.handover_s * reduces, axis=-1),
        "handover_tokens": xp.asarray(HANDOVER_BYTES * per_byte.sum() if len(first) else 0.0),
    }


def _reduces(work: Coefficients) -> Any:
    """Which operators are all-reduces with figures of their group, (operator,) of bool."""
    return np.any(work.size[:, : len(GROUP_SIZES)] > 0.0, axis=1)


def _ramp_rows(work: Coefficients, times: UnitTimes, rate: Rates, between_ranks: bool) -> RampRows:
    """The ramps of all other collectives, of one data-parallel rank or ``between_ranks``.

    Each has a row; there is none where the set states no ramp.
    Where the figures are traced, all have a row, as in ``_slower_beside_prompts``.
    """
    between = np.isin(np.arange(len(work.size)), work.scaling["gathered"])
    indices = np.flatnonzero(work.size.any(axis=1) & ~_reduces(work) & (between == between_ranks))
    ramps = _take(times.ramp_s, indices)
    # A set without ramps compiles no rows for them. Traced figures may become other than 0, and keep theirs.
    if not is_traced(ramps):
        indices = indices[np.asarray(ramps > 0.0)]
    per_unit = work.message_bytes[indices] / work.launches[indices]  # bytes of one call's message
    half = (work.size[indices] @ rate.group_half_bytes) / per_unit.clip(1e-9)
    return RampRows(
        _take(times.ramp_s, indices), half, np.isin(indices, work.scaling["linear_sequences"]).astype(float)
    )


def rows_of(times: UnitTimes, kind: type[Any], indices: np.ndarray | None = None) -> Any:
    """``OperatorRows`` or ``AttentionRows`` (``kind``) of the operators ``indices`` (all): fields of ``times`` of these
    names."""
    # A field of a row is a time whose name may have lost its unit: ``flop`` is ``flop_s``, ``knee`` is ``knee``.
    fields = (getattr(times, name if name in UnitTimes._fields else f"{name}_s") for name in kind._fields)
    return kind(*(fields if indices is None else (_take(values, indices) for values in fields)))


def _take(values: PerOperator, indices: np.ndarray) -> PerOperator:
    """The values of some operators, their last axis. Copied, so that sums over them run over neighbours in memory and
    come to the same last digit for one device as for one among many."""
    return array_namespace(values).take(values, indices, axis=-1)
