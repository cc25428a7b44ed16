"""Batch statistics of simple iterations: whole prompts, and decodes of equal context."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluator.cost.iteration import BatchStatistics


def attention_area(prompt: Any, cached: Any = 0.0, window: Any = None) -> Any:
    """Tokens attended to by positions ``cached`` + 1 .. ``prompt``, summed; each at most ``window``. Any shape."""

    def up_to(last: Any) -> Any:
        # A position p sees min(p, window) tokens: summed up, a triangle as far as the window and a rectangle beyond.
        if window is None:
            return 0.5 * last * (last + 1.0)
        ramp = np.minimum(last, np.asarray(window, dtype=float))
        return 0.5 * ramp * (ramp + 1.0) + window * (last - ramp)

    return up_to(np.asarray(prompt, dtype=float)) - up_to(np.asarray(cached, dtype=float))


def prefill_batch(prompts: Any, prompt_tokens: Any, window: int | None, past_tokens: Any = 0.0) -> BatchStatistics:
    """``prompts`` pieces of ``prompt_tokens`` tokens each behind ``past_tokens`` whose KV is there: whole prompts (0),
    or chunks. Any common shape, prompts may be fractional.

    A windowed layer reads the KV of every token of a piece, and of as many before as its window reaches.
    """
    last = past_tokens + prompt_tokens
    read = last if window is None else np.minimum(last, prompt_tokens + window - 1.0)
    # Zeros of the arguments' common shape, which every field needs to be stacked with those of other batches.
    zero = 0.0 * np.asarray(prompts, dtype=float)
    return BatchStatistics(
        decodes=zero,
        decode_context=zero,
        decode_window_context=zero,
        prefill_tokens=zero + prompts * prompt_tokens,
        prefill_sequences=zero + prompts,
        prefill_area=prompts * attention_area(last, past_tokens),
        prefill_window_area=prompts * attention_area(last, past_tokens, window=window),
        prefill_context=zero + prompts * last,
        prefill_window_context=zero + prompts * read,
    )


def decode_batch(sequences: Any, context: Any, window: int | None) -> BatchStatistics:
    """``sequences`` that decode one token each and attend to ``context`` tokens. Any common shape."""
    zero = 0.0 * np.asarray(sequences, dtype=float) * np.asarray(context, dtype=float)
    seen = np.minimum(context, window) if window else context
    return BatchStatistics(
        zero + sequences, zero + sequences * context, zero + sequences * seen, zero, zero, zero, zero, zero, zero
    )


def together(first: BatchStatistics, second: BatchStatistics) -> BatchStatistics:
    """Both batches in the same iteration."""
    return BatchStatistics(*(a + b for a, b in zip(first, second, strict=True)))
