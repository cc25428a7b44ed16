"""One replica, iteration by iteration: the clearest statement of what the vectorised engine computes.

Nothing is summed in closed form here. Every iteration forms its batch from the requests themselves, takes its time from
the same cost function, and gives every participant its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from evaluator.cost.iteration import BatchStatistics, CostParameters, iteration_time
from evaluator.reference.request import Request
from evaluator.reference.scheduler import SCHEDULERS, Batch, Limits, Queues, resident


@dataclass
class Outcome:
    """The requests with their times, and the replica's totals."""

    requests: list[Request]
    busy_s: float = 0.0
    iterations: int = 0
    kv_units_max: int = 0


def statistics(batch: Batch, window: int | None = None) -> BatchStatistics:
    """The sufficient statistics of a batch, summed over its sequences token by token where they need it."""
    width = window or 0

    def attended(request: Request) -> int:
        """KV read by the next decoded token, itself included: the prompt and every token generated before it.

        Where a prompt's KV is resident its first token came with it, and is in the KV as well.
        """
        came_along = 1 if request.compute_tokens == 0 else 0
        return request.prompt_tokens + request.generated + came_along

    spans = [(request.position, request.position + tokens) for request, tokens in batch.chunks]
    return BatchStatistics(
        decodes=float(len(batch.decodes)),
        decode_context=float(sum(attended(request) for request in batch.decodes)),
        decode_window_context=float(sum(min(attended(request), width) for request in batch.decodes)),
        prefill_tokens=float(sum(tokens for _, tokens in batch.chunks)),
        prefill_sequences=float(len(batch.chunks)),
        prefill_area=float(sum(sum(range(low + 1, high + 1)) for low, high in spans)),
        prefill_window_area=float(sum(min(n, width) for low, high in spans for n in range(low + 1, high + 1))),
        prefill_context=float(sum(high for _, high in spans)),
        prefill_window_context=float(sum(min(high, high - low + width - 1) for low, high in spans if width)),
    )


def simulate_replica(
    cost: CostParameters,
    policy: str,
    limits: Limits,
    requests: Sequence[Request],
    *,
    users: int | None = None,
    prompts_resident: bool = False,
    window: int | None = None,
) -> Outcome:
    """Serve ``requests`` (in order of arrival) on one replica and return them with all token times.

    ``users``: closed loop; request ``i`` is sent, and its arrival set, when ``i - users + 1`` requests have finished.
    A request that can never be admitted ends the simulation; it and all behind it keep infinite times.
    """
    schedule = SCHEDULERS[policy]
    if prompts_resident:
        schedule = partial(resident, policy=schedule)
    outcome = Outcome(list(requests))
    queues = Queues()
    clock, sent, finished = 0.0, 0, 0
    while finished < len(outcome.requests):
        while sent < len(outcome.requests) and _is_sent(outcome.requests[sent], clock, finished, users):
            queues.waiting.append(outcome.requests[sent])
            sent += 1
        batch = schedule(queues, limits)
        if not batch:
            if queues.waiting or sent == len(outcome.requests):
                return outcome
            clock = outcome.requests[sent].arrival_s
            continue
        outcome.kv_units_max = max(outcome.kv_units_max, queues.kv_reserved())
        took = float(iteration_time(cost, statistics(batch, window)))
        started, clock = clock, clock + took
        outcome.busy_s += took
        outcome.iterations += 1
        finished += _advance(queues, batch, started, clock)
    return outcome


def _is_sent(request: Request, clock: float, finished: int, users: int | None) -> bool:
    if users is None:
        return request.arrival_s <= clock
    if request.index >= finished + users:
        return False
    request.arrival_s = clock
    return True


def _advance(queues: Queues, batch: Batch, started: float, clock: float) -> int:
    """Give every participant what the iteration computed; finished requests leave. Returns how many did."""
    for request, tokens in batch.chunks:
        request.scheduled_s = min(request.scheduled_s, started)
        request.computed += tokens
        if request.prefilled:
            request.token_s.append(clock)
            request.generated += 1
    for request in batch.decodes:
        request.scheduled_s = min(request.scheduled_s, started)
        request.token_s.append(clock)
        request.generated += 1
    left = [request for request in queues.running if request.finished]
    queues.running = [request for request in queues.running if not request.finished]
    return len(left)
