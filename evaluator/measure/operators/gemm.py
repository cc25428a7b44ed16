"""Matrix products of activations with weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax import lax

from evaluator.measure.operators.call import Call, link, noise, precision_of


def gemm(columns: Mapping[str, Any], platform: str) -> tuple[Call, ...]:
    """m x k activations, k x n weights."""
    m, n, k, dtype = (columns[name] for name in ("m", "n", "k", "dtype"))

    def product(carried: Any, operands: Any) -> Any:
        return link(carried, lax.dot(carried, *operands, precision=precision_of(dtype)))

    return (
        Call(
            "dot", product, lambda: noise((m, k), dtype, 0), lambda turn: (noise((k, n), dtype, 1 + turn),), linked=True
        ),
    )
