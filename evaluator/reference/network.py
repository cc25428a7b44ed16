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
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Follows:
    """For each request, by its place: those whose answers it waits for, and how long after them it is sent.

    A request that waits for none opens a session. The one that no other waits for ends it, and ``rest_s`` is from its
    answer until the user may open another one.
    """

    before: Sequence[Sequence[int]]
    pause_s: Sequence[float]
    rest_s: Sequence[float]


class Clients:
    """Send the requests: at their times of arrival, as users of a closed loop, or after the answers to others.

    A station, too: requests leave it when they are sent, and come back from the last station of the network.
    ``follows`` says which request is sent after the answers to which; None: none, each is a session of its own. The
    first ones of sessions, in their order, are sent at their times of arrival; in a closed loop only those of the first
    ``users`` sessions, at time 0, and the next one whenever a user has the last answer of a session. An answer reaches
    its user ``delay_s`` of the request after it has come back; ``arrival_s`` of all that wait for one is set then.
    """

    batches = False

    def __init__(
        self,
        requests: Sequence[Request],
        users: int | None = None,
        delay_s: Delay | None = None,
        follows: Follows | None = None,
    ) -> None:
        self._requests, self._delay_s = requests, delay_s
        self._place = {request.index: place for place, request in enumerate(requests)}
        nobody: list[Sequence[int]] = [()] * len(requests)
        none = [0.0] * len(requests)
        self._follows = follows or Follows(nobody, none, none)
        self._missing = [len(before) for before in self._follows.before]  # answers that each still waits for
        self._seen_s = list(none)  # when the last of those that are there was
        self._after: dict[int, list[int]] = {}
        for place, before in enumerate(self._follows.before):
            for answer in before:
                self._after.setdefault(answer, []).append(place)
        opening = [place for place in range(len(requests)) if not self._missing[place]]
        at_once = len(opening) if users is None else users  # these wait for no answer
        # Whoever is free opens the next in this line, so that of two answers at one time it makes no difference which
        # is seen first.
        self._line = deque(opening[at_once:])
        for request in requests if users is not None else ():
            # The times of all but the first of each user are what the loop finds out.
            request.arrival_s = math.inf
        for place in opening[:at_once] if users is not None else ():
            requests[place].arrival_s = 0.0
        # (when, index of the request or -1 for the next in line): the index breaks ties, so that requests of one time
        # go out in the same order whichever engine runs them.
        self._calendar = [(requests[place].arrival_s, requests[place].index) for place in opening[:at_once]]
        heapq.heapify(self._calendar)
        self.next_s = self._calendar[0][0] if self._calendar else math.inf

    def finish(self, now: float) -> Sequence[Request]:
        sent = []
        while self.next_s <= now:
            at_s, index = heapq.heappop(self._calendar)
            request = self._requests[self._line.popleft() if index < 0 else self._place[index]]
            request.arrival_s = at_s
            sent.append(request)
            if index < 0 and not self._line:
                # The users who are free later find no session to open, and leave.
                self._calendar = [entry for entry in self._calendar if entry[1] >= 0]
                heapq.heapify(self._calendar)
            self.next_s = self._calendar[0][0] if self._calendar else math.inf
        return sent

    def submit(self, request: Request, now: float) -> None:
        place = self._place[request.index]
        after = self._after.get(place, ())
        if not after and not self._line:
            return  # no request waits for this answer, as in an open loop
        seen_s = now if self._delay_s is None else now + self._delay_s(request)
        if not after:
            heapq.heappush(self._calendar, (seen_s + self._follows.rest_s[place], -1))
        for following in after:
            self._missing[following] -= 1
            self._seen_s[following] = max(self._seen_s[following], seen_s)
            if not self._missing[following]:
                sent_s = self._seen_s[following] + self._follows.pause_s[following]
                heapq.heappush(self._calendar, (sent_s, self._requests[following].index))
        self.next_s = self._calendar[0][0] if self._calendar else math.inf

    def launch(self, now: float) -> None:
        pass


def run(
    stations: Sequence[EventStation],
    requests: Sequence[Request],
    users: int | None = None,
    delay_s: Delay | None = None,
    follows: Follows | None = None,
    onward: Callable[[EventStation], Onward] | None = None,
) -> None:
    """Send fresh requests, in order of arrival, through all stations one after the other, until nothing can happen.

    ``users``, ``delay_s``, ``follows``: who sends them when, see ``Clients``. ``onward``: requests have ways of their
    own; given the clients, it must say of every station, the clients too, where a request goes from there, and may send
    it back to the clients or to a station where it has been. What happened is in the requests and the stations. A
    request that a station can never start stays there.
    """
    clients = Clients(requests, users, delay_s, follows)
    ring: list[EventStation] = [clients, *stations]
    next_of = dict(zip(map(id, ring), [*stations, clients], strict=True))
    on = (lambda station, request: (next_of[id(station)], request)) if onward is None else onward(clients)
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
                    following, same = on(station, request)
                    following.submit(same, now)
        for station in order:
            if station.batches and min([other.next_s for other in ring if other is not station]) <= now:
                break  # a request that passes a station at once comes to the next before a batch is put together
            station.launch(now)
            # What was just started ends at once (a service of no time): its requests come to other stations before
            # these launch.
            if station.next_s <= now:
                break
