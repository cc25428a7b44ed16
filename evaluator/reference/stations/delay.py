"""A pure delay: every request is served at once, beside all others (G/G/infinity)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

from evaluator.reference.network import VisitTimes
from evaluator.reference.request import Request


class DelayStation:
    """``seconds``: seconds by request index. Requests may overtake each other."""

    batches = False

    def __init__(self, seconds: Sequence[float] | Mapping[int, float]) -> None:
        self.next_s = math.inf
        self.visits: dict[int, VisitTimes] = {}  # by request index, of those that have left
        self.seconds = seconds
        self._under_way: list[tuple[float, int, Request, float]] = []  # heap: end, entry, request, arrival
        self._entries = 0

    def finish(self, now: float) -> list[Request]:
        leaving = []
        while self.next_s <= now:
            _, _, request, arrived_s = heapq.heappop(self._under_way)
            self.visits[request.index] = VisitTimes(arrived_s, arrived_s, now)
            leaving.append(request)
            self.next_s = self._under_way[0][0] if self._under_way else math.inf
        return leaving

    def submit(self, request: Request, now: float) -> None:
        heapq.heappush(self._under_way, (now + self.seconds[request.index], self._entries, request, now))
        self._entries += 1
        self.next_s = self._under_way[0][0]

    def launch(self, now: float) -> None:
        pass  # it started when it came
