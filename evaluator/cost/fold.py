"""From operators and rates to the parameters of the iteration cost: NumPy structure, then arithmetic on arrays.

``coefficients`` holds what an operator set is (no rate in it, computed once per structure). ``fold_rates`` is plain
array arithmetic: NumPy for the plan (well under 200 us), JAX for gradients and for grids of hardware by vmap.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.cost.collectives import collective_terms
from evaluator.cost.dtypes import COMPUTE_DTYPES
from evaluator.cost.iteration import CostParameters, Rows, array_namespace, roofline
from evaluator.cost.kernel import Group, Operator
from evaluator.cost.rates import OP_CLASSES, Rates, rates

if TYPE_CHECKING:
    from evaluator.catalog import Calibration

_GROUPS = get_args(Group)


class Coefficients(NamedTuple):
    """An operator set as arrays. Axes: ``operator``, ``level`` (links). ``groups`` maps a group to operator indices."""

    flops: np.ndarray  # (operator,)
    weight_bytes: np.ndarray
    activation_bytes: np.ndarray
    message_bytes: np.ndarray
    launches: np.ndarray
    op_class: np.ndarray  # (operator,) index into OP_CLASSES
    dtype: np.ndarray  # (operator,) index into COMPUTE_DTYPES
    steps: np.ndarray  # (operator, level) messages in a row
    share: np.ndarray  # (operator, level) bytes per byte of message
    log_expert_missed: float
    groups: dict[str, np.ndarray]


@cache
def coefficients(
    operators: tuple[Operator, ...], reach: tuple[int | None, ...], mesh: tuple[bool, ...] = ()
) -> Coefficients:
    """Arrays of an operator set on links that join ``reach`` devices per level.

    One chance of missing an expert serves all layers; should they differ, the smallest: never too cheap.
    """
    terms = [_terms(operator, reach, mesh) for operator in operators]
    groups = np.array([operator.group for operator in operators], dtype=object)
    return Coefficients(
        flops=np.array([operator.flops for operator in operators], dtype=float),
        weight_bytes=np.array([operator.weight_bytes for operator in operators], dtype=float),
        activation_bytes=np.array([operator.activation_bytes for operator in operators], dtype=float),
        message_bytes=np.array([operator.message_bytes for operator in operators], dtype=float),
        launches=np.array([operator.launches for operator in operators], dtype=float),
        op_class=np.array([OP_CLASSES.index(operator.op_class) for operator in operators], dtype=int),
        dtype=np.array([COMPUTE_DTYPES.index(operator.dtype) for operator in operators], dtype=int),
        steps=np.array([steps for steps, _ in terms], dtype=float).reshape(len(terms), len(reach)),
        share=np.array([share for _, share in terms], dtype=float).reshape(len(terms), len(reach)),
        log_expert_missed=min((operator.log_expert_missed for operator in operators), default=0.0),
        groups={name: np.flatnonzero(groups == name) for name in _GROUPS},
    )


def _terms(
    operator: Operator, reach: tuple[int | None, ...], mesh: tuple[bool, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if operator.collective is None or operator.ranks is None:
        return (0.0,) * len(reach), (0.0,) * len(reach)
    return collective_terms(operator.collective, operator.ranks, reach, mesh)


class Times(NamedTuple):
    """Seconds of every operator per unit of its group's statistics; all (operator,). ``fixed_s`` is per iteration."""

    flop_s: Any
    weight_s: Any
    activation_s: Any
    message_s: Any
    fixed_s: Any
    knee: Any


def unit_times(known: Coefficients, rate: Rates) -> Times:
    """Work divided by effective rates, operator by operator."""
    bandwidth = rate.memory_bandwidth * rate.bandwidth_efficiency[known.op_class]
    per_byte = known.share @ (1.0 / rate.link_bandwidth)
    return Times(
        flop_s=known.flops / (rate.flops_efficiency[known.op_class] * rate.peak_flops[known.dtype]),
        weight_s=known.weight_bytes / bandwidth,
        activation_s=known.activation_bytes / bandwidth,
        message_s=known.message_bytes * per_byte / rate.bandwidth_efficiency[known.op_class],
        fixed_s=known.launches * (rate.launch_s[known.op_class] + known.steps @ rate.link_latency_s),
        knee=rate.knee[known.op_class],
    )


def fold_rates(known: Coefficients, rate: Rates, overheads: bool = True) -> CostParameters:
    """Parameters of the iteration cost, NumPy or JAX as ``rate`` is. Differentiable in every leaf of ``rate``.

    Both sides of decode attention are proportional to the context, so its roofline (homogeneous of degree one) is one
    number per token attended to. ``overheads`` False leaves out the host's time, for the time of single operators.
    """
    times = unit_times(known, rate)
    xp = array_namespace(*times)

    def rows(group: str) -> Rows:
        at = known.groups[group]
        return Rows(times.flop_s[at], times.weight_s[at], times.activation_s[at], times.knee[at])

    def homogeneous(group: str) -> Any:
        at = known.groups[group]
        return xp.sum(roofline(times.flop_s[at], times.activation_s[at], times.knee[at]))

    def linear(group: str) -> Any:
        at = known.groups[group]
        return xp.sum(times.flop_s[at] + times.activation_s[at] + times.message_s[at])

    host = 1.0 if overheads else 0.0
    return CostParameters(
        token_rows=rows("tokens"),
        sequence_rows=rows("sequences"),
        expert_rows=rows("experts"),
        prefill_rows=rows("prefill"),
        prefill_window_rows=rows("prefill_window"),
        log_expert_missed=xp.asarray(known.log_expert_missed, dtype=float),
        iteration_s=xp.sum(times.fixed_s) + host * rate.step_overhead_s,
        token_s=linear("linear_tokens"),
        sequence_s=linear("linear_sequences") + host * rate.sequence_overhead_s,
        context_s=homogeneous("decode"),
        window_context_s=homogeneous("decode_window"),
    )


def reach(hardware: Hardware) -> tuple[int | None, ...]:
    """How many devices each level of the links joins, nearest first."""
    return tuple(link.devices for link in hardware.links)


def mesh(hardware: Hardware) -> tuple[bool, ...]:
    """Which levels join their devices pairwise, nearest first."""
    return tuple(link.mesh for link in hardware.links)


def fold(
    operators: tuple[Operator, ...], hardware: Hardware, calibration: Calibration, overheads: bool = True
) -> CostParameters:
    """Parameters of the iteration cost of these operators on this hardware, in NumPy float64."""
    return fold_rates(coefficients(operators, reach(hardware), mesh(hardware)), rates(hardware, calibration), overheads)
