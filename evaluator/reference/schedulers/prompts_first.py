"""Prompts first, in iterations of their own, while the decodes wait (vLLM v0)."""

from __future__ import annotations

from evaluator.policies import BatchingPolicy
from evaluator.reference.batch import Batch
from evaluator.reference.queues import Queues


def prompts_first(queues: Queues, policy: BatchingPolicy) -> Batch:
    """Whole prompts as long as they fit; if none does, a token for every decoding request.

    Waiting requests with no prompt to compute (swapped out, or with a resident prompt) are admitted beside the decodes,
    after these have their KV for the next token and only if no request was preempted for it.
    """
    chunks = queues.admit_all(queues.limits.max_num_batched_tokens, whole=True, wanted=queues.head_computes)
    if chunks:
        return Batch(chunks)
    # Before any request is admitted beside them: those that run take precedence.
    queues.grow_decodes()
    if not queues.short_of_kv:
        queues.admit_all(queues.limits.max_num_batched_tokens, whole=True, wanted=lambda: not queues.head_computes())
    return Batch(decodes=queues.decoding)
