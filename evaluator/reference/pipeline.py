"""The pipeline ranks of a replica: a batch passes one after the other, a rank works on one batch at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from evaluator.cost.adapters import naming
from evaluator.cost.iteration import BatchStatistics, IterationCost, iteration_time, share_touched
from evaluator.cost.quantities import batch_tokens


def plain(cost: Any) -> Any:
    """Cost parameters as Python floats: the cost of one batch is computed faster with them than with NumPy."""
    if hasattr(cost, "_fields"):
        return type(cost)(*map(plain, cost))
    if isinstance(cost, tuple) or np.ndim(cost):
        return tuple(map(plain, cost))
    return float(cost)


class RankPipeline:
    """Stages with their costs. Batches enter in order and keep it."""

    def __init__(self, costs: Sequence[IterationCost]) -> None:
        self.costs: list[IterationCost] = [plain(cost) for cost in costs]
        self._naming: dict[int, list[IterationCost]] = {}  # by the adapters of a batch
        self.busy_s = 0.0  # mean over the ranks
        self._free_s = [0.0] * len(self.costs)
        # When each rank works on the batches under way, of which there are as many as ranks, or two planned ahead.
        self._works_s: deque[list[tuple[float, float]]] = deque(maxlen=max(len(self.costs), 2))

    def __len__(self) -> int:
        return len(self.costs)

    @property
    def free_s(self) -> float:
        """When the first rank has done all that was sent."""
        return self._free_s[0]

    def naming(self, adapters: int) -> list[IterationCost]:
        """The costs of a batch that names so many LoRA adapters."""
        if adapters not in self._naming:
            self._naming[adapters] = [naming(cost, float(adapters)) for cost in self.costs]
        return self._naming[adapters]

    def enter(
        self, now: float, batch: BatchStatistics, more_s: float, costs: Sequence[IterationCost] | None = None
    ) -> tuple[float, float]:
        """Send a batch through: when the first rank starts on it, and when the last one is done with it.

        Every rank takes ``more_s`` longer than the batch's statistics say. ``costs``: of this batch; None: as of all.
        """
        return self.pass_through(now, [iteration_time(cost, batch) + more_s for cost in costs or self.costs])

    def pass_through(self, now: float, took_s: Sequence[float]) -> tuple[float, float]:
        """Send a batch that takes each rank so many seconds; when it starts, and when it ends."""
        start = clock = max(now, self._free_s[0])
        works_s: list[tuple[float, float]] = []
        for pipeline_rank, took in enumerate(took_s):
            # A rank begins when the batch has left the rank before and when it has done with the batch before.
            clock = max(clock, self._free_s[pipeline_rank]) + took
            self._free_s[pipeline_rank] = clock
            self.busy_s += took / len(self.costs)
            works_s.append((clock - took, clock))
        self._works_s.append(works_s)
        return start, clock

    def cut(self, now: float) -> None:
        """No rank works on what was sent from now on."""
        for works_s in self._works_s:
            self.busy_s -= sum(max(end_s - max(begin_s, now), 0.0) for begin_s, end_s in works_s) / len(self.costs)

    def experts_touched(self, batch: BatchStatistics) -> float:
        """Fraction of the routed experts that a batch touches; 0 for a model without."""
        return share_touched(self.costs[0], batch_tokens(self.costs[0], batch))
