"""The search over designs: the highest rate that each serves within its objectives, or the fewest replicas for one."""

from evaluator.search.run import optimize

__all__ = ["optimize"]
