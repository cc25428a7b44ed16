"""A queue in front of identical servers: first come, first served (G/G/c)."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence

from evaluator.reference.network import VisitTimes
from evaluator.reference.request import Request


class Fifo:
    """``servers`` serve one request each at a time; ``seconds``: seconds by request index.

    Requests that come at one time are served in the order of their index.
    """

    batches = False

    def __init__(self, servers: int, seconds: Sequence[float] | Mapping[int, float]) -> None:
        if servers < 1:
            raise ValueError(f"servers must be at least 1, got {servers}")
        self.next_s = math.inf
        self.visits: dict[int, VisitTimes] = {}  # by request index, of those that have left
        self._servers = servers
        self.busy_s = 0.0
        self.seconds = seconds
        self._arrived: list[tuple[Request, float]] = []  # since the last launch
        self._waiting: deque[tuple[Request, float]] = deque()  # with its time of arrival
        self._served: list[tuple[float, int, Request, float, float]] = []  # heap: end, entry, request, arrival, start
        self._entries = 0

    def finish(self, now: float) -> list[Request]:
        leaving = []
        while self.next_s <= now:
            _, _, request, arrived_s, started_s = heapq.heappop(self._served)
            self.visits[request.index] = VisitTimes(arrived_s, started_s, now)
            leaving.append(request)
            self.next_s = self._served[0][0] if self._served else math.inf
        return leaving

    def submit(self, request: Request, now: float) -> None:
        self._arrived.append((request, now))

    def launch(self, now: float) -> None:
        # Requests that come at one time come from several stations in no order of meaning; by their index two runs
        # are alike.
        self._waiting.extend(sorted(self._arrived, key=lambda arrival: arrival[0].index))
        self._arrived.clear()
        while self._waiting and len(self._served) < self._servers:
            request, arrived_s = self._waiting.popleft()
            end_s = now + self.seconds[request.index]
            self.busy_s += self.seconds[request.index]
            heapq.heappush(self._served, (end_s, self._entries, request, arrived_s, now))
            self._entries += 1
            self.next_s = self._served[0][0]
