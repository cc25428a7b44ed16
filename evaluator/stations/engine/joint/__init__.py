"""The engine's program for replicas that run together: routers that look at them, closed loops over several.

They are the replicas of one pool, or of several pools side by side or in tandem.
"""

from evaluator.stations.engine.joint.program import run_lanes

__all__ = ["run_lanes"]
