"""The engine's program for replicas that run together: routers that look at them, closed loops over several."""

from evaluator.stations.engine.coupled.caches import ByPrefix
from evaluator.stations.engine.coupled.lane import NO_COUNTER, Pool, PoolResult
from evaluator.stations.engine.coupled.program import run_pools

__all__ = ["NO_COUNTER", "ByPrefix", "Pool", "PoolResult", "run_pools"]
