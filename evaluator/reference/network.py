"""The event loop of the reference: clients send requests through stations in tandem.

Why one loop for all stations: a station whose departures do not depend on what follows could be computed alone, before
the next one starts. A network with feedback cannot: users of a closed loop send again when the last station is done
with a request, and routers look at the state of replicas. Next-event simulation (Law, Simulation Modeling and Analysis,
section 1.3) runs both kinds: the clock goes to the next end or arrival, wherever it is. Stations stand in tandem, or
requests have ways of their own (``Onward``): agents that come back to a pool, stages that share one.

Order at one point in time: ends, then arrivals, then new batches. Stations that serve each request by itself start
before those that put batches together, and these from the first to the last; whenever something that was just started
ends at the same time, the round begins anew. So a request that passes stations in no time is there before the next
batch, in front of the pool as behind it, where it releases the next request of a closed loop.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from evaluator.reference.request import Request


class EventStation(Protocol):
    """One step of a request's way. It keeps its own calendar of what is under way."""

    batches: bool
    """What it starts depends on all requests that are there (else each is served by itself)."""

    @property
    def next_s(self) -> float:
        """When the next of what is under way here ends, seconds; inf if nothing is. Kept up to date by the station."""

    def finish(self, now: float) -> Sequence[Request]:
        """End what ends at ``now``: the requests that leave, in the order in which they do."""

    def submit(self, request: Request, now: float) -> None:
        """A request comes in. No new batch starts, but one under way may be set to end earlier, at ``now`` even."""

    def launch(self, now: float) -> None:
        """Start what can start; nothing may be there to start."""


class VisitTimes(NamedTuple):
    """When a request came to a station, when its service began and when it left; seconds."""

    arrived_s: float
    started_s: float
    left_s: float


Delay = Callable[[Request], float]
"""Seconds between the end of a request at the last station and its user's next one."""


Onward = Callable[[EventStation, Request], tuple[EventStation, Request]]
"""Where a request goes that leaves a station, and as what: a record that tells this visit from its others."""


class Clients:
    """Send the requests, in their order: at their times of arrival, or as ``users`` of a closed loop.

    A station, too: requests leave it when they are sent, and come back from the last station of the network. In a
    closed loop the first ``users`` requests are sent at time 0 and one more whenever an answer reaches its user, which
    is ``delay_s`` of the request after it has come back; ``arrival_s`` is set then.
    """

    batches = False

    def __init__(self, requests: Sequence[Request], users: int | None = None, delay_s: Delay | None = None) -> None:
        self._requests = requests
        self._sent = 0
        self._at_once = len(requests) if users is None else users  # these wait for no answer
        self._delay_s = delay_s
        self._due: list[float] = []  # heap: when answers reach their users
        if users is not None:
            # The first of each user are sent when the run begins; the times of the others are what the loop finds
            # out.
            for position, request in enumerate(requests):
                request.arrival_s = 0.0 if position < users else math.inf
        self.next_s = self._next_arrival()

    def _next_arrival(self) -> float:
        if self._sent >= len(self._requests):
            return math.inf
        if self._sent < self._at_once:
            return self._requests[self._sent].arrival_s
        return self._due[0] if self._due else math.inf

    def finish(self, now: float) -> Sequence[Request]:
        first = self._sent
        while self.next_s <= now:
            if self._sent >= self._at_once:
                self._requests[self._sent].arrival_s = heapq.heappop(self._due)
            self._sent += 1
            self.next_s = self._next_arrival()
        return self._requests[first : self._sent]

    def submit(self, request: Request, now: float) -> None:
        # In an open loop an answer releases nobody.
        if self._at_once < len(self._requests):
            heapq.heappush(self._due, now if self._delay_s is None else now + self._delay_s(request))
            self.next_s = self._next_arrival()

    def launch(self, now: float) -> None:
        pass


class Conversations:
    """Clients who send their next request some time after the answer to the one before.

    ``follows``: for each request the index of the one before in its conversation, -1 for the first, and the seconds
    between the answer to that one and this request. First requests are sent at their times of arrival; the others get
    ``arrival_s`` when they are sent. ``seen_s`` says when a client has an answer, not before its last token; None: with
    that token.
    """

    batches = False

    def __init__(
        self,
        requests: Sequence[Request],
        follows: Sequence[tuple[int, float]],
        seen_s: Callable[[Request], float] | None = None,
    ) -> None:
        self._seen_s = seen_s
        by_index = {request.index: request for request in requests}
        self._next: dict[int, tuple[Request, float]] = {}
        self._calendar: list[tuple[float, int, Request]] = []  # heap: who is sent when
        for request, (before, pause_s) in zip(requests, follows, strict=True):
            if before < 0:
                self._calendar.append((request.arrival_s, request.index, request))
            else:
                self._next[by_index[before].index] = request, pause_s
        heapq.heapify(self._calendar)
        self.next_s = self._calendar[0][0] if self._calendar else math.inf

    def finish(self, now: float) -> Sequence[Request]:
        sent = []
        while self._calendar and self._calendar[0][0] <= now:
            sent.append(heapq.heappop(self._calendar)[-1])
        self.next_s = self._calendar[0][0] if self._calendar else math.inf
        return sent

    def submit(self, request: Request, now: float) -> None:
        if request.index in self._next:
            following, pause_s = self._next.pop(request.index)
            following.arrival_s = (now if self._seen_s is None else self._seen_s(request)) + pause_s
            # The index breaks ties, so that requests of one time go out in the same order whichever engine runs them.
            heapq.heappush(self._calendar, (following.arrival_s, following.index, following))
            self.next_s = self._calendar[0][0]

    def launch(self, now: float) -> None:
        pass


def run(
    stations: Sequence[EventStation],
    requests: Sequence[Request],
    users: int | None = None,
    delay_s: Delay | None = None,
    clients: EventStation | None = None,
    onward: Onward | None = None,
) -> None:
    """Send fresh requests, in order of arrival, through all stations one after the other, until nothing can happen.

    ``users``, ``delay_s``: closed loop, see ``Clients``. ``clients``: others who send the requests, such as
    ``Conversations``. ``onward``: requests have ways of their own; it must say of every station, the clients too, where
    a request goes from there, and may send it back to the clients or to a station where it has been. What happened is
    in the requests and the stations. A request that a station can never start stays there.
    """
    clients = clients or Clients(requests, users, delay_s)
    ring: list[EventStation] = [clients, *stations]
    next_of = dict(zip(map(id, ring), [*stations, clients], strict=True))
    onward = onward or (lambda station, request: (next_of[id(station)], request))
    # Stable: those that serve each request by itself first, each kind in its order along the route.
    order = sorted(stations, key=lambda station: station.batches)
    while True:
        now = min([station.next_s for station in ring])
        if now == math.inf:
            return
        # The clients are first in the ring, hence last here.
        for station in reversed(ring):  # so that ends come before arrivals
            if station.next_s <= now:
                for request in station.finish(now):
                    following, same = onward(station, request)
                    following.submit(same, now)
        for station in order:
            if station.batches and min([other.next_s for other in ring if other is not station]) <= now:
                break  # a request that passes a station at once comes to the next before a batch is put together
            station.launch(now)
            # What was just started ends at once (a service of no time): its requests come to other stations before
            # these launch.
            if station.next_s <= now:
                break
