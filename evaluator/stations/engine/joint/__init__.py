"""The engine's program for replicas that run together: routers that look at them, closed loops over several.

They are the replicas of one pool, or of several pools side by side or in tandem.
"""

from evaluator.stations.engine.joint.caches import ByPrefix
from evaluator.stations.engine.joint.lane import (
    NO_COUNTER,
    JointPool,
    Links,
    Network,
    NetworkResult,
    PoolResult,
    ReplicaTotalRows,
)
from evaluator.stations.engine.joint.program import run_pools

__all__ = [
    "NO_COUNTER",
    "ByPrefix",
    "JointPool",
    "Links",
    "Network",
    "NetworkResult",
    "PoolResult",
    "ReplicaTotalRows",
    "run_pools",
]
