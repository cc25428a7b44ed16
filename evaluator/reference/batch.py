"""One iteration's work, and the statistics that its time depends on, twice: token by token, and in closed form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from evaluator.cost.iteration import BatchStatistics
from evaluator.reference.request import DecodeGroup, Request


class PromptChunk(NamedTuple):
    """Tokens ``low + 1 .. high`` of a prompt (after preemption: of prompt and generated tokens).

    As sequences they are ``request.spans(low, high)``: of one, but where several branches are computed anew.
    """

    request: Request
    low: int
    high: int
    completes: bool  # an output token comes with it
    padding: int = 0  # slots of drafts that it takes of the token budget beside its tokens, to no avail


@dataclass
class Batch:
    """Prompts' chunks, and sequences that decode a token each. ``most``: how often at most it may be repeated.

    ``in_vain``: have their last token in the batch under way, which is not known yet, so that they decode once more.
    ``gives``: who gets a token of this batch, where the next one is planned before it has ended.
    """

    chunks: list[PromptChunk] = field(default_factory=list)
    decodes: DecodeGroup | None = None
    most: int = 1 << 30
    in_vain: list[Request] = field(default_factory=list)
    gives: set[Request] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.chunks or self.decodes or self.in_vain)


def exact_statistics(batch: Batch, window: int) -> BatchStatistics:
    """Summed over the sequences from what each has been given, token by token where that is needed."""
    attended = [
        request.prompt_tokens + request.resident + len(request.token_s)
        for request in (batch.decodes.members if batch.decodes else ())
        for _ in range(request.width_at(len(request.token_s)))
    ] + [request.known_tokens for request in batch.in_vain]
    spans = [span for chunk in batch.chunks for span in chunk.request.spans(chunk.low, chunk.high)]
    return BatchStatistics(
        decodes=float(len(attended)),
        decode_context=float(sum(attended)),
        decode_window_context=float(sum(min(tokens, window) for tokens in attended)),
        prefill_tokens=float(sum(high - low for low, high in spans)),
        prefill_sequences=float(len(spans)),
        prefill_area=float(sum(sum(range(low + 1, high + 1)) for low, high in spans)),
        prefill_window_area=float(sum(min(n, window) for low, high in spans for n in range(low + 1, high + 1)))
        if window
        else 0.0,
        prefill_context=float(sum(high for _, high in spans)),
        prefill_window_context=float(sum(min(high, high - low + window - 1) for low, high in spans if window)),
    )


def statistics(batch: Batch, window: int) -> BatchStatistics:
    """The statistics of a batch, from the sums that its group keeps and the area of each chunk in closed form."""
    tokens = area = window_area = context = window_context = sequences = 0
    for low, high in (span for chunk in batch.chunks for span in chunk.request.spans(chunk.low, chunk.high)):
        sequences += 1
        tokens += high - low
        area += _triangle(high) - _triangle(low)
        context += high
        if window:
            window_area += _window_triangle(high, window) - _window_triangle(low, window)
            # Keys that the chunk reads: its own tokens, and before the first of them as many as a window has beside
            # the token itself.
            window_context += min(high, high - low + window - 1)
    group, vain = batch.decodes, [request.known_tokens for request in batch.in_vain]
    return BatchStatistics(
        float((len(group) if group else 0) + len(vain)),
        float((group.context if group else 0) + sum(vain)),
        float((group.window_context if group else 0) + sum(min(attends, window) for attends in vain)),
        float(tokens),
        float(sequences),
        float(area),
        float(window_area),
        float(context),
        float(window_context),
    )


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


def _window_triangle(n: int, window: int) -> int:
    """Sum over 1 .. n of the windowed context."""
    inside = min(n, window)
    return _triangle(inside) + (n - inside) * window
