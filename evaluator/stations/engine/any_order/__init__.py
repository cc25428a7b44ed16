"""The engine's program for queues in any order: KV on demand, pipelines, shares of long prompts, least work first."""

from evaluator.stations.engine.any_order.lane import CacheShape, Content, KvUnits, Lane, Rules, Structure, Talks
from evaluator.stations.engine.any_order.program import run_lanes

__all__ = ["CacheShape", "Content", "KvUnits", "Lane", "Rules", "Structure", "Talks", "run_lanes"]
