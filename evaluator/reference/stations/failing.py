"""A pool whose replicas fail and come back, one that an autoscaler looks at or not."""

from __future__ import annotations

from evaluator.reference.failures import Breakdowns
from evaluator.reference.request import Request
from evaluator.reference.stations.fleet import FleetStation, ReplicaFleet


class FailingStation(FleetStation):
    """At one point in time: ends of batches, failures, what the router notices of them, replicas that come to serve,
    and then those that are sent again."""

    def __init__(self, fleet: ReplicaFleet, breakdowns: Breakdowns) -> None:
        super().__init__(fleet)
        self._breakdowns = breakdowns

    @property
    def next_s(self) -> float:
        return min(super().next_s, self._breakdowns.next_s)

    def finish(self, now: float) -> list[Request]:
        breakdowns, fleet = self._breakdowns, self.fleet
        leaving = self._pool.finish(now)
        breakdowns.leave(leaving)
        for replica in breakdowns.fail(now):
            self._pool.fail(replica, now)
        for replica, serves_s in breakdowns.notice(now):
            fleet.fell_out(replica, serves_s, now)
        lost = self._lost()
        fleet.after(leaving, now)
        if fleet.serving:
            for request in breakdowns.again():
                self._send(request, now)
                fleet.lose(request.refused)
        self._end(now)
        return leaving + lost  # an error is an answer, too, to users who wait for one

    def submit(self, request: Request, now: float) -> None:
        if self.fleet.serving:
            self._send(request, now)
        else:
            self._breakdowns.finds_nobody(request, now)
            self._lost()  # nobody waits for their answers, see ``simulate``
        self.fleet.came(request)
        self._end(now)

    def _send(self, request: Request, now: float) -> None:
        replica = self.fleet.choose(request, now)
        if self._breakdowns.comes(request, replica):
            return  # to one that is down, which nobody knows yet
        self._pool.enter(request, replica, now)
        if request.refused:
            self._breakdowns.leave([request])

    def _lost(self) -> list[Request]:
        """Take the requests that were lost since the last call."""
        lost, self._breakdowns.lost = self._breakdowns.lost, []
        self.fleet.lose(len(lost))
        return lost

    def _end(self, now: float) -> None:
        if self.fleet.done:
            self.fleet.after((), now)  # the last one may have left as it came
            self._breakdowns.end(now)
