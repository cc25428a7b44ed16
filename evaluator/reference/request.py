"""A request as the reference follows it through a replica, and the group of sequences with which it decodes.

A group keeps the sums that cost depends on, and knows who leaves when, and who needs a block when.

Time is counted in steps: one iteration is one step, in which every member gets a token. A member that has ``n`` tokens
to go when it joins at step ``s`` leaves at step ``s + n``. What a member has generated is known from the step at which
it joined, so a step touches only the sums and whoever leaves or needs a block.

With speculative decoding a step gives each member some tokens, as its ``curve`` says, and those to go take fewer steps.

A member with branches counts as many sequences as branches go on. All of them do a step, or none: those that end before
the last make it *narrower*.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Request:
    """What the client sends, and what has happened to it so far. Times are absolute seconds.

    Where the prompt's KV is resident (``compute_tokens`` is 0: it came from a prefill replica) its first token came
    with it, and takes a place in the KV as well.

    ``branches``: output tokens of each of several branches, ascending, of which ``output_tokens`` is the last; none
    where the request is one sequence. They share the KV of the prompt's whole blocks and decode side by side: in an
    iteration either all that have not ended get a token or none does. So one number, ``generated``, says of all of them
    how many tokens each has, and a request counts as many sequences as branches go on (``width``).

    ``curve``, of speculative decoding: tokens that the first 0, 1, 2, .. decode iterations of the request give, were
    its output long enough (``evaluator.speculation``); none where every iteration gives one. It has no branches then.
    """

    index: int
    arrival_s: float
    compute_tokens: int  # prompt tokens to compute: all but the cached prefix; 0 where the prompt's KV is resident
    prompt_tokens: int
    output_tokens: int
    kv_units: int  # KV that it occupies when finished; reserved on admission unless KV is taken on demand
    content: Sequence[int] = ()  # prefix caching: what is in its first whole blocks; same number, same tokens
    session: int = 0  # the number of its session, where that is known
    priority: float = 0  # of ``packing: priority``: the smallest goes first
    adapter: int = 0  # the number of the LoRA adapter that it names, where ``max_adapters`` bounds them
    shared_units: int = 0  # on demand: of its KV, a prefix that stays in the cache and is not counted
    branches: tuple[int, ...] = ()
    branch_units: tuple[int, ...] = ()  # of ``kv_units``, what is freed when each branch ends

    curve: Sequence[int] = ()
    max_tokens: int = 0  # what the client allows of an answer, which schedulers see; 0: what it will have

    replica: int = -1
    order: int = 0  # how many requests were sent to that replica before it
    generated: int = 0  # output tokens that are there, of each branch that goes on
    computed: int = 0  # tokens whose KV is there or is being computed
    target: int = 0  # tokens whose KV must be there before the next output token: the prompt, more after a preemption
    scheduled_s: float = math.inf
    first_token_s: float = math.inf
    last_token_s: float = math.inf
    token_s: list[float] = field(default_factory=list)  # when each output token was there, if that is recorded
    preemptions: int = 0
    refused: bool = False  # too many waited: it was sent away when it came, which all its times say
    tries: int = 0  # how often it was sent to a replica, where replicas fail
    lost: bool = False  # its replica failed, and it is not sent again: ``last_token_s`` says when its user hears of it
    aged: bool = False  # ``priority`` has what it gains while it waits
    hit_tokens: int = 0  # prompt tokens found in the prefix cache on the first admission
    host_tokens: int = 0  # those behind them that were loaded from the host before it
    storage_tokens: int = 0  # of these, those that had come there from a store of the replica's own
    shared_tokens: int = 0  # and from one that replicas share

    admission: int = -1  # how many were admitted before it
    swapped: bool = False  # preempted, with its KV kept in host memory
    units: int = 0  # KV units that it holds
    held: bool = False  # its KV stays when it is done here, until it has been sent on
    blocks: list[int] = field(default_factory=list)  # the same as block numbers, with prefix caching
    reservation: int = 0  # the number of its KV reservation at the replica
    under_way: int = 0  # where layers have KV groups: its tokens in batches under way
    batches_under_way: int = 0  # batches in flight that compute a chunk of its prompt
    group: DecodeGroup | None = None  # the sequences it decodes with; ``generated`` and ``computed`` are then as of
    since: int = 0  # this step of the group
    steps: int = 0  # decode iterations up to then; of no meaning without ``curve``

    def __post_init__(self) -> None:
        self.target = self.prompt_tokens
        self.computed = self.cached_tokens

    @property
    def resident(self) -> bool:
        """Whether the KV of its prompt comes from elsewhere."""
        return self.compute_tokens == 0

    @property
    def cached_tokens(self) -> int:
        """Leading prompt tokens whose KV is there without computing them."""
        return self.prompt_tokens - self.compute_tokens

    @property
    def generated_by_now(self) -> int:
        """Output tokens that are there, of each branch that goes on, also while it decodes with its group."""
        return self.generated if self.group is None else self.group.generated(self)

    @property
    def known_tokens(self) -> int:
        """The prompt and every token generated: what the next token attends to, itself not counted."""
        return self.prompt_tokens + self.resident + self.generated

    @property
    def width(self) -> int:
        """Sequences that go on: branches without their last token; 1 where the request is one sequence."""
        return self.width_at(self.generated)

    def width_at(self, generated: int) -> int:
        """Sequences that go on once each of them has so many tokens."""
        if not self.branches:
            return int(generated < self.output_tokens)
        return len(self.branches) - bisect_right(self.branches, generated)

    def after(self, steps: int) -> int:
        """Output tokens once so many more decode iterations are done than it had when it joined its group."""
        if not self.curve:
            return self.generated + steps
        given = self.curve[self.steps + steps] - self.curve[self.steps]
        return min(self.generated + given, self.output_tokens)

    def steps_to(self, output: int) -> int:
        """Decode iterations, from when it joined its group, until it has so many output tokens."""
        if not self.curve:
            return output - self.generated
        return bisect_left(self.curve, self.curve[self.steps] + output - self.generated) - self.steps

    @property
    def left_tokens(self) -> int:
        """Tokens still to generate, on all branches."""
        if not self.branches:
            return self.output_tokens - self.generated
        return sum(max(output - self.generated, 0) for output in self.branches)

    @property
    def context_tokens(self) -> int:
        """Tokens of the prompt and of all branches so far."""
        if not self.branches:
            return self.known_tokens
        return self.prompt_tokens + sum(self.resident + min(output, self.generated) for output in self.branches)

    @property
    def work_tokens(self) -> int:
        """Tokens still to compute and to generate."""
        return self.target - min(self.computed, self.target) + self.left_tokens

    @property
    def most_tokens(self) -> int:
        """Output tokens that it may have, as far as a scheduler knows."""
        return self.max_tokens or self.output_tokens

    @property
    def finished(self) -> bool:
        """The last token is there."""
        return self.generated == self.output_tokens

    def begin_anew(self) -> None:
        """Its replica failed: all that was done for it is gone, and its times are those of another try."""
        self.replica, self.generated, self.computed, self.target = -1, 0, self.cached_tokens, self.prompt_tokens
        self.scheduled_s = self.first_token_s = self.last_token_s = math.inf
        self.token_s, self.blocks = [], []
        self.hit_tokens = self.host_tokens = self.storage_tokens = self.shared_tokens = 0
        self.units = self.under_way = self.batches_under_way = 0
        self.admission, self.swapped, self.group, self.since, self.steps = -1, False, None, 0, 0

    def restart(self) -> None:
        """Its KV is lost: prompt and generated tokens are to be computed anew, but for a prefix cached elsewhere."""
        # After a preemption prompt and outputs are computed anew as if they were one prompt: vLLM keeps the generated
        # tokens, ``num_computed_tokens`` becomes 0. The outputs of branches that go on are computed one behind the
        # other.
        self.target = self.prompt_tokens + self.width * (self.known_tokens - self.prompt_tokens)
        self.computed = 0 if self.resident else self.cached_tokens

    def spans(self, low: int, high: int) -> list[tuple[int, int]]:
        """Tokens ``low + 1 .. high`` to compute, as tokens of sequences: those after the first of each that it ends at.

        They are tokens of one sequence but for a request with branches that lost its KV: it computes its prompt anew,
        and then, branch after branch, what those that go on have generated.
        """
        if not self.branches or high <= self.prompt_tokens:
            return [(low, high)]
        prompt, suffix = self.prompt_tokens, self.known_tokens - self.prompt_tokens
        spans = [(low, prompt)] if low < prompt else []
        # Each branch attends to the prompt and to its own outputs alone, so that its tokens count from the end of the
        # prompt.
        for start in range(prompt, self.target, suffix):
            first, last = max(low, start), min(high, start + suffix)
            if first < last:
                spans.append((prompt + first - start, prompt + last - start))
        return spans


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
        self._events: list[int] = []  # heap of steps at which something changes; some are out of date

    def __len__(self) -> int:
        """Sequences."""
        return self.sequences

    def join(self, request: Request) -> None:
        """A request joins: its next token is made by the next step."""
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
        # The sums are taken back as of now. Its entry in ``_crossing`` gets a counterpart of the opposite sign, so
        # that nothing has to be searched for.
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
        # Leaving members are not looked up in the heap; their entries are passed over when they come to its front.
        # The ends of the members that are left are always there, so that it is never empty.
        while self._events[0] <= self.step:
            heapq.heappop(self._events)
        return self._events[0] - self.step

    def due(self, ahead: int = 0) -> Iterable[Request]:
        """Members whose KV opens a new block in the step after ``ahead`` more; with drafts any of them may."""
        if self._drafts:
            return self.members
        return self._due.get((self.step + ahead) % self._block, ())

    def opening(self, steps: range, opened: bool, filled: bool) -> Sequence[int]:
        """The steps ahead that open a block for a member (``opened``), or fill one (``filled``)."""
        if self._drafts:
            return steps
        due, block, now = self._due, self._block, self.step
        # A step fills the block behind which the next one opens another. Members that left are no more in their
        # dictionary, which stays.
        return [
            ahead
            for ahead in steps
            if (opened and due.get((now + ahead) % block)) or (filled and due.get((now + ahead + 1) % block))
        ]

    def steps_within(self, units: int, most: int) -> int:
        """How many steps, at least one and up to ``most``, surely need no more KV units, the next one apart."""
        # Most often there is KV for all: then it need not be counted who opens a block when.
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
            # The sequences that ended are taken off here, also of a request that is done: it leaves with a width of
            # 0.
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
