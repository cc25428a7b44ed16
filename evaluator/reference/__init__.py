"""The reference: serving simulated by events, one iteration and one token at a time, in plain Python, to be read.

``simulate`` runs the replicas of one configuration. Read ``schedulers/`` for what a policy means, ``queues`` for the
moves that policies are made of (admission, growth and preemption of KV), ``replica`` for the way of an iteration,
``decoding`` for how iterations are leapt over, ``simulate`` for the order of events.
"""

from evaluator.reference.limits import Limits
from evaluator.reference.replica import Iteration
from evaluator.reference.request import Request
from evaluator.reference.simulate import Outcome, simulate, simulate_replica
from evaluator.routing.by_state import ROUTERS

__all__ = [
    "ROUTERS",
    "Iteration",
    "Limits",
    "Outcome",
    "Request",
    "simulate",
    "simulate_replica",
]
