"""The engine's program for queues in any order: KV on demand, pipelines, shares of long prompts, least work first."""

from evaluator.stations.engine.any_order.lane import KvUnits, Lane, Rules, Structure
from evaluator.stations.engine.any_order.program import run_lanes

__all__ = ["KvUnits", "Lane", "Rules", "Structure", "run_lanes"]
