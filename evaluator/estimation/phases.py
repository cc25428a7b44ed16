"""The iterations of a batch whose sequences start and go on together: its prefill, then its decode steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.cost.batch import decode_batch, prefill_batch
from evaluator.cost.breakdown import HOST, OperatorTime, SequenceRows, breakdown
from evaluator.cost.dispatched import Dispatched
from evaluator.cost.iteration import (
    BatchStatistics,
    CostParameters,
    IterationCost,
    iteration_time,
    prepared,
    share_touched,
)
from evaluator.cost.lockstep import launched_alone, rank_cost
from evaluator.cost.quantities import batch_tokens
from evaluator.cost.speculative import SpeculativeCost
from evaluator.cost.steady import DecodeSteps
from evaluator.cost.utilisation import ideal_time
from evaluator.estimation.drafts import visits
from evaluator.replica import UnpipelinedCost
from evaluator.speculation import Speculative


@dataclass(frozen=True)
class PhaseEstimate:
    """One iteration: its time, MFU, MBU and operators (none where the cost was fitted to whole iterations, or where
    devices do not compute alike: ``UnpipelinedCost``)."""

    time_s: float
    mfu: float
    mbu: float
    operators: tuple[OperatorTime, ...]


@dataclass(frozen=True)
class EqualSequences:
    """``count`` sequences that are served together, the same lengths each; ``window`` is the model's, if it has one.

    ``drafts``: with speculative decoding, what is drafted and how much of it is accepted.
    """

    count: int
    prompt_tokens: int
    output_tokens: int
    window: int | None
    drafts: Speculative | None = None

    @cached_property
    def iterations(self) -> np.ndarray:
        """Decode iterations of a sequence that are expected at each context, of prompt + 1, + 2, .. tokens."""
        tokens = self.output_tokens - 1
        return np.ones(tokens) if self.drafts is None else visits(self.drafts.chances, tokens)

    @property
    def tokens_per_iteration(self) -> float:
        """Output tokens that a decode iteration gives a sequence on average."""
        return (self.output_tokens - 1) / self.iterations.sum() if self.output_tokens > 1 else 1.0

    @property
    def decode_steps(self) -> DecodeSteps | None:
        """What the steady state must know of the drafts; None without."""
        return None if self.drafts is None else DecodeSteps(self.iterations.sum(), self.drafts.tokens + 1.0)

    @property
    def prefill(self) -> BatchStatistics:
        """All prompts in one iteration."""
        return prefill_batch(float(self.count), self.prompt_tokens, self.window)

    @property
    def middle(self) -> BatchStatistics:
        """The decode step at mid-output context."""
        return decode_batch(float(self.count), self.prompt_tokens + self.output_tokens / 2, self.window)


_DELTA_RULE = ("linear_attention.walk", "elementwise", "compute")
"""What a prompt takes to walk through the gated delta rule, beside the operators of such a layer."""


def phase(through: UnpipelinedCost, hardware: Hardware, batch: BatchStatistics, tokens: float = 1.0) -> PhaseEstimate:
    """Time and breakdown of one iteration. MFU and MBU are of all devices, with one batch in flight per rank.

    ``tokens``: with drafts, those that the iteration gives a decoding sequence: what was computed of others is no use.
    """
    time = float(iteration_time(through.cost, batch))
    useful = batch._replace(
        decodes=tokens * batch.decodes,
        # Only accepted tokens are work that a client gets.
        decode_context=tokens * batch.decode_context,
        decode_window_context=tokens * batch.decode_window_context,
    )
    # Memory is read once for all tokens of an iteration: contexts do not count once per drafted token, as they do in
    # FLOPs.
    read = batch._replace(decodes=useful.decodes)
    # Of all tokens of the iteration: those that are rejected visit experts, too, whose weights are
    # read all the same.
    touched = share_touched(through.cost, batch_tokens(through.cost, batch))
    has_operators = through.calibration.form == "roofline" and len(through.operators) > 0
    return PhaseEstimate(
        time_s=time,
        mfu=float(ideal_time(through.compute, useful)) / time,
        mbu=float(ideal_time(through.memory, read, touched=touched)) / time,
        operators=_with_host(_operators(through, hardware, batch), through.cost, batch, time) if has_operators else (),
    )


def _operators(through: UnpipelinedCost, hardware: Hardware, batch: BatchStatistics) -> tuple[OperatorTime, ...]:
    """Where the time goes; with drafts the model's own operators and the host first, and then those of what drafts."""
    cost, calibration = through.cost, through.calibration
    if not isinstance(cost, SpeculativeCost) or through.drafts is None:
        return breakdown(through.operators, hardware, calibration, batch)
    queries, drafted, passes = float(cost.queries), through.drafts.operators, float(cost.passes)
    operators = breakdown(
        through.operators, hardware, calibration, cost.verified(batch), SequenceRows(queries, queries)
    )
    if drafted is not None:
        first = breakdown(drafted, hardware, calibration, cost.verified(batch), SequenceRows(queries, 1.0))
        later = breakdown(drafted, hardware, calibration, cost.continued(batch))
        # The host's times are those of the whole iteration: the model's own operators tell them already.
        operators += tuple(
            _all_passes(*pair, passes) for pair in zip(first, later, strict=True) if pair[0].op_class != HOST
        )
    total_s = sum(operator.time_s for operator in operators)
    return tuple(replace(operator, share=operator.time_s / total_s) for operator in operators)


