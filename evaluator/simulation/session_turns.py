"""Users who send their next request some time after the answer to the one before: who follows whom in a slot."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evaluator.simulation.lane_jobs import LaneJobs


class TurnOrder(NamedTuple):
    """Of the requests of a slot, (request,)."""

    before: np.ndarray  # position of the request that it follows, or -1
    think_s: np.ndarray  # between the answer to that one and this request


def follows_of(slot: LaneJobs) -> TurnOrder | None:
    """None where nobody waits for an answer."""
    sharing = slot.jobs.sharing
    if sharing is None or sharing.turns is None or not sharing.feedback:
        return None
    ids = slot.jobs.id[slot.served]
    position = np.empty(len(ids), dtype=np.int64)
    position[ids] = np.arange(len(ids))
    previous = sharing.turns.previous[ids]
    return TurnOrder(np.where(previous < 0, -1, position[previous]), sharing.turns.think_s[ids])
