"""What drafts do to the decoding of one sequence, on average: how many iterations, and at which contexts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluator.keys import Place
from evaluator.speculation import Speculative, speculative_reader


@dataclass(frozen=True)
class Drafts:
    """Speculative decoding of one sequence. Times are those of a decode iteration at mid-output context."""

    speculative: Speculative
    iterations: float  # expected, until the last token is there
    tokens_per_iteration: float  # output tokens after the first / iterations; NaN for outputs of one token
    draft_s: float
    verify_s: float  # the model's own pass, with the host's time


def read_speculative(given: Speculative | Mapping[str, Any] | None) -> Speculative | None:
    """From the mapping that a scenario has at ``deployment.speculative``. Errors: InputError, naming the key."""
    if given is None or isinstance(given, Speculative):
        return given
    return speculative_reader(given, Place("estimate", "speculative"))


def visits(chances: tuple[float, ...], tokens: int) -> np.ndarray:
    """The chance that an iteration starts when i of so many tokens have been given, (tokens,).

    ``chances`` are those that at least 1, 2, .. drafts are accepted (``Speculative.chances``). The sum is the expected
    number of iterations (a renewal process): for long outputs tokens / (1 + accepted), for short ones more, since the
    last iteration gives no more than what is left.
    """
    # From chances of at least so many accepted drafts to those of exactly so many tokens, the model's own included.
    gains = -np.diff((1.0, *chances, 0.0))  # of 1, 2, .. k + 1 tokens
    # Room behind the last token, which no iteration starts at, so that no sum below needs a bound.
    visited = np.zeros(tokens + len(gains))
    visited[:1] = 1.0
    # A renewal process: an iteration starts at i tokens if one started at i - g tokens and gave g.
    for given in range(tokens):
        visited[given + 1 : given + 1 + len(gains)] += visited[given] * gains
    return visited[:tokens]
