"""A pool whose replicas come and go: an autoscaler looks at them now and then, and starts or drains some.

It decides as Kubernetes' horizontal autoscaler does (kubernetes.io, "Horizontal Pod Autoscaling", algorithm details):
a metric over its target says how many replicas are wanted, within a tolerance none is started or stopped, and of what
was wanted lately the largest holds for stopping (its stabilisation window). What is summed over the replicas is shared
out among them (the autoscaler's ``AverageValue``); of a latency so many times as many are wanted as serve as it is
above its target (``Value``). With a second threshold it goes by one replica at a look, up above the one and down below
the other, as Dynamo's load-based planner (docs/planner/load_planner.md there).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evaluator.reference.failures import Breakdowns
from evaluator.reference.replica import Replica
from evaluator.reference.request import Request
from evaluator.reference.routing import Choose, kv_share
from evaluator.reference.stations.phase import Choose as ChooseInGroup
from evaluator.reference.stations.phase import PhaseStation
from evaluator.reference.stations.pool import PoolStation
from evaluator.scenario.autoscaling import LATENCIES, OUTPUT_RATE, PROMPT_RATE, TPOT, TREND, TTFT

METRICS: dict[str, Callable[[Replica, float], float]] = {
    "outstanding": lambda replica, now: replica.outstanding,
    "waiting": lambda replica, now: len(replica.queues.waiting),
    "kv": kv_share,
    # Both counters lose a token with each that a decode gives, so that leaps under way do not matter.
    "prompt_tokens": lambda replica, now: replica.queues.work_tokens - replica.queues.output_tokens,
}
"""What is summed over the replicas that serve."""


class Sample(NamedTuple):
    """What a look has seen: a sum over replicas, or over requests since the look before."""

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
    lower: float | None = None  # of two thresholds the other one
    predictor: str = "mean"

    def foreseen(self, samples: Sequence[Sample]) -> float | None:
        """The metric that the samples of the window foretell; None where there are none.

        By its trend it is on the line of least squares through the looks, when a replica would serve that is started
        now and as long as it is decided about: at the end of the next interval behind its start-up.
        """
        weight = sum(sample.weight for sample in samples)
        if not weight:
            return None
        mean = math.fsum(sample.total for sample in samples) / weight
        if self.predictor != TREND:
            return mean
        now = samples[-1].at_s
        middle = math.fsum(sample.at_s - now for sample in samples) / weight
        spread = math.fsum((sample.at_s - now - middle) ** 2 for sample in samples)
        together = math.fsum((sample.at_s - now - middle) * (sample.total - mean) for sample in samples)
        slope = together / spread if spread > 0 else 0.0
        return max(mean + slope * (self.start_up_s + self.every_s - middle), 0.0)

    def wanted(self, metric: float, serving: int, current: int) -> int:
        """How many replicas, of which ``serving`` serve and ``current`` do or start; within no bounds."""
        ratio = metric / self.target
        # Of a sum it says how many replicas are needed, of a latency how many for each that serves.
        latency = self.metric in LATENCIES
        if self.lower is not None:
            per_replica = metric if latency else metric / serving
            return current + (per_replica > self.target) - (per_replica < self.lower)
        needed, basis = (ratio * serving, serving) if latency else (ratio, current)
        # 1e-9: 0.3 / 0.1 is a little more than 3, and would start a fourth.
        return current if abs(needed / basis - 1.0) <= self.tolerance else math.ceil(needed - 1e-9)


def all_the_time(replicas: int) -> ScalingPolicy:
    """The policy of a fleet that never changes: so many replicas, without an autoscaler that looks."""
    return ScalingPolicy(
        "outstanding", 1.0, replicas, replicas, every_s=math.inf, window_s=0.0, cooldown_s=0.0, tolerance=0.0,
        start_up_s=0.0,
    )  # fmt: skip


class ReplicaFleet:
    """Replicas in slots, so many as there are devices for: one that drains holds its slot until it is empty.

    ``make``: a new replica in a slot, whose caches are empty. ``route``: the router of the replicas that serve, anew
    whenever they change; it is told how often they have. ``requests``: after so many have left nobody looks any more.
    ``breakdowns``: replicas fail, and others come back in their slots.
    """

    def __init__(
        self,
        policy: ScalingPolicy,
        make: Callable[[int], Replica],
        route: Callable[[Sequence[Replica], int], Choose],
        requests: int,
        begin_s: float = 0.0,
        budget: DeviceBudget | None = None,
        breakdowns: Breakdowns | None = None,
    ) -> None:
        self.policy, self._make, self._route = policy, make, route
        self._left, self._budget, self._breakdowns = requests, budget, breakdowns
        self.serving = [make(slot) for slot in range(policy.least)]
        self.replicas = list(self.serving)  # all that there ever were
        # Of each slot the newest replica, of those that were never used one that never is: to ask what all are alike
        # in, and to find by its slot who serves a request.
        self.slots = [*self.serving, *(make(slot) for slot in range(policy.least, policy.most))]
        # Of each of those: from its start until it has gone; infinite until the end of the run.
        self.alive = [[begin_s, math.inf] for _ in self.serving]
        self._place = {replica: place for place, replica in enumerate(self.replicas)}
        self._starting: list[tuple[float, Replica]] = []
        self._draining: list[Replica] = []
        self._changes = 0
        self._choose = route(self.serving, 0)
        for replica in self.serving:
            self._begins(replica, begin_s)
        self._look_s = begin_s + policy.every_s if requests else math.inf
        self._samples: deque[Sample] = deque()
        self._unanswered: list[Request] = []  # by their first tokens' times, who had none at the last look
        self._answered: list[Request] = []  # who left since the last look
        self._came_tokens = 0  # prompt tokens to compute, or output tokens, of who came since then
        self._wanted: deque[tuple[float, int]] = deque()
        if budget is not None:
            budget.fleets.append(self)

    @property
    def next_s(self) -> float:
        """The next look, or when the next replica serves."""
        return min(self._look_s, min((ready_s for ready_s, _ in self._starting), default=math.inf))

    @property
    def current(self) -> int:
        """Replicas that serve or start."""
        return len(self.serving) + len(self._starting)

    @property
    def held(self) -> int:
        """Replicas that have devices: those and the ones that drain."""
        return self.current + len(self._draining)

    @property
    def done(self) -> bool:
        """Whether all requests have left."""
        return not self._left

    @property
    def looks(self) -> bool:
        """Whether the autoscaler still looks: it stops behind the last request."""
        return self._look_s < math.inf

    def choose(self, request: Request, now: float) -> Replica:
        """The serving replica that the router sends a request to."""
        return self._choose(request, now)

    def came(self, request: Request) -> None:
        """A request was sent here."""
        outputs = self.policy.metric == OUTPUT_RATE
        self._came_tokens += request.output_tokens if outputs else request.compute_tokens
        if self.policy.metric == TTFT and not request.refused:
            self._unanswered.append(request)
        self._left -= request.refused  # it leaves at once, and never comes to ``after``

    def after(self, leaving: Sequence[Request], now: float) -> None:
        """Requests have left: replicas that have drained are gone, those that have started serve, and it may be time to
        look."""
        self._left -= len(leaving)
        if self.policy.metric == TPOT:
            self._answered += leaving
        self.let_go(now)
        if not self._left:
            # The last answer is there: nobody looks any more, and what is there stays until the run ends.
            self._look_s, self._starting = math.inf, []
            if self._budget is not None:
                self._budget.settle(now)
            return
        # Who is ready before who looks: a replica that comes at the time of a look is one of those that serve.
        self._come(now)
        if self._look_s <= now:
            self._look_s = now + self.policy.every_s
            self._look(now)

    def _come(self, now: float) -> None:
        """Replicas that have started by now serve."""
        ready = [replica for ready_s, replica in self._starting if ready_s <= now]
        if ready:
            self._starting = [entry for entry in self._starting if entry[0] > now]
            self._serve([*self.serving, *ready])
            for replica in ready:
                self._begins(replica, now)

    def let_go(self, now: float) -> None:
        """Draining replicas without requests go, once the KV that they keep for transfers has been sent."""
        for replica in [replica for replica in self._draining if not replica.outstanding and not replica.keeps]:
            self._draining.remove(replica)
            self._gone(replica, now)

    def fell_out(self, replica: Replica, serves_s: float, now: float) -> None:
        """The router has noticed that a replica is down; one that drained does not come back."""
        replica.discard_cache()
        if replica in self._draining:
            self._draining.remove(replica)
            self._gone(replica, now)
            return
        # What comes back is another one, whose caches are empty; it is paid for all the time.
        back = self._make(replica.index)
        self._place[back] = self._place[replica]
        self.replicas.append(back)
        self.slots[back.index] = back
        self._starting.append((serves_s, back))
        self._serve([other for other in self.serving if other is not replica])

    def lose(self, requests: int) -> None:
        """So many were lost: they never come to ``after``."""
        self._left -= requests

    def _begins(self, replica: Replica, now: float) -> None:
        if self._breakdowns is not None:
            self._breakdowns.serves(replica, now)

    def _look(self, now: float) -> None:
        """Look at the metric: how many replicas there are to be."""
        policy, current = self.policy, self.current
        self._samples.append(self._seen(now))
        self._came_tokens = 0
        # The last one stays, whatever the window: without one it is the metric as it is now.
        while len(self._samples) > 1 and self._samples[0].at_s <= now - policy.window_s:
            self._samples.popleft()
        metric = policy.foreseen(self._samples)
        # Where nobody had a token there is no latency, and where none serves no metric: nothing changes.
        wanted = current if metric is None or not self.serving else policy.wanted(metric, len(self.serving), current)
        wanted = min(max(wanted, policy.least), policy.most)
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - policy.cooldown_s:
            self._wanted.popleft()
        most_wanted = max(number for _, number in self._wanted)
        number = wanted if wanted > current else min(most_wanted, current)
        if self._budget is None:
            self.become(number, now)
        else:
            self._budget.tell(self, number, now)

    def become(self, number: int, now: float) -> None:
        """There are to be so many, those that start counted."""
        if number > self.current:
            self._start(number - self.current, now)
        elif number < self.current:
            self._stop(self.current - number, now)

    def _seen(self, now: float) -> Sample:
        name = self.policy.metric
        if name in (PROMPT_RATE, OUTPUT_RATE):
            return Sample(now, self._came_tokens / self.policy.every_s, 1)
        if name == TTFT:
            return self._first_tokens(now)
        if name == TPOT:
            return self._times_per_token(now)
        return Sample(now, math.fsum(METRICS[name](replica, now) for replica in self.serving), 1)

    def _first_tokens(self, now: float) -> Sample:
        """TTFT of the requests that had their first token since the last look, on any replica."""
        self._unanswered = [request for request in self._unanswered if not request.lost]
        had = [request for request in self._unanswered if request.first_token_s <= now]
        self._unanswered = [request for request in self._unanswered if request.first_token_s > now]
        return Sample(now, math.fsum(request.first_token_s - request.arrival_s for request in had), len(had))

    def _times_per_token(self, now: float) -> Sample:
        """TPOT of the requests that left since the last look with more than one token from here."""
        answered, self._answered = [request for request in self._answered if request.output_tokens > 1], []
        tpots = ((request.last_token_s - request.first_token_s) / (request.output_tokens - 1) for request in answered)
        return Sample(now, math.fsum(tpots), len(answered))

    def _start(self, number: int, now: float) -> None:
        taken = {
            replica.index for replica in (*self.serving, *self._draining, *(replica for _, replica in self._starting))
        }
        free = [slot for slot in range(self.policy.most) if slot not in taken]
        if self._budget is not None:
            number = min(number, self._budget.room(self))
        for slot in free[:number]:  # fewer where some still drain
            replica = self._make(slot)
            self._place[replica] = len(self.alive)
            self.replicas.append(replica)
            self.slots[slot] = replica
            self.alive.append([now, math.inf])
            self._starting.append((now + self.policy.start_up_s, replica))
        if not self.policy.start_up_s:
            self._come(now)

    def _stop(self, number: int, now: float) -> None:
        """Stop so many replicas: those that do not serve yet, the newest first; then those with the fewest requests."""
        while number and self._starting:
            _, replica = self._starting.pop()
            self._gone(replica, now)
            number -= 1
        if not number:
            return
        order = sorted(range(len(self.serving)), key=lambda index: (self.serving[index].outstanding, -index))
        stopped = [self.serving[index] for index in order[:number]]
        self._serve([replica for replica in self.serving if replica not in stopped])
        self._draining += stopped
        self.let_go(now)

    def _gone(self, replica: Replica, now: float) -> None:
        self.alive[self._place[replica]][1] = now
        if self._breakdowns is not None:
            self._breakdowns.gone(replica, now)

    def _serve(self, replicas: list[Replica]) -> None:
        self.serving = replicas
        self._changes += 1
        if replicas:  # while none serves nobody is sent anywhere
            self._choose = self._route(self.serving, self._changes)


class DeviceBudget:
    """Devices that the fleets of several pools share: their looks are at the same times, and decided about together.

    Where they want more than there is, the first gets its share in proportion to what all want, rounded, and each after
    it what is left, as Dynamo's planner shares ``max_gpu_budget`` between prefill and decode
    (``Planner._compute_replica_requirements``), but never beyond the budget. None gets less than its least.
    """

    def __init__(self, devices: int, of_replica: Sequence[int]) -> None:
        self._devices, self._of_replica = devices, of_replica
        self.fleets: list[ReplicaFleet] = []
        self._numbers: dict[ReplicaFleet, int] = {}

    def tell(self, fleet: ReplicaFleet, number: int, now: float) -> None:
        """A fleet wants so many replicas by its look."""
        self._numbers[fleet] = number
        self.settle(now)

    def settle(self, now: float) -> None:
        """When all that look have said what they want, they become what they may."""
        if not self._numbers or any(fleet.looks and fleet not in self._numbers for fleet in self.fleets):
            return
        # Whose last request has left looks no more, and stays as it is.
        wanted = [self._numbers.get(fleet, fleet.current) if fleet.looks else fleet.current for fleet in self.fleets]
        self._numbers = {}
        pairs = list(zip(self.fleets, self._shared(wanted), strict=True))
        # Those that shrink first: what is empty at once is free for those that grow.
        for fleet, allowed in sorted(pairs, key=lambda pair: pair[1] - pair[0].current):
            if fleet.looks:
                fleet.become(allowed, now)

    def room(self, fleet: ReplicaFleet) -> int:
        """Replicas that a fleet can start: those that still drain have their devices."""
        taken = sum(other.held * devices for other, devices in zip(self.fleets, self._of_replica, strict=True))
        return (self._devices - taken) // self._of_replica[self.fleets.index(fleet)]

    def _shared(self, wanted: Sequence[int]) -> list[int]:
        devices_wanted = sum(number * devices for number, devices in zip(wanted, self._of_replica, strict=True))
        if devices_wanted <= self._devices:
            return list(wanted)
        left, allowed = self._devices, []
        later = sum(fleet.policy.least * devices for fleet, devices in zip(self.fleets, self._of_replica, strict=True))
        for place, (fleet, devices) in enumerate(zip(self.fleets, self._of_replica, strict=True)):
            later -= fleet.policy.least * devices  # what those behind it get in any case
            share = round(wanted[place] * self._devices / devices_wanted) if place + 1 < len(wanted) else wanted[place]
            allowed.append(max(min(share, (left - later) // devices), fleet.policy.least))
            left -= allowed[-1] * devices
        return allowed


class FleetStation:
    """A pool of such replicas, alone or in a chain."""

    batches = True

    def __init__(self, fleet: ReplicaFleet) -> None:
        self.fleet = fleet
        self._pool = PoolStation(fleet.slots, fleet.choose)

    @property
    def next_s(self) -> float:
        return min(self._pool.next_s, self.fleet.next_s)

    def finish(self, now: float) -> list[Request]:
        leaving = self._pool.finish(now)
        self.fleet.after(leaving, now)
        return leaving

    def submit(self, request: Request, now: float) -> None:
        self._pool.submit(request, now)
        self.fleet.came(request)

    def launch(self, now: float) -> None:
        self._pool.launch(now)


class FleetPhase(PhaseStation):
    """A side of such replicas, on a request's way through a network."""

    def __init__(self, fleet: ReplicaFleet, parts: Mapping[int, Request], choose: ChooseInGroup, as_sent: bool) -> None:
        super().__init__(PoolStation(fleet.slots, choose), parts, choose, as_sent)
        self._fleet = fleet

    @property
    def next_s(self) -> float:
        return min(super().next_s, self._fleet.next_s)

    def finish(self, now: float) -> list[Request]:
        leaving = super().finish(now)
        # Who only passes is known by no part of this side.
        self._fleet.after([part for part in leaving if self.parts.get(part.index) is part], now)
        return leaving

    def submit(self, request: Request, now: float) -> None:
        super().submit(request, now)
        if request.index in self.parts:
            self._fleet.came(self.parts[request.index])

    def launch(self, now: float) -> None:
        self._fleet.let_go(now)  # the last KV that a replica kept may have been sent
        super().launch(now)
