"""Long prompts on replicas of their own, so that short ones never wait behind them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.keys import count, key
from evaluator.routing.record import Independent, InTurn, Router, Sent


@dataclass(frozen=True)
class HeavyLight:
    """Requests with at least ``prompt_tokens`` go to the first ``heavy_replicas`` in turn, the others to the rest.

    A pool of one replica has nothing to choose; in others both kinds of replicas must be there.
    """

    prompt_tokens: int = key(count(), says="Prompts of at least so many tokens are heavy.")
    heavy_replicas: int = key(count(), 1, "The first so many replicas serve them, and only them.")

    @property
    def router(self) -> str:
        return HEAVY_LIGHT.name

    def __str__(self) -> str:
        return f"{self.router} from {self.prompt_tokens} prompt tokens on {self.heavy_replicas}"


def _assign(choice: HeavyLight, sent: Sent) -> NDArray[np.int64]:
    heavy = sent.prompt_tokens >= choice.prompt_tokens
    # With one replica both kinds share it: ``rest`` is at least one, counted from the end.
    first = min(choice.heavy_replicas, sent.replicas)
    rest = max(sent.replicas - first, 1)
    # The k-th heavy prompt goes to heavy replica k modulo their number, and the light ones likewise: two round robins
    # that are told apart by the running count of their own kind.
    return np.where(heavy, (np.cumsum(heavy) - 1) % first, (sent.replicas - rest) + (np.cumsum(~heavy) - 1) % rest)


def _in_turn(choice: HeavyLight, replicas: int, draws: np.random.Generator) -> InTurn:
    first = min(choice.heavy_replicas, replicas)
    rest = max(replicas - first, 1)
    # The same two counters as ``_assign`` has, for arrivals that only the run brings forth (closed loops, later
    # turns).
    heavy, light = itertools.count(), itertools.count()

    def choose(prompt_tokens: int, session: int) -> int:
        if prompt_tokens >= choice.prompt_tokens:
            return next(heavy) % first
        return replicas - rest + next(light) % rest

    return choose


HEAVY_LIGHT = Router(
    "heavy_light",
    "Long prompts go to some of the replicas, others to the rest, in turn.",
    Independent(_assign, _in_turn, by_prompt=True),
    keys=HeavyLight,
)
