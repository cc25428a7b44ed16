"""The pipeline stages of a replica: a batch passes one after the other, a stage works on one batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluator.cost.iteration import BatchStatistics, CostParameters, experts_touched, iteration_time


def plain(cost: CostParameters) -> CostParameters:
    """The same parameters as Python floats: the cost of one batch is computed faster with them than with NumPy."""
    values: dict[str, Any] = {}
    for name, value in cost._asdict().items():
        if isinstance(value, tuple):
            values[name] = type(value)(*(tuple(float(entry) for entry in column) for column in value))
        else:
            values[name] = float(value)
    return CostParameters(**values)


class Pipeline:
    """Stages with their costs. Batches enter in order and keep it."""

    def __init__(self, costs: Sequence[CostParameters]) -> None:
        self.costs = [plain(cost) for cost in costs]
        self.busy_s = 0.0  # mean over the stages
        self._free_s = [0.0] * len(self.costs)

    def __len__(self) -> int:
        return len(self.costs)

    def enter(self, now: float, batch: BatchStatistics, more_s: float) -> tuple[float, float]:
        """Send a batch through: when the first stage starts on it, and when the last one is done with it.

        Every stage takes ``more_s`` longer than the batch's statistics say.
        """
        start = clock = max(now, self._free_s[0])
        for stage, cost in enumerate(self.costs):
            took = iteration_time(cost, batch) + more_s
            clock = max(clock, self._free_s[stage]) + took
            self._free_s[stage] = clock
            self.busy_s += took / len(self.costs)
        return start, clock

    def experts_touched(self, batch: BatchStatistics) -> float:
        """Fraction of the routed experts that a batch touches; 0 for a model without."""
        cost = self.costs[0]
        if not cost.expert_rows.flop:
            return 0.0
        return experts_touched(cost.log_expert_missed, batch.decodes + batch.prefill_tokens, cost.expert_skew)
