"""A batch of requests is computed to its end before the next one is admitted."""

from __future__ import annotations

from evaluator.policies import BatchingPolicy
from evaluator.reference.batch import Batch
from evaluator.reference.queues import Queues


def drained(queues: Queues, policy: BatchingPolicy) -> Batch:
    """All prompts of a batch in one iteration, then its decodes. Nothing joins; what has finished leaves a gap."""
    if queues.running:
        queues.grow_decodes()
        return Batch(decodes=queues.decoding)
    chunks = queues.admit_all(queues.limits.max_num_batched_tokens, whole=True)
    # Without chunks, either no request could be admitted, or those that were came with a prompt that is resident and
    # decode.
    return Batch(chunks) if chunks else Batch(decodes=queues.decoding)
