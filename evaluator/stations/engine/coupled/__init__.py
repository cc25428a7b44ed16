"""The engine's program for replicas that run together: routers that look at them, closed loops over several.

They are the replicas of one pool, or of several pools side by side or in tandem.
"""

from evaluator.stations.engine.coupled.caches import ByPrefix
from evaluator.stations.engine.coupled.lane import (
    NO_COUNTER,
    Links,
    Network,
    NetworkResult,
    Pool,
    PoolResult,
    Totals,
)
from evaluator.stations.engine.coupled.program import run_pools

__all__ = ["NO_COUNTER", "ByPrefix", "Links", "Network", "NetworkResult", "Pool", "PoolResult", "Totals", "run_pools"]
