"""Per-request times -> latencies, service, cost, objectives, each with its Monte-Carlo error. NumPy only."""

from evaluator.metrics.measure import DEFAULT_QUANTILES, measure, place, quantile_levels, select
from evaluator.metrics.outcomes import OK, Bounds, Outcomes, WeightedGaps, bounds_of

__all__ = [
    "DEFAULT_QUANTILES",
    "OK",
    "Bounds",
    "Outcomes",
    "WeightedGaps",
    "bounds_of",
    "measure",
    "place",
    "quantile_levels",
    "select",
]
