"""Tiers of storage: a request asks one after the other for its context, and waits for the transfer from there."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from evaluator.reference.network import VisitTimes
from evaluator.reference.request import Request


class TierStation(NamedTuple):
    """``sharing`` replicas have one such tier together; ``transfers`` of it run at a time, inf for any number."""

    lookup_s: float
    bandwidth: float  # byte/s of each transfer
    sharing: int = 1
    transfers: float = 1


Holds = Callable[[Request, int, int], bool]
"""Whether a tier, given by its number and that of the group of replicas which share it, has a request's context."""


class _Asking(NamedTuple):
    """A request that has been looked up in a tier, or whose context has come from there."""

    end_s: float
    entry: int  # at one time those first who began first
    request: Request
    tier: int
    transferred: bool


class Tiers:
    """``size`` are the bytes of contexts and ``replica`` whose tiers are asked, both by request index.

    A request whose context no tier has leaves after its last lookup. Lookups take time and wait for nobody.
    """

    batches = False

    def __init__(
        self, tiers: Sequence[TierStation], size: Sequence[float], replica: Sequence[int], holds: Holds
    ) -> None:
        self.next_s = math.inf
        self.visits: dict[int, VisitTimes] = {}  # by request index; the service is what it takes without waiting
        self.found: dict[int, int] = {}  # by request index: the tier, or the number of tiers
        self._tiers, self._size, self._replica, self._holds = tiers, size, replica, holds
        self._arrived_s: dict[int, float] = {}
        self._calendar: list[_Asking] = []
        self._waiting: dict[tuple[int, int], deque[Request]] = {}  # by tier and group
        self._running: dict[tuple[int, int], int] = {}
        self._entries = 0

    def finish(self, now: float) -> list[Request]:
        leaving = []
        while self.next_s <= now:
            asking = heapq.heappop(self._calendar)
            left = self._transferred(asking) if asking.transferred else self._looked_up(asking)
            if left is not None:
                leaving.append(left)
            self.next_s = self._calendar[0].end_s if self._calendar else math.inf
        return leaving

    def submit(self, request: Request, now: float) -> None:
        self._arrived_s[request.index] = now
        if self._tiers:
            self._enter(now + self._tiers[0].lookup_s, request, 0, transferred=False)
        else:
            self._enter(now, request, -1, transferred=False)

    def launch(self, now: float) -> None:
        for (tier, group), waiting in self._waiting.items():
            while waiting and self._running.get((tier, group), 0) < self._tiers[tier].transfers:
                request = waiting.popleft()
                self._running[tier, group] = self._running.get((tier, group), 0) + 1
                takes_s = self._size[request.index] / self._tiers[tier].bandwidth
                self._enter(now + takes_s, request, tier, transferred=True)

    def _enter(self, end_s: float, request: Request, tier: int, transferred: bool) -> None:
        heapq.heappush(self._calendar, _Asking(end_s, self._entries, request, tier, transferred))
        self._entries += 1
        self.next_s = self._calendar[0].end_s

    def _looked_up(self, asking: _Asking) -> Request | None:
        """It waits for its transfer, asks the next tier, or leaves."""
        request, tier = asking.request, asking.tier
        if tier >= 0:
            group = self._replica[request.index] // self._tiers[tier].sharing
            if self._holds(request, tier, group):
                self._waiting.setdefault((tier, group), deque()).append(request)
                return None
        if tier + 1 < len(self._tiers):
            self._enter(asking.end_s + self._tiers[tier + 1].lookup_s, request, tier + 1, transferred=False)
            return None
        return self._leave(request, asking.end_s, len(self._tiers))

    def _transferred(self, asking: _Asking) -> Request:
        group = self._replica[asking.request.index] // self._tiers[asking.tier].sharing
        self._running[asking.tier, group] -= 1
        return self._leave(asking.request, asking.end_s, asking.tier)

    def _leave(self, request: Request, left_s: float, tier: int) -> Request:
        self.found[request.index] = tier
        took_s = sum(asked.lookup_s for asked in self._tiers[: tier + 1])
        if tier < len(self._tiers):
            took_s += self._size[request.index] / self._tiers[tier].bandwidth
        self.visits[request.index] = VisitTimes(self._arrived_s.pop(request.index), left_s - took_s, left_s)
        return request
