"""One design in closed form: memory, prefill and decode times, where they go, and the load that a rate puts on it.

No requests and no queue: for those, sweep or simulate. Plain NumPy, milliseconds per call.

``estimate`` is of a whole batch, by the iterations of its ``phases`` with ``drafts``; ``batches`` of single iterations;
``support`` tells what is known of a model on every device and engine.
"""

from evaluator.estimation.batches import iteration_time
from evaluator.estimation.estimate import Estimate, estimate
from evaluator.estimation.phases import PhaseEstimate

__all__ = ["Estimate", "PhaseEstimate", "estimate", "iteration_time"]
