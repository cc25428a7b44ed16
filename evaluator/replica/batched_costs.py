"""The costs and the work of many replicas at once: those that share a costing are found together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.cost.iteration import IterationCost
from evaluator.cost.lanes import RowCounts, joined, stack, with_rows
from evaluator.cost.utilisation import IdealTimes
from evaluator.replica.replica_build import RunnableReplica


def costs_of(replicas: Sequence[RunnableReplica], counts: RowCounts) -> tuple[IterationCost, ...]:
    """The costs of the pipeline ranks of replicas of one ``lanes.structure``, with a trailing axis ``replica``.

    ``counts``: rows of every roofline. The numbers are those of ``RunnableReplica.pipeline_ranks``, to the last digit.
    """
    alone, several = _by_device(replicas)
    parts = [
        tuple(
            with_rows(cost, counts)
            for cost in replicas[of_devices[0][0]].costing.costs_on(_devices(replicas, of_devices))
        )
        for of_devices in several
    ]
    if alone:
        ranks = zip(*(replicas[places[0]].pipeline_ranks for places in alone), strict=True)
        # Every rank of the replicas becomes a lane of its own, hence rank by rank.
        parts.append(tuple(stack(costs, counts) for costs in ranks))
    columns = np.empty(len(replicas), dtype=np.int64)
    for column, places in enumerate([*chain(*several), *alone]):
        columns[places] = column
    return tuple(joined(costs, columns) for costs in zip(*parts, strict=True))


def ideals_of(replicas: Sequence[RunnableReplica]) -> list[IdealTimes]:
    """``RunnableReplica.ideals`` of each."""
    alone, several = _by_device(replicas)
    by_place = {place: replicas[places[0]].ideals for places in alone for place in places}
    for of_devices in several:
        ideals = replicas[of_devices[0][0]].costing.ideals_on(_devices(replicas, of_devices))
        by_place |= {place: ideal for places, ideal in zip(of_devices, ideals, strict=True) for place in places}
    return [by_place[place] for place in range(len(replicas))]


Places = list[int]


def _by_device(replicas: Sequence[RunnableReplica]) -> tuple[list[Places], list[list[Places]]]:
    """Places of replicas of one costing and device: where a costing has one device, and costing by costing where it has
    several, device by device.

    A search asks for replicas that differ in their seats or their load over and over. What such a replica takes it
    remembers, while a costing folds several devices anew.
    """
    costings: dict[int, dict[int, Places]] = {}
    for place, replica in enumerate(replicas):
        # Two replicas share a costing only as one object (``costing.costing``).
        costings.setdefault(id(replica.costing), {}).setdefault(id(replica.hardware), []).append(place)
    groups = [list(devices.values()) for devices in costings.values()]
    return [group[0] for group in groups if len(group) == 1], [group for group in groups if len(group) > 1]


def _devices(replicas: Sequence[RunnableReplica], of_devices: list[Places]) -> list[Hardware]:
    return [replicas[places[0]].hardware for places in of_devices]