def _with_host(
    operators: tuple[OperatorTime, ...], cost: IterationCost, batch: BatchStatistics, time_s: float
) -> tuple[OperatorTime, ...]:
    """The operators with what none of them tells: what the host takes (``cost.host``), for which the device waits to
    launch them, to prepare prompts, or to penalise what was said, and prompts' walk through the gated delta rule."""
    rest_s = time_s - sum(operator.time_s for operator in operators)
    ranked = rank_cost(cost)
    # Where launching takes as long as the iteration, it is what the device waits for; else it is the others.
    # Of an engine without graphs that is the floor of every iteration, which is no part of the device's cost.
    floor_s = cost.dispatch_s if isinstance(cost, Dispatched) else launched_alone(ranked, batch)
    of_model = ranked.target if isinstance(ranked, SpeculativeCost) else ranked
    prompts, tokens = batch.prefill_sequences, batch.prefill_tokens
    prepared_s = float(prepared(of_model, prompts, tokens)) if isinstance(of_model, CostParameters) else 0.0
    if float(floor_s) >= time_s:
        parts = {("host.launches", HOST, "overhead"): rest_s}
    else:
        # Penalties are of decodes, the delta rule's kernel is of prompts: a phase has the one or the other.
        last = ("host.penalties", HOST, "overhead") if batch.decodes else _DELTA_RULE
        parts = {("host.prepared", HOST, "overhead"): prepared_s, last: rest_s - prepared_s}
    # Sums in another order: of a part that is not there rounding is left.
    rest = [
        OperatorTime(name, op_class, seconds, 0.0, 0.0, 0.0, 0.0, bound)
        for (name, op_class, bound), seconds in parts.items()
        if seconds >= 1e-9 * time_s
    ]
    return tuple(replace(operator, share=operator.time_s / time_s) for operator in (*operators, *rest))


def _all_passes(first: OperatorTime, later: OperatorTime, passes: float) -> OperatorTime:
    """An operator of what drafts, in the first pass and in those after it; bound by what binds it longer."""
    rest = passes - 1.0
    return replace(
        first,
        name=f"draft.{first.name}",
        time_s=first.time_s + rest * later.time_s,
        flops=first.flops + rest * later.flops,
        bytes=first.bytes + rest * later.bytes,
        message_bytes=first.message_bytes + rest * later.message_bytes,
        bound=first.bound if first.time_s > rest * later.time_s else later.bound,
    )


def decode_time(through: UnpipelinedCost, served: EqualSequences) -> float:
    """All decode steps after the first token, which the prefill gives: they attend to prompt + 1, + 2, ... tokens.

    With drafts each is as likely as that an iteration starts there.
    """
    context = served.prompt_tokens + np.arange(1.0, served.output_tokens)
    batch = decode_batch(np.full_like(context, served.count), context, served.window)
    return float(np.sum(iteration_time(through.cost, batch) * served.iterations))
