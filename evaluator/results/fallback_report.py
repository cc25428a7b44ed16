"""What is to be said of the engine that computed a sweep: as counts that parts of a sweep add up, and as a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from evaluator.metrics import OK
from evaluator.plan import Plan
from evaluator.plan.request_level import ERROR_NOTE
from evaluator.plan.simulators import REQUEST, TOKEN, TOO_FEW


@dataclass(frozen=True)
class FallbackReport:
    """How many of ``designs`` were ``left`` to the reference, by what the vectorised engine lacks for them."""

    simulator: str
    designs: int = 0
    left: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(whole: Plan) -> FallbackReport:
        """The report of all configurations of a plan; under the simulators request and token nothing is left."""
        reference = [
            configuration
            for configuration in whole.configurations
            if configuration.status == OK and configuration.simulator == TOKEN
        ]
        # Who asks for the reference is not told that it was taken.
        left = reference if whole.simulator not in (REQUEST, TOKEN) else []
        reasons = Counter(reason for configuration in left for reason in configuration.lacking or (TOO_FEW,))
        return FallbackReport(whole.simulator, len(whole.configurations), len(left), dict(reasons))

    def __add__(self, other: FallbackReport) -> FallbackReport:
        reasons = Counter(self.reasons) + Counter(other.reasons)
        # Parts of one sweep, which all have its simulator.
        return FallbackReport(self.simulator, self.designs + other.designs, self.left + other.left, dict(reasons))

    @property
    def note(self) -> dict[str, str]:
        """The report as an attribute of the dataset, with how far an approximation is off; empty where all is exact."""
        if self.simulator == REQUEST:
            return {"engine_note": ERROR_NOTE}
        if not self.left:
            return {}
        # By count and then by name, so that the note does not depend on the order in which shards end.
        names = ", ".join(sorted(self.reasons, key=lambda reason: (-self.reasons[reason], reason)))
        of = f"{self.left:,} of {self.designs:,} configurations were computed token by token: {names}"
        return {"engine_note": of}
