"""All requests of a session on one replica, whose prefix cache has what was said before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluator.routing.record import Independent, InTurn, Router, Sent


def _assign(choice: str, sent: Sent) -> NDArray[np.int64]:
    assert sent.session is not None  # else the plan refuses the router
    # Sessions are numbered as they begin, so that the remainder deals them out in turn: the consistent hashing of a
    # real router would be as even only in the mean.
    return sent.session % sent.replicas


def _in_turn(choice: str, replicas: int, draws: np.random.Generator) -> InTurn:
    return lambda prompt_tokens, session: session % replicas


SESSION = Router(
    "session",
    "All requests of a session to one replica, the sessions in turn.",
    Independent(_assign, _in_turn, by_session=True),
)
