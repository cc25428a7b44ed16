"""vLLM v1: one token budget, for decodes first, then for chunks of prompts."""

from __future__ import annotations

from evaluator.reference.batch import Batch
from evaluator.reference.queues import Queues


def chunked(queues: Queues, whole_kv: bool = False) -> Batch:
    """A token for everybody; then the prompts under way go on; then, if nothing was preempted, new ones are admitted.

    ``long_prefill_token_threshold`` bounds what one prompt gets of an iteration, so that others can go on beside it.
    Decodes come first even where a prompt under way was admitted before them, as vLLM documents it.
    """
    queues.grow_decodes()
    room = queues.limits.max_num_batched_tokens - len(queues.decoding)
    chunks = queues.continue_prompts(room)
    if not queues.short_of_kv:
        room -= sum(chunk.high - chunk.low for chunk in chunks)
        chunks += queues.admit_all(room, whole=False, whole_kv=whole_kv)
    return Batch(chunks, queues.decoding)
