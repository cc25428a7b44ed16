"""One design in closed form: memory, prefill and decode times, where they go, and the load that a rate puts on it.

No requests and no queue: for those, sweep or simulate. Plain NumPy, milliseconds per call.
"""

from evaluator.estimation.batches import iteration_time
from evaluator.estimation.estimate import Estimate, estimate
from evaluator.estimation.phases import PhaseEstimate

__all__ = ["Estimate", "PhaseEstimate", "estimate", "iteration_time"]
