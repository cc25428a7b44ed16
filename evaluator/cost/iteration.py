"""The time of one engine iteration from the sufficient statistics of its batch.

This is the only place where an operator's time is computed: the vectorised engine, the reference,
``estimate`` and calibration all call ``iteration_time``. It is pure, traced in every number, and works alike on
scalars and NumPy arrays (without importing JAX) and on JAX arrays and tracers of any batch of lanes. On plain Python
floats it is plain Python, three times as fast as on NumPy scalars.
"""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = Any  # a float, a NumPy array or a JAX array, float64


class _Floats:
    """What of an array namespace the cost functions use, on plain floats."""

    sqrt, expm1, log1p, ceil = math.sqrt, math.expm1, math.log1p, staticmethod(math.ceil)
    maximum, minimum, floor = max, min, staticmethod(math.floor)

    @staticmethod
    def where(condition: bool, yes: float, no: float) -> float:
        return yes if condition else no


def array_namespace(*arrays: Array) -> Any:
    """``jax.numpy`` where any argument is a JAX array or tracer, plain Python for floats alone, else ``numpy``."""
    for array in arrays:
        if type(array) is not float:
            break
    else:
        return _Floats
    jax = sys.modules.get("jax")
    if jax is not None and any(isinstance(array, jax.Array) for array in arrays):
        return jax.numpy
    return np


class BatchStatistics(NamedTuple):
    """What an iteration's time depends on. All float64, any common shape.

    A decoding sequence with ``c`` tokens of KV (before this iteration) attends to ``c + 1`` tokens; a chunk
    of a prompt that computes positions ``lo + 1 .. hi`` has area ``sum(lo + 1 .. hi)`` and context ``hi``.
    The ``window`` fields are the same sums with every attended length cut at the model's window.
    """

    decodes: Array  # sequences that decode one token each
    decode_context: Array  # tokens they attend to, summed
    decode_window_context: Array
    prefill_tokens: Array  # prompt tokens computed
    prefill_sequences: Array  # prompts that have a chunk in this iteration
    prefill_area: Array  # tokens attended to, summed over the prompt tokens computed
    prefill_window_area: Array
    prefill_context: Array  # KV tokens read by the chunks, history and cached prefix included
    prefill_window_context: Array


class Rows(NamedTuple):
    """Matrix products, in seconds. Each field is (operator, *lanes); no operator at all is allowed.

    An operator takes roofline(flop * x, weight * y + activation * z, knee); the group it is in says what x, y, z are.
    The last two make the side of the FLOPs depend on the size (``product_time``); 0 leaves it.
    """

    flop: Array
    weight: Array
    activation: Array
    knee: Array
    waves: Array  # waves of tiles per TOKEN_TILE tokens
    wave_s: Array  # seconds of one whole wave, counted in whole waves


class AttentionRows(NamedTuple):
    """Prefill attention, in seconds; see ``attention_time``. Each field is (operator, *lanes)."""

    flop: Array  # per token attended to
    activation: Array  # per token of context, whose keys and values are read
    knee: Array
    edge_s: Array  # per query row, on the side of the FLOPs
    traffic_s: Array  # per prompt token, on the side of memory: queries, output, new keys and values
    tile: Array  # query rows computed at least, in prompt tokens per prompt
    fill: Array  # prompt tokens below which the device is not full
    cache: Array  # prompt tokens whose own traffic stays in the cache


class CostParameters(NamedTuple):
    """The iteration cost of one pipeline rank of one replica, everything already in seconds (``fold`` makes it).

    The scalar fields are (*lanes). They hold every term without a knee: host overhead, launches, collectives,
    elementwise work, and decode attention, both sides of whose roofline are proportional to the context. How fast it
    is may depend on the number of decodes, never on the context: between events an iteration's time is affine in it.
    """

    token_rows: Rows  # dense GEMMs: x = tokens, y = 1, z = tokens
    sequence_rows: Rows  # the output head: x = sequences, y = 1, z = sequences
    expert_rows: Rows  # routed experts: x = tokens, y = fraction of the experts touched, z = tokens
    prefill_rows: AttentionRows
    prefill_window_rows: AttentionRows  # the same in windowed layers, with the windowed area and context
    log_expert_missed: Array  # log(1 - k/E): one token leaves a given expert untouched; 0 without experts
    expert_skew: Array  # variance of the experts' popularity, see ``experts_touched``; 0: all alike
    graph_tokens: Array  # the batch is padded to a multiple of so many tokens, see ``padded``; 0: it is not
    iteration_s: Array  # per iteration
    token_s: Array  # per token computed
    sequence_s: Array  # per sequence in the batch
    context_s: Array  # per token attended to by a decode, full attention and MLA
    spread_s: Array  # on top, per token of the mean context: parts of a split context that end late
    unsplit_s: Array  # the least, per token of the mean context, where a context is not split
    window_context_s: Array  # per token attended to in windowed layers
    decode_s: Array  # per decoding sequence
    join_s: Array  # per iteration with decodes
    prefill_token_s: Array  # per prompt token
    ramp_s: Array  # all-reduces: time beyond the affine form, reached by half at ``ramp_tokens``
    ramp_tokens: Array  # tokens, above 0
    handover_s: Array  # all-reduces from ``handover_tokens`` on
    handover_tokens: Array


