"""Sequences that decode together: the sums that cost depends on, who leaves when, and who needs a block when.

Time is counted in steps: one iteration is one step, in which every member gets a token. A member that has ``n`` tokens
to go when it joins at step ``s`` leaves at step ``s + n``. What a member has generated is known from the step at which
it joined, so a step touches only the sums and whoever leaves or needs a block.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from evaluator.reference.request import Request


class DecodeGroup:
    """Members in the order in which they joined, and their sums.

    ``window`` 0: no windowed layers. ``block_tokens`` 0: nobody asks who needs a block.
    """

    def __init__(self, window: int, block_tokens: int) -> None:
        self.step = 0
        self.members: dict[Request, None] = {}
        self.context = 0  # tokens that the next step attends to
        self.window_context = 0
        self.growing = 0  # members whose windowed context still grows
        self._window = window
        self._block = block_tokens
        self._leaving: dict[int, dict[Request, None]] = {}  # by the step after which they leave
        self._crossing: dict[int, int] = {}  # how many stop growing after which step
        self._due: dict[int, dict[Request, None]] = {}  # by step modulo the block: the next token opens a block
        self._events: list[
            int
        ] = []  # heap of steps at which something changes; some are out of date, which does no harm

    def __len__(self) -> int:
        return len(self.members)

    def join(self, request: Request) -> None:
        """Its next token is made by the next step."""
        request.group = self
        request.since = self.step
        self.members[request] = None
        attends = request.known_tokens
        self.context += attends
        if self._window:
            self.window_context += min(attends, self._window)
            if attends < self._window:
                self._stops_growing(self.step + self._window - attends, 1)
        last = self.step + request.output_tokens - request.generated
        if last not in self._leaving:
            self._leaving[last] = {}
            heapq.heappush(self._events, last)
        self._leaving[last][request] = None
        if self._block:
            self._due.setdefault((self.step - request.computed) % self._block, {})[request] = None

    def leave(self, request: Request) -> None:
        """Finished, preempted or on its way to another group: what it has generated is written into it."""
        if self._block:
            del self._due[(request.since - request.computed) % self._block][request]
        request.computed, request.generated = self.computed(request), self.generated(request)
        request.group = None
        del self.members[request]
        attends = request.known_tokens
        self.context -= attends
        if self._window:
            self.window_context -= min(attends, self._window)
            if attends < self._window:
                self._stops_growing(self.step + self._window - attends, -1)
        self._leaving.get(self.step + request.output_tokens - request.generated, {}).pop(request, None)

    def _stops_growing(self, step: int, members: int) -> None:
        self.growing += members
        self._crossing[step] = self._crossing.get(step, 0) + members
        if members > 0:
            heapq.heappush(self._events, step)

    def generated(self, request: Request) -> int:
        """Output tokens of a member."""
        return request.generated + self.step - request.since

    def computed(self, request: Request) -> int:
        """Tokens of a member that are in the KV before the next step."""
        return request.computed + self.step - request.since

    def steps_to_event(self) -> int:
        """Up to here all steps are alike but for contexts that grow by one."""
        while self._events[0] <= self.step:
            heapq.heappop(self._events)
        return self._events[0] - self.step

    def due(self, ahead: int = 0) -> Iterable[Request]:
        """Members to whom the step after ``ahead`` more opens a new block."""
        return self._due.get((self.step + ahead) % self._block, ())

    def steps_within(self, units: int, most: int) -> int:
        """How many steps, at least one and up to ``most``, surely need no more KV units, the next one apart."""
        if len(self.members) * -(-most // self._block) <= units:
            return most
        for ahead in range(1, most):
            units -= len(self._due.get((self.step + ahead) % self._block, ()))
            if units < 0:
                return ahead
        return most

    def advance(self, steps: int) -> list[Request]:
        """Do so many steps, no more than to the next event. Those with their last token leave, and are returned."""
        self.context += steps * len(self.members)
        self.window_context += steps * self.growing
        self.step += steps
        self.growing -= self._crossing.pop(self.step, 0)
        finished = list(self._leaving.pop(self.step, ()))
        for request in finished:
            self.leave(request)
        return finished

    def absorb(self, other: DecodeGroup) -> None:
        """Take over all members of another group."""
        for request in list(other.members):
            other.leave(request)
            self.join(request)
