"""The event loop: arrivals and ends of flights, in order of time, over the replicas of one configuration."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.cost.iteration import IterationCost
from evaluator.cost.quantities import PEAKS
from evaluator.reference.limits import Limits
from evaluator.reference.replica import Flight, Iteration, Replica
from evaluator.reference.request import Request
from evaluator.routing.by_state import ROUTERS


@dataclass
class Outcome:
    """The requests with their times, and totals over the replicas (``kv_units_max``: the largest of any)."""

    requests: list[Request]
    replicas: list[Replica]

    @property
    def busy_s(self) -> float:
        """Time in which replicas worked; for a pipeline the mean over its ranks."""
        return math.fsum(replica.busy_s for replica in self.replicas)

    @property
    def iterations(self) -> int:
        """Engine iterations."""
        return sum(replica.iterations for replica in self.replicas)

    @property
    def kv_units_max(self) -> int:
        """Most KV units in use at once on a replica."""
        return max(replica.kv_units_max for replica in self.replicas)

    @property
    def kv_unit_s(self) -> float:
        """KV units in use, integrated over time and summed over the replicas."""
        return math.fsum(replica.kv_unit_s for replica in self.replicas)

    @property
    def experts_touched(self) -> float:
        """Fraction of the routed experts that an iteration touches, summed over iterations; 0 without experts."""
        return math.fsum(replica.experts_touched for replica in self.replicas)

    @property
    def peaks(self) -> tuple[float, ...]:
        """Largest quantities of any iteration (``quantities.PEAKS``), under a fitted cost."""
        return tuple(map(max, *(replica.peaks for replica in self.replicas), (0.0,) * len(PEAKS)))

    @property
    def preemptions(self) -> int:
        """How often a running request had to give up its KV."""
        return sum(replica.queues.preemptions for replica in self.replicas)


class Events:
    """Ends of flights by time; ties in the order in which the flights were sent. An end may be brought forward."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Flight, Replica]] = []
        self._count = 0

    def add(self, flight: Flight, replica: Replica) -> None:
        """The flight of this replica ends at its ``end_s``."""
        heapq.heappush(self._heap, (flight.end_s, self._count, flight, replica))
        self._count += 1

    def next_s(self) -> float:
        """When the next one ends; inf if nothing is in flight."""
        heap = self._heap
        while heap and not _is_valid(*heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def pop(self) -> tuple[Flight, Replica]:
        """The next one (after ``next_s``)."""
        return heapq.heappop(self._heap)[2:]


def _is_valid(end_s: float, _: int, flight: Flight, replica: Replica) -> bool:
    return bool(replica.flights) and end_s == flight.end_s and flight in replica.flights


def simulate(
    cost: IterationCost | Sequence[IterationCost],
    policy: str,
    limits: Limits,
    requests: Sequence[Request],
    *,
    replicas: int = 1,
    router: str = "round_robin",
    seed: int = 0,
    users: int | None = None,
    window: int | None = None,
    leap: bool = True,
    tokens: bool = False,
    observe: Callable[[Iteration], None] | None = None,
) -> Outcome:
    """Serve fresh ``requests`` (in order of arrival) on identical replicas; their times are written into them.

    ``cost``: of the replica, or of each of its pipeline ranks; as many batches are in flight as ranks.
    ``users``: closed loop; the first ``users`` requests are sent at time 0 and one more whenever one finishes; arrivals
    are set then. ``window``: tokens, for models with sliding-window layers. ``seed`` is that of the random router.
    ``tokens`` records the time of every token and simulates every iteration from its sequences; else runs of alike
    iterations are leapt over in closed form, which gives the same times (``leap`` False: does not). ``observe`` is
    called after every iteration, or leap.

    A request that can never be admitted keeps infinite times, and so do all behind it on the same replica.
    """
    costs: Any = [cost] if hasattr(cost, "_fields") else cost  # a cost is a tuple itself
    pool = [
        Replica(index, costs, policy, limits, window=window, leap=leap, tokens=tokens, observe=observe)
        for index in range(replicas)
    ]
    choose = ROUTERS[router](pool, seed)
    if users is None:
        _run(pool, choose, requests, len(requests), 0)
    else:
        for request in requests:
            request.arrival_s = math.inf
        for request in requests[:users]:
            request.arrival_s = 0.0
        _run(pool, choose, requests, users, 1)
    return Outcome(list(requests), pool)


def _run(pool: list[Replica], choose: Any, requests: Sequence[Request], released: int, per_finish: int) -> None:
    """Until nothing is left to happen. At one time ends come before arrivals, and both before new batches."""
    events = Events()
    sent = 0
    while True:
        arrival_s = requests[sent].arrival_s if sent < min(released, len(requests)) else math.inf
        now = min(arrival_s, events.next_s())
        if now == math.inf:
            return
        touched: dict[Replica, None] = {}
        while events.next_s() == now:
            flight, replica = events.pop()
            for _ in range(per_finish * len(replica.finish(flight))):
                if released < len(requests):
                    requests[released].arrival_s = now
                released += 1
            touched[replica] = None
        while sent < min(released, len(requests)) and requests[sent].arrival_s <= now:
            replica = choose(now)
            cut_short = replica.submit(requests[sent], now)
            if cut_short is not None:
                events.add(cut_short, replica)
            touched[replica] = None
            sent += 1
        for replica in touched:
            for flight in replica.launch(now):
                events.add(flight, replica)


def simulate_replica(
    cost: IterationCost,
    policy: str,
    limits: Limits,
    requests: Sequence[Request],
    *,
    users: int | None = None,
    prompts_resident: bool = False,
    window: int | None = None,
) -> Outcome:
    """One replica, iteration by iteration, with the times of all tokens.

    ``prompts_resident``: a decode-only role; the requests have no prompt to compute, and say so themselves.
    """
    if prompts_resident and any(request.compute_tokens for request in requests):
        raise ValueError("resident prompts have compute_tokens 0")
    return simulate(cost, policy, limits, requests, users=users, window=window, tokens=True)
