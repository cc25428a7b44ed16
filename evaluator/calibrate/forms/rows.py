"""Measured iterations of one replica and phase, as the forms see them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evaluator.catalog.iterations import AXES
from evaluator.cost.iteration import BatchStatistics
from evaluator.cost.quantities import quantities


@dataclass(frozen=True)
class IterationRows:
    """``batch`` holds (row,) arrays."""

    batch: BatchStatistics
    time_s: np.ndarray

    def take(self, rows: np.ndarray) -> IterationRows:
        """Some of the rows."""
        return IterationRows(BatchStatistics(*(np.asarray(values)[rows] for values in self.batch)), self.time_s[rows])

    def quantities(self, phase: str) -> dict[str, np.ndarray]:
        """The values on the axes of the phase, by name."""
        values = quantities(self.batch)
        # Of a decode the last two quantities, which are all that it has.
        return dict(zip(AXES[phase], values if phase == "prefill" else values[2:], strict=True))

    def ranges(self, phase: str) -> dict[str, tuple[float, float]]:
        """The smallest and the largest of each quantity; of the context beside prompts, where there are decodes."""
        values_of = self.quantities(phase) | {"decode_context": np.asarray(self.batch.decode_context)}
        with_decodes = values_of["decodes"] > 0
        if with_decodes.any():
            values_of |= {name: values_of[name][with_decodes] for name in ("context", "decode_context")}
        return {name: (float(values.min()), float(values.max())) for name, values in values_of.items()}
