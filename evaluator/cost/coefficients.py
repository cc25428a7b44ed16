"""An operator set as arrays: what a replica computes, moves and sends, before any rate of a device.

``Operator`` records are easy to write and read; arithmetic on all of them at once needs one array per field. The
arrays depend on the model, its split over devices and which devices each link joins, never on how fast anything is.
So they are NumPy, made once per structure (cached), and the same for every hardware rate, calibration and gradient.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, get_args

import numpy as np

from evaluator.catalog.calibration import TUNED
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.tuned import ExpertShape
from evaluator.cost.collectives import collective_terms, level_sizes
from evaluator.cost.dtypes import COMPUTE_DTYPES, compute_dtype, experts_dtype, is_unpacked
from evaluator.cost.kernel import OpClass, Operator, Placed, Scaling
from evaluator.cost.rates import GROUP_SIZES, GROUPED, NARROW_DTYPES, OP_CLASSES

_SCALINGS = get_args(Scaling)
_AS_STATED = ("inputs", "outputs", "heads", "kv_heads", "token_bytes", "query_elements", "layers", "walked",
              "matrices", "sent_tokens")  # fmt: skip
"""Figures of an operator that are columns as they are."""

UNTUNED = "grouped_gemm"
"""The class of experts in 16 bits, and of those of no list of tuned shapes alone where a set has the class TUNED."""


class Coefficients(NamedTuple):
    """An operator set as arrays, float64 where nothing else is said; ``Operator`` says what each figure is per unit of.

    Axes: ``operator``, ``level`` (links, nearest first), ``size`` (``rates.GROUPED``).
    """

    flops: np.ndarray  # (operator,) FLOPs
    weight_bytes: np.ndarray  # (operator,) bytes
    activation_bytes: np.ndarray  # (operator,) bytes
    message_bytes: np.ndarray  # (operator,) bytes
    launches: np.ndarray  # (operator,) kernels started per iteration
    op_class: np.ndarray  # (operator,) int: index into OP_CLASSES
    dtype: np.ndarray  # (operator,) int: index into COMPUTE_DTYPES
    steps: np.ndarray  # (operator, level) messages in a row; 0 for what sends none
    share: np.ndarray  # (operator, level) bytes per byte of message
    edges: np.ndarray  # (operator,) edges of the attention mask: 1 the diagonal, 2 with the end of a window, 0 without
    size: np.ndarray  # (operator, size) weights of GROUP_SIZES in a collective's figures; 0 for anything else
    inputs: np.ndarray  # (operator,) inner dimension of one matrix product
    outputs: np.ndarray  # (operator,) columns of one matrix product
    heads: np.ndarray  # (operator,) query heads of one attention kernel
    kv_heads: np.ndarray  # (operator,) KV heads of one attention kernel
    token_bytes: np.ndarray  # (operator,) bytes of an attention kernel per token computed
    query_elements: np.ndarray  # (operator,) elements of an attention kernel's queries per token computed
    layers: np.ndarray  # (operator,) layers it is in
    walked: np.ndarray  # (operator,) of a context, the share that attention reads on this device
    matrices: np.ndarray  # (operator,) matrices of routed experts
    sent_tokens: np.ndarray  # (operator,) tokens that a device sends around experts
    crowd: np.ndarray  # (operator,) tokens of a rank with which as many come to a device as it holds experts
    log_expert_missed: float  # log of the chance that a token leaves a given expert alone
    popularity: np.ndarray  # (3, group): the fields of ``iteration.AdapterGroups``
    placed: tuple[Placed | None, ...]  # (operator,) how experts lie on devices, where that matters
    scaling: dict[str, np.ndarray]  # int: the operators of every ``Scaling``, as indices


@cache
def coefficients(
    operators: tuple[Operator, ...],
    reach: tuple[int | None, ...],
    mesh: tuple[bool, ...] = (),
    tuned: frozenset[ExpertShape] = frozenset(),
) -> Coefficients:
    """Arrays of an operator set on links that join ``reach`` devices per level, ``mesh`` of them pairwise.

    ``tuned``: shapes for which the engine has tuned kernels (``catalog.Calibration.tuned_experts``).

    The iteration cost knows one number of experts. Should a model's layers differ in it, the smallest chance of
    missing an expert is taken: it touches the most experts, so that the time is never too short.
    """
    terms = [_terms(operator, reach, mesh) for operator in operators]
    scaling = np.array([operator.scaling for operator in operators], dtype=object)
    return Coefficients(
        flops=np.array([operator.flops for operator in operators], dtype=float),
        weight_bytes=np.array([operator.weight_bytes for operator in operators], dtype=float),
        activation_bytes=np.array([operator.activation_bytes for operator in operators], dtype=float),
        message_bytes=np.array([operator.message_bytes for operator in operators], dtype=float),
        launches=np.array([operator.launches for operator in operators], dtype=float),
        op_class=np.array([OP_CLASSES.index(_class_of(kernel, tuned)) for kernel in operators], dtype=int),
        dtype=np.array([COMPUTE_DTYPES.index(operator.dtype) for operator in operators], dtype=int),
        steps=np.array([steps for steps, _ in terms], dtype=float).reshape(len(terms), len(reach)),
        share=np.array([share for _, share in terms], dtype=float).reshape(len(terms), len(reach)),
        edges=np.where((scaling == "prefill_window") | (scaling == "decode_window"), 2.0, 1.0)
        * np.array([operator.masked for operator in operators], dtype=float),
        size=np.array([_size_weights(operator, reach) for operator in operators]).reshape(
            -1, len(GROUPED) * len(GROUP_SIZES)
        ),
        **{name: np.array([getattr(operator, name) for operator in operators], dtype=float) for name in _AS_STATED},
        crowd=np.array(
            [kernel.held.experts / kernel.held.ranks if kernel.held else 0.0 for kernel in operators], dtype=float
        ),
        popularity=_popularity(operators),
        placed=tuple(operator.placed for operator in operators),
        # See the docstring: the most experts touched, so that the time is never too short.
        log_expert_missed=min((operator.log_expert_missed for operator in operators), default=0.0),
        scaling={name: np.flatnonzero(scaling == name) for name in _SCALINGS},
    )


def _popularity(operators: tuple[Operator, ...]) -> np.ndarray:
    # All adapters of a model are named by the same requests.
    named = next((operator for operator in operators if operator.popularity), None)
    groups, resident = ((), 0.0) if named is None else (named.popularity, named.resident)
    adapters, chances = np.array(groups, dtype=float).reshape(-1, 2).T
    # 1e-300 for the only adapter of all requests, as with experts that every token visits.
    return np.array([adapters, np.log(np.maximum(1e-300, 1.0 - chances)), np.full(len(adapters), resident)])


def _class_of(operator: Operator, tuned: frozenset[ExpertShape]) -> str:
    """``efficiency_class`` of an operator, or TUNED."""
    op_class = efficiency_class(operator.op_class, operator.dtype)
    held = operator.held
    return TUNED if held and op_class == UNTUNED and (held.experts, held.width) in tuned else op_class


def _terms(
    operator: Operator, reach: tuple[int | None, ...], mesh: tuple[bool, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if operator.collective is None or operator.ranks is None:
        return (0.0,) * len(reach), (0.0,) * len(reach)
    return collective_terms(operator.collective, operator.ranks, reach, mesh, operator.spread)


def efficiency_class(op_class: str, dtype: str) -> str:
    """The class whose efficiencies an operator has: products in 8 bits and in 4 are classes of their own."""
    if dtype not in NARROW_DTYPES or not op_class.endswith("gemm"):
        return op_class
    return f"{op_class}_{NARROW_DTYPES[dtype]}"


def product_class(weight: str, activations: str) -> OpClass:
    """The class of dense products; weights in fp8 with block scales have their own kernels (DeepGEMM and its kin)."""
    return "gemm_block" if weight == "fp8_block" and compute_dtype(weight, activations) == "fp8" else "gemm"


def experts_class(weight: str, activations: str) -> OpClass:
    """The class of the routed experts' products before ``efficiency_class``: unpacked weights have one of their own,
    and so have weights in fp8 with block scales."""
    if is_unpacked(weight, activations):
        return "grouped_gemm_w4"
    blocks = weight == "fp8_block" and experts_dtype(weight, activations) == "fp8"
    return "grouped_gemm_block" if blocks else "grouped_gemm"


def routing_class(weight: str, activations: str) -> OpClass:
    """The class of what permutes, activates and sums around those products, which kernels for 4 bits do in part."""
    if is_unpacked(weight, activations):
        return "expert_elementwise_w4"
    return _ROUTING.get(experts_dtype(weight, activations), "expert_elementwise")


_ROUTING: dict[str, OpClass] = {"fp4": "expert_elementwise_4bit", "mxfp8": "expert_elementwise_mx4"}


def size_weights(collective: str | None, devices: float) -> np.ndarray:
    """Weights of a collective's figures: linear in log2 of the devices between GROUP_SIZES; beyond the last, the last.

    (size,), see ``rates.GROUPED``; 0 for a collective that has none.
    """
    weights = np.zeros((len(GROUPED), len(GROUP_SIZES)))
    # A weight per measured size instead of an interpolated figure: ``size @ figures`` is then one product for all
    # operators, and differentiable in the figures.
    if collective in GROUPED:
        position = np.interp(np.log2(max(devices, 1)), np.log2(GROUP_SIZES), np.arange(len(GROUP_SIZES)))
        weights[GROUPED.index(collective)] = np.maximum(0.0, 1.0 - np.abs(np.arange(len(GROUP_SIZES)) - position))
    return weights.ravel()


def _size_weights(operator: Operator, reach: tuple[int | None, ...]) -> np.ndarray:
    if operator.ranks is None or not reach:
        return size_weights(None, 1)
    # Sets have figures of collectives within a node; of one that spans nodes, its part within a node counts.
    return size_weights(operator.collective, level_sizes(operator.ranks, reach)[0])


def reach(hardware: Hardware) -> tuple[int | None, ...]:
    """How many devices each level of the links joins, nearest first."""
    return tuple(link.devices for link in hardware.links)


def mesh(hardware: Hardware) -> tuple[bool, ...]:
    """Which levels join their devices pairwise, nearest first."""
    return tuple(link.mesh for link in hardware.links)
