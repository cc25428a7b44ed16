"""What a lane of this program is given."""

from __future__ import annotations

from typing import NamedTuple

from evaluator.cost.iteration import IterationCost
from evaluator.stations.engine.common.arrays import Float, IntPerBranch, IntPerRequest
from evaluator.stations.engine.common.lane import LaneLimits, Requests
from evaluator.stations.engine.common.speculation import Speculation


class Branches(NamedTuple):
    """Requests that decode on several branches side by side, as sequences that share the KV of their prompt.

    Each request has as many cells as any has branches, ascending by length and empty in front. A branch is known by its
    cell, ``request * cells + number``; the last of a request is the one with which it ends.
    """

    tokens: IntPerBranch  # output tokens; 0 in an empty cell
    kv_units: IntPerBranch  # freed when it ends, those that all share with the last; their sum is that of the request
    sequences: IntPerRequest  # how many branches
    going: IntPerRequest  # how many of them have more than one token


class Lane(NamedTuple):
    """One replica of a single pipeline rank, with the KV of every request reserved on admission.

    ``branches`` None: every request is one sequence. ``speculation`` None: a decode iteration gives one token. That is
    structure, not a value: nothing of them is compiled then.
    """

    cost: IterationCost
    limits: LaneLimits
    branches: Branches | None = None
    speculation: Speculation | None = None


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
    branches: Branches | None = None
    speculation: Speculation | None = None

    def window(self) -> Float | None:
        """The attention window in tokens; None for a model without windowed layers."""
        return self.limits.window if self.structure.windowed else None

    def rows(self, decodes: Float) -> Float:
        """Tokens that so many decodes take of the token budget: one each, or with drafts as many as are verified."""
        return decodes if self.speculation is None else decodes * (self.speculation.drafts + 1.0)

    @property
    def cells(self) -> int:
        """Most branches of a request."""
        return 1 if self.branches is None else self.branches.tokens.shape[0] // self.requests.arrival_s.shape[0]
