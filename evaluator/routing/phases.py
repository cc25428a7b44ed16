"""Which replica of several pools side by side serves a request, where the choice does not look at their state.

The pools of one phase (prefill, decode, or both) are a *side*. Its replicas are numbered pool after pool. A request can
go to those that have its model and, where the deployment is split into groups, belong to its group; among these the
router chooses by weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

Weights = tuple[float, ...]


@dataclass(frozen=True)
class PhaseReplicas:
    """The replicas of a side, (replica,): the pool, the model's number, the group and the weight of each.

    ``mixed_from``: on a prefill side with mixed pools beside it those from this number on are mixed; None: none is.
    """

    pool: tuple[int, ...]
    model: tuple[int, ...]
    group: tuple[int, ...]
    weight: Weights
    mixed_from: int | None = None

    def __len__(self) -> int:
        return len(self.pool)

    def able(self, model: int, group: int | None, apart: bool | None = None) -> NDArray[np.int64]:
        """The replicas to which a request of this model and group (None: of any) can go, ascending.

        ``apart``: whether it is for prefill and decode pools or for mixed ones (None: for either), as far as both have
        its model.
        """
        has = np.asarray(self.model) == model
        if group is not None:
            has &= np.asarray(self.group) == group
        if apart is not None:
            assert self.mixed_from is not None
            of_kind = has & ((np.arange(len(self)) < self.mixed_from) == apart)
            has = of_kind if of_kind.any() else has
        return np.flatnonzero(has)

    def weights(self, replicas: NDArray[np.int64]) -> Weights:
        """The weights of these replicas."""
        return tuple(self.weight[replica] for replica in replicas.tolist())

    @cached_property
    def groups(self) -> NDArray[np.int64]:
        """The group of each replica, (replica,)."""
        return np.asarray(self.group, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Asking:
    """Requests that ask a side for a replica, (job,): their ids, models and groups (None: any) in order of arrival.

    ``session``: the numbers of their sessions, where they are known. ``apart``: whether each is for prefill and decode
    pools, where that is not for the router to say.
    """

    id: NDArray[np.int64]
    model: NDArray[np.int64]
    group: NDArray[np.int64] | None
    session: NDArray[np.int64] | None = None
    apart: NDArray[np.bool_] | None = None


SHARED = ("round_robin", "random")
"""The routers that share requests out by weight, whatever the state of the replicas."""
BY_REQUEST = ("random", "session")
"""Those whose choice is the request's own, whoever comes before it."""


def assign_in_phase(phase: PhaseReplicas, router: str, draws: np.random.Generator, asking: Asking) -> NDArray[np.int64]:
    """The replica of the side that serves each request, int64 (job,).

    ``round_robin``: the able replicas in turn, see ``turns``. ``random``: by a number that is drawn for each request by
    its id, so that it does not depend on the order in which they come. ``session``: the sessions in turn.
    """
    # Groups are of a decode side, and ``apart`` of the side before it: never both.
    part = asking.group if asking.apart is None else asking.apart.astype(np.int64)
    parts = 1 if part is None else 2 if asking.group is None else max(phase.group) + 1
    kind = asking.model if part is None else asking.model * parts + part
    # By id: a request keeps its draw in whatever order it comes, on the chain and in a joint run alike.
    drawn = draws.random(int(asking.id.max(initial=-1)) + 1) if router == "random" else None
    replicas = np.empty(len(asking.id), dtype=np.int64)
    for number in np.flatnonzero(np.bincount(kind)).tolist():
        of_kind = np.flatnonzero(kind == number)
        able = phase.able(
            number // parts,
            None if asking.group is None else number % parts,
            None if asking.apart is None else bool(number % parts),
        )
        weights = phase.weights(able)
        if router == "session":
            assert asking.session is not None  # else the plan refuses the router
            which = asking.session[of_kind] % len(able)
        elif drawn is not None:
            which = drawn_by(weights, drawn[asking.id[of_kind]])
        else:
            which = turns(weights, len(of_kind))
        replicas[of_kind] = able[which]
    return replicas


@lru_cache(maxsize=256)  # of as many numbers as there are requests
def turns(weights: Weights, count: int) -> NDArray[np.int64]:
    """Whose turn it is, (count,): each of some replicas gets turns by its weight, as evenly as it goes.

    Stride scheduling (Waldspurger and Weihl, 1995): the k-th turn of a replica, counted from 0, is due at (k + 1/2) /
    weight, and of those due at one time the first comes first. Equal weights take turns one after the other.
    """
    # Equal weights, which all pools have that say none, are plain round robin; the merge below would give the same.
    if len(set(weights)) == 1:
        return np.arange(count) % len(weights)
    whole = sum(weights)
    owner, due = [], []
    for replica, weight in enumerate(weights):
        # A few turns more than its share of ``count``, since the last ones go to whoever is due first.
        turn_numbers = np.arange(int(np.ceil(count * weight / whole)) + len(weights) + 1)
        owner.append(np.full(len(turn_numbers), replica))
        due.append((turn_numbers + 0.5) / weight)
    replicas = np.concatenate(owner)
    return replicas[np.lexsort((replicas, np.concatenate(due)))][:count]


def drawn_by(weights: Weights, drawn: NDArray[np.float64]) -> NDArray[np.int64]:
    """The replica that a number drawn evenly between 0 and 1 stands for, of some with these weights; any shape."""
    edges = np.cumsum(weights)
    return np.minimum(np.searchsorted(edges, drawn * edges[-1], side="right"), len(weights) - 1).astype(np.int64)
