"""Any replica, with equal probability."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluator.routing.record import Independent, InTurn, Router, Sent


def _assign(choice: str, sent: Sent) -> NDArray[np.int64]:
    # floor(u * replicas), not ``integers``: a draw is one uniform number whatever the number of replicas, so that
    # designs with more of them are compared on the same luck, and ``_in_turn`` takes the same numbers one by one.
    return np.floor(sent.draws.random(len(sent.prompt_tokens)) * sent.replicas).astype(np.int64)


def _in_turn(choice: str, replicas: int, draws: np.random.Generator) -> InTurn:
    return lambda prompt_tokens, session: int(draws.random() * replicas)


RANDOM = Router("random", "Any replica, with equal probability.", Independent(_assign, _in_turn))
