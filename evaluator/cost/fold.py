"""From operators and rates to the parameters of the iteration cost: NumPy structure, then arithmetic on arrays.

``coefficients`` holds what an operator set is (no rate in it, computed once per structure). ``fold_rates`` is plain
array arithmetic: NumPy for the plan (well under 200 us), JAX for gradients and for grids of hardware by vmap.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.cost.collectives import collective_terms, level_sizes
from evaluator.cost.dtypes import COMPUTE_DTYPES
from evaluator.cost.iteration import (
    OUTPUT_TILE,
    TOKEN_TILE,
    AttentionRows,
    CostParameters,
    Rows,
    array_namespace,
    roofline,
)
from evaluator.cost.kernel import Group, Operator
from evaluator.cost.rates import GROUP_SIZES, HANDOVER_BYTES, NARROW_DTYPES, OP_CLASSES, Rates, rates

if TYPE_CHECKING:
    from evaluator.catalog import Calibration

_GROUPS = get_args(Group)

HEAD_SIZE = 128
"""The head size to which figures of attention are stated; tiles are the smaller, the larger the heads."""

STORE_THREADS = 512
"""Threads of a block of vLLM's ``reshape_and_cache`` at most, one per element of a token's keys."""


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
    edges: np.ndarray  # (operator,) edges of the attention mask: the diagonal, and where the window ends
    size: np.ndarray  # (operator, size) weights of GROUP_SIZES in an all-reduce's figures; 0 for anything else
    inputs: np.ndarray  # (operator,) shape of one kernel, see ``Operator``
    outputs: np.ndarray
    heads: np.ndarray
    kv_heads: np.ndarray
    token_bytes: np.ndarray
    layers: np.ndarray
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
        op_class=np.array(
            [OP_CLASSES.index(efficiency_class(each.op_class, each.dtype)) for each in operators], dtype=int
        ),
        dtype=np.array([COMPUTE_DTYPES.index(operator.dtype) for operator in operators], dtype=int),
        steps=np.array([steps for steps, _ in terms], dtype=float).reshape(len(terms), len(reach)),
        share=np.array([share for _, share in terms], dtype=float).reshape(len(terms), len(reach)),
        edges=np.where((groups == "prefill_window") | (groups == "decode_window"), 2.0, 1.0),
        size=np.array([_size_weights(operator, reach) for operator in operators]).reshape(-1, len(GROUP_SIZES)),
        **{
            name: np.array([getattr(operator, name) for operator in operators], dtype=float)
            for name in ("inputs", "outputs", "heads", "kv_heads", "token_bytes", "layers")
        },
        log_expert_missed=min((operator.log_expert_missed for operator in operators), default=0.0),
        groups={name: np.flatnonzero(groups == name) for name in _GROUPS},
    )


def _terms(
    operator: Operator, reach: tuple[int | None, ...], mesh: tuple[bool, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if operator.collective is None or operator.ranks is None:
        return (0.0,) * len(reach), (0.0,) * len(reach)
    return collective_terms(operator.collective, operator.ranks, reach, mesh)


def efficiency_class(op_class: str, dtype: str) -> str:
    """The class whose efficiencies an operator has: products in 8 bits and less are a class of their own."""
    return f"{op_class}_8bit" if dtype in NARROW_DTYPES and op_class.endswith("gemm") else op_class


def size_weights(devices: float) -> np.ndarray:
    """Interpolation weights of GROUP_SIZES, linear in log2 of the devices; beyond the last, the last."""
    place = np.interp(np.log2(max(devices, 1)), np.log2(GROUP_SIZES), np.arange(len(GROUP_SIZES)))
    return np.maximum(0.0, 1.0 - np.abs(np.arange(len(GROUP_SIZES)) - place))


def _size_weights(operator: Operator, reach: tuple[int | None, ...]) -> np.ndarray:
    if operator.collective != "all_reduce" or operator.ranks is None or not reach:
        return np.zeros(len(GROUP_SIZES))
    return size_weights(level_sizes(operator.ranks, reach)[0])


class Times(NamedTuple):
    """Seconds of every operator per unit of its group's statistics; all (operator,). ``fixed_s`` is per iteration."""

    flop_s: Any
    weight_s: Any
    activation_s: Any
    message_s: Any
    fixed_s: Any
    knee: Any
    waves: Any  # per TOKEN_TILE tokens
    wave_s: Any
    edge_s: Any  # per query row of all heads
    traffic_s: Any  # per token computed
    tile: Any  # tokens
    fill: Any  # tokens
    cache: Any  # tokens
    store_s: Any  # per prompt token
    sequence_s: Any  # per sequence that attention works on
    join_s: Any
    spread_s: Any  # per token of the mean context
    unsplit_s: Any  # per token of the mean context
    ramp_s: Any
    handover_s: Any


