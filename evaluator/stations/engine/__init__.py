"""The token-exact serving engine: one event loop for all configurations."""

from evaluator.stations.engine.common.lane import Lane, LaneResult, Policy, Requests, decisions
from evaluator.stations.engine.in_order.program import run_lanes
from evaluator.stations.engine.in_order.state import Structure

__all__ = ["Lane", "LaneResult", "Policy", "Requests", "Structure", "decisions", "run_lanes"]
