"""Decodes first, and prompts beside them within one token budget (vLLM v1, Sarathi-Serve, Splitwise, Orca)."""

from __future__ import annotations

from evaluator.policies import BatchingPolicy
from evaluator.reference.batch import Batch
from evaluator.reference.queues import Queues


def decodes_first(queues: Queues, policy: BatchingPolicy) -> Batch:
    """A token for every decoding request; then the prompts under way; then, if none was preempted, waiting requests.

    Whole prompts are never under way between two iterations. Of chunks, ``long_prefill_token_threshold`` bounds what
    one prompt gets of an iteration, so that others can go on beside it. Decodes come first even where a prompt under
    way was admitted before them, as vLLM documents it.
    """
    # Blocks that windows have passed are free for requests later in vLLM's order, so that the order decides which of
    # them find any. So it does where those of the preempted are not free at once, and a prompt that is cut short may
    # come before decodes.
    late = queues.limits.host and queues.limits.asynchronous and queues.limits.long_prefill_token_threshold
    if queues.by_priority or queues.limits.kv_groups or late:
        chunks, room = queues.run_in_order()
        if not queues.short_of_kv:
            chunks += queues.admit_all(room, whole=False)
        return Batch(chunks, queues.decoding)
    # Decodes and prompts get their KV in two passes here, where vLLM goes once through all that run; so the names of
    # filled blocks are collected, and given in its order.
    queues.collect_fills()
    queues.grow_decodes()
    room = queues.limits.max_num_batched_tokens - len(queues.decoding) * queues.limits.decode_tokens
    chunks = queues.continue_prompts(room)
    queues.name_fills()
    # vLLM ``Scheduler.schedule``: ``if not preempted_reqs``. A request that was admitted now would take the blocks that
    # were freed by preemption, and be preempted next.
    if not queues.short_of_kv:
        room -= sum(chunk.high - chunk.low for chunk in chunks)
        chunks += queues.admit_all(room, whole=policy.whole_prompts, whole_kv=policy.whole_kv)
    return Batch(chunks, queues.decoding)
