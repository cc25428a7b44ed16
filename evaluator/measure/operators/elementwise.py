"""Sums of two arrays: as a residual is added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.cost.dtypes import BYTES
from evaluator.measure.operators.call import Call, noise


def elementwise(columns: Mapping[str, Any], platform: str) -> tuple[Call, ...]:
    """``bytes`` in all: a third of them the other summand; the carried array is read and written."""
    dtype = columns["dtype"]
    length = int(columns["bytes"] / (3 * BYTES[dtype]))

    def add(carried: Any, operands: Any) -> Any:
        return operands[0] - carried  # alternates, where a sum would grow out of its range

    return (
        Call("add", add, lambda: noise((length,), dtype, 0), lambda i: (noise((length,), dtype, 1 + i),), linked=False),
    )
