"""Decodes, and now and then a look at the waiting requests, admitted by their future peak of KV (LightLLM)."""

from __future__ import annotations

from evaluator.policies import BatchingPolicy
from evaluator.reference.batch import Batch
from evaluator.reference.queues import Queues
from evaluator.reference.request import Request


def looking(queues: Queues, policy: BatchingPolicy) -> Batch:
    """Whole prompts, alone in an iteration, if no request runs or ``look_every`` decodes after the last look.

    A look that admits no request counts as the last look, too, and the iteration decodes.
    """
    every = queues.limits.look_every
    waited = queues.decode_iterations - queues.looked_at
    # LightLLM looks at its queue every so many decodes only, so that decodes are not held up by every prompt that
    # comes.
    if not queues.running or (waited and waited % every == 0):
        chunks = queues.admit_all(
            queues.limits.max_num_batched_tokens, whole=True, wanted=lambda: peak_tokens(queues) <= queues.kv.capacity
        )
        if queues.admitted:
            queues.looked_at, waited = queues.decode_iterations, 0
        if chunks:
            return Batch(chunks)
    queues.grow_decodes()
    # A leap ends with the decode before the next look; where no request waits nothing is looked at, and an arrival ends
    # it.
    return Batch(decodes=queues.decoding, most=every - waited % every if queues.waiting else 1 << 30)


def peak_tokens(queues: Queues) -> int:
    """Most KV tokens that the running requests and the first waiting one will hold at once, if all go on together.

    KV is largest just before a request leaves. With the sequences in order of their remaining tokens, most first, that
    is, for each of them, what it and those before it hold now, plus its remaining tokens for every one of them.
    """
    requests = (*queues.running, queues.waiting.head())
    sequences = sorted((_held_and_left(request) for request in requests), key=lambda sequence: -sequence[1])
    held = peak = 0
    # After ``left`` more decodes this one and those before it, which have at least as many to go, are still there:
    # each holds what it holds now and ``left`` tokens more; those behind it have left.
    for count, (now, left) in enumerate(sequences, 1):
        held += now
        peak = max(peak, held + count * left)
    return peak


def _held_and_left(request: Request) -> tuple[int, int]:
    """Tokens in the KV before the next decode, and decodes to go."""
    if request.group is not None:
        return request.group.computed(request), request.output_tokens - request.group.generated(request)
    comes_with_prompt = 0 if request.resident else 1
    return request.target, request.output_tokens - request.generated - comes_with_prompt
