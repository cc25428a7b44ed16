"""The iterations of a batch whose sequences start and go on together: its prefill, then its decode steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.cost.batch import decode_batch, prefill_batch
from evaluator.cost.breakdown import OperatorTime, breakdown
from evaluator.cost.iteration import BatchStatistics, iteration_time, share_touched
from evaluator.cost.utilisation import ideal_time
from evaluator.replica import Passage


@dataclass(frozen=True)
class Phase:
    """One iteration: its time, MFU, MBU and operators (none where the cost was fitted to whole iterations)."""

    time_s: float
    mfu: float
    mbu: float
    operators: tuple[OperatorTime, ...]


@dataclass(frozen=True)
class Sequences:
    """``count`` sequences that are served together, the same lengths each; ``window`` is the model's, if it has one."""

    count: int
    prompt_tokens: int
    output_tokens: int
    window: int | None

    @property
    def prefill(self) -> BatchStatistics:
        """All prompts in one iteration."""
        return prefill_batch(float(self.count), self.prompt_tokens, self.window)

    @property
    def middle(self) -> BatchStatistics:
        """The decode step at mid-output context."""
        return decode_batch(float(self.count), self.prompt_tokens + self.output_tokens / 2, self.window)


def phase(through: Passage, hardware: Hardware, batch: BatchStatistics) -> Phase:
    """Time and breakdown of one iteration. MFU and MBU are of all devices, with one batch in flight per rank."""
    time = float(iteration_time(through.cost, batch))
    touched = share_touched(through.cost, batch.decodes + batch.prefill_tokens)
    known = through.calibration.form == "roofline"
    return Phase(
        time_s=time,
        mfu=float(ideal_time(through.compute, batch)) / time,
        mbu=float(ideal_time(through.memory, batch, touched=touched)) / time,
        operators=breakdown(through.operators, hardware, through.calibration, batch) if known else (),
    )


def decode_time(through: Passage, served: Sequences) -> float:
    """All decode steps after the first token, which the prefill gives: they attend to prompt + 1, + 2, ... tokens."""
    context = served.prompt_tokens + np.arange(1.0, served.output_tokens)
    batch = decode_batch(np.full_like(context, served.count), context, served.window)
    return float(np.sum(iteration_time(through.cost, batch)))
