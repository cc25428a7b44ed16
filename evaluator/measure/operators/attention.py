"""Attention of whole prompts or of decodes. The output has the queries' shape and is the next call's queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.measure.operators.call import Call, noise, precision_of


def attention(columns: Mapping[str, Any], platform: str) -> tuple[Call, ...]:
    """Causal prompts of ``new_tokens`` where there are any, else one query a sequence over ``past_tokens``."""
    # cuDNN computes attention in 16 bits alone.
    fused = platform == "gpu" and columns["dtype"] != "fp32"
    # cuDNN first: of several implementations the first that runs on the device is timed.
    return (*((_cudnn(columns),) if fused else ()), _products(columns))


def _cudnn(columns: Mapping[str, Any]) -> Call:
    """Flash attention of cuDNN."""
    batch, heads, kv_heads, size, dtype, queries, seen = _sizes(columns)

    def call(carried: Any, operands: Any) -> Any:
        return jax.nn.dot_product_attention(carried, *operands, is_causal=_causal(columns), implementation="cudnn")

    return Call(
        "cudnn", call, lambda: noise((batch, queries, heads, size), dtype, 0),
        lambda turn: _pair((batch, seen, kv_heads, size), dtype, turn), linked=False,
    )  # fmt: skip


def _products(columns: Mapping[str, Any]) -> Call:
    """Two products with a softmax between, as XLA compiles them; the queries of a KV head are rows of one matrix.

    KV lies head by head: with heads inside tokens, as ``jax.nn.dot_product_attention`` wants it, XLA would copy it.
    """
    batch, heads, kv_heads, size, dtype, queries, seen = _sizes(columns)
    group, precision = heads // kv_heads, precision_of(dtype)

    def call(carried: Any, operands: Any) -> Any:
        keys, values = operands
        batch_axes = ((0, 1), (0, 1))
        # Scores in fp32, as fused kernels have them.
        scores = lax.dot_general(
            carried, keys, (((3,), (3,)), batch_axes), precision=precision, preferred_element_type=jnp.float32
        )
        if _causal(columns):
            # As often as a KV head has query heads, whose rows lie behind one another.
            mask = jnp.tile(jnp.tril(jnp.ones((queries, seen), bool)), (group, 1))
            scores = jnp.where(mask[None, None], scores, -jnp.inf)
        # The scale behind the product: before it bf16 would lose digits of the scores.
        weights = jax.nn.softmax(scores * size**-0.5, axis=-1).astype(carried.dtype)
        return lax.dot_general(weights, values, (((3,), (2,)), batch_axes), precision=precision)

    return Call(
        "products", call, lambda: noise((batch, kv_heads, group * queries, size), dtype, 0),
        lambda turn: _pair((batch, kv_heads, seen, size), dtype, turn), linked=False,
    )  # fmt: skip


def _sizes(columns: Mapping[str, Any]) -> tuple[Any, ...]:
    given = tuple(columns[name] for name in ("batch", "heads", "kv_heads", "head_dim", "dtype"))
    new = columns.get("new_tokens", 0)
    return *given, max(1, new), columns["past_tokens"] + new


def _causal(columns: Mapping[str, Any]) -> bool:
    return "new_tokens" in columns


def _pair(shape: tuple[int, ...], dtype: str, turn: int) -> tuple[jax.Array, jax.Array]:
    """Keys and values."""
    return noise(shape, dtype, 1 + 2 * turn), noise(shape, dtype, 2 + 2 * turn)
