"""What a request pays around the engine's iterations: times of the engine -> times that the client sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluator.catalog.calibration import Calibration


@dataclass(frozen=True)
class Frontend:
    """What a calibration says of the time around the engine, for a replica that drafts or does not.

    ``lookahead_steps`` counts the request's mean times per token. With drafts an iteration lasts as long as the tokens
    that are expected of it.
    """

    frontend_s: float
    lookahead_steps: float

    @classmethod
    def of(cls, calibration: Calibration, tokens_per_iteration: float = 1.0) -> Frontend:
        """The frontend of a replica whose decode iterations give a sequence so many tokens (above 1: with drafts)."""
        return cls(calibration.frontend_s, calibration.lookahead_steps * tokens_per_iteration)


def delay_s(around: Frontend, first_token_s: Any, last_token_s: Any, output_tokens: Any) -> Any:
    """How much later than the engine the client has a request's tokens, seconds; numbers or arrays of any shape.

    ``frontend_s`` is what happens outside the engine. ``lookahead_steps`` are iterations: an engine that plans
    asynchronously has the next one planned when a request comes, which then enters the one after; each lasts as long
    as the request's own iterations do on average. A single-token output says nothing of that and gets ``frontend_s``.
    """
    # One token has no gap, so that the difference below is 0, whatever divides it.
    steps = np.maximum(output_tokens - 1, 1)
    return around.frontend_s + around.lookahead_steps * (last_token_s - first_token_s) / steps


def client_times(
    around: Frontend, first_token_s: np.ndarray, last_token_s: np.ndarray, output_tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """First and last token (any shape, seconds) as the client sees them: both later by the same time."""
    delay = delay_s(around, first_token_s, last_token_s, output_tokens)
    return first_token_s + delay, last_token_s + delay