def unit_times(known: Coefficients, rate: Rates) -> Times:
    """Work divided by effective rates, operator by operator.

    A tile of a product costs a ``prologue`` on top of its inner dimension (filling and draining the pipeline); a share
    of the tiles is counted in whole waves. Figures of an all-reduce depend on how many devices take part.
    """
    kind = known.op_class
    flop_rate = rate.flops_efficiency[kind] * rate.peak_flops[known.dtype]
    inner = np.where(known.inputs > 0, known.inputs, np.inf)
    flop_s = known.flops * (1.0 + rate.prologue[kind] / inner) / flop_rate
    tile_flops = 2.0 * TOKEN_TILE * OUTPUT_TILE * known.layers * (known.inputs > 0)
    share, tiles = rate.wave_share[kind] * (known.inputs > 0), rate.wave_tiles[kind]
    reduces = known.size.any(axis=1)
    launch = rate.launch_s[kind] * ~reduces + known.size @ rate.reduce_launch_s
    link_efficiency = rate.bandwidth_efficiency[kind] * ~reduces + known.size @ rate.reduce_efficiency
    activation_rate = rate.memory_bandwidth * rate.activation_efficiency[kind]
    attention = _attention_times(known, rate, flop_s, activation_rate)
    return Times(
        flop_s=attention.pop("flop_s") * (1.0 - share),
        weight_s=known.weight_bytes / (rate.memory_bandwidth * rate.bandwidth_efficiency[kind]),
        activation_s=known.activation_bytes / activation_rate,
        message_s=known.message_bytes * (known.share @ (1.0 / rate.link_bandwidth)) / link_efficiency,
        fixed_s=known.launches * (launch + known.steps @ rate.link_latency_s),
        knee=rate.knee[kind],
        waves=np.ceil(known.outputs / OUTPUT_TILE) / tiles,
        wave_s=share * tile_flops * (known.inputs + rate.prologue[kind]) * tiles / flop_rate,
        ramp_s=known.launches * (known.size @ rate.reduce_ramp_s),
        handover_s=known.launches * (known.size @ rate.reduce_handover_s),
        **attention,
    )


def _attention_times(known: Coefficients, rate: Rates, flop_s: Any, activation_rate: Any) -> dict[str, Any]:
    """What of ``Times`` is of attention kernels; 0 for any other operator.

    The exponential of a score (``score_flops``) runs beside the products, in part (arXiv:2407.08608, section 3.2).
    Every query row attends to some tokens in vain (``diagonal``: half a tile on each edge of the mask; shared memory
    holds tiles that are the narrower, the larger the heads). Kernels that split the context of a decode wait for the
    last part and join them; FlashAttention-2 does not where every query head has a KV head of its own
    (``mha_varlen_fwd``), nor does it put the heads of one KV head into a tile in windowed layers (``window_rows``).
    """
    kind = known.op_class
    heads, kv_heads = known.heads * known.layers, known.kv_heads * known.layers
    size = np.where(known.heads > 0, known.flops / np.maximum(4.0 * heads, 1e-9), HEAD_SIZE)
    scores = rate.score_flops[kind] * heads / rate.peak_flops[known.dtype]
    flop_s = roofline(flop_s * rate.window_rows[kind] ** (known.edges - 1.0), scores, rate.score_knee[kind])
    context_s = roofline(flop_s, known.activation_bytes / activation_rate, rate.knee[kind])
    traffic_s = known.token_bytes / activation_rate
    own = (known.heads > 0) & (known.heads == known.kv_heads)
    per_head = rate.tile[kind] + rate.packed_tile[kind] * known.kv_heads / np.maximum(known.heads, 1.0)
    lost_s = rate.diagonal[kind] * known.edges * flop_s * (HEAD_SIZE / size)
    per_sequence_s = rate.head_sequence_s[kind] * heads + rate.kv_head_sequence_s[kind] * kv_heads
    return {
        "flop_s": flop_s,
        "edge_s": lost_s + rate.head_token_s[kind] * heads,
        "traffic_s": traffic_s,
        "tile": per_head,
        "fill": rate.fill[kind] / np.maximum(known.heads, 1.0),
        "cache": rate.cache_bytes[kind] * known.layers / np.maximum(known.token_bytes, 1e-9),
        "store_s": rate.store_s[kind] * np.minimum(known.kv_heads * size, STORE_THREADS) * known.layers,
        "sequence_s": per_sequence_s + traffic_s,
        "join_s": rate.join_s[kind] * known.layers,
        "spread_s": context_s * rate.spread[kind] / np.maximum(known.kv_heads, 1.0),
        "unsplit_s": rate.unsplit_s[kind] * (size / HEAD_SIZE) * known.layers * own,
    }


