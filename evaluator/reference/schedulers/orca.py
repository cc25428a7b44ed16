"""Orca: scheduling by the iteration. Prompts and decodes share it, and only the number of sequences bounds it.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022, algorithm 1: first
come, first served up to max_batch_size, each request's KV reserved for its whole length on admission.
"""

from __future__ import annotations

from evaluator.reference.batch import Batch
from evaluator.reference.queues import Queues

UNBOUNDED = 1 << 60


def orca(queues: Queues) -> Batch:
    """A token for everybody, and the whole prompts of all that find a place and KV."""
    queues.grow_decodes()
    return Batch(queues.admit_all(UNBOUNDED, whole=True), queues.decoding)
