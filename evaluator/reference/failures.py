"""When the replicas of a pool fail and are repaired, slot by slot, and what becomes of the requests that they have."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.reference.replica import Replica
from evaluator.reference.request import Request


@dataclass(frozen=True)
class FailurePolicy:
    """When each slot is down: known ``outages``, (from, until) in order of time, or draws of exponential times.

    ``tries``: how often a request is sent at most. ``keeps``: those that come while no replica serves wait for one,
    else they are lost. ``draws`` gives the random numbers of a slot.
    """

    tries: int
    keeps: bool
    noticed_after_s: float
    start_up_s: float
    mtbf_s: float = math.inf
    mttr_s: float = 0.0
    outages: Sequence[Sequence[tuple[float, float]]] = ()
    draws: Callable[[int], np.random.Generator] = np.random.default_rng


class Outages:
    """When whichever replica stands in one slot is down."""

    def __init__(self, policy: FailurePolicy, slot: int) -> None:
        self._policy = policy
        self._known = policy.outages[slot] if slot < len(policy.outages) else ()
        self._passed = 0  # of these, how many were over when last asked
        self._draws = policy.draws(slot) if policy.mtbf_s < math.inf else None

    def after(self, now: float) -> tuple[float, float]:
        """From when until when the replica that begins to serve now is down next; infinite if it never fails."""
        if self._draws is not None:
            # The exponential time does not remember: how long the machine was there before makes no difference.
            fails_s = now + self._policy.mtbf_s * self._draws.standard_exponential()
            return fails_s, fails_s + self._policy.mttr_s * self._draws.standard_exponential()
        while self._passed < len(self._known) and self._known[self._passed][1] <= now:
            self._passed += 1  # what is over by now was, or fell into a time in which nothing served
        if self._passed == len(self._known):
            return math.inf, math.inf
        begin_s, end_s = self._known[self._passed]
        return max(begin_s, now), end_s


class Breakdowns:
    """Which replicas of a fleet are down, and the requests that they had.

    A failed replica is *down* until the router notices, and its requests stay with it so long. ``waiting`` are those
    that are to be sent again, and those that came while no replica served.
    """

    def __init__(self, policy: FailurePolicy, forget: Callable[[Request], None] | None = None) -> None:
        self._policy, self._forget = policy, forget
        self._outages: dict[int, Outages] = {}
        self._at: dict[Replica, dict[Request, None]] = {}  # who is there and has no answer yet
        self._where: dict[Request, Replica] = {}
        self._due: list[tuple[float, int, float, Replica]] = []  # heap: (fails, ties, repaired, who)
        self._down: dict[Replica, tuple[float, float]] = {}  # (noticed, serves again)
        self._span: dict[Replica, int] = {}
        self.up: list[list[float]] = []  # of each replica that served: from when until when
        self.waiting: list[Request] = []
        self.lost: list[Request] = []  # since ``FailingStation`` last took them

    @property
    def next_s(self) -> float:
        """When the next replica fails, or a failure is noticed."""
        noticed_s = min((noticed_s for noticed_s, _ in self._down.values()), default=math.inf)
        return min(noticed_s, self._due[0][0] if self._due else math.inf)

    def serves(self, replica: Replica, now: float) -> None:
        """A replica serves from now on, until it fails or has gone."""
        slot = replica.index
        if slot not in self._outages:
            self._outages[slot] = Outages(self._policy, slot)
        fails_s, repaired_s = self._outages[slot].after(now)
        self._at[replica], self._span[replica] = {}, len(self.up)
        self.up.append([now, math.inf])
        if fails_s < math.inf:
            heapq.heappush(self._due, (fails_s, self._span[replica], repaired_s, replica))

    def gone(self, replica: Replica, now: float) -> None:
        """A replica was stopped and has answered all: it cannot fail any more."""
        self._ends(replica, now)
        self._at.pop(replica, None)
        self._down.pop(replica, None)

    def fail(self, now: float) -> list[Replica]:
        """The replicas that fail now."""
        failed = []
        while self._due and self._due[0][0] <= now:
            _, _, repaired_s, replica = heapq.heappop(self._due)
            if replica in self._at:  # else it has gone before
                serves_s = repaired_s + self._policy.start_up_s
                # A replica that is back says so itself: what it had is broken then at the latest.
                self._down[replica] = min(now + self._policy.noticed_after_s, serves_s), serves_s
                self._ends(replica, now)
                failed.append(replica)
        return failed

    def notice(self, now: float) -> list[tuple[Replica, float]]:
        """The failed replicas that the router leaves out from now on, and when each slot serves again."""
        noticed = [(replica, down[1]) for replica, down in self._down.items() if down[0] <= now]
        for replica, _ in noticed:
            del self._down[replica]
            for request in self._at.pop(replica):
                del self._where[request]
                self._broke(request, now)
        return noticed

    def comes(self, request: Request, replica: Replica) -> bool:
        """A request is sent to a replica; whether that is down, so that the request is not served there."""
        request.tries += 1
        self._at[replica][request], self._where[request] = None, replica
        if replica not in self._down:
            return False
        replica.announce(request)
        return True

    def finds_nobody(self, request: Request, now: float) -> None:
        """A request comes while no replica serves."""
        if self._policy.keeps:
            self.waiting.append(request)
        else:
            self._lose(request, now)

    def again(self) -> list[Request]:
        """Take the requests that are to be sent again, in the order of their arrival."""
        waiting, self.waiting = self.waiting, []
        return sorted(waiting, key=lambda request: request.index)

    def leave(self, requests: Sequence[Request]) -> None:
        """Requests have their last tokens, or were refused."""
        for request in requests:
            del self._at[self._where.pop(request)][request]

    def end(self, now: float) -> None:
        """Nobody is left to be answered."""
        self._due.clear()
        self._down.clear()
        for span in self.up:
            span[1] = min(span[1], now)

    def _broke(self, request: Request, now: float) -> None:
        if self._forget is not None:
            self._forget(request)
        if request.tries >= self._policy.tries:
            self._lose(request, now)
        else:
            request.begin_anew()
            self.waiting.append(request)

    def _lose(self, request: Request, now: float) -> None:
        self.lost.append(request)
        request.lost, request.last_token_s = True, now
        # As of who is refused: all its times are there, and none of them is a latency.
        request.scheduled_s, request.first_token_s = min(request.scheduled_s, now), min(request.first_token_s, now)

    def _ends(self, replica: Replica, now: float) -> None:
        if replica in self._span:  # else it has never served
            span = self.up[self._span[replica]]
            span[1] = min(span[1], now)
