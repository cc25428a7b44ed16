"""The pools of one phase as a station on a request's way, where stations before or behind have a part in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from evaluator.reference.replica import Replica
from evaluator.reference.request import Request
from evaluator.reference.stations.pool import PoolStation


class Choose(Protocol):
    """The replica for a request by the time, among those of its group where there is one."""

    def __call__(self, request: Request, now: float, group: int | None = None) -> Replica: ...


class PhaseStation:
    """``parts`` are what requests ask of this side, by their index: a prefill side computes the prompt and the first
    token, a decode side the others. So a request has a record of its own at every side; the one that travels only
    says which request it is. A request without a part here passes at once.

    ``choose`` is asked for the replica when a request comes, unless the replica was chosen before: those of one time in
    the order of their index or, ``as_sent``, in that in which clients send them. ``on_begun`` is told of parts that a
    batch computes for the first time, those of one time in the order of their index, ``on_room`` of those that got room
    (``Replica.expect``).
    """

    batches = True

    def __init__(self, pool: PoolStation, parts: Mapping[int, Request], choose: Choose, as_sent: bool = False) -> None:
        self.pool = pool
        self._as_sent = as_sent
        self.parts = parts
        self.choose = choose
        self.on_begun: Callable[[Request, float], None] | None = None
        self.on_room: Callable[[Request, float], None] | None = None
        self._arrived: list[Request] = []
        self._passing: list[Request] = []
        self._passes_s = float("inf")
        self._begun: set[int] = set()

    @property
    def next_s(self) -> float:
        """When the next batch ends, or now if requests only pass."""
        return min(self.pool.next_s, self._passes_s)

    def finish(self, now: float) -> list[Request]:
        passing, self._passing, self._passes_s = self._passing, [], float("inf")
        return passing + self.pool.finish(now)

    def submit(self, request: Request, now: float) -> None:
        part = self.parts.get(request.index)
        if part is None:
            self._passing.append(request)
            self._passes_s = now
        else:
            part.arrival_s = now
            self._arrived.append(part)

    def launch(self, now: float) -> None:
        # Routers look at the state of replicas, so that the order in which requests of one time are sent matters: by
        # index, as in the vectorised engine.
        arrived, self._arrived = self._arrived, []
        if not self._as_sent:
            arrived.sort(key=lambda part: part.index)
        for part in arrived:
            replica = self.choose(part, now) if part.replica < 0 else self.pool.replicas[part.replica]
            self.pool.enter(part, replica, now)
        if self.pool.next_s <= now:
            return  # a leap ends now that was to go on: its end comes first
        sent = self.pool.sent(now)
        if self.on_begun is not None:
            computed = [chunk.request for running_batch in sent for chunk in running_batch.batch.chunks]
            for part in sorted(computed, key=lambda part: part.index):
                self._tell_begun(part, now)
        if self.on_room is not None:
            for replica in self.pool.replicas:
                granted, replica.granted = replica.granted, []
                for part in granted:
                    self.on_room(part, now)

    def _tell_begun(self, part: Request, now: float) -> None:
        if part.index not in self._begun:
            self._begun.add(part.index)
            assert self.on_begun is not None
            self.on_begun(part, now)
