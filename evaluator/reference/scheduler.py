"""Who takes part in the next iteration: first come, first served, within the limits, as each policy has it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from evaluator.reference.request import Request


@dataclass(frozen=True)
class Limits:
    """What a replica can hold and compute at once. ``kv_units`` is the capacity of the KV cache."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_units: int


@dataclass
class Batch:
    """One iteration: sequences that decode a token, and prompts with the tokens computed of each."""

    decodes: list[Request] = field(default_factory=list)
    chunks: list[tuple[Request, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.decodes or self.chunks)


@dataclass
class Queues:
    """``running`` has been admitted (its KV is reserved), ``waiting`` has arrived and has not."""

    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)

    def kv_reserved(self) -> int:
        return sum(request.kv_units for request in self.running)

    def admit(self, limits: Limits) -> Request | None:
        """Move the first waiting request to the running ones, if it has a place and its whole KV fits."""
        if not self.waiting or len(self.running) >= limits.max_num_seqs:
            return None
        if self.kv_reserved() + self.waiting[0].kv_units > limits.kv_units:
            return None
        self.running.append(self.waiting.popleft())
        return self.running[-1]


def _decoding(queues: Queues) -> list[Request]:
    return [request for request in queues.running if request.prefilled]


def _admit_whole_prompts(queues: Queues, limits: Limits, budget: int) -> list[tuple[Request, int]]:
    """Admit requests as long as the next one's whole prompt fits into the token budget."""
    chunks = []
    while queues.waiting and queues.waiting[0].compute_tokens <= budget:
        request = queues.admit(limits)
        if request is None:
            break
        chunks.append((request, request.compute_tokens))
        budget -= request.compute_tokens
    return chunks


def static(queues: Queues, limits: Limits) -> Batch:
    """FasterTransformer: a batch of requests is computed to its end before the next is admitted."""
    if queues.running:
        return Batch(decodes=list(queues.running))
    return Batch(chunks=_admit_whole_prompts(queues, limits, limits.max_num_batched_tokens))


def continuous(queues: Queues, limits: Limits) -> Batch:
    """Orca, vLLM v0: prompts first, in iterations of their own, while the decodes wait."""
    chunks = _admit_whole_prompts(queues, limits, limits.max_num_batched_tokens)
    return Batch(chunks=chunks) if chunks else Batch(decodes=list(queues.running))


def mixed(queues: Queues, limits: Limits) -> Batch:
    """Splitwise's mixed machines: whole prompts beside the decodes, within one token budget."""
    decodes = _decoding(queues)
    chunks = _admit_whole_prompts(queues, limits, limits.max_num_batched_tokens - len(decodes))
    return Batch(decodes, chunks)


def chunked(queues: Queues, limits: Limits) -> Batch:
    """Sarathi, vLLM v1: decodes first, then chunks of prompts in order up to the token budget."""
    decodes = _decoding(queues)
    budget = limits.max_num_batched_tokens - len(decodes)
    chunks = []
    partial = next((request for request in queues.running if not request.prefilled), None)
    while budget > 0:
        request = partial or queues.admit(limits)
        if request is None:
            break
        partial = None
        tokens = min(budget, request.compute_tokens - request.computed)
        chunks.append((request, tokens))
        budget -= tokens
    return Batch(decodes, chunks)


def resident(queues: Queues, limits: Limits, policy: Callable[[Queues, Limits], Batch]) -> Batch:
    """Decode-only role: prompts are here with their KV, so an admitted request decodes at once.

    ``static`` still drains before it admits; the token budget counts one token a sequence.
    """
    if not (policy is static and queues.running):
        room = limits.max_num_batched_tokens - (0 if policy in (static, continuous) else len(queues.running))
        while room > 0 and queues.admit(limits):
            room -= 1
    return Batch(decodes=list(queues.running))


SCHEDULERS: dict[str, Callable[[Queues, Limits], Batch]] = {
    "static": static,
    "continuous": continuous,
    "chunked": chunked,
    "mixed": mixed,
}