def rows_of(times: Times, kind: type[Any], at: Any = slice(None)) -> Any:
    """``Rows`` or ``AttentionRows`` of the operators ``at``."""
    return kind(*(getattr(times, name if name in Times._fields else f"{name}_s")[at] for name in kind._fields))


def fold_rates(known: Coefficients, rate: Rates, overheads: bool = True) -> CostParameters:
    """Parameters of the iteration cost, NumPy or JAX as ``rate`` is. Differentiable in every leaf of ``rate``.

    Both sides of decode attention are proportional to the context, so its roofline (homogeneous of degree one) is one
    number per token attended to. ``overheads`` False leaves out the host's time, for the time of single operators.
    """
    times = unit_times(known, rate)
    xp = array_namespace(*times)

    def rows(group: str, kind: type[Any] = Rows) -> Any:
        return rows_of(times, kind, known.groups[group])

    def homogeneous(group: str) -> Any:
        at = known.groups[group]
        return xp.sum(roofline(times.flop_s[at], times.activation_s[at], times.knee[at]))

    def linear(group: str) -> Any:
        at = known.groups[group]
        return xp.sum(times.flop_s[at] + times.activation_s[at] + times.message_s[at])

    def total(values: Any, *groups: str) -> Any:
        return sum(xp.sum(values[known.groups[group]]) for group in groups)

    reduce = np.flatnonzero(known.size.any(axis=1))[:1]  # all of them have the same message per token
    per_byte = (known.launches / known.message_bytes.clip(1e-9))[reduce]  # tokens in a byte of one call's message
    host = 1.0 if overheads else 0.0
    return CostParameters(
        token_rows=rows("tokens"),
        sequence_rows=rows("sequences"),
        expert_rows=rows("experts"),
        prefill_rows=rows("prefill", AttentionRows),
        prefill_window_rows=rows("prefill_window", AttentionRows),
        log_expert_missed=xp.asarray(known.log_expert_missed, dtype=float),
        expert_skew=rate.expert_skew,
        graph_tokens=rate.graph_tokens,
        iteration_s=xp.sum(times.fixed_s) + host * rate.step_overhead_s,
        token_s=linear("linear_tokens"),
        sequence_s=linear("linear_sequences") + host * rate.sequence_overhead_s,
        context_s=homogeneous("decode"),
        spread_s=total(times.spread_s, "decode"),
        unsplit_s=total(times.unsplit_s, "decode"),
        window_context_s=homogeneous("decode_window"),
        decode_s=total(times.sequence_s, "decode", "decode_window"),
        join_s=total(times.join_s, "decode", "decode_window"),
        prefill_token_s=total(times.store_s, "prefill", "prefill_window"),
        ramp_s=xp.sum(times.ramp_s),
        ramp_tokens=xp.sum(known.size[reduce] @ rate.reduce_half_bytes * per_byte) if len(reduce) else xp.asarray(1.0),
        handover_s=xp.sum(times.handover_s),
        handover_tokens=xp.asarray(HANDOVER_BYTES * per_byte.sum() if len(reduce) else 0.0),
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
