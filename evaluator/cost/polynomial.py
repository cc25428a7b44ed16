"""The time of an iteration as a polynomial fitted to measured ones, as in HERMES (arXiv:2504.09775, section III-E).

HERMES regresses prefills on past tokens, prompt tokens, batch size and token^2, and decodes on batch and context.
Token^2 is here the attention area, which grows with the square of a prompt and adds up over prompts. A decode is affine
in the context, so that runs of decodes have a sum in closed form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from evaluator.cost.arrays import Batched, array_namespace
from evaluator.cost.iteration import BatchStatistics

PerTerm = Any
"""(term, ...): one number per term of a phase (``catalog.iterations.TERMS``)."""


def regressors(phase: str, batch: BatchStatistics) -> tuple[Batched, ...]:
    """The values of ``catalog.iterations.TERMS`` of a phase; any common shape.

    ``past_tokens`` are KV that prompts read and do not compute; ``context`` is summed over the decodes.
    """
    if phase == "decode":
        return 1.0, batch.decodes, batch.decodes * batch.decodes, batch.decode_context
    past = batch.prefill_context - batch.prefill_tokens
    prompts = batch.prefill_tokens, batch.prefill_sequences, past, batch.prefill_area
    return 1.0, *prompts, batch.decodes, batch.decode_context


class PolynomialCost(NamedTuple):
    """An ``IterationCost`` that is linear in the terms of ``regressors``; ``iteration_time`` calls its methods."""

    prefill: PerTerm  # s per unit of each term
    decode: PerTerm
    log_expert_missed: Batched  # of the model, for the bytes that an iteration moves; 0 without experts
    expert_skew: Batched  # 0: all experts alike

    def time(self, batch: BatchStatistics) -> Batched:
        """Seconds of one iteration."""
        xp = array_namespace(batch.prefill_tokens, *self.decode)
        prefill, decode = (
            sum((value * factor for value, factor in zip(regressors(phase, batch), factors, strict=True)), start=0.0)
            for phase, factors in (("prefill", self.prefill), ("decode", self.decode))
        )
        return xp.where(batch.prefill_tokens > 0, prefill, decode)

    def growth(self, batch: BatchStatistics, window_growing: Batched = 0.0) -> Batched:
        """By how much the next decode of the same sequences takes longer."""
        # The one term that changes: every context is a token longer in the next iteration.
        return self.decode[3] * batch.decodes

    def steps(self, batch: BatchStatistics) -> Batched:
        """For how many decodes that holds."""
        return float("inf")
