"""The engine's program for queues in any order: KV on demand, pipelines, shares of long prompts, least work first."""

from evaluator.stations.engine.preemptive.lane import (
    BlockContent,
    CacheShape,
    KvUnits,
    Lane,
    Rules,
    SessionTurns,
    Structure,
)
from evaluator.stations.engine.preemptive.program import run_lanes

__all__ = ["BlockContent", "CacheShape", "KvUnits", "Lane", "Rules", "SessionTurns", "Structure", "run_lanes"]
