"""The token-exact serving engine: one event loop for all configurations, as programs.

``fcfs_reserved`` is the faster one, for replicas that serve requests in the order of arrival, with KV that is reserved
or, taken on demand, never short. ``preemptive`` does the rest: preemption where KV runs short, pipelines, other orders
of the waiting queue. Both take what they share from ``common``.
``joint`` runs several replicas together, each as in ``preemptive``, where the router looks at them or users send
again when they are served; they may be those of several pools, side by side or in tandem.
"""

from evaluator.stations.engine import fcfs_reserved, joint, preemptive
from evaluator.stations.engine.common.lane import LaneLimits, LaneResult, Policy, Requests, decisions

__all__ = ["LaneLimits", "LaneResult", "Policy", "Requests", "decisions", "fcfs_reserved", "joint", "preemptive"]
