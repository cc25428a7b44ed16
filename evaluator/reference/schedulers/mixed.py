"""Splitwise's mixed machines: whole prompts beside the decodes, within one token budget."""

from __future__ import annotations

from evaluator.reference.batch import Batch
from evaluator.reference.queues import Queues


def mixed(queues: Queues) -> Batch:
    """A token for everybody; then whole prompts as long as they fit, if nothing was preempted."""
    queues.grow_decodes()
    chunks = []
    if not queues.short_of_kv:
        chunks = queues.admit_all(queues.limits.max_num_batched_tokens - len(queues.decoding), whole=True)
    return Batch(chunks, queues.decoding)
