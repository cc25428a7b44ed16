"""What BestServe prints otherwise than ``tables``: kept, because its own results are computed from it.

Each entry replaces FLOPs and bytes of one row, and says what is wrong with them. All are from appendix B (tables
10-13), which the paper uses for every number of devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from evaluator.cost.arrays import Batched
from evaluator.cost.eager.shape import EagerShape
from evaluator.cost.eager.tables import Corrected, Module, Phase, Row

Slip = Callable[[Row, EagerShape, Batched, Batched, Batched], tuple[Batched, Batched]]
"""(the right row, shape, b, s, t) -> FLOPs and bytes as printed."""


def _query(row: Row, shape: EagerShape, tokens: Batched, t: Batched) -> tuple[Batched, Batched]:
    """Every device reads the whole input, which the table divides by t."""
    return row.flops, 2 * (2 * tokens * shape.hidden + shape.hidden**2) / t


def _rope(row: Row, shape: EagerShape, tokens: Batched, t: Batched) -> tuple[Batched, Batched]:
    """A device rotates its own heads; the table lets it rotate all."""
    kv, values = shape.kv_heads / shape.heads, tokens * shape.hidden
    return 3.5 * values * (1 + kv), 2 * values * (8.5 + 8.5 * kv + 2 / shape.heads)


def _up_down(row: Row, shape: EagerShape, tokens: Batched, t: Batched) -> tuple[Batched, Batched]:
    """Every device reads (or writes) all of the hidden side, which the table divides by t."""
    h, h0 = shape.hidden, shape.intermediate
    return row.flops, 2 * (tokens * (h + h0) + h * h0) / t


def _residual(row: Row, shape: EagerShape, tokens: Batched, t: Batched) -> tuple[Batched, Batched]:
    """The table has two numbers of the intermediate size h0 where three of the hidden size h are meant."""
    return tokens * shape.hidden / t, 4 * tokens * shape.intermediate / t


SLIPS: dict[tuple[Module, Phase], dict[str, Slip]] = {
    ("attention", "prefill"): {
        "q_proj": lambda row, shape, b, s, t: _query(row, shape, b * s, t),
        "rope": lambda row, shape, b, s, t: _rope(row, shape, b * s, t),
        # The weights of the output projection are divided over the devices, too.
        "o_proj": lambda row, shape, b, s, t: (
            row.flops,
            2 * (b * s * shape.hidden * (1 + 1 / t) + shape.hidden**2),
        ),
    },
    ("attention", "decode"): {
        "q_proj": lambda row, shape, b, s, t: _query(row, shape, b, t),
        "k_proj": lambda row, shape, b, s, t: (row.flops * t, row.bytes),  # the work is divided, as that of v_proj
        "rope": lambda row, shape, b, s, t: _rope(row, shape, b, t),
        "update": lambda row, shape, b, s, t: (0.0, 0.5 * row.bytes),  # half of what table 9 says without devices
        "repeat_kv": lambda row, shape, b, s, t: (0.0, 0.5 * row.bytes),  # the same
        "softmax": lambda row, shape, b, s, t: (row.flops * t, row.bytes),  # a device has its own heads only
    },
    ("feed_forward", "prefill"): {
        "gate_proj": lambda row, shape, b, s, t: _up_down(row, shape, b * s, t),
        "up_proj": lambda row, shape, b, s, t: _up_down(row, shape, b * s, t),
        "down_proj": lambda row, shape, b, s, t: _up_down(row, shape, b * s, t),
        "add": lambda row, shape, b, s, t: _residual(row, shape, b * s, t),
    },
    ("feed_forward", "decode"): {
        "gate_proj": lambda row, shape, b, s, t: _up_down(row, shape, b, t),
        "up_proj": lambda row, shape, b, s, t: _up_down(row, shape, b, t),
        "mul": lambda row, shape, b, s, t: (row.flops, row.bytes * s),  # of one token, not of the whole context
        "down_proj": lambda row, shape, b, s, t: _up_down(row, shape, b, t),
        "add": lambda row, shape, b, s, t: _residual(row, shape, b, t),
    },
}


class AsPrinted(NamedTuple):
    """The operator set as the paper prints it, slips included."""

    def rows(self, module: Module, phase: Phase, shape: EagerShape, sizes: tuple) -> tuple[Row, ...]:
        """As ``Corrected.rows``."""
        slips = SLIPS.get((module, phase), {})

        def printed(row: Row) -> Row:
            if row.name not in slips:
                return row
            flops, traffic = slips[row.name](row, shape, *sizes)
            return row._replace(flops=flops, bytes=traffic)

        return tuple(printed(row) for row in Corrected().rows(module, phase, shape, sizes))

    def sent_bytes(self, shape: EagerShape, tokens: Batched, t: Batched) -> Batched:
        """Equation 8 counts numbers where it means bytes: half of what is sent."""
        return tokens * shape.hidden / t


Tables = Corrected | AsPrinted
