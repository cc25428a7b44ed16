"""What a lane of several replicas is given and gives back."""

from __future__ import annotations

from typing import NamedTuple

from evaluator.stations.engine.any_order.lane import Given, Lane
from evaluator.stations.engine.common.arrays import Int, IntPerRequest, RequestReplicas
from evaluator.stations.engine.common.lane import LaneResult
from evaluator.stations.engine.coupled.caches import ByPrefix

NO_COUNTER = -1
"""In place of a counter: the router is independent of the state, and ``assigned`` says where requests go."""


class Pool(NamedTuple):
    """The replicas of one configuration under one seed."""

    lane: Lane  # what each replica is given; users and requests are those of all of them
    replicas: Int  # at most those of the structure
    counter: Int  # number in ``routing.record.COUNTERS`` of what the router wants least of, or NO_COUNTER
    assigned: IntPerRequest  # with NO_COUNTER: the replica of each request, in the order in which they are sent
    by_prefix: ByPrefix | None = None  # with prefix caches


class GivenPool(NamedTuple):
    """All that stays the same during a run."""

    given: Given
    replicas: Int
    counter: Int
    assigned: IntPerRequest
    by_prefix: ByPrefix | None = None


class PoolResult(NamedTuple):
    """What a lane of several replicas gives back: totals are sums over them, peaks those of any."""

    served: LaneResult
    replica: RequestReplicas  # which of them served each request
