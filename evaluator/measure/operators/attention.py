"""Attention of whole prompts or of decodes. The output has the queries' shape and is the next call's queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from evaluator.measure.operators.call import Call, noise


def attention(columns: Mapping[str, Any], platform: str) -> Call:
    """Causal prompts of ``new_tokens`` where there are any, else one query a sequence over ``past_tokens``."""
    batch, heads, kv_heads, size, dtype = (
        columns[name] for name in ("batch", "heads", "kv_heads", "head_dim", "dtype")
    )
    queries = columns.get("new_tokens", 1)
    seen = columns["past_tokens"] + columns.get("new_tokens", 0)
    names = ("cudnn", "xla") if platform == "gpu" and dtype != "fp32" else ("xla",)

    def attend(implementation: str) -> Callable[[Any, Any], Any]:
        def call(carried: Any, operands: Any) -> Any:
            keys, values = operands
            return jax.nn.dot_product_attention(
                carried, keys, values, is_causal="new_tokens" in columns, implementation=implementation
            )

        return call

    def cache(at: int) -> tuple[Any, ...]:
        return tuple(noise((batch, seen, kv_heads, size), dtype, 1 + 2 * at + which) for which in (0, 1))

    return Call(
        lambda: noise((batch, queries, heads, size), dtype, 0), cache, {name: attend(name) for name in names}, False
    )
