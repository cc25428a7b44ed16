"""The costs and the work of many replicas at once: those that share a costing are found together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from evaluator.cost.iteration import IterationCost
from evaluator.cost.lanes import RowCounts, joined, stack, with_rows
from evaluator.cost.utilisation import IdealTime
from evaluator.replica.replica_build import RunnableReplica


def costs_of(replicas: Sequence[RunnableReplica], counts: RowCounts) -> tuple[IterationCost, ...]:
    """The costs of the pipeline ranks of replicas of one ``lanes.structure``, with a trailing axis ``replica``.

    ``counts``: rows of every roofline. The numbers are those of ``RunnableReplica.pipeline_ranks``, to the last digit.
    """
    alone, several = _alike(replicas)
    parts = [
        tuple(with_rows(cost, counts) for cost in replicas[places[0]].costing.costs_on(_devices(replicas, places)))
        for places in several
    ]
    if alone:
        ranks = zip(*(replicas[position].pipeline_ranks for position in alone), strict=True)
        # Every rank of the replicas becomes a lane of its own, hence rank by rank.
        parts.append(tuple(stack(costs, counts) for costs in ranks))
    # The inverse of the permutation that went by costings first: lanes in the order of ``replicas`` again.
    order = np.argsort([*chain(*several), *alone])
    return tuple(joined(costs, order) for costs in zip(*parts, strict=True))


def ideals_of(replicas: Sequence[RunnableReplica]) -> list[tuple[IdealTime, IdealTime]]:
    """``RunnableReplica.ideals`` of each."""
    alone, several = _alike(replicas)
    by_place = {position: replicas[position].ideals for position in alone}
    for places in several:
        ideals = replicas[places[0]].costing.ideals_on(_devices(replicas, places))
        by_place |= dict(zip(places, ideals, strict=True))
    return [by_place[position] for position in range(len(replicas))]


def _alike(replicas: Sequence[RunnableReplica]) -> tuple[list[int], list[list[int]]]:
    """Places of replicas that share their costing with no other, and of those that do, costing by costing."""
    places: dict[int, list[int]] = {}
    for position, replica in enumerate(replicas):
        # Two replicas share a costing only as one object (``costing.costing``).
        places.setdefault(id(replica.costing), []).append(position)
    groups = list(places.values())
    return [group[0] for group in groups if len(group) == 1], [group for group in groups if len(group) > 1]


def _devices(replicas: Sequence[RunnableReplica], places: Sequence[int]) -> list:
    return [replicas[position].hardware for position in places]
