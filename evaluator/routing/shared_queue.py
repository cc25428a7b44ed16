"""No replica is chosen on arrival: requests wait in one queue, and the next goes to any replica that has room."""

from __future__ import annotations

from evaluator.routing.record import Router

SHARED_QUEUE = Router(
    "shared_queue", "One queue before all replicas; the next request goes to any that has room.", queue=True
)
"""BestServe, algorithms 2 to 7. Engine request alone has it."""
