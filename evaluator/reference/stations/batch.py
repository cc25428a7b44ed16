"""Servers that serve several requests in one pass, as many as wait: bulk service (Bailey 1954)."""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Sequence

from evaluator.reference.network import VisitTimes
from evaluator.reference.request import Request

Waiting = tuple[float, int, Request]
"""When a request came, and its index."""


class BulkServers:
    """``servers`` serve a batch each at a time; ``service_s``: seconds of a batch of 1, 2, ... requests, of which the
    last is the largest.

    A free server takes all who wait, first come, first served, up to the largest batch. If there are fewer, it waits
    until ``max_wait_s`` after the first of them came. Of several free servers the one that is free for longest serves.
    Requests that come at one time are served in the order of their index.
    """

    batches = True

    def __init__(self, servers: int, service_s: Sequence[float], max_wait_s: float = 0.0) -> None:
        if servers < 1 or not len(service_s):
            raise ValueError(f"servers and the largest batch must be at least 1, got {servers} and {len(service_s)}")
        self.visits: dict[int, VisitTimes] = {}  # by request index, of those that have left
        self.server: dict[int, int] = {}  # by request index
        self.busy_s = 0.0
        self._service_s, self._max_wait_s = service_s, max_wait_s
        self._waiting: list[Waiting] = []  # in order
        self._free = [(0.0, number) for number in range(servers)]  # heap: since when, which
        self._served: list[tuple[float, int, float, list[Waiting]]] = []  # heap: end, server, start, who
        self._woken_s = -math.inf

    @property
    def next_s(self) -> float:
        """When a batch ends or the next one starts.

        A start is told of once: after ``finish`` at that time, the batch only waits for ``launch``. If it were told of
        on, every other station that batches would hold its launch back for it, and the loop would not move.
        """
        starts_s = self._starts_s()
        return min(self._served[0][0] if self._served else math.inf, starts_s if starts_s > self._woken_s else math.inf)

    def _starts_s(self) -> float:
        """When the next batch starts, if no more requests come."""
        if not self._free or not self._waiting:
            return math.inf
        most = len(self._service_s)
        # As soon as a batch is full it need not wait any longer.
        full_s = self._waiting[most - 1][0] if len(self._waiting) >= most else math.inf
        return max(self._free[0][0], min(full_s, self._waiting[0][0] + self._max_wait_s))

    def finish(self, now: float) -> list[Request]:
        leaving, self._woken_s = [], now
        while self._served and self._served[0][0] <= now:
            end_s, number, started_s, members = heapq.heappop(self._served)
            heapq.heappush(self._free, (end_s, number))
            for arrived_s, index, request in members:
                self.visits[index] = VisitTimes(arrived_s, started_s, now)
                leaving.append(request)
        return leaving

    def submit(self, request: Request, now: float) -> None:
        bisect.insort(self._waiting, (now, request.index, request))

    def launch(self, now: float) -> None:
        while self._starts_s() <= now:
            _, number = heapq.heappop(self._free)
            members = self._waiting[: len(self._service_s)]
            del self._waiting[: len(members)]
            took_s = self._service_s[len(members) - 1]
            self.server.update((index, number) for _, index, _ in members)
            heapq.heappush(self._served, (now + took_s, number, now, members))
            self.busy_s += took_s
