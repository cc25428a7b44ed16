"""The token-exact serving engine: one event loop for all configurations, as programs.

``in_order`` is the faster one, for replicas that serve requests in the order of arrival; ``any_order`` does the rest:
KV on demand with preemption, pipelines, other orders of the waiting queue. Both take what they share from ``common``.
``coupled`` runs several replicas together, each as in ``any_order``, where the router looks at them or users send
again when they are served; they may be those of several pools, side by side or in tandem.
"""

from evaluator.stations.engine import any_order, coupled, in_order
from evaluator.stations.engine.common.lane import LaneLimits, LaneResult, Policy, Requests, decisions

__all__ = ["LaneLimits", "LaneResult", "Policy", "Requests", "any_order", "coupled", "decisions", "in_order"]
