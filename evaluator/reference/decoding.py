"""Sequences that decode together: the sums that cost depends on, who leaves when, and who needs a block when.

Time is counted in steps: one iteration is one step, in which every member gets a token. A member that has ``n`` tokens
to go when it joins at step ``s`` leaves at step ``s + n``. What a member has generated is known from the step at which
it joined, so a step touches only the sums and whoever leaves or needs a block.

With speculative decoding a step gives each member some tokens, as its ``curve`` says, and those to go take fewer steps.

A member with branches counts as many sequences as branches go on. All of them do a step, or none: those that end before
the last make it *narrower*.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from evaluator.reference.request import Request


class DecodeGroup:
    """Members in the order in which they joined, and their sums.

    ``window`` 0: no windowed layers. ``block_tokens`` 0: nobody asks who needs a block. ``drafts``: tokens that each
    member may get of a step beyond the first one.
    """

    def __init__(self, window: int, block_tokens: int, drafts: int = 0) -> None:
        self.step = 0
        self.preempted: list[Request] = []  # while the group is in flight: their token is still to come
        self.members: dict[Request, None] = {}
        self.sequences = 0  # of all members
        self.forked: dict[Request, None] = {}  # members with branches that have not written KV of their own yet
        self.context = 0  # tokens that the next step attends to
        self.window_context = 0
        self.growing = 0  # sequences whose windowed context still grows
        self._window = window
        self._block = block_tokens
        self._drafts = drafts
        self._ending: dict[int, dict[Request, None]] = {}  # by the step after which they leave, or become narrower
        self._crossing: dict[int, int] = {}  # how many stop growing after which step
        self._due: dict[int, dict[Request, None]] = {}  # by step modulo the block: the next token opens a block
        self._events: list[
            int
        ] = []  # heap of steps at which something changes; some are out of date, which does no harm

    def __len__(self) -> int:
        """Sequences."""
        return self.sequences

    def join(self, request: Request) -> None:
        """Its next token is made by the next step."""
        request.group = self
        request.since = self.step
        self.members[request] = None
        self._count(request.known_tokens, request.width)
        for output in request.branches or (request.output_tokens,):
            if output > request.generated:
                self._ends(request, self.step + request.steps_to(output))
        if request.branches:
            self.forked[request] = None
        if self._block:
            self._due.setdefault((self.step - request.computed) % self._block, {})[request] = None

    def _ends(self, request: Request, step: int) -> None:
        if step not in self._ending:
            self._ending[step] = {}
            heapq.heappush(self._events, step)
        self._ending[step][request] = None

    def _count(self, attends: int, sequences: int) -> None:
        """So many sequences more (or less, below 0) that attend to so many tokens in the next step."""
        self.sequences += sequences
        self.context += sequences * attends
        if self._window:
            self.window_context += sequences * min(attends, self._window)
            if attends < self._window:
                self._stops_growing(self.step + self._window - attends, sequences)

    def leave(self, request: Request) -> None:
        """Finished, preempted or on its way to another group: what it has generated is written into it."""
        if self._block:
            del self._due[(request.since - request.computed) % self._block][request]
        request.computed, request.generated, request.steps = (
            self.computed(request), self.generated(request), request.steps + self.step - request.since
        )  # fmt: skip
        request.group = None
        del self.members[request]
        self.forked.pop(request, None)
        self._count(request.known_tokens, -request.width)
        for output in request.branches or (request.output_tokens,):
            self._ending.get(self.step + request.steps_to(output), {}).pop(request, None)

    def _stops_growing(self, step: int, sequences: int) -> None:
        self.growing += sequences
        self._crossing[step] = self._crossing.get(step, 0) + sequences
        if sequences > 0:
            heapq.heappush(self._events, step)

    def generated(self, request: Request) -> int:
        """Output tokens of a member."""
        return request.after(self.step - request.since)

    def gain(self, request: Request, steps: int = 1) -> int:
        """Output tokens that so many more steps give a member, on each of its branches."""
        return request.after(self.step + steps - request.since) - self.generated(request)

    def tokens(self, steps: int) -> int:
        """Output tokens that so many more steps give, no more than to the next event."""
        if not self._drafts:
            return steps * self.sequences
        return sum(self.gain(request, steps) for request in self.members)

    def computed(self, request: Request) -> int:
        """Tokens of a member that are in the KV before the next step."""
        return request.computed + self.generated(request) - request.generated

    def steps_to_event(self) -> int:
        """Up to here all steps are alike but for contexts that grow by one."""
        while self._events[0] <= self.step:
            heapq.heappop(self._events)
        return self._events[0] - self.step

    def due(self, ahead: int = 0) -> Iterable[Request]:
        """Members to whom the step after ``ahead`` more opens a new block; with drafts any may need one."""
        if self._drafts:
            return self.members
        return self._due.get((self.step + ahead) % self._block, ())

    def steps_within(self, units: int, most: int) -> int:
        """How many steps, at least one and up to ``most``, surely need no more KV units, the next one apart."""
        if self.sequences * -(-most // self._block) <= units:
            return most
        for ahead in range(1, most):
            units -= sum(request.width_at(self.generated(request)) for request in self.due(ahead))
            if units < 0:
                return ahead
        return most

    def advance(self, steps: int) -> tuple[list[Request], list[Request]]:
        """Do so many steps, no more than to the next event: (members with their last token, which leave; those of which
        only some branches have theirs)."""
        self.window_context += self._window_growth(steps)
        self.context += self.tokens(steps)
        self.step += steps
        self.growing -= self._crossing.pop(self.step, 0)
        self.forked.clear()
        finished: list[Request] = []
        narrower: list[Request] = []
        for request in list(self._ending.pop(self.step, ())):
            generated = self.generated(request)
            width = request.width_at(generated)
            attends = request.prompt_tokens + request.resident + generated
            self._count(attends, width - request.width_at(generated - 1))
            (narrower if width else finished).append(request)
        for request in finished:
            self.leave(request)
        return finished, narrower

    def _window_growth(self, steps: int) -> int:
        """Tokens that so many steps add to the windowed context."""
        if not self._drafts or not self._window:
            return steps * self.growing
        attended = ((request.prompt_tokens + request.resident + self.generated(request), self.gain(request, steps))
                    for request in self.members)  # fmt: skip
        return sum(min(now + more, self._window) - min(now, self._window) for now, more in attended)

    def absorb(self, other: DecodeGroup) -> None:
        """Take over all members of another group."""
        for request in list(other.members):
            other.leave(request)
            self.join(request)
