"""The quantities of an iteration that a fitted cost is a function of, and within whose measured range it holds.

An iteration with prompt tokens is of the phase ``prefill`` (sequences may decode beside), one without is a ``decode``.
Its quantities are the prompt tokens computed, the KV that each prompt reads and does not compute (mean), the decoding
sequences, and the tokens that each of these attends to (mean): what the columns of a measurement say, and what the
limits of an engine bound.
"""

from __future__ import annotations

from typing import Any

from evaluator.catalog.iterations import RANGES
from evaluator.cost.arrays import Batched, array_namespace
from evaluator.cost.feed_forward_apart import PingPong
from evaluator.cost.iteration import BatchStatistics, CostParameters
from evaluator.cost.one_of import OneOf
from evaluator.cost.prefill_context import PromptsSplit
from evaluator.cost.speculative import SpeculativeCost
from evaluator.cost.two_batch_overlap import Overlapped

PEAKS: tuple[tuple[str, str], ...] = tuple(
    (phase, quantity) for phase, quantities in RANGES.items() for quantity in quantities
)


def quantities(batch: BatchStatistics) -> tuple[Batched, Batched, Batched, Batched]:
    """The axes of the phase ``prefill``, the last two those of ``decode`` as well; 0 for a mean over nothing."""
    xp = array_namespace(*batch)
    # The largest mean of a phase that the batch is not of stays what it was: 0 never raises a maximum.
    past = (batch.prefill_context - batch.prefill_tokens) / xp.maximum(batch.prefill_sequences, 1.0)
    context = batch.decode_context / xp.maximum(batch.decodes, 1.0)
    return batch.prefill_tokens, past, batch.decodes, context


def peaks(batch: BatchStatistics) -> tuple[Batched, ...]:
    """The quantities in the order of ``PEAKS``: 0 in the phase that the batch is not of."""
    xp = array_namespace(*batch)
    measured = quantities(batch)
    prefill = batch.prefill_tokens > 0
    return (
        *(xp.where(prefill, value, 0.0) for value in (*measured, batch.decode_context)),
        *(xp.where(prefill, 0.0, value) for value in (*measured[2:], batch.decode_context)),
    )


def holds_everywhere(cost: Any) -> bool:
    """Whether a cost holds for any batch, as rooflines do; those that were fitted to iterations have a range."""
    if isinstance(cost, OneOf):
        return all(map(holds_everywhere, cost.forms))
    return isinstance(cost, CostParameters | SpeculativeCost | PromptsSplit | PingPong | Overlapped)


def batch_tokens(cost: Any, batch: BatchStatistics) -> Batched:
    """Tokens that the model computes in an iteration: of a decode one, or with drafts as many as it verifies."""
    rows = cost.queries * batch.decodes if isinstance(cost, SpeculativeCost | OneOf) else batch.decodes
    return rows + batch.prefill_tokens


def raised(cost: Any, so_far: Batched, batch: BatchStatistics, iterations: Batched) -> Batched:
    """The largest quantities of a run, (quantity,) in the order of PEAKS, after ``iterations`` more from ``batch`` on.

    The same sequences decode in all of them, so that contexts grow by a token each time and the last iteration has the
    largest quantities. A roofline holds for any batch: it keeps no peaks, and ``so_far`` is returned as it is.
    """
    if holds_everywhere(cost):
        return so_far
    last = batch._replace(decode_context=batch.decode_context + (iterations - 1.0) * batch.decodes)
    # The reference keeps plain floats, the engine an array in the state of its loop.
    if isinstance(so_far, tuple):
        return tuple(map(max, so_far, peaks(last)))
    xp = array_namespace(so_far)
    return xp.maximum(so_far, xp.stack(peaks(last)))
