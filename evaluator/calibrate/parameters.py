"""The parameters of a fit: where each is in the rates, its range, and what it is held near without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evaluator.catalog.efficiency import BEYOND_ROOFLINE, figures_of
from evaluator.cost.rates import GROUP_FIGURES, GROUP_SIZES, GROUPED, OP_CLASSES, Rates

PRIOR_SIGMA = 2.0
"""Standard deviation of the prior in log or logit: a factor of 7. Weak: it decides only what the data leave open."""


@dataclass(frozen=True)
class Parameter:
    """One number of a set. ``name`` is its path in the file, such as ``gemm.knee`` or ``all_reduce.8.ramp_s``."""

    name: str
    leaf: str  # field of Rates
    index: int | None  # on the leaf's axis
    high: float  # logit of value / high where finite, log where infinite
    start: float  # where the fit starts, and the centre of the prior
    unit: str
    tied: str | None = None  # another leaf that takes the same value

    def inner(self, value: float) -> float:
        """The unbounded coordinate of a value."""
        # exp or logistic, so that no step of the search can leave the range.
        return float(np.log(value) if np.isinf(self.high) else np.log(value / (self.high - value)))

    def slope(self, value: float) -> float:
        """d value / d coordinate."""
        return value if np.isinf(self.high) else value * (1.0 - value / self.high)


_FRACTIONS = ("flops_efficiency", "bandwidth_efficiency", "knee")
_STARTS = {
    "ramp_s": 1e-5, "half_bytes": 1e6, "handover_s": 5e-6, "expert_skew": 0.7, "knee": 0.1, "dispatch_s": 0.02,
}  # fmt: skip
"""Where to start, and to stay without data, for figures that the datasheet set has not; more in BEYOND_ROOFLINE."""

_NEUTRAL = {"half_bytes": 1.0}
"""Values that stand for a figure's absence, where that is not 0."""

_CLASS_STARTS = {"attention_prefill": {"knee": 0.3}, "mla_prefill": {"knee": 0.3}}
"""Where both sides of a roofline add up, a start at its maximum would never find out."""

_ROOFLINE: dict[str, tuple[str, ...]] = {
    "gemm": ("flops_efficiency", "bandwidth_efficiency", "activation_efficiency", "knee", "launch_s"),
    "grouped_gemm": ("flops_efficiency", "bandwidth_efficiency", "activation_efficiency", "knee", "launch_s"),
    "attention_prefill": ("flops_efficiency", "bandwidth_efficiency", "knee"),
    "attention_decode": ("flops_efficiency", "bandwidth_efficiency", "knee", "launch_s"),
    "elementwise": ("bandwidth_efficiency", "launch_s"),
    "expert_elementwise": ("bandwidth_efficiency",),
}
FITTED: dict[str, tuple[str, ...]] = {
    name: (*first, *(figure for figure in figures_of(name) if BEYOND_ROOFLINE[figure].fitted))
    for name, first in _ROOFLINE.items()
}
"""The figures that a fit of each class looks for."""

_NARROW = ("depth_s", "tile_pass_s", "quantise_bytes", "quantise_row_s")
"""More figures of products in 8 and 4 bits: cuBLAS' in 16 bits split the inner dimension, and quantise nothing."""

FITTED["mla_prefill"] = tuple(figure for figure in FITTED["attention_prefill"] if figure != "query_bytes")
FITTED["mla_decode"] = tuple(
    figure
    for figure in FITTED["attention_decode"]
    if figure not in ("unsplit_s", "window_rows") and not figure.startswith("beside_")
)
FITTED |= {f"gemm_{bits}": (*FITTED["gemm"], *_NARROW) for bits in ("8bit", "block", "4bit")}
FITTED |= {f"expert_elementwise_{bits}": FITTED["expert_elementwise"] for bits in ("4bit", "w4", "mx4")}
FITTED |= {f"grouped_gemm_{kind}": FITTED["grouped_gemm"] for kind in ("tuned", "8bit", "block", "4bit", "w4", "mx4")}
# Of kernels without a tuned configuration alone: tuned ones read weights as fast for many tokens as for few.
FITTED["grouped_gemm"] += ("crowded_bandwidth",)


