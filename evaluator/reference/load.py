"""What a router may count of a replica, see ``evaluator.routing.record.COUNTERS``."""

from __future__ import annotations

from collections.abc import Callable

from evaluator.reference.replica import Replica


def requests(replica: Replica, now: float) -> float:
    """Requests that were sent there and have not finished."""
    return replica.outstanding


def work_tokens(replica: Replica, now: float) -> float:
    """Tokens to compute and to generate."""
    # The counters move when a flight ends; a leap stands for iterations of which some have ended by now.
    return replica.queues.work_tokens - replica.tokens_of_leaps(now)


def output_tokens(replica: Replica, now: float) -> float:
    """Tokens to generate."""
    return replica.queues.output_tokens - replica.tokens_of_leaps(now)


def kv_units(replica: Replica, now: float) -> float:
    """The share of the KV cache in use, and needed by the requests that wait."""
    queues = replica.queues
    used = queues.kv.capacity - queues.kv.free + replica.units_of_leaps(now)
    return (used + queues.waiting_units) / queues.kv.capacity


def context_tokens(replica: Replica, now: float) -> float:
    """Tokens of prompts and outputs so far."""
    return replica.queues.context_tokens + replica.tokens_of_leaps(now)


LOADS: dict[str, Callable[[Replica, float], float]] = {
    load.__name__: load for load in (requests, work_tokens, output_tokens, kv_units, context_tokens)
}
