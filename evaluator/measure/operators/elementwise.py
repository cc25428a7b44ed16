"""Sums of two arrays: as a residual is added. One call a program, or XLA would make one loop of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.cost.dtypes import BYTES
from evaluator.measure.operators.call import Call, noise


def elementwise(columns: Mapping[str, Any], platform: str) -> Call:
    """``bytes`` in all: a third of them the other summand; the carried array is read and written."""
    dtype = columns["dtype"]
    length = int(columns["bytes"] / (3 * BYTES[dtype]))
    return Call(
        lambda: noise((length,), dtype, 0),
        lambda at: (noise((length,), dtype, 1 + at),),
        {"add": lambda carried, operands: operands[0] - carried},  # alternates: a sum would grow out of its range
        linked=False,
        longest=1,
    )