def class_parameters(op_class: str, rate: Rates, without: Sequence[str] = ()) -> list[Parameter]:
    """The fitted figures of a class, starting at those of ``rate``."""
    index = OP_CLASSES.index(op_class)
    parameters = []
    for figure in FITTED[op_class]:
        if figure in without:
            continue
        now = _CLASS_STARTS.get(op_class, {}).get(figure, float(getattr(rate, figure)[index]))
        parameter = _parameter(f"{op_class}.{figure}", figure, figure, index, now)
        # Without figures of activations of its own a class reads both alike, in the fit as in the set.
        if figure == "bandwidth_efficiency" and "activation_efficiency" not in FITTED[op_class]:
            parameter = replace(parameter, tied="activation_efficiency")
        parameters.append(parameter)
    return parameters


def group_parameters(collective: str, devices: Sequence[int], rate: Rates) -> list[Parameter]:
    """The figures of a collective for each measured group size; an engine hands over nothing but all-reduces."""
    most = {"bandwidth_efficiency": 8.0}  # a switch that reduces saves most of the volume
    # Calls within a node tell nothing of links between nodes, and rows of messages nothing of tokens.
    without = {"far_efficiency", "token_s"} | (set() if collective == "all_reduce" else {"handover_s"})
    figures = {name: leaf for name, leaf in GROUP_FIGURES.items() if name not in without}
    first = GROUPED.index(collective) * len(GROUP_SIZES)
    return [
        _parameter(f"{collective}.{size}.{figure}", figure, f"group_{leaf}", index,
                   float(getattr(rate, f"group_{leaf}")[index]), most.get(figure))
        for index, size in enumerate(GROUP_SIZES, first) if size in devices
        for figure, leaf in figures.items()
    ]  # fmt: skip


def scalar_parameter(name: str, rate: Rates) -> Parameter:
    """``step_overhead_s``, ``sequence_overhead_s``, ``dispatch_s`` or ``expert_skew``."""
    return _parameter(name, name, name, None, float(getattr(rate, name)))


def _parameter(
    name: str, figure: str, leaf: str, index: int | None, now: float, high: float | None = None
) -> Parameter:
    beyond = BEYOND_ROOFLINE.get(figure)
    if beyond is not None:
        bound, absent, first, unit = beyond.high, beyond.neutral, beyond.start, beyond.unit
    else:
        bound = high or (1.0 if figure in _FRACTIONS else np.inf)
        absent, first = _NEUTRAL.get(figure, 0.0), _STARTS.get(figure, 1e-9)
        unit = "s" if figure.endswith("_s") else "byte" if figure.endswith("_bytes") else "1"
    # A figure at its neutral value has no gradient to leave it by: the fit starts where it matters a little.
    now = first if now == absent else now
    # 0.98 of the bound, because a logit of 1 is infinite.
    start = float(np.clip(now, 1e-12, 0.98 * bound))
    return Parameter(name, leaf, index, bound, start, unit)


def values(parameters: Sequence[Parameter], inner: Any, xp: Any = np) -> Any:
    """Values of unbounded coordinates, (parameter,); NumPy or JAX."""
    high = np.array([parameter.high for parameter in parameters])
    finite = np.where(np.isinf(high), 1.0, high)
    # Clipped against overflow of exp; finite in the branch that is not taken, since NaN would get into gradients.
    return xp.where(np.isinf(high), xp.exp(xp.clip(inner, -80.0, 80.0)), finite / (1.0 + xp.exp(-inner)))


def put(rate: Rates, parameters: Sequence[Parameter], new: Any) -> Rates:
    """``rate`` (of JAX arrays) with the parameters' values in it."""
    leaves: dict[str, Any] = {}
    for index, parameter in enumerate(parameters):
        for name in filter(None, (parameter.leaf, parameter.tied)):
            leaf = leaves.get(name, getattr(rate, name))
            leaves[name] = new[index] if parameter.index is None else leaf.at[parameter.index].set(new[index])
    return rate._replace(**leaves)


def fixed(rate: Rates, changes: Mapping[str, Mapping[str, float]]) -> Rates:
    """``rate`` (NumPy) with figures of classes set: {class: {figure: value}}."""
    leaves: dict[str, np.ndarray] = {}
    for op_class, figures in changes.items():
        for figure, value in figures.items():
            leaf = leaves.setdefault(figure, getattr(rate, figure).copy())
            leaf[OP_CLASSES.index(op_class)] = value
    return rate._replace(**leaves)
