"""vLLM v0: prompts first, in iterations of their own, while the decodes wait."""

from __future__ import annotations

from evaluator.reference.batch import Batch
from evaluator.reference.queues import Queues


def continuous(queues: Queues) -> Batch:
    """Whole prompts as long as they fit; if none does, a token for everybody, and then those whose KV is there.

    The latter are swapped-out requests and resident prompts: they come in beside decodes, after the decodes have grown
    and only if nothing was preempted.
    """
    chunks = queues.admit_all(queues.limits.max_num_batched_tokens, whole=True, wanted=queues.head_computes)
    if chunks:
        return Batch(chunks)
    queues.grow_decodes()
    if not queues.short_of_kv:
        queues.admit_all(queues.limits.max_num_batched_tokens, whole=True, wanted=lambda: not queues.head_computes())
    return Batch(decodes=queues.decoding)
