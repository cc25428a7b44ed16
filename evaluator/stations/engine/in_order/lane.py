"""What a lane of this program is given."""

from __future__ import annotations

from typing import NamedTuple

from evaluator.cost.iteration import IterationCost
from evaluator.stations.engine.common.arrays import Float
from evaluator.stations.engine.common.lane import LaneLimits, Requests


class Lane(NamedTuple):
    """One replica of a single pipeline rank, with the KV of every request reserved on admission."""

    cost: IterationCost
    limits: LaneLimits


class Structure(NamedTuple):
    """What is compiled in: everything else is traced."""

    ring: int  # steps in the rings, a power of two above the longest output
    windowed: bool  # the model has sliding-window layers


class Given(NamedTuple):
    """All that stays the same during a lane's run: the functions of the loop read it and never change it."""

    cost: IterationCost
    limits: LaneLimits
    requests: Requests
    structure: Structure

    def window(self) -> Float | None:
        """The attention window in tokens; None for a model without windowed layers."""
        return self.limits.window if self.structure.windowed else None