class FittedCost(Protocol):
    """A cost fitted to measured iterations (``polynomial``, ``table``), or one with a host that runs ahead
    (``Dispatched``): the same questions, other answers."""

    @property
    def log_expert_missed(self) -> Array: ...
    @property
    def expert_skew(self) -> Array: ...
    def time(self, batch: BatchStatistics) -> Array: ...
    def growth(self, batch: BatchStatistics, window_growing: Array) -> Array: ...
    def steps(self, batch: BatchStatistics) -> Array: ...


IterationCost = CostParameters | FittedCost
"""Which of them is structure: a compiled program knows it."""


TOKEN_TILE, OUTPUT_TILE = 128, 256
"""Tile of a matrix product: the largest that cuBLAS and CUTLASS use on A100 and later, rows (tokens) x columns."""


def roofline(flop_s: Array, byte_s: Array, knee: Array) -> Array:
    """Time of an operator from its two sides, seconds: the larger (knee 0) up to their sum (knee 1).

    A smooth maximum, homogeneous of degree one: where both sides are equal it is (1 + knee) times either, as the
    p-norm of the adapted roofline is 2^(1/p) times (p = 2: knee 0.414). Chosen over the p-norm because it costs one
    square root, is traced in its sharpness and reaches the classic maximum exactly.
    """
    xp = array_namespace(flop_s, byte_s, knee)
    gap = flop_s - byte_s
    # The tiny term keeps the derivative finite at the knee and at no work; it is 1e-30 s.
    return 0.5 * (flop_s + byte_s + xp.sqrt(gap * gap + 4.0 * knee * knee * flop_s * byte_s + 1e-60))


def whole_waves(waves: Array) -> Array:
    """Waves of tiles as they are executed: whole ones, the last with idle processors.

    Where all tiles fit into half a wave, kernels take tiles of half the size, and so on: below a quarter nothing is
    lost. NVIDIA, "Matrix Multiplication Background User's Guide" (DA-09799-001, tile and wave quantisation).
    """
    xp = array_namespace(waves)
    return xp.where(waves > 0.5, xp.ceil(waves), xp.where(waves > 0.25, 0.5, waves))


def product_time(row: Rows, x: Array, y: Array, z: Array, blocks: Array = None) -> Array:
    """One operator with weights; ``blocks`` is the number of tiles of rows (None: its waves are not counted)."""
    flop = row.flop * x if blocks is None else row.flop * x + row.wave_s * whole_waves(row.waves * blocks)
    return roofline(flop, row.weight * y + row.activation * z, row.knee)


def attention_time(row: AttentionRows, area: Array, context: Array, tokens: Array, prompts: Array) -> Array:
    """Prefill attention of ``prompts`` chunks of ``tokens`` in all.

    Query rows are computed in whole tiles: of every prompt half a tile more than there are tokens, on average, and
    one at least. Well below ``fill`` rows the device is not full, and the time is as of so many. What few tokens read
    and write themselves stays in the cache; the history never does.
    """
    xp = array_namespace(row.flop, area, tokens)
    rows = xp.maximum(row.tile * prompts, tokens + 0.5 * row.tile * prompts)
    lack = row.fill / xp.maximum(rows, 1.0)
    work = (row.flop * area + row.edge_s * rows) * xp.sqrt(1.0 + lack * lack)
    much, little = tokens * tokens, row.cache * row.cache
    spilt = much * much / (much * much + little * little + 1e-30)
    return roofline(work, row.traffic_s * tokens * spilt + row.activation * context, row.knee)


def _products_time(rows: Rows, x: Array, y: Array, z: Array, blocks: Array = None) -> Array:
    return sum((product_time(Rows(*row), x, y, z, blocks) for row in zip(*rows, strict=True)), start=0.0)


def _attentions_time(rows: AttentionRows, *chunks: Array) -> Array:
    return sum((attention_time(AttentionRows(*row), *chunks) for row in zip(*rows, strict=True)), start=0.0)


def decode_context_s(parameters: CostParameters, decodes: Array) -> Array:
    """Seconds per token attended to by ``decodes`` sequences, in layers with full attention and MLA."""
    xp = array_namespace(parameters.context_s, decodes)
    one = 1.0 / xp.maximum(decodes, 1.0)
    return xp.maximum(parameters.context_s + parameters.spread_s * one, parameters.unsplit_s * one)


