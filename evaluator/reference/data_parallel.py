"""Which data-parallel rank vLLM gives a request to, by what its frontend knows of the ranks.

The frontend knows exactly which requests it has sent and not seen finish. Of what waits and runs it knows what the
coordinator last told it: ranks report their counts before and after an iteration, and the coordinator hands them on
some time later, all at once. Until then the frontend adds what it sends to what it knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.reference.replica import Replica
from evaluator.reference.request import Request

_UNCHANGED_MS = 5000  # vLLM ``DPCoordinatorProc.process_input_socket``: told again where nothing has changed


@dataclass(frozen=True)
class RankBalance:
    """vLLM's balance of ranks that do not wait for one another, with one frontend (0.28). ``stats_ms``: between two
    messages of the coordinator, at least (``min_stats_update_interval_ms``)."""

    stats_ms: int = 100


class RankBalancer:
    """vLLM ``DPLBAsyncMPClient.get_core_engine_for_request`` and the part of ``DPCoordinatorProc`` that counts."""

    def __init__(self, choice: RankBalance, ranks: Sequence[Replica]) -> None:
        self._stats_ms = choice.stats_ms
        self._ranks = ranks
        self._reported: list[tuple[int, int, float]] = [(0, 0, 0.0)] * len(ranks)
        self.known = [[0, 0, 0.0] for _ in ranks]  # by the frontend: waiting, running, share of the KV in use
        self._changed = False
        self._told_ms = 0
        self._first = 0  # rank that is looked at first
        self._arm(0.0)
        for rank in ranks:
            rank.report = self._report

    def __call__(self, request: Request, now: float) -> Replica:
        self._advance(now)
        best, least = 0, math.inf
        for step in range(len(self._ranks)):
            rank = (self._first + step) % len(self._ranks)
            waiting, running, usage = self.known[rank]
            # Those that wait count more where the KV is short, up to four times.
            load = max(self._ranks[rank].outstanding, waiting + running) + waiting * 6.0 * max(0.0, usage - 0.5)
            if load < least:
                best, least = rank, load
        self.known[best][0] += 1
        # Of equally loaded ranks another is taken each time.
        self._first = (self._first + 1) % len(self._ranks)
        return self._ranks[best]

    def _report(self, rank: Replica, waiting: int, now: float) -> None:
        """Called before and after an iteration: notes how many requests wait and run, if that has changed."""
        running, (waited, ran, _) = len(rank.queues.running), self._reported[rank.index]
        if (waiting, running) != (waited, ran):
            self._advance(now)
            kv = rank.queues.kv
            self._reported[rank.index] = waiting, running, 1.0 - kv.free / kv.capacity
            self._changed = True
            self._arm(now)

    def _arm(self, now: float) -> None:
        """When the coordinator speaks next, if nothing comes before: its clock counts whole milliseconds."""
        wait_ms = self._stats_ms if self._changed else _UNCHANGED_MS
        self._due_s = now + max(wait_ms - (int(now * 1000) - self._told_ms), 0) / 1000

    def _advance(self, now: float) -> None:
        """The coordinator tells what it knows whenever its time has come before now."""
        while self._due_s < now:
            due_s, self._changed = self._due_s, False
            self.known = [list(counts) for counts in self._reported]
            self._told_ms = int(due_s * 1000)
            self._arm(due_s)
