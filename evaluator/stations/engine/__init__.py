"""The token-exact serving engine: one event loop for all configurations."""

from evaluator.stations.engine.common.lane import POLICIES, Lane, LaneResult, Policy, Requests
from evaluator.stations.engine.in_order.program import run_lanes
from evaluator.stations.engine.in_order.state import Structure

__all__ = ["POLICIES", "Lane", "LaneResult", "Policy", "Requests", "Structure", "run_lanes"]