def experts_touched(log_expert_missed: Array, tokens: Array, skew: Array = 0.0) -> Array:
    """Expected fraction of routed experts that a batch of ``tokens`` touches.

    Uniform routing: 1 - (1 - k/E)^tokens. With experts of unequal popularity, gamma-distributed with mean 1 and
    variance ``skew``, the expectation over the experts is 1 - (1 - skew tokens log(1 - k/E))^(-1/skew).
    """
    xp = array_namespace(log_expert_missed, tokens, skew)
    visits = -tokens * log_expert_missed
    spread = xp.log1p(skew * visits) / xp.where(skew > 0.0, skew, 1.0)
    return -xp.expm1(-xp.where(skew > 0.0, spread, visits))


def padded(tokens: Array, graph_tokens: Array) -> Array:
    """Tokens that the kernels see where an engine replays CUDA graphs, kept for 1, 2, 4 and multiples of 8 tokens.

    vLLM (``cudagraph_capture_sizes``) and SGLang pad a batch up to the next one. What pads it is routed to experts,
    too; in dense products, bound by their weights at such sizes, it costs nothing.
    """
    xp = array_namespace(tokens, graph_tokens)
    whole = graph_tokens * xp.ceil(tokens / xp.maximum(graph_tokens, 1.0))
    return xp.where((graph_tokens > 0.0) & (tokens > 4.0), whole, tokens)


def decode_growth(parameters: IterationCost, batch: BatchStatistics, window_growing: Array) -> Array:
    """Seconds by which each next iteration of the same decodes is longer than the one before, without prompts.

    ``window_growing`` of them have a windowed context that still grows. It holds for ``alike_steps`` iterations.
    """
    if isinstance(parameters, CostParameters):
        grows_s = decode_context_s(parameters, batch.decodes) * batch.decodes
        return grows_s + parameters.window_context_s * window_growing
    return parameters.growth(batch, window_growing)


def alike_steps(parameters: IterationCost, batch: BatchStatistics) -> Array:
    """For how many iterations of the same decodes the time is affine in their number; float, inf where always."""
    return math.inf if isinstance(parameters, CostParameters) else parameters.steps(batch)


def share_touched(parameters: IterationCost, tokens: Array) -> Array:
    """Fraction of the routed experts that an iteration of so many tokens touches; 0 for a model without any."""
    if isinstance(parameters, CostParameters) and not len(parameters.expert_rows.flop):
        return 0.0
    return experts_touched(parameters.log_expert_missed, tokens, parameters.expert_skew)


def prefill_attention_time(parameters: CostParameters, batch: BatchStatistics) -> Array:
    """Seconds of an iteration in prefill attention; nothing beside the rest (1e-30 s) without prompts."""
    chunks = batch.prefill_tokens, batch.prefill_sequences
    full_s = _attentions_time(parameters.prefill_rows, batch.prefill_area, batch.prefill_context, *chunks)
    window = batch.prefill_window_area, batch.prefill_window_context
    return full_s + _attentions_time(parameters.prefill_window_rows, *window, *chunks)


def iteration_time(parameters: IterationCost, batch: BatchStatistics, prefill_attention_s: Array = None) -> Array:
    """Seconds of one iteration; the shape is the common shape of the lanes and the batch.

    An empty batch still costs ``iteration_s`` and the weights: callers do not run empty iterations. A caller that knows
    ``prefill_attention_time`` of a roofline already may give it, and its terms are not computed again.
    """
    if not isinstance(parameters, CostParameters):
        return parameters.time(batch)
    xp = array_namespace(parameters.iteration_s, *batch)
    prompt, prompts = batch.prefill_tokens, batch.prefill_sequences
    tokens = batch.decodes + prompt
    sequences = batch.decodes + prompts
    time = (
        parameters.iteration_s
        + parameters.token_s * tokens
        + parameters.sequence_s * sequences
        + decode_context_s(parameters, batch.decodes) * batch.decode_context
        + parameters.window_context_s * batch.decode_window_context
        + parameters.decode_s * batch.decodes
        + parameters.join_s * xp.minimum(batch.decodes, 1.0)
        + parameters.prefill_token_s * prompt
        + parameters.ramp_s * tokens / (tokens + parameters.ramp_tokens)
        + parameters.handover_s * (tokens >= parameters.handover_tokens)
        + _products_time(parameters.token_rows, tokens, 1.0, tokens, xp.ceil(tokens / TOKEN_TILE))
        + _products_time(parameters.sequence_rows, sequences, 1.0, sequences, xp.ceil(sequences / TOKEN_TILE))
        + (prefill_attention_time(parameters, batch) if prefill_attention_s is None else prefill_attention_s)
    )
    if len(parameters.expert_rows.flop):  # structure: models without experts do not pay for the exponential
        seen = padded(tokens, parameters.graph_tokens)
        touched = experts_touched(parameters.log_expert_missed, seen, parameters.expert_skew)
        time = time + _products_time(parameters.expert_rows, tokens, touched, tokens)
    return time
