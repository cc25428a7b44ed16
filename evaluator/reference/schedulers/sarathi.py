"""Sarathi-Serve: chunked as vLLM v1 is, but a prompt gets the KV of its whole length when it is admitted."""

from __future__ import annotations

from evaluator.reference.batch import Batch
from evaluator.reference.queues import Queues
from evaluator.reference.schedulers.chunked import chunked


def sarathi(queues: Queues) -> Batch:
    """As ``chunked``; the two differ only where KV is given on demand."""
    return chunked(queues, whole_kv=True)
