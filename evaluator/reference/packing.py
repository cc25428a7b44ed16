"""Which waiting request is looked at first. Those behind it wait, even where they would fit."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from evaluator.reference.request import Request


class WaitingQueue(Protocol):
    """Requests that have arrived and are not admitted."""

    @property
    def stable(self) -> bool:
        """A request that arrives never gets before one that waits."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...
    def push(self, request: Request) -> None:
        """One that arrives."""

    def push_back(self, request: Request) -> None:
        """One that was preempted."""

    def head(self) -> Request:
        """The first one."""

    def pop(self) -> Request:
        """The first one, which leaves."""

    def skip(self, requests: Sequence[Request]) -> None:
        """Put requests back that could not be admitted now, in their order, before all others."""

    def remove(self, request: Request) -> None:
        """One that needs no place any more."""


class Fcfs:
    """First come, first served; preempted requests are a stack in front, the earliest admitted on top."""

    stable = True

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()
        self._skipped: deque[Request] = deque()  # vLLM ``Scheduler.skipped_waiting``

    def __len__(self) -> int:
        return len(self._queue) + len(self._skipped)

    def push(self, request: Request) -> None:
        self._queue.append(request)

    def __iter__(self) -> Iterator[Request]:
        return iter((*self._skipped, *self._queue))

    def push_back(self, request: Request) -> None:
        # Victims are preempted from the last admitted on; each stands before the one preempted before it, so that
        # they come back in the order in which they were admitted (vLLM: ``waiting.prepend_request``).
        self._queue.appendleft(request)

    def head(self) -> Request:
        return (self._skipped or self._queue)[0]

    def pop(self) -> Request:
        return (self._skipped or self._queue).popleft()

    def skip(self, requests: Sequence[Request]) -> None:
        self._skipped.extendleft(reversed(requests))

    def remove(self, request: Request) -> None:
        (self._skipped if request in self._skipped else self._queue).remove(request)


class RetractedLast(Fcfs):
    """First come, first served; a preempted request joins at the end, as if new (SGLang ``_add_request_to_queue``)."""

    def push_back(self, request: Request) -> None:
        self._queue.append(request)


class InOrderOfRoom(Fcfs):
    """In the order of KV reservations, not of arrivals (vLLM keeps ``WAITING_FOR_REMOTE_KVS`` in its queue's order)."""

    def push(self, request: Request) -> None:
        place = len(self._queue)
        while place and self._queue[place - 1].reservation > request.reservation:
            place -= 1
        self._queue.insert(place, request)


class LongestPrefix(RetractedLast):
    """The longest cached prefix first; a policy of SGLang arranges the queue so before it admits any (``arrange``)."""

    stable = False

    def arrange(self, requests: Sequence[Request]) -> None:
        """All that wait, in a new order."""
        self._queue = deque(requests)


class LeastWorkLeft:
    """The fewest tokens to compute and to generate first, preempted or not; ties: first come, first served."""

    stable = False

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (entry[-1] for entry in sorted(self._heap))

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.work_tokens, request.index, request))

    push_back = push

    def skip(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.push(request)

    def remove(self, request: Request) -> None:
        # Linear, and rare: a request that was preempted in flight got its last token all the same.
        self._heap = [entry for entry in self._heap if entry[-1] is not request]
        heapq.heapify(self._heap)

    def head(self) -> Request:
        return self._heap[0][-1]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[-1]


class ByPriority(LeastWorkLeft):
    """The smallest ``priority`` first, preempted or not; ties: first come, first served (vLLM ``policy: priority``)."""

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.priority, request.index, request))

    push_back = push


class ReservedFirst:
    """Requests with a KV reservation before those that lost their KV in a preemption.

    Else a preempted request that finds no KV would keep from running the very requests that have it.
    """

    stable = False

    def __init__(self, packing: type[Fcfs] | type[LeastWorkLeft], in_order: bool = False) -> None:
        self._holding: WaitingQueue = InOrderOfRoom() if in_order and packing is Fcfs else packing()
        self._preempted: WaitingQueue = packing()

    def __len__(self) -> int:
        return len(self._holding) + len(self._preempted)

    def __iter__(self) -> Iterator[Request]:
        return iter((*self._holding, *self._preempted))

    def push(self, request: Request) -> None:
        self._holding.push(request)

    def push_back(self, request: Request) -> None:
        self._preempted.push_back(request)

    def skip(self, requests: Sequence[Request]) -> None:
        for request in reversed(requests):
            self.push_back(request)

    def remove(self, request: Request) -> None:
        self._preempted.remove(request)

    def head(self) -> Request:
        return self._first().head()

    def pop(self) -> Request:
        return self._first().pop()

    def _first(self) -> WaitingQueue:
        return self._holding or self._preempted


PACKINGS: dict[str, type[Fcfs] | type[LeastWorkLeft]] = {
    "fcfs": Fcfs,
    "retracted_last": RetractedLast,
    "longest_prefix": LongestPrefix,
    "least_work_left": LeastWorkLeft,
    "priority": ByPriority,
}
