"""The token-exact serving engine: one event loop for all configurations."""

from evaluator.stations.engine.lane import POLICIES, Lane, LaneResult, Policy, Requests
from evaluator.stations.engine.program import run_lanes
from evaluator.stations.engine.state import Structure

__all__ = ["POLICIES", "Lane", "LaneResult", "Policy", "Requests", "Structure", "run_lanes"]
