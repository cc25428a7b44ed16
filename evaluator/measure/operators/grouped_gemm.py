"""A whole MoE layer with balanced routing: both products of the experts, activation, sum over the experts of a token.

As a batched product, every touched expert with the same number of rows: that is what balanced means.
``jax.lax.ragged_dot`` is not used: outside TPUs XLA computes every row with every expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from evaluator.measure.operators.call import Call, link, noise, precision_of


def grouped_gemm(columns: Mapping[str, Any], platform: str) -> tuple[Call, ...]:
    """``tokens`` x hidden activations, weights of the experts that they touch."""
    tokens, hidden, inner, top, experts, dtype = (
        columns[name] for name in ("tokens", "hidden", "intermediate", "top_k", "experts", "dtype")
    )
    # With fewer visits than experts each touches one of its own; else all have as many rows.
    touched = min(tokens * top, experts)
    rows = tokens * top // touched

    def layer(carried: Any, operands: Any) -> Any:
        up, down = operands
        visits = jnp.repeat(carried[:, None, :], top, axis=1).reshape(touched, rows, hidden)
        both = jnp.einsum("erh,ehi->eri", visits, up, precision=precision_of(dtype))
        gate, linear = jnp.split(both, 2, axis=-1)
        result = jnp.einsum("eri,eih->erh", jax.nn.silu(gate) * linear, down, precision=precision_of(dtype))
        return link(carried, result.reshape(tokens, top, hidden).sum(axis=1))

    def weights(turn: int) -> tuple[Any, ...]:
        return noise((touched, hidden, 2 * inner), dtype, 1 + 2 * turn), noise(
            (touched, inner, hidden), dtype, 2 + 2 * turn
        )

    return (Call("batched_dot", layer, lambda: noise((tokens, hidden), dtype, 0), weights, linked=True),)
