"""What a lane of this program is given."""

from __future__ import annotations

from typing import NamedTuple

from evaluator.cost.iteration import IterationCost
from evaluator.cost.kv import KvUnits
from evaluator.stations.engine.common.arrays import Flag, Float, IntPerBranch, IntPerRequest
from evaluator.stations.engine.common.lane import LaneLimits, Requests
from evaluator.stations.engine.common.packed import Packed, pack
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


class OnDemand(NamedTuple):
    """How requests take KV as their tokens come; the fields of ``preemptive.Rules`` by the same names, and two more."""

    whole_kv: Flag
    watermark_units: Float
    full_prompt: Flag
    kv: KvUnits  # each field a Float
    block_units: Float  # without windowed layers: units of a block, 1 or, where only states are kept, 0
    prompt_units: IntPerRequest  # of its whole prompt, where that is resident of the first token, too
    shared_units: IntPerRequest  # of a request's prefix that stay in the cache and are not counted


class Lane(NamedTuple):
    """One replica of a single pipeline rank.

    ``branches`` None: every request is one sequence. ``speculation`` None: a decode iteration gives one token.
    ``on_demand`` None: the KV of every request is reserved on its admission. That is structure, not a value: nothing of
    them is compiled then.
    """

    cost: IterationCost | Packed  # packed as a tuple of one cost, see ``common.packed``
    limits: LaneLimits
    branches: Branches | None = None
    speculation: Speculation | None = None
    on_demand: OnDemand | None = None


class Structure(NamedTuple):
    """What is compiled in: everything else is traced."""

    ring: int  # steps in the rings, a power of two above the longest output
    windowed: bool  # the model has sliding-window layers
    block_tokens: int = 0  # KV on demand: at least the tokens of a block of any lane
    asynchronous: bool = False  # the next batch is planned while one runs, see ``planned_ahead``; without drafts


class Given(NamedTuple):
    """All that stays the same during a lane's run: the functions of the loop read it and never change it."""

    costs: tuple[IterationCost, ...]
    limits: LaneLimits
    requests: Requests
    structure: Structure
    branches: Branches | None = None
    speculation: Speculation | None = None
    on_demand: OnDemand | None = None

    @property
    def cost(self) -> IterationCost:
        """Its figures are read where this is asked for (``common.packed``)."""
        return self.costs[0]

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


PackedLane = tuple[Packed, Branches | None, Speculation | None]
"""A ``Lane``, most of whose numbers are ``Packed``."""


class _FiguresInOrder(NamedTuple):
    costs: tuple[IterationCost, ...] | Packed
    limits: LaneLimits
    on_demand: OnDemand | None


def packed(lanes: Lane) -> PackedLane:
    """Lanes with a leading axis as the loop takes them."""
    costs = lanes.cost if isinstance(lanes.cost, Packed) else (lanes.cost,)
    return pack(_FiguresInOrder(costs, lanes.limits, lanes.on_demand)), lanes.branches, lanes.speculation


def given_to(lane: PackedLane, requests: Requests, structure: Structure) -> Given:
    """What is given to a lane."""
    figures, branches, speculation = lane
    return Given(figures.costs, figures.limits, requests, structure, branches, speculation, figures.on_demand)
