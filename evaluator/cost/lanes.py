"""Many configurations side by side: cost parameters padded to the same rows and stacked over a trailing lane axis.

An engine is compiled for arrays of fixed shapes, and runs many configurations (lanes) in one program. Two models may
differ in how many operators have a row of their own (a dense one has no expert rows), so that their parameters have
different shapes. Rows of zeros, which cost nothing, bring all lanes to the same ``RowCounts``; then every field of
theirs is stacked along a new last axis. Lanes with equal counts share one compiled program, whatever their numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from evaluator.cost.feed_forward_apart import PingPong
from evaluator.cost.iteration import CostParameters, IterationCost
from evaluator.cost.prefill_context import PromptsSplit
from evaluator.cost.speculative import SpeculativeCost
from evaluator.cost.two_batch_overlap import Overlapped

TOKEN_ROWS = 4
"""Token rows are padded to a multiple of this, so that few different structures are compiled."""

OF_ROOFLINES = (SpeculativeCost, PromptsSplit, PingPong, Overlapped)
"""Costs that are made of rooflines and a few numbers of a lane."""


class RowCounts(NamedTuple):
    """How many rows each table of ``CostParameters`` has: the structure that an engine is compiled for."""

    token_rows: int
    sequence_rows: int
    expert_rows: int
    prefill_rows: int
    prefill_window_rows: int
    ramp_rows: int = 0
    expert_ramp_rows: int = 0
    beside_rows: int = 0
    adapter_rows: int = 0
    adapter_groups: int = 0
    delta_rule_rows: int = 0


def row_counts(parameters: CostParameters) -> RowCounts:
    """How many operators there are in each table of rows."""
    return RowCounts(*(len(getattr(parameters, name)[0]) for name in RowCounts._fields))


def pad_rows(parameters: CostParameters, counts: RowCounts) -> CostParameters:
    """The same cost with as many rows as ``counts`` says, NumPy; ValueError if there are more already.

    A row of zeros costs 5e-31 s: the root of the tiny term in ``roofline``, halved.
    """
    have = row_counts(parameters)
    if any(rows > wanted for rows, wanted in zip(have, counts, strict=True)):
        raise ValueError(f"cannot pad {have} to {counts}")
    return parameters._replace(
        **{name: _pad(getattr(parameters, name), wanted) for name, wanted in zip(counts._fields, counts, strict=True)}
    )


def _pad(rows: Any, count: int) -> Any:
    # Most tables have the rows already, or none at all.
    if len(rows[0]) == count:
        return rows
    return type(rows)(*(np.concatenate([field, np.zeros((count - len(field), *field.shape[1:]))]) for field in rows))


def with_rows(cost: IterationCost, counts: RowCounts) -> IterationCost:
    """Rooflines padded to ``counts``; a fitted cost as it is."""
    if isinstance(cost, OF_ROOFLINES):
        parts = (pad_rows(part, counts) if isinstance(part, CostParameters) else part for part in cost)
        return type(cost)(*parts)
    return pad_rows(cost, counts) if isinstance(cost, CostParameters) else cost


def structure(cost: IterationCost) -> Hashable:
    """What lanes must have in common to be stacked.

    Rooflines always can be, because ``pad_rows`` makes them alike, and so can pairs of them, of drafts and of their
    verification. Fitted costs must be of the same form (polynomial, table, dispatched, eager), and their arrays of the
    same shapes (a table's knots).
    """
    if isinstance(cost, OF_ROOFLINES):
        return (type(cost).__name__,)
    return () if isinstance(cost, CostParameters) else (type(cost).__name__, _shapes(cost))


def rooflines(cost: IterationCost) -> tuple[CostParameters, ...]:
    """The rooflines in a cost: itself, those that it is made of, or none."""
    if isinstance(cost, OF_ROOFLINES):
        return tuple(part for part in cost if isinstance(part, CostParameters))
    return (cost,) if isinstance(cost, CostParameters) else ()


def _shapes(values: Any) -> Hashable:
    """Shapes of nested records, with their types: a part may have its structure in its type, and no numbers at all."""
    if isinstance(values, tuple):
        return type(values).__name__, *map(_shapes, values)
    return np.shape(values)


def common_counts(lanes: Sequence[IterationCost]) -> RowCounts:
    """Rows that hold every lane: the most that any lane has in each table, token rows rounded up to TOKEN_ROWS."""
    # Of a pair of rooflines, of drafts and of their verification, both get the same counts.
    counts = [row_counts(part) for lane in lanes for part in rooflines(lane)]
    largest = np.max([(0,) * len(RowCounts._fields), *counts], axis=0).tolist()
    # Token rows differ most between models. To round them up costs rows of zeros and saves a compilation of seconds.
    return RowCounts(-(-largest[0] // TOKEN_ROWS) * TOKEN_ROWS, *largest[1:])


def stack(lanes: Sequence[IterationCost], counts: RowCounts | None = None) -> IterationCost:
    """Parameters of many lanes: rows become (operator, lane), scalars (lane,), float64; of one ``structure``.

    ``counts`` defaults to ``common_counts``; give it to share one compiled structure between chunks of a sweep.
    """
    counts = counts or common_counts(lanes)
    if isinstance(lanes[0], OF_ROOFLINES):
        columns: Any = zip(*lanes, strict=True)
        # Rooflines, and numbers of a lane (queries, passes, host time) that are stacked as they are.
        parts: Any = (stack(column, counts) if isinstance(column[0], tuple) else np.array(column) for column in columns)
        return type(lanes[0])(*parts)
    if not isinstance(lanes[0], CostParameters):
        return _stack_leaves(lanes)
    stacked: dict[str, Any] = {
        name: _stack_rows([getattr(lane, name) for lane in lanes], count)
        for name, count in zip(counts._fields, counts, strict=True)
    }
    for name in CostParameters._fields:
        if name not in stacked:
            stacked[name] = np.array([getattr(lane, name) for lane in lanes], dtype=float)
    return CostParameters(**stacked)


def joined(parts: Sequence[Any], order: np.ndarray) -> Any:
    """Costs of the same structure and rows, each of several lanes, side by side and then in another ``order``."""
    first = parts[0]
    if not isinstance(first, tuple):
        return np.concatenate(parts, axis=-1)[..., order]
    fields = (joined(field, order) for field in zip(*parts, strict=True))
    # Grids of tables have plain tuples inside, one array per axis.
    return type(first)(*fields) if hasattr(first, "_fields") else tuple(fields)


def _stack_rows(lanes: list[Any], count: int) -> Any:
    return type(lanes[0])(*(_stack_field(list(columns), count) for columns in zip(*lanes, strict=True)))


def _stack_leaves(values: Sequence[Any]) -> Any:
    first = values[0]
    if not isinstance(first, tuple):
        return np.stack([np.asarray(value, dtype=float) for value in values], axis=-1)
    parts = map(_stack_leaves, zip(*values, strict=True))
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def _stack_field(columns: list[np.ndarray], count: int) -> np.ndarray:
    # What is left of a column are the rows of zeros that ``pad_rows`` adds.
    stacked = np.zeros((count, len(columns)))
    for lane, column in enumerate(columns):
        stacked[: len(column), lane] = column
    return stacked
