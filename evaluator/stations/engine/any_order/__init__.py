"""The engine's program for queues in any order."""

from evaluator.stations.engine.any_order.lane import GeneralLane, GeneralStructure, KvUnits, Rules
from evaluator.stations.engine.any_order.program import run_general_lanes

__all__ = ["GeneralLane", "GeneralStructure", "KvUnits", "Rules", "run_general_lanes"]
