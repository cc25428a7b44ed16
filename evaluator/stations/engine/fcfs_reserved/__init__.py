"""The engine's program for replicas that admit requests in the order in which they arrive, and send none back."""

from evaluator.stations.engine.fcfs_reserved.lane import Branches, Lane, OnDemand, Structure
from evaluator.stations.engine.fcfs_reserved.program import run_lanes

__all__ = ["Branches", "Lane", "OnDemand", "Structure", "run_lanes"]
