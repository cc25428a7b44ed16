"""Data-parallel ranks of one replica: their iterations start together and end with the slowest (``cost.lockstep``).

Each rank is a ``Replica`` with a queue, a scheduler and a KV cache of its own. Nothing is sent at one rank before all
of them have done with their batches; then all form the next ones. A rank with nothing to compute sends an empty batch,
during which, as in any other, an arrival waits for the end of the iteration.
"""

from __future__ import annotations

from collections.abc import Sequence

from evaluator.cost.iteration import BatchStatistics, decode_growth, padded, time_without_experts
from evaluator.cost.lockstep import Ranks, Steps, device_cost, overtaken_after, steps_together
from evaluator.reference.batch import Batch
from evaluator.reference.flight import Flight
from evaluator.reference.replica import Replica


def in_lockstep(replicas: Sequence[Replica], ranks: int) -> Sequence[Replica]:
    """The same, every ``ranks`` of which, in their order, are one replica in lockstep; 1: each goes by itself."""
    for first in range(0, len(replicas), ranks) if ranks > 1 else ():
        group = tuple(replicas[first : first + ranks])
        for rank in group:
            rank.abreast = group
    return replicas


def launch_together(ranks: Sequence[Replica], now: float) -> list[tuple[Flight, Replica]]:
    """Send a batch at every rank, if none is under way and any has something to compute."""
    if any(rank.flights for rank in ranks):
        return []
    batches = [rank.form(now) for rank in ranks]
    if not any(batches):
        return []
    weighed = [rank.weigh(batch) for rank, batch in zip(ranks, batches, strict=True)]
    own = [_Own(rank, batch, *sums) for rank, batch, sums in zip(ranks, batches, weighed, strict=True)]
    steps, overtaken = _steps(own)
    iterations = min(*(each.alike for each in own if each.batch), overtaken, steps.alike)
    return [(_depart(each, now, steps, iterations), each.rank) for each in own]


class _Own:
    """What one rank brings to an iteration: its batch, and how long that takes without experts."""

    def __init__(self, rank: Replica, batch: Batch, sums: BatchStatistics, copy_s: float) -> None:
        cost = device_cost(rank.pipeline.costs[0])
        growing = 0.0 if batch.decodes is None else float(batch.decodes.growing)
        self.rank, self.batch, self.sums = rank, batch, sums
        self.time_s = time_without_experts(cost, sums) + copy_s
        self.growth_s = 0.0 if batch.decodes is None else decode_growth(cost, sums, growing)
        self.fastest_s = 0.0 if batch.decodes is None else decode_growth(cost, sums, sums.decodes)
        self.tokens = max(sums.decodes + sums.prefill_tokens, 1.0)  # one of a dummy batch
        self.padded = padded(self.tokens, cost.graph_tokens)
        self.alike = rank.alike(batch)


def _steps(own: Sequence[_Own]) -> tuple[Steps, float]:
    """The iterations of these batches, and after how many of them another rank gets ahead."""
    busy = [each for each in own if each.batch]
    ahead = max(busy, key=lambda each: (each.time_s, each.growth_s))
    sums = Ranks(
        most=max(each.tokens for each in own),
        mean=sum(each.tokens for each in own) / len(own),
        padded_mean=sum(each.padded for each in own) / len(own),
        ahead_s=ahead.time_s,
        growth_s=ahead.growth_s,
        fastest_s=max(each.fastest_s for each in busy),
    )
    overtaken = (overtaken_after(ahead.time_s - each.time_s, each.growth_s - ahead.growth_s) for each in busy)
    return steps_together(ahead.rank.pipeline.costs[0], sums), min(overtaken)


def _depart(own: _Own, now: float, steps: Steps, iterations: float) -> Flight:
    rank = own.rank
    flight = rank.take_off(own.batch, own.sums, now, now + steps.first_s)
    flight.experts_touched = steps.touched
    rank.pipeline.busy_s += flight.end_s - now
    flight.repeat(iterations, steps.slope_s)
    return flight
