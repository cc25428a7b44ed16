"""What the decode iterations of jobs give where they verify drafts, as the engines take it."""

from __future__ import annotations

import numpy as np

from evaluator.plan import StationPlan
from evaluator.speculation import tokens_given


def curve_of(pool: StationPlan, key: np.unsignedinteger, output: int) -> tuple[int, ...]:
    """Tokens that the first 0, 1, 2, .. decode iterations of a job give (``reference.Request.curve``)."""
    if pool.speculative is None:
        return ()
    given = tokens_given(pool.speculative.chances, key, output)
    return tuple(np.append(0, np.cumsum(given)).tolist())
