"""Data-parallel ranks of one replica: their iterations start together and end with the slowest (``cost.lockstep``).

Each rank is a ``Replica`` with a queue, a scheduler and a KV cache of its own. Nothing is sent at one rank before all
of them have done with their batches; then all form the next ones. A rank with nothing to compute sends an empty batch,
during which, as in any other, an arrival waits for the end of the iteration. With several pipeline ranks as many
batches of each are under way, and those that were sent together go through them together.
"""

from __future__ import annotations

from collections.abc import Sequence

from evaluator.cost.iteration import BatchStatistics, IterationCost, decode_growth, padded
from evaluator.cost.lockstep import (
    Counts,
    LockstepSteps,
    Ranks,
    graph_tokens,
    launched_alone,
    overtaken_after,
    rank_cost,
    splits,
    steps_together,
    time_alone,
    tokens_brought,
)
from evaluator.cost.quantities import batch_tokens
from evaluator.reference.batch import Batch
from evaluator.reference.replica import Replica
from evaluator.reference.running_batch import RunningBatch


def in_lockstep(replicas: Sequence[Replica], ranks: int) -> Sequence[Replica]:
    """Put replicas into lockstep: every ``ranks`` of them, in their order, are one replica; 1: each goes by itself."""
    for first in range(0, len(replicas), ranks) if ranks > 1 else ():
        group = tuple(replicas[first : first + ranks])
        for rank in group:
            rank.lockstep_ranks = group
    return replicas


def launch_together(ranks: Sequence[Replica], now: float) -> list[tuple[RunningBatch, Replica]]:
    """Send batches at every rank, until as many are under way as there are pipeline ranks or none has work to do."""
    departed: list[tuple[RunningBatch, Replica]] = []
    while len(ranks[0].running_batches) < len(ranks[0].pipeline):
        batches = [rank.form(now) for rank in ranks]
        if not any(batches):
            break
        departed += _send(ranks, batches, now)
    return departed


def _send(ranks: Sequence[Replica], batches: Sequence[Batch], now: float) -> list[tuple[RunningBatch, Replica]]:
    """The batches take off. Those of a pipeline wait for one another at each of its ranks, and do not leap."""
    weighed = [rank.weigh(batch) for rank, batch in zip(ranks, batches, strict=True)]
    seats = ranks[0].limits.max_num_seqs
    priced = [
        _steps([_Own(batch, *sums, cost) for batch, sums in zip(batches, weighed, strict=True)], cost, seats)
        for cost in ranks[0].pipeline.costs
    ]
    steps, overtaken = priced[0]
    alike = (rank.alike(batch) for rank, batch in zip(ranks, batches, strict=True) if batch)
    # A leap of all ranks lasts as long as that of the first whose batch changes, and no further than the same rank is
    # the slowest: its time is what the leap adds up.
    iterations = min(*alike, overtaken, steps.alike)
    departed = []
    for rank, batch, (sums, _) in zip(ranks, batches, weighed, strict=True):
        running_batch = rank.take_off(
            batch, sums, *rank.pipeline.pass_through(now, [step.first_s for step, _ in priced])
        )
        running_batch.experts_touched = steps.touched
        if len(priced) == 1:
            running_batch.repeat(iterations, steps.slope_s)
        departed.append((running_batch, rank))
    return departed


class _Own:
    """What one rank brings to an iteration: its batch, and how long that takes a pipeline rank without experts."""

    def __init__(self, batch: Batch, sums: BatchStatistics, copy_s: float, cost: IterationCost) -> None:
        device = rank_cost(cost)
        growing = 0.0 if batch.decodes is None else float(batch.decodes.growing)
        self.busy = bool(batch)
        self.time_s = time_alone(device, sums) + copy_s
        self.launched_s = launched_alone(device, sums)
        self.growth_s = 0.0 if batch.decodes is None else decode_growth(device, sums, growing)
        self.fastest_s = 0.0 if batch.decodes is None else decode_growth(device, sums, sums.decodes)
        # vLLM runs a rank without work on a dummy batch of one token, because the others wait for it in the
        # collectives of the experts.
        self.tokens = max(batch_tokens(device, sums), 1.0)  # one of a dummy batch
        self.sequences = max(sums.decodes + sums.prefill_sequences, 1.0)
        self.brought = tokens_brought(cost, sums)  # none of a dummy batch
        self.graph_tokens = graph_tokens(device)


def _steps(ranks: Sequence[_Own], cost: IterationCost, max_num_seqs: int) -> tuple[LockstepSteps, float]:
    """The iterations of these batches, and after how many of them another rank gets ahead."""
    busy = [rank for rank in ranks if rank.busy]
    # The slowest rank decides; of equally slow ones the one whose time grows faster, which is the slowest from then
    # on.
    ahead = max(busy, key=lambda rank: (rank.time_s, rank.growth_s))
    sums = Ranks(
        tokens=_counts(ranks, [rank.tokens for rank in ranks]),
        sequences=_counts(ranks, [rank.sequences for rank in ranks]),
        ahead_s=ahead.time_s,
        growth_s=ahead.growth_s,
        fastest_s=max(rank.fastest_s for rank in busy),
        launched_s=max(rank.launched_s for rank in busy),
        brought=min(rank.brought for rank in ranks) if splits(cost) else None,
    )
    overtaken = (overtaken_after(ahead.time_s - rank.time_s, rank.growth_s - ahead.growth_s) for rank in busy)
    return steps_together(cost, sums, max_num_seqs), min(overtaken)


def _counts(ranks: Sequence[_Own], batches: Sequence[float]) -> Counts:
    filled = (padded(batch, rank.graph_tokens) for batch, rank in zip(batches, ranks, strict=True))
    return Counts(max(batches), sum(batches) / len(ranks), sum(filled) / len(ranks))
