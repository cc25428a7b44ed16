"""The iteration of speculative decoding: drafts are made, and verified all at once (``evaluator.speculation``).

A decoding sequence has k + 1 tokens in an iteration of the model: the last one that is known, and k drafts behind it.
Products see as many rows, and so do the head and the sampling; decode attention reads the context once for all of them
and computes k + 1 rows of scores. A kernel of its own then compares the chances of the drafts under both models (vLLM,
``RejectionSampler``). What drafts on the device (a draft model, the model's module for the token after the next, a
trained head) passes k times in an iteration. It needs KV of its own, so that its first pass has all tokens that the
model computes, those of prompts and of rejected drafts among them; each later pass has one token of every sequence.

Sources: Leviathan et al., arXiv:2211.17192, section 3.1 and appendix A.1; vLLM, ``v1/sample/rejection_sampler.py`` and
``v1/spec_decode/llm_base_proposer.py`` (``propose``: the batch of the first pass is that of the model, that of the
later ones a token of each of its sequences); DeepSeek-V3, arXiv:2412.19437, section 2.2 (multi-token prediction).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.cost.arrays import Batched, array_namespace
from evaluator.cost.fold import fold
from evaluator.cost.gemm import traffic
from evaluator.cost.iteration import BatchStatistics, CostParameters, decode_context_s, device_time, launched
from evaluator.cost.kernel import Operator

if TYPE_CHECKING:
    from evaluator.catalog import Calibration

REJECTION_BYTES = 12
"""Bytes per logit to accept or reject a row: the chances under both models in fp32 are read, and what is left of their
difference, from which the token behind the accepted ones is drawn, is written. An estimate."""


class SpeculativeCost(NamedTuple):
    """The iteration cost of a replica that verifies drafts; an ``IterationCost``.

    Contexts of decodes count as without drafts: a sequence with c tokens of KV attends to c + 1, of its first row; what
    the rows behind it read beyond is added here. How much longer the next iteration takes depends on how many drafts
    are accepted, so that ``growth`` is said per token (``token_growth``).
    """

    target: CostParameters  # decode attention computes all rows of a sequence for each token of its context
    draft: CostParameters
    queries: Batched  # rows of a decoding sequence: k + 1
    passes: Batched  # of the draft model: k, or 0 where it takes no time on the device
    sequence_s: Batched  # s per sequence in the batch, of the host

    @property
    def log_expert_missed(self) -> Batched:
        """As of the model that verifies."""
        return self.target.log_expert_missed

    @property
    def expert_skew(self) -> Batched:
        """As of the model that verifies."""
        return self.target.expert_skew

    def time(self, batch: BatchStatistics) -> Batched:
        """Seconds of one iteration with drafting and verification."""
        device_s = self.device_s(batch)
        least_s = launched(self.target, batch, self.queries)
        return array_namespace(device_s, least_s).maximum(device_s, least_s)

    def device_s(self, batch: BatchStatistics, of: Callable[..., Batched] = device_time) -> Batched:
        """Seconds of an iteration however fast the host launches it; ``of``: what to count of each pass."""
        # The host's time counts once per sequence; only the device has the rows of drafts behind it.
        host_s = self.sequence_s * (batch.decodes + batch.prefill_sequences)
        return host_s + of(self.target, self.verified(batch), queries=self.queries) + self.drafting_s(batch, of)

    def verified(self, batch: BatchStatistics) -> BatchStatistics:
        """The batch as the model and the first pass of what drafts see it: contexts with the drafts behind them."""
        ahead = (self.queries - 1.0) * batch.decodes
        return batch._replace(
            decode_context=batch.decode_context + ahead, decode_window_context=batch.decode_window_context + ahead
        )

    def continued(self, batch: BatchStatistics) -> BatchStatistics:
        """The mean batch of the later passes of what drafts: all sequences decode, one token after the other."""
        none = 0.0 * batch.prefill_tokens
        sequences = batch.decodes + batch.prefill_sequences
        # Drafts of pass p lie p - 1 tokens behind the first: their mean over the passes 2 to k.
        ahead = 0.5 * self.passes * sequences  # of passes 2 to k, over the first: (1 + .. + (k - 1)) / (k - 1)
        full = batch.decode_context + batch.prefill_context + ahead
        window = batch.decode_window_context + batch.prefill_window_context + ahead
        return BatchStatistics(sequences, full, window, *(none,) * 6)

    def drafting_s(self, batch: BatchStatistics, of: Callable[..., Batched] = device_time) -> Batched:
        """Seconds of all passes of what drafts, ``of`` as of ``time``.

        In each pass the head has one row of a sequence, that of its last token. In the first one the rows of a
        sequence share the KV that attention reads, which takes longer than the scores of all of them.
        """
        xp = array_namespace(self.passes, *batch)
        alone = self.continued(batch)
        # Its first pass sees every row that the model verifies, since it needs KV of all; the head draws one token.
        first_s = of(self.draft, self.verified(batch), queries=self.queries, sampled=1.0)
        # Without sequences there is nothing to draft, whatever the number of passes.
        later = xp.maximum(self.passes - 1.0, 0.0) * xp.minimum(alone.decodes, 1.0)
        return xp.where(self.passes > 0.0, first_s + later * of(self.draft, alone), 0.0)

    def token_growth(self, decodes: Batched) -> tuple[Batched, Batched]:
        """Seconds by which an iteration is longer per token more of context, of full and of windowed layers."""
        full = decode_context_s(self.target, decodes) + self.passes * decode_context_s(self.draft, decodes)
        return full, self.target.window_context_s + self.passes * self.draft.window_context_s

    def growth(self, batch: BatchStatistics, window_growing: Batched) -> Batched:
        """By how much the next iteration is longer if no draft of this one is accepted, seconds."""
        full, window = self.token_growth(batch.decodes)
        return full * batch.decodes + window * window_growing

    def steps(self, batch: BatchStatistics) -> Batched:
        """The time is affine in the contexts for as long as the same sequences decode."""
        return float("inf")


def speculative_cost(
    verified: tuple[Operator, ...],
    drafted: tuple[Operator, ...] | None,
    tokens: int,
    vocabulary: int,
    hardware: Hardware,
    calibration: Calibration,
) -> SpeculativeCost:
    """The cost from the operators of the model and of what drafts ``tokens`` tokens; None: nothing on the device.

    The passes of the draft model are launched without a scheduler in between: the host's time counts once.
    """
    queries = float(tokens + 1)
    # Taken out of the fold, which would multiply it by the rows of a sequence; ``sequence_s`` has it once.
    target = fold(verifying(verified, queries, vocabulary), hardware, replace(calibration, sequence_overhead_s=0.0))
    draft = _nothing(target) if drafted is None else fold(drafted, hardware, calibration, overheads=False)
    passes = 0.0 if drafted is None else float(tokens)
    host_s = np.float64(calibration.sequence_overhead_s)
    return SpeculativeCost(target, draft, np.float64(queries), np.float64(passes), host_s)


def verifying(operators: Sequence[Operator], queries: float, vocabulary: int) -> tuple[Operator, ...]:
    """The operators of the model with ``queries`` rows of scores for each token of a context, and the choice among
    drafts."""
    # Decode attention reads a context once for all rows and computes the scores of each.
    rows = [
        replace(operator, flops=operator.flops * queries, token_bytes=operator.token_bytes * queries)
        if operator.scaling in ("decode", "decode_window")
        else operator
        for operator in operators
    ]
    if any(operator.name == "sampling" for operator in operators):  # the last pipeline rank
        rows.append(traffic("rejection_sampling", vocabulary * REJECTION_BYTES, 2.0, "linear_sequences"))
    return tuple(rows)


def _nothing(like: CostParameters) -> CostParameters:
    """A cost without operators; what is no time (thresholds) stays as it is."""
    parts: dict[str, Any] = {}
    for name, value in zip(like._fields, like, strict=True):
        # Thresholds (``ramp_tokens``, ``late_decodes``) divide and must stay above 0.
        if isinstance(value, tuple):
            parts[name] = type(value)(*(np.zeros(0) for _ in value))
        elif name.endswith("_s"):
            parts[name] = np.float64(0.0)
    return like._replace(**parts)
