"""A pool of engine replicas behind a router, as one station."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from evaluator.reference.lockstep import launch_together
from evaluator.reference.replica import Replica
from evaluator.reference.request import Request
from evaluator.reference.routing import Choose
from evaluator.reference.running_batch import RunningBatch


class PoolStation:
    """The router sees the replicas as of the arrival. A request leaves with its last token.

    The calendar holds the ends of running batches. An arrival may bring the end of one forward: it is entered again
    then, and the entry at its former end, which is no longer that of the batch, is passed over.
    """

    batches = True

    def __init__(self, replicas: Sequence[Replica], choose: Choose) -> None:
        self.next_s = math.inf
        self.replicas = replicas
        self._choose = choose
        self._calendar: list[tuple[float, int, RunningBatch, Replica]] = []  # heap; ties: in the order of entry
        self._entries = 0
        self._touched: dict[Replica, None] = {}  # where something ended or arrived since the last launch, in order

    def finish(self, now: float) -> list[Request]:
        leaving: list[Request] = []
        calendar = self._calendar
        while self.next_s <= now:
            _, _, running_batch, replica = heapq.heappop(calendar)
            leaving += replica.finish(running_batch)
            replica.report_after(now)
            self._touched[replica] = None
            self._pass_over()
        return leaving

    def _pass_over(self) -> None:
        # Entries of running batches that were cut short: these end earlier, and have other entries for that, or never.
        calendar = self._calendar
        while calendar and calendar[0][0] != calendar[0][2].end_s:
            heapq.heappop(calendar)
        self.next_s = calendar[0][0] if calendar else math.inf

    def submit(self, request: Request, now: float) -> None:
        self.enter(request, self._choose(request, now), now)

    def enter(self, request: Request, replica: Replica, now: float) -> None:
        """A request comes to a replica that was chosen before."""
        self._touch(replica, replica.submit(request, now))

    def expect(self, request: Request, replica: Replica, now: float) -> None:
        """A request will come to a replica when there is room for its KV."""
        self._touch(replica, replica.expect(request, now))

    def fail(self, replica: Replica, now: float) -> None:
        """A replica is down: nothing that is under way there ends any more."""
        replica.fail(now)
        self._touched.pop(replica, None)
        self._pass_over()

    def release(self, request: Request, now: float) -> None:
        """The KV of a request that was held here has been sent."""
        replica = self.replicas[request.replica]
        replica.release(request, now)
        self._touched[replica] = None

    def _touch(self, replica: Replica, cut_short: RunningBatch | None) -> None:
        if cut_short is not None:
            # Ranks in lockstep end together, so that all of their running batches were cut short.
            for rank in replica.lockstep_ranks:
                self._enter(rank.running_batches[0], rank)
        self._touched[replica] = None

    def launch(self, now: float) -> None:
        self.sent(now)

    def sent(self, now: float) -> list[RunningBatch]:
        """Start what can start: the batches that were sent off."""
        running_batches: list[RunningBatch] = []
        for replica in self._touched:
            replica.report_before(now)
        for ranks in dict.fromkeys(replica.lockstep_ranks for replica in self._touched):
            for running_batch, replica in self._launched(ranks, now):
                self._enter(running_batch, replica)
                running_batches.append(running_batch)
        self._touched.clear()
        return running_batches

    def _launched(self, ranks: tuple[Replica, ...], now: float) -> list[tuple[RunningBatch, Replica]]:
        if len(ranks) > 1:
            return launch_together(ranks, now)
        return [(running_batch, ranks[0]) for running_batch in ranks[0].launch(now)]

    def _enter(self, running_batch: RunningBatch, replica: Replica) -> None:
        heapq.heappush(self._calendar, (running_batch.end_s, self._entries, running_batch, replica))
        self._entries += 1
        self.next_s = min(self.next_s, running_batch.end_s)
