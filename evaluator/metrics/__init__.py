"""Per-request times -> latencies, service, cost, objectives, each with its Monte-Carlo error. NumPy only."""

from evaluator.metrics.outcomes import OK, Bounds, Outcomes, RequestTimes, TokenCounts, bounds_of
from evaluator.metrics.summarise import DEFAULT_QUANTILES, place, quantile_levels, select, summarise

__all__ = [
    "DEFAULT_QUANTILES",
    "OK",
    "Bounds",
    "Outcomes",
    "RequestTimes",
    "TokenCounts",
    "bounds_of",
    "place",
    "quantile_levels",
    "select",
    "summarise",
]
