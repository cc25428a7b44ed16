"""The time of an iteration as a polynomial fitted to measured ones, as in HERMES (arXiv:2504.09775, section III-E).

HERMES regresses prefills on past tokens, prompt tokens, batch size and token^2, and decodes on batch and context.
Token^2 is here the attention area, which grows with the square of a prompt and adds up over prompts. A decode is affine
in the context, so that runs of decodes have a sum in closed form.
"""

from __future__ import annotations

from typing import NamedTuple

from evaluator.cost.iteration import Array, BatchStatistics, array_namespace


def regressors(phase: str, batch: BatchStatistics) -> tuple[Array, ...]:
    """The values of ``catalog.iterations.TERMS`` of a phase; any common shape.

    ``past_tokens`` are KV that prompts read and do not compute; ``context`` is summed over the decodes.
    """
    if phase == "decode":
        return 1.0, batch.decodes, batch.decodes * batch.decodes, batch.decode_context
    past = batch.prefill_context - batch.prefill_tokens
    prompts = batch.prefill_tokens, batch.prefill_sequences, past, batch.prefill_area
    return 1.0, *prompts, batch.decodes, batch.decode_context


class PolynomialCost(NamedTuple):
    """Seconds per unit of each term, (term, *lanes) each; ``iteration_time`` calls its methods."""

    prefill: Array
    decode: Array
    log_expert_missed: Array  # of the model, for the bytes that an iteration moves; 0 without experts
    expert_skew: Array

    def time(self, batch: BatchStatistics) -> Array:
        """Seconds of one iteration."""
        xp = array_namespace(batch.prefill_tokens, *self.decode)
        prefill, decode = (
            sum((value * factor for value, factor in zip(regressors(phase, batch), factors, strict=True)), start=0.0)
            for phase, factors in (("prefill", self.prefill), ("decode", self.decode))
        )
        return xp.where(batch.prefill_tokens > 0, prefill, decode)

    def growth(self, batch: BatchStatistics, window_growing: Array = 0.0) -> Array:
        """By how much the next decode of the same sequences takes longer."""
        return self.decode[3] * batch.decodes

    def steps(self, batch: BatchStatistics) -> Array:
        """For how many decodes that holds."""
        return float("inf")
