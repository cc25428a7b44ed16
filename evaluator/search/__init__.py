"""The search over designs: the highest rate that each serves within its objectives, or the fewest replicas for one.

``run`` is the question as a whole, ``designs`` and ``layouts`` what is searched. ``goodput`` looks for the highest rate
from a ``start``, by ``interpolation`` of its trials, ``demand`` for the fewest replicas; both by ``bisection`` in step,
over ``trials``.
"""

from evaluator.search.run import optimize

__all__ = ["optimize"]
