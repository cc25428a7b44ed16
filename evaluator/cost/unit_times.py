"""Work divided by rates: the seconds of every operator per unit of its batch statistics.

Beyond the plain quotients (FLOPs / effective FLOP rate, bytes / effective bandwidth, messages / effective links) a
calibration may state figures of real kernels: tiles that are computed whole, attention rows that are masked out, the
ramp of an all-reduce. Each is explained where it is used; at its default it leaves the plain roofline.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from evaluator.cost.arrays import PerLevel, PerOperator, array_namespace
from evaluator.cost.coefficients import Coefficients
from evaluator.cost.iteration import OUTPUT_TILE, TOKEN_TILE
from evaluator.cost.rates import PIPELINED, Rates
from evaluator.cost.roofline import roofline

HEAD_SIZE = 128
"""The head size to which figures of attention are stated; tiles are the smaller, the larger the heads."""

STORE_THREADS = 512
"""Threads of a block of vLLM's ``reshape_and_cache`` at most, one per element of a token's keys."""


class UnitTimes(NamedTuple):
    """Seconds of every operator per unit of its statistics X, Y and Z (``kernel.Operator``); NumPy or JAX.

    All are (operator,), and 0 for operators that a term does not concern; (device, operator) where the rates are those
    of several devices (``rates``) and the term depends on them.
    """

    flop_s: PerOperator  # s per X; of a product only the FLOPs that are not counted in waves
    weight_s: PerOperator  # s per Y
    activation_s: PerOperator  # s per Z
    crowd: PerOperator  # tokens X
    crowded_s: PerOperator  # s per Y on top of ``weight_s``, with more tokens than ``crowd``
    padding_s: PerOperator  # s per Y, beside the FLOPs
    filled_s: PerOperator  # s per iteration, beside the FLOPs
    message_s: PerOperator  # s per Z
    fixed_s: PerOperator  # s per iteration: kernel launches, and latency of links
    knee: PerOperator  # sharpness of the roofline, 0 to 1
    waves: PerOperator  # waves per TOKEN_TILE tokens
    wave_s: PerOperator  # s per whole wave
    tile_pass_s: PerOperator  # s that a product takes at least if it has a whole tile of rows
    edge_s: PerOperator  # s per query row of all heads
    traffic_s: PerOperator  # s per token computed
    tile: PerOperator  # tokens
    fill: PerOperator  # tokens
    cache: PerOperator  # tokens
    store_s: PerOperator  # s per prompt token
    sequence_s: PerOperator  # s per sequence that attention works on
    join_s: PerOperator  # s per iteration with decodes
    spread_s: PerOperator  # s per token of the mean context
    unsplit_s: PerOperator  # s per token of the mean context
    ramp_s: PerOperator  # s per iteration, for large messages
    handover_s: PerOperator  # s per iteration, for messages from HANDOVER_BYTES on
    quantise_s: PerOperator  # s per Z
    context_s: PerOperator  # s per token that decodes attend to
    work_s: PerOperator  # s per token that decodes attend to beside prompts
    walk_s: PerOperator  # s per token of one context beside prompts
    longest_s: PerOperator  # s per token of the mean context beside prompts, along the longest one
    late_s: PerOperator  # s per token of the mean context
    filling: PerOperator  # decodes
    beyond: PerOperator  # 0 to 1
    call_s: PerOperator  # s per decode beside prompts
    block_s: PerOperator  # s per decode and tile of a chunk
    overlap: PerOperator  # 0 to 1
    sharers: PerOperator  # query heads of a KV head, less one
    cached: PerOperator  # tokens
    resident: PerOperator  # decodes


def unit_times(work: Coefficients, rate: Rates) -> UnitTimes:
    """Work divided by effective rates, operator by operator. Differentiable in every leaf of ``rate``.

    A matrix product is computed tile by tile. Filling and draining the pipeline of a tile costs as much as
    ``prologue`` more elements of its inner dimension, so that short products reach less of the peak. A ``wave_share``
    of the tiles is counted in whole waves over the processors (``iteration.whole_waves``), the rest in proportion.
    One processor walks along the whole inner dimension of a tile that is not split, so that few tiles take as long as
    one (``tile_pass_s`` per element, ``iteration.product_time``), and waits for each step of it a little (``depth_s``
    per element on top). Where its inputs are quantised first, by a kernel of its own, that kernel moves
    ``quantise_bytes`` per element and takes ``quantise_row_s`` per row: it looks for the largest of a row first.
    The rows that visit an expert end in a tile that is computed whole: every expert touched costs the FLOPs of
    ``fill_rows`` more. A kernel that does not know on the host which experts are touched fills up all that a device
    holds, by ``filled_rows`` each (DeepGEMM under vLLM, ``catalog.tuned.FilledExperts``). A kernel whose tiles nobody
    tuned for the shape takes larger ones as soon as more tokens than it holds experts come to the device, and reads
    weights at ``crowded_bandwidth`` of the bandwidth from then on (SGLang, ``get_default_config``: tiles of
    16 x 32 x 64 up to there, of 64 x 64 x 32 beyond).
    The figures of a collective depend on how many devices of a node take part (``work.size`` interpolates them).
    """
    kind = work.op_class
    # A peak per dtype, a share of it per class: products in fp8 have a class and a peak of their own.
    flop_rate = rate.flops_efficiency[kind] * _by_dtype(work, rate)
    # Infinite for what is no product, so that a prologue of finite length adds nothing.
    inner = np.where(work.inputs > 0, work.inputs, np.inf)
    flop_s = work.flops * (1.0 + rate.prologue[kind] / inner) / flop_rate
    tile_flops = 2.0 * TOKEN_TILE * OUTPUT_TILE * work.layers * (work.inputs > 0)
    row_flops = 2.0 * work.inputs * work.outputs * work.matrices  # one row in every expert
    share, tiles = rate.wave_share[kind] * (work.inputs > 0), rate.wave_tiles[kind]
    # Collectives with figures by group size take these; everything else the figures of its class.
    grouped = work.size.any(axis=1)
    launch = rate.launch_s[kind] * ~grouped + work.size @ rate.group_launch_s
    link_efficiency = rate.bandwidth_efficiency[kind] * ~grouped + work.size @ rate.group_efficiency
    activation_rate = rate.memory_bandwidth * rate.activation_efficiency[kind]
    row_s = row_flops * (1.0 + rate.prologue[kind] / inner) / flop_rate
    attention = _attention_times(work, rate, flop_s, activation_rate)
    weight_s = work.weight_bytes / (rate.memory_bandwidth * rate.bandwidth_efficiency[kind])
    return UnitTimes(
        flop_s=attention.pop("flop_s") * (1.0 - share),
        weight_s=weight_s,
        crowd=work.crowd,
        crowded_s=weight_s * (1.0 / rate.crowded_bandwidth[kind] - 1.0),
        padding_s=rate.fill_rows[kind] * row_s,
        filled_s=rate.filled_rows[kind] * row_s,
        activation_s=work.activation_bytes / activation_rate,
        message_s=work.message_bytes * _byte_s(work, rate, link_efficiency)
        + work.sent_tokens * (work.size @ rate.group_token_s),
        fixed_s=work.launches * (launch + _over_levels(work.steps, rate.link_latency_s))
        + rate.depth_s[kind] * work.inputs * work.layers,
        knee=rate.knee[kind],
        waves=np.ceil(work.outputs / OUTPUT_TILE) / tiles,
        # The seconds of a wave: all its tiles at once, whole, with the prologue of each.
        wave_s=share * tile_flops * (work.inputs + rate.prologue[kind]) * tiles / flop_rate,
        tile_pass_s=rate.tile_pass_s[kind] * work.inputs * work.layers,
        ramp_s=work.launches * (work.size @ rate.group_ramp_s),
        handover_s=work.launches * (work.size @ rate.group_handover_s),
        quantise_s=(rate.quantise_bytes[kind] * work.inputs / rate.memory_bandwidth + rate.quantise_row_s[kind])
        * work.layers,
        **attention,
    )


def _by_dtype(work: Coefficients, rate: Rates) -> PerOperator:
    """The peak of every operator."""
    return array_namespace(rate.peak_flops).take(rate.peak_flops, work.dtype, axis=-1)


def _byte_s(work: Coefficients, rate: Rates, link_efficiency: PerOperator) -> PerOperator:
    """Seconds per byte of a message, of ``link_efficiency`` inside a node; between nodes a collective may reach another
    fraction of the links.

    A message crosses several levels one after the other, so that their seconds add up. Kernels that exchange tokens
    among experts send inside a node while they send between nodes (DeepEP), and take as long as the slower of both.
    """
    grouped = work.size.any(axis=1)
    far_efficiency = link_efficiency * ~grouped + work.size @ rate.group_far
    near = np.arange(work.share.shape[1]) == 0
    inside_s = _over_levels(work.share * near, 1.0 / rate.link_bandwidth) / link_efficiency
    between_s = _over_levels(work.share * ~near, 1.0 / rate.link_bandwidth) / far_efficiency
    pipelined = work.size[:, PIPELINED].any(axis=1)
    xp = array_namespace(inside_s, between_s)
    return xp.where(pipelined, xp.maximum(inside_s, between_s), inside_s + between_s)


def _over_levels(weights: np.ndarray, figures: PerLevel) -> PerOperator:
    """``figures`` of the links, (level,) or (device, level), summed with weights (operator, level)."""
    return array_namespace(figures).matmul(weights, figures[..., None])[..., 0]


def _attention_times(work: Coefficients, rate: Rates, flop_s: Any, activation_rate: Any) -> dict[str, Any]:
    """The fields of ``UnitTimes`` that only attention kernels have, and their FLOPs; 0 for any other operator.

    Why a kernel takes longer than its products, cause by cause:

    * The exponential of a score (``score_flops``) runs on other units beside the products, and hides behind them in
      part only (arXiv:2407.08608, section 3.2): a roofline of the two.
    * An engine may copy the queries first, to rotate them (``query_bytes`` per element of them, on top of one pass).
    * A tile on an edge of the mask is computed whole though half of it is masked out, so that every query row attends
      to ``diagonal`` tokens in vain per edge. Shared memory holds narrower tiles for larger heads, so that the loss,
      stated for heads of HEAD_SIZE, shrinks with the head size.
    * Decode kernels split a context over processors, wait for the part that ends last (``spread``) and join the parts
      (``join_s``). FlashAttention-2 does not split where every query head has a KV head of its own
      (``mha_varlen_fwd``): one processor then reads the whole context (``unsplit_s``).
    * FlashAttention-2 puts the query heads of one KV head into the rows of a tile, but not in windowed layers, where
      a decode computes ``window_rows`` rows for one. ``edges`` is 2 there, 1 under the diagonal alone.

    Attention without a mask, whose ``edges`` are 0, does two pairs of tokens for each of the causal area.
    """
    kind = work.op_class
    heads, kv_heads = work.heads * work.layers, work.kv_heads * work.layers
    pairs = np.where(work.edges > 0, 1.0, 2.0)
    # A score and its value take 4 FLOPs per element of a head: the head size is what the FLOPs say it is, for MLA,
    # too, whose keys and values differ in width.
    size = np.where(work.heads > 0, work.flops / np.maximum(4.0 * heads * pairs, 1e-9), HEAD_SIZE)
    scores = rate.score_flops[kind] * heads * pairs / _by_dtype(work, rate)
    # A power instead of a branch: the exponent is 1 in windowed decodes and 0 elsewhere, and the factor is traced.
    flop_s = roofline(
        flop_s * rate.window_rows[kind] ** np.maximum(work.edges - 1.0, 0.0), scores, rate.score_knee[kind]
    )
    context_s = roofline(flop_s, work.activation_bytes / activation_rate, rate.knee[kind])
    token_bytes = work.token_bytes + rate.query_bytes[kind] * work.query_elements
    traffic_s = token_bytes / activation_rate
    unshared = (work.heads > 0) & (work.heads == work.kv_heads)  # every query head has a KV head
    per_head = rate.tile[kind] + rate.packed_tile[kind] * work.kv_heads / np.maximum(work.heads, 1.0)
    lost_s = rate.diagonal[kind] * work.edges * flop_s * (HEAD_SIZE / size)
    per_sequence_s = rate.head_sequence_s[kind] * heads + rate.kv_head_sequence_s[kind] * kv_heads
    return {
        "flop_s": flop_s,
        "edge_s": lost_s + rate.head_token_s[kind] * heads,
        "traffic_s": traffic_s,
        "tile": per_head,
        # A device holds so many query rows of all heads: the more heads, the fewer tokens fill it.
        "fill": rate.fill[kind] / np.maximum(work.heads, 1.0),
        "cache": rate.cache_bytes[kind] * work.layers / array_namespace(token_bytes).maximum(token_bytes, 1e-9),
        "store_s": rate.store_s[kind] * np.minimum(work.kv_heads * size, STORE_THREADS) * work.layers,
        "sequence_s": per_sequence_s + traffic_s,
        "join_s": rate.join_s[kind] * work.layers,
        # Splits wait by KV heads, because the query heads of one share a tile.
        "spread_s": context_s * rate.spread[kind] / np.maximum(work.kv_heads, 1.0),
        "unsplit_s": rate.unsplit_s[kind] * (size / HEAD_SIZE) * work.layers * work.walked * unshared,
        "context_s": context_s,
        **_beside_times(work, rate, size / HEAD_SIZE),
    }


def _beside_times(work: Coefficients, rate: Rates, sizes: Any) -> dict[str, Any]:
    """The fields of ``UnitTimes`` of decodes beside prompts (``beside.beside_time``); ``sizes``: heads' of HEAD_SIZE.

    A processor computes one query head of one decode at a time, whatever other heads there are, so that the work and
    the calls are proportional to the heads and the walk along a context is not. Alone, it computes the query heads of
    one KV head together, so that ``beside_resident`` processors are filled by fewer decodes.
    """
    kind = work.op_class
    heads, kv_heads = work.heads * work.layers, work.kv_heads * work.layers
    sharers = work.heads / np.maximum(work.kv_heads, 1.0)
    token_bytes = work.activation_bytes / np.maximum(kv_heads, 1e-9)  # of one KV head
    walk_s = rate.beside_walk_s[kind] * work.layers * work.walked * sizes
    return {
        "work_s": rate.beside_context_s[kind] * heads * sizes,
        "walk_s": walk_s,
        "longest_s": walk_s * (1.0 + rate.unequal[kind]),
        "late_s": walk_s * rate.unequal[kind],
        "filling": rate.beside_resident[kind] / np.maximum(work.kv_heads, 1.0),
        "beyond": rate.late_beyond[kind],
        "call_s": rate.beside_head_s[kind] * heads,
        "block_s": rate.beside_tile_s[kind] * heads,
        "overlap": rate.beside_knee[kind],
        # A set without a size of the cache says nothing of reading again: the factor is then 0.
        "sharers": (sharers - 1.0) * (rate.beside_cache_bytes[kind] > 0.0),
        "cached": rate.beside_cache_bytes[kind] / np.maximum(token_bytes, 1e-9),
        "resident": rate.beside_resident[kind] / np.maximum(sharers, 1.0),
    }
