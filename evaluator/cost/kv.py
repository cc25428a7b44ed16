"""KV units of a sequence, for NumPy and for JAX: what the plan, the reference and the engine count by."""

from __future__ import annotations

from typing import NamedTuple

from evaluator.cost.arrays import Batched, array_namespace


class KvUnits(NamedTuple):
    """What sequences keep on one device, float64: how many units one of them occupies."""

    block_tokens: Batched  # tokens in a block
    full: Batched  # bytes per token in the layers that keep every token
    window: Batched  # bytes per token in those that keep a window
    window_tokens: Batched  # tokens: the window in whole blocks
    sequence: Batched  # bytes per sequence, whatever its length
    unit: Batched  # bytes per unit


def units(kv: KvUnits, tokens: Batched) -> Batched:
    """Units of a sequence of ``tokens`` tokens (any shape), float64.

    Tokens are rounded up to blocks; a windowed layer keeps no more than its window, rounded up likewise; a fixed state
    is kept whole. For full attention alone this is exactly ceil(tokens / block_tokens).
    """
    xp = array_namespace(kv.unit, tokens)
    # Blocks are taken whole, so a token more may cost nothing or a block.
    held = xp.ceil(tokens / kv.block_tokens) * kv.block_tokens
    size = kv.full * held + kv.sequence + kv.window * xp.minimum(held, kv.window_tokens)
    # Bytes / bytes may round to just above a whole number, which would be a unit too many: hence 1 - 1e-12.
    return xp.ceil(size / kv.unit * (1 - 1e-12))


def beyond(kv: KvUnits, tokens: Batched, prefix_tokens: Batched) -> Batched:
    """Units of a sequence without a prefix's whole blocks, which others keep, in layers that keep every token."""
    xp = array_namespace(kv.unit, tokens)
    held = xp.ceil(tokens / kv.block_tokens) * kv.block_tokens
    # vLLM forks by whole blocks (Kwon et al., section 4.4): the prefix's last, partly filled one is copied.
    unshared = held - xp.floor(prefix_tokens / kv.block_tokens) * kv.block_tokens
    size = kv.full * unshared + kv.sequence + kv.window * xp.minimum(held, kv.window_tokens)
    return xp.ceil(size / kv.unit * (1 - 1e-12))


def prefix(kv: KvUnits, prefix_tokens: Batched) -> Batched:
    """Units of the whole blocks of a prefix in the layers that keep every token."""
    xp = array_namespace(kv.unit, prefix_tokens)
    size = kv.full * xp.floor(prefix_tokens / kv.block_tokens) * kv.block_tokens
    return xp.ceil(size / kv.unit * (1 - 1e-12))
