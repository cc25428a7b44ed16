"""One pool of replicas under its requests: the network with a single station."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.cost.iteration import IterationCost
from evaluator.cost.quantities import PEAKS
from evaluator.reference.data_parallel import RankBalance
from evaluator.reference.failures import Breakdowns, FailurePolicy
from evaluator.reference.host_replica import replica_maker
from evaluator.reference.limits import Limits
from evaluator.reference.lockstep import in_lockstep
from evaluator.reference.network import Delay, Follows, run
from evaluator.reference.replica import Replica
from evaluator.reference.request import Request
from evaluator.reference.routing import chooser, fleet_router
from evaluator.reference.running_batch import Iteration
from evaluator.reference.stations.failing import FailingStation
from evaluator.reference.stations.fleet import FleetStation, ReplicaFleet, ScalingPolicy, all_the_time
from evaluator.reference.stations.pool import PoolStation
from evaluator.routing import Choice


@dataclass
class PoolOutcome:
    """The requests with their times, and totals over the replicas (``kv_units_max``: the largest of any)."""

    requests: list[Request]
    replicas: list[Replica]
    fleet: ReplicaFleet | None = None  # None: all replicas are there all the time
    breakdowns: Breakdowns | None = None  # None: none of them fails

    @property
    def alive(self) -> list[list[float]]:
        """From when until when each replica of a fleet was there, the last answer at the latest."""
        return self._until_the_last([] if self.fleet is None else self.fleet.alive)

    @property
    def up(self) -> list[list[float]]:
        """Where replicas fail: from when until when each of them served, likewise."""
        return self._until_the_last([] if self.breakdowns is None else self.breakdowns.up)

    def _until_the_last(self, spans: Sequence[Sequence[float]]) -> list[list[float]]:
        last_s = max((request.last_token_s for request in self.requests), default=-math.inf)
        return [[begin_s, min(gone_s, last_s)] for begin_s, gone_s in spans]

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
    def decoded(self) -> int:
        """Decode iterations, summed over the sequences; counted with drafts only."""
        return sum(replica.decoded for replica in self.replicas)

    @property
    def decoded_tokens(self) -> int:
        """Output tokens that they gave."""
        return sum(replica.decoded_tokens for replica in self.replicas)

    @property
    def peaks(self) -> tuple[float, ...]:
        """Largest quantities of any iteration (``quantities.PEAKS``), under a fitted cost."""
        return tuple(map(max, *(replica.peaks for replica in self.replicas), (0.0,) * len(PEAKS)))

    @property
    def preemptions(self) -> int:
        """How often a running request had to give up its KV."""
        return sum(replica.queues.preemptions for replica in self.replicas)


def simulate(
    cost: IterationCost | Sequence[IterationCost],
    policy: str,
    limits: Limits,
    requests: Sequence[Request],
    *,
    replicas: int = 1,
    lockstep: int = 1,
    router: Choice | RankBalance = "round_robin",
    seed: int = 0,
    users: int | None = None,
    delay_s: Delay | None = None,
    follows: Follows | None = None,
    window: int | None = None,
    leap: bool = True,
    tokens: bool = False,
    observe: Callable[[Iteration], None] | None = None,
    scaling: ScalingPolicy | None = None,
    begin_s: float | None = None,
    failures: FailurePolicy | None = None,
    forget: Callable[[Request], None] | None = None,
) -> PoolOutcome:
    """Serve fresh ``requests`` (in order of arrival) on identical replicas; their times are written into them.

    ``cost``: of the replica, or of each of its pipeline ranks; as many batches are in flight as ranks. ``policy``: a
    name of ``evaluator.policies``. ``lockstep``: every so many of the ``replicas`` are data-parallel ranks whose
    iterations start together; ``cost`` is then of a rank beside others with batches alike. ``users``, ``delay_s``:
    closed loop, in which ``arrival_s`` is set when a request is sent, see ``network.Clients``. ``follows``: which
    requests are sent after the answers to which. ``window``: tokens, for models with sliding-window layers.
    ``seed``: of a router that draws. A ``RankBalance`` looks at the replicas between iterations, so that it needs
    ``leap`` False or ``tokens``.

    ``scaling``: replicas come and go (``stations.fleet``), of which ``replicas`` are the most, from ``begin_s`` on, or
    from the first arrival (closed loop: from 0). ``failures``: they are down now and then; ``forget`` is told of
    requests that begin anew, or are lost, since their replica failed.

    ``tokens`` records the time of every token and computes each iteration from its sequences. Without it, iterations
    that differ only in contexts that grow by one are summed in closed form (a leap), which gives the same times;
    ``leap`` False turns that off. ``observe`` is called after every iteration, or leap.

    A request that can never be admitted keeps infinite times, and so do all that wait behind it on the same replica.
    Errors: InputError for an unknown policy, ValueError for limits that the policy cannot work with.
    """
    if isinstance(router, RankBalance) and ((leap and not tokens) or lockstep > 1):
        raise ValueError("RankBalance is of ranks without lockstep, one iteration after the other: say leap False")
    if failures is not None and not failures.keeps and (users is not None or follows is not None):
        # They would send all their requests at once while no replica serves.
        raise ValueError("where users wait for answers, failures keep requests that come while no replica serves")
    costs: Any = [cost] if hasattr(cost, "_fields") else cost  # a cost is a tuple itself

    made = replica_maker(limits)

    def make(index: int) -> Replica:
        return made(index, costs, policy, limits, window=window, leap=leap, tokens=tokens, observe=observe)

    if scaling is None and failures is not None:
        scaling = all_the_time(replicas)
    if scaling is not None:
        if begin_s is None:
            begin_s = requests[0].arrival_s if requests and users is None else 0.0
        breakdowns = None if failures is None else Breakdowns(failures, forget)
        fleet = ReplicaFleet(scaling, make, fleet_router(router, seed), len(requests), begin_s, breakdowns=breakdowns)
        station = FleetStation(fleet) if breakdowns is None else FailingStation(fleet, breakdowns)
        run([station], requests, users, delay_s, follows)
        return PoolOutcome(list(requests), fleet.replicas, fleet, breakdowns)
    pool = [make(index) for index in range(replicas)]
    in_lockstep(pool, lockstep)
    run([PoolStation(pool, chooser(router, pool, seed))], requests, users, delay_s, follows)
    return PoolOutcome(list(requests), pool)


def simulate_replica(
    cost: IterationCost,
    policy: str,
    limits: Limits,
    requests: Sequence[Request],
    *,
    users: int | None = None,
    prompts_resident: bool = False,
    window: int | None = None,
) -> PoolOutcome:
    """One replica, iteration by iteration, with the times of all tokens.

    ``prompts_resident``: a decode-only role; the requests have no prompt to compute, and say so themselves.
    """
    if prompts_resident and any(request.compute_tokens for request in requests):
        raise ValueError("resident prompts have compute_tokens 0")
    return simulate(cost, policy, limits, requests, users=users, window=window, tokens=True)
