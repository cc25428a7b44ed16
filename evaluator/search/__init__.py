"""The search over designs: the most requests each can serve within its objectives, or the fewest replicas for a rate."""

from evaluator.search.optimize import optimize

__all__ = ["optimize"]
