"""A pool whose replicas come and go: an autoscaler looks at them now and then, and starts or drains some.

It decides as Kubernetes' horizontal autoscaler does (kubernetes.io, "Horizontal Pod Autoscaling", algorithm details):
a metric over its target says how many replicas are wanted, within a tolerance none is started or stopped, and of what
was wanted lately the largest holds for stopping (its stabilisation window). What is summed over the replicas is shared
out among them (the autoscaler's ``AverageValue``); of a latency so many times as many are wanted as serve as it is
above its target (``Value``).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evaluator.reference.replica import Replica
from evaluator.reference.request import Request
from evaluator.reference.routing import Choose
from evaluator.reference.stations.pool import PoolStation
from evaluator.scenario.autoscaling import TTFT


def _kv_share(replica: Replica, now: float) -> float:
    """The share of its KV that is in use."""
    kv = replica.queues.kv
    return (kv.capacity - kv.free + replica.units_of_leaps(now)) / kv.capacity


METRICS: dict[str, Callable[[Replica, float], float]] = {
    "outstanding": lambda replica, now: replica.outstanding,
    "waiting": lambda replica, now: len(replica.queues.waiting),
    "kv": _kv_share,
}
"""What is summed over the replicas that serve."""


class Sample(NamedTuple):
    """What a look has seen: a sum over replicas, or over requests that had their first token since the one before."""

    at_s: float
    total: float
    weight: int  # 1, or how many requests


@dataclass(frozen=True)
class ScalingPolicy:
    """``target`` is what the metric is to be on a replica; ``start_up_s`` from a decision until a replica serves."""

    metric: str
    target: float
    least: int
    most: int
    every_s: float
    window_s: float
    cooldown_s: float
    tolerance: float
    start_up_s: float


class FleetStation:
    """Replicas are in slots, so many as there are devices for: one that drains holds its slot until it is empty.

    ``make``: a new replica in a slot, whose caches are empty. ``route``: the router of the replicas that serve, anew
    whenever they change; it is told how often they have. ``requests``: after so many have left nobody looks any more.
    """

    batches = True

    def __init__(
        self,
        policy: ScalingPolicy,
        make: Callable[[int], Replica],
        route: Callable[[Sequence[Replica], int], Choose],
        requests: int,
        begin_s: float = 0.0,
    ) -> None:
        self._policy, self._make, self._route = policy, make, route
        self._left = requests
        self.serving = [make(slot) for slot in range(policy.least)]
        self.replicas = list(self.serving)  # all that there ever were
        self.alive = [[begin_s, math.inf] for _ in self.serving]  # of each of those: from its start, until it has gone
        self._place = {replica: place for place, replica in enumerate(self.replicas)}
        self._starting: list[tuple[float, Replica]] = []
        self._draining: list[Replica] = []
        self._changes = 0
        self._choose = route(self.serving, 0)
        self._pool = PoolStation(self.replicas, lambda request, now: self._choose(request, now))
        self._look_s = begin_s + policy.every_s if requests else math.inf
        self._samples: deque[Sample] = deque()
        self._unanswered: list[Request] = []  # by their first tokens' times, who had none at the last look
        self._wanted: deque[tuple[float, int]] = deque()

    @property
    def next_s(self) -> float:
        ready_s = min((ready_s for ready_s, _ in self._starting), default=math.inf)
        return min(self._pool.next_s, self._look_s, ready_s)

    def finish(self, now: float) -> list[Request]:
        leaving = self._pool.finish(now)
        self._left -= len(leaving)
        for replica in [replica for replica in self._draining if not replica.outstanding]:
            self._draining.remove(replica)
            self._gone(replica, now)
        if not self._left:
            # The last answer is there: nobody looks any more, and what still runs is paid for until now.
            self._look_s, self._starting = math.inf, []
            for entry in self.alive:
                entry[1] = min(entry[1], now)
            return leaving
        # Who is ready before who looks: a replica that comes at the time of a look is one of those that serve.
        ready = [replica for ready_s, replica in self._starting if ready_s <= now]
        if ready:
            self._starting = [entry for entry in self._starting if entry[0] > now]
            self._serve([*self.serving, *ready])
        if self._look_s <= now:
            self._look_s = now + self._policy.every_s
            self._scale(now)
        return leaving

    def submit(self, request: Request, now: float) -> None:
        self._pool.submit(request, now)
        if self._policy.metric == TTFT and not request.refused:
            self._unanswered.append(request)
        self._left -= request.refused  # it leaves at once, and never comes to ``finish``

    def launch(self, now: float) -> None:
        self._pool.launch(now)

    def _scale(self, now: float) -> None:
        """Look at the metric, and start or drain replicas."""
        policy, current = self._policy, len(self.serving) + len(self._starting)
        self._samples.append(self._first_tokens(now) if policy.metric == TTFT else self._summed(now))
        # The last one stays, whatever the window: without one it is the metric as it is now.
        while len(self._samples) > 1 and self._samples[0].at_s <= now - policy.window_s:
            self._samples.popleft()
        weight = sum(sample.weight for sample in self._samples)
        wanted = current  # where nobody had a first token there is no metric, and nothing changes
        if weight:
            ratio = math.fsum(sample.total for sample in self._samples) / weight / policy.target
            # Of a sum it says how many replicas are needed, of a latency how many for each that serves.
            needed, basis = (
                (ratio * len(self.serving), len(self.serving)) if policy.metric == TTFT else (ratio, current)
            )
            # 1e-9: 0.3 / 0.1 is a little more than 3, and would start a fourth.
            wanted = current if abs(needed / basis - 1.0) <= policy.tolerance else math.ceil(needed - 1e-9)
        wanted = min(max(wanted, policy.least), policy.most)
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - policy.cooldown_s:
            self._wanted.popleft()
        kept = max(number for _, number in self._wanted)
        if wanted > current:
            self._start(wanted - current, now)
        elif kept < current:
            self._stop(current - kept, now)

    def _summed(self, now: float) -> Sample:
        measure = METRICS[self._policy.metric]
        return Sample(now, math.fsum(measure(replica, now) for replica in self.serving), 1)

    def _first_tokens(self, now: float) -> Sample:
        """TTFT of who had a first token since the last look, on whichever replica."""
        had = [request for request in self._unanswered if request.first_token_s <= now]
        self._unanswered = [request for request in self._unanswered if request.first_token_s > now]
        return Sample(now, math.fsum(request.first_token_s - request.arrival_s for request in had), len(had))

    def _start(self, number: int, now: float) -> None:
        taken = {replica.index for replica in (*self.serving, *self._draining, *(each for _, each in self._starting))}
        free = [slot for slot in range(self._policy.most) if slot not in taken]
        for slot in free[:number]:  # fewer where some still drain
            replica = self._make(slot)
            self._place[replica] = len(self.replicas)
            self.replicas.append(replica)
            self.alive.append([now, math.inf])
            self._starting.append((now + self._policy.start_up_s, replica))
        if not self._policy.start_up_s:
            self._serve([*self.serving, *(replica for _, replica in self._starting)])
            self._starting = []

    def _stop(self, number: int, now: float) -> None:
        """Those that do not serve yet go first, the newest of them; then those with the fewest requests."""
        while number and self._starting:
            _, replica = self._starting.pop()
            self._gone(replica, now)
            number -= 1
        if not number:
            return
        order = sorted(range(len(self.serving)), key=lambda at: (self.serving[at].outstanding, -at))
        stopped = [self.serving[at] for at in order[:number]]
        self._serve([replica for replica in self.serving if replica not in stopped])
        for replica in stopped:
            if replica.outstanding:
                self._draining.append(replica)
            else:
                self._gone(replica, now)

    def _gone(self, replica: Replica, now: float) -> None:
        self.alive[self._place[replica]][1] = now

    def _serve(self, replicas: list[Replica]) -> None:
        self.serving = replicas
        self._changes += 1
        self._choose = self._route(self.serving, self._changes)
