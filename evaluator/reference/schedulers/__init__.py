"""Who takes part in the next iteration, one policy per file: this is where they have their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from evaluator.reference.batch import Batch
from evaluator.reference.limits import Limits
from evaluator.reference.queues import Queues
from evaluator.reference.schedulers.chunked import chunked
from evaluator.reference.schedulers.continuous import continuous
from evaluator.reference.schedulers.lightllm import lightllm
from evaluator.reference.schedulers.mixed import mixed
from evaluator.reference.schedulers.orca import orca
from evaluator.reference.schedulers.sarathi import sarathi
from evaluator.reference.schedulers.static import static


@dataclass(frozen=True)
class Scheduler:
    """``schedule`` puts the next batch together. ``admission``, ``block_tokens``: the only ones that the policy has."""

    schedule: Callable[[Queues], Batch]
    admission: str | None = None
    block_tokens: int | None = None

    def limits(self, limits: Limits) -> Limits:
        """The limits as the policy takes them."""
        if self.block_tokens not in (None, limits.block_tokens):
            raise ValueError(f"the policy needs block_tokens = {self.block_tokens}, got {limits.block_tokens}")
        return replace(limits, admission=self.admission) if self.admission else limits


SCHEDULERS = {
    "static": Scheduler(static, "reserve"),  # FasterTransformer
    "continuous": Scheduler(continuous),  # vLLM v0
    "orca": Scheduler(orca, "reserve"),
    "mixed": Scheduler(mixed),  # Splitwise mixed
    "sarathi": Scheduler(sarathi),
    "chunked": Scheduler(chunked),  # vLLM v1
    "lightllm": Scheduler(lightllm, "on_demand", block_tokens=1),
}
