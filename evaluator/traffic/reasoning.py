"""What reasoning makes of drawn outputs: longer ones, and one for each branch of a request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from evaluator.scenario import Reasoning


def scaled(output: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
    """Outputs so many times as long, in whole tokens, at least one."""
    return output if scale == 1.0 else np.maximum(np.rint(output * scale), 1.0).astype(np.int64)


def branch_tokens(reasoning: Reasoning, output: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64] | None:
    """Output tokens of every branch, (request, branch), ascending: those computed before the request ends.

    ``output`` draws the lengths (request,) of a branch by its number; branch 0 has those of the requests. None where
    every request has one path. All branches get a token in every iteration in which one of them does, so that the K-th
    to end is the K-th shortest, and a request that ends with it leaves the longer ones with as many tokens.
    """
    if not reasoning.several:
        return None
    numbers = range(reasoning.branches) if reasoning.branch_lengths == "drawn" else (0,) * reasoning.branches
    lengths = np.sort(np.stack([scaled(output(number), reasoning.scale) for number in numbers], axis=1), axis=1)
    return (
        lengths if reasoning.first is None else np.minimum(lengths, lengths[:, reasoning.first - 1 : reasoning.first])
    )
