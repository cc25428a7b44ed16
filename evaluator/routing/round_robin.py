"""The replicas in turn, the first one first."""

from __future__ import annotations

from itertools import count

import numpy as np
from numpy.typing import NDArray

from evaluator.routing.record import Independent, InTurn, Router, Sent


def _assign(choice: str, sent: Sent) -> NDArray[np.int64]:
    return np.arange(len(sent.prompt_tokens)) % sent.replicas


def _in_turn(choice: str, replicas: int, draws: np.random.Generator) -> InTurn:
    numbers = count()
    return lambda prompt_tokens, session: next(numbers) % replicas


ROUND_ROBIN = Router("round_robin", "The replicas in turn.", Independent(_assign, _in_turn))
