"""Decode attention in iterations that compute prompts, too.

FlashAttention-2 computes chunks of prompts and decodes in one call (``flash_attn_varlen_func``, as vLLM starts it on
devices without kernels of their own). Such a call treats a decode as a prompt of one token: its context is not split
over processors, its query heads do not share a tile, and every sequence gets as many tiles as the longest prompt
chunk, of which a decode leaves all but one empty. Decodes therefore take longer beside prompts than alone: 1.6 times as
long on an RTX PRO 6000, and up to 4 times where their KV is read again for every query head.
"""

from __future__ import annotations

from typing import NamedTuple

from evaluator.cost.arrays import Batched, PerOperator, array_namespace
from evaluator.cost.roofline import roofline

CHUNK_TILE = 128
"""Rows of a tile of FlashAttention-2 for heads of 128 (``Flash_fwd_kernel_traits``)."""


def waiting(decodes: Batched, filling: Batched, beyond: Batched = 0.0) -> Batched:
    """How much of the time that the longest context takes beyond the mean one the device waits for it, 0 to 1.

    All of it if there are just as many decodes as fill the device (``filling``): every processor has one context, and
    all but one are done early. With fewer, kernels split the contexts. With more, a processor whose context is short
    takes another, and a kernel that starts the contexts in any order waits for a part of the longest all the same
    (``beyond``). Unequal contexts of measured runs bear it out: FlashAttention-2 waits for less the more there are
    (``calibration/rtx-pro-6000-vllm.serving.yaml``), TensorRT-LLM's generated kernels for all of it
    (``calibration/b200-sxm-vllm.serving.yaml``).
    """
    xp = array_namespace(decodes, filling, beyond)
    # The smaller of the two quotients is 1 where decodes and processors are as many, and falls to either side.
    return xp.minimum(decodes / filling, xp.maximum(filling / xp.maximum(decodes, 1.0), beyond))


class BesideRows(NamedTuple):
    """Decode attention of layers with full attention beside prompts, one kind of layer per row; see ``beside_time``.

    No rows at all where a calibration set does not state the figures: decodes then take what they take alone.
    """

    context: PerOperator  # s per token attended to, alone
    spread: PerOperator  # s per token of the mean context, alone
    unsplit: PerOperator  # s at least, per token of the mean context, alone
    late: PerOperator  # s on top, per token of the mean context, alone
    filling: PerOperator  # decodes that just fill the device, alone
    sequence: PerOperator  # s per decode, alone
    join: PerOperator  # s per iteration with decodes, alone
    work: PerOperator  # s per token attended to beside prompts, where all processors are busy; 0: as alone
    walk: PerOperator  # s per token of a context that one processor reads by itself
    longest: PerOperator  # s per token of the mean context that one processor reads the longest one
    overlap: PerOperator  # 0 to 1: knee of the roofline of both
    call: PerOperator  # s per decode
    block: PerOperator  # s per decode and tile of a prompt's chunk
    activation: PerOperator  # s per token attended to, to read its keys and values from memory once
    sharers: PerOperator  # query heads of a KV head that may each read them anew, less the first
    cached: PerOperator  # tokens whose keys and values of one KV head fill the last-level cache
    resident: PerOperator  # decodes whose query heads of one KV head all run at the same time


def beside_time(
    row: BesideRows, decodes: Batched, context: Batched, area: Batched, read: Batched, tokens: Batched, prompts: Batched
) -> Batched:
    """Seconds that decodes take longer beside prompts than alone (or shorter: below 0); 0 without prompts.

    ``context`` is that of the decodes, ``read`` that of the ``prompts`` chunks, whose ``tokens`` attend to ``area``
    pairs. The call takes the longer of its longest walk along a context and of all its work, with a knee between
    (``overlap``); of that, what the prompts take by themselves is theirs already. Work is proportional to the tokens
    that tiles attend to: of a chunk as many as its tiles, of a decode its context. The query heads of a KV head read
    the same keys and values. They do so once if they run together; if there are too many decodes for that
    (``resident``) and too much KV to stay in the cache until the next head (``cached``), they read them once each.

    Contexts enter by their means, which ``BatchStatistics`` knows; the longest of the decodes is taken to be as much
    longer as the set says (``unequal``). The mean batch of ``cost.steady`` has less than one prompt; that share of its
    iterations is one with a prompt.
    """
    xp = array_namespace(row.work, decodes, context, tokens)
    # Below one prompt per iteration on average, the rest of the iterations has none and takes what decodes take alone.
    share = xp.minimum(prompts, 1.0)
    # ``cost.steady`` asks for 0.2 of a prompt: then a fifth of the iterations have a whole one.
    per_prompt = 1.0 / xp.maximum(prompts, 1e-9)
    whole = 1.0 / xp.maximum(share, 1e-9)
    per_decode = 1.0 / xp.maximum(decodes, 1.0)
    # Two smooth switches from 0 to 1: the KV no longer fits the cache, and the heads no longer run together.
    much, many = context * context, decodes * decodes
    again = much / (much + row.cached * row.cached + 1e-9) * many / (many + row.resident * row.resident + 1e-9)
    # Bound by its work or by memory, whichever takes longer: the two overlap within a tile.
    work = xp.maximum(row.work, row.activation * (1.0 + row.sharers * again)) * context
    # Every tile along a chunk walks the chunk's context, and there is one tile at least.
    theirs = row.work * xp.maximum(read, area * (1.0 / CHUNK_TILE)) * whole
    walk = row.walk * read * per_prompt
    longest = xp.maximum(walk, row.longest * context * per_decode)
    beside = (
        roofline(longest, theirs + work, row.overlap)
        # What the prompts would take by themselves is in the prefill rows already.
        - roofline(walk, theirs, row.overlap)
        + (row.call + row.block * xp.ceil(tokens * per_prompt * (1.0 / CHUNK_TILE))) * decodes
    )
    return xp.where((row.work > 0.0) & (tokens > 0.0), share * (beside - _alone_s(row, decodes, context)), 0.0)


def _alone_s(row: BesideRows, decodes: Batched, context: Batched) -> Batched:
    """Seconds of the decodes in an iteration without prompts, by the same terms as in ``iteration``."""
    xp = array_namespace(row.work, decodes, context)
    per_decode = 1.0 / xp.maximum(decodes, 1.0)
    filling = xp.maximum(row.filling, 1e-9)
    splits = row.context + (row.spread + row.late * waiting(decodes, filling)) * per_decode
    return (
        xp.maximum(splits, row.unsplit * per_decode) * context
        + row.sequence * decodes
        + row.join * xp.minimum(decodes, 1.0)
    )
