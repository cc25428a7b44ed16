"""A request as the reference follows it through a replica."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evaluator.reference.decoding import DecodeGroup


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
    priority: int = 0  # of ``packing: priority``: the smallest goes first
    shared_units: int = 0  # on demand: of its KV, a prefix that stays in the cache and is not counted
    branches: tuple[int, ...] = ()
    branch_units: tuple[int, ...] = ()  # of ``kv_units``, what is freed when each branch ends

    curve: Sequence[int] = ()

    replica: int = -1
    generated: int = 0  # output tokens that are there, of each branch that goes on
    computed: int = 0  # tokens whose KV is there or is being computed
    target: int = (
        0  # tokens whose KV must be there before the next output token comes: prompt, or more after preemption
    )
    scheduled_s: float = math.inf
    first_token_s: float = math.inf
    last_token_s: float = math.inf
    token_s: list[float] = field(default_factory=list)  # when each output token was there, if that is recorded
    preemptions: int = 0
    hit_tokens: int = 0  # prompt tokens found in the prefix cache on the first admission

    admission: int = -1  # how many were admitted before it
    swapped: bool = False  # preempted, with its KV kept in host memory
    units: int = 0  # KV units that it holds
    held: bool = False  # its KV stays when it is done here, until it has been sent on
    blocks: list[int] = field(default_factory=list)  # the same as block numbers, with prefix caching
    flights: int = 0  # batches in flight that compute a chunk of its prompt
    group: DecodeGroup | None = None  # the sequences it decodes with; ``generated`` and ``computed`` are then as of
    since: int = 0  # this step of the group
    steps: int = 0  # decode iterations up to then; of no meaning without ``curve``

    def __post_init__(self) -> None:
        self.target = self.prompt_tokens
        self.computed = self.cached_tokens

    @property
    def resident(self) -> bool:
        """Its prompt's KV comes from elsewhere."""
        return self.compute_tokens == 0

    @property
    def cached_tokens(self) -> int:
        """Leading prompt tokens whose KV is there without computing them."""
        return self.prompt_tokens - self.compute_tokens

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
    def finished(self) -> bool:
        """The last token is there."""
        return self.generated == self.output_tokens

    def restart(self) -> None:
        """Its KV is lost: prompt and generated tokens are to be computed anew, but for a prefix cached elsewhere."""
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
        found = [(low, prompt)] if low < prompt else []
        for start in range(prompt, self.target, suffix):
            first, last = max(low, start), min(high, start + suffix)
            if first < last:
                found.append((prompt + first - start, prompt + last - start))
        return found
