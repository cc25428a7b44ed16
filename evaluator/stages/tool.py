"""A tool that is called: a search, a database, a program that is run. Its time does not depend on the tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.keys import choice, count, key, number, quantity
from evaluator.stages.record import StageKind, StageRequests, Work
from evaluator.stages.steps import Delay, Served


@dataclass(frozen=True)
class Tool:
    """``servers`` None: as many as are needed, or on a pool as many as it has replicas."""

    seconds: float = key(quantity("s", least=0), says="What a call takes, or its mean.")
    distribution: str = key(
        choice("fixed", "exponential", "lognormal"), "fixed", "Of the time of a call; drawn by seed and request."
    )
    cv: float = key(
        number(above=0, most=100), 1.0, "lognormal: coefficient of variation, standard deviation over mean."
    )
    servers: int | None = key(
        count(), None, "Calls at a time, first come, first served; any number where absent, or the pool's replicas."
    )
    tokens: int = key(count(least=0), 0, "Tokens of what it gives back, which are added to the prompt.")


def _seconds(tool: Tool, visit: StageRequests) -> NDArray[np.float64]:
    if tool.distribution == "exponential":
        # Standard draws times the mean: another mean scales the same times, so that a sweep over it compares like
        # with like.
        return tool.seconds * visit.rng().standard_exponential(len(visit))
    if tool.distribution == "lognormal":
        variance = np.log1p(tool.cv**2)  # of the logarithm; its mean makes the mean of the times ``seconds``
        return tool.seconds * np.exp(np.sqrt(variance) * visit.rng().standard_normal(len(visit)) - variance / 2.0)
    return np.full(len(visit), tool.seconds)


def work(tool: Tool, visit: StageRequests) -> Work:
    """One call of each request."""
    seconds = _seconds(tool, visit)
    unbounded = tool.servers is None and visit.pool is None
    step = Delay(seconds) if unbounded else Served(seconds, tool.servers)
    return Work((step,), adds_tokens=tool.tokens)


TOOL = StageKind("tool", Tool, work, "A call of a tool; its time does not depend on the tokens.")
