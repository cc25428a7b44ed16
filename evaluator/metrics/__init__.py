"""Per-request times -> latencies, service, cost, objectives, each with its Monte-Carlo error. NumPy only.

``summarise`` makes of the ``outcomes`` of a chunk (times of requests, and ``use`` of stations) all that ``variables``
lists. Which requests count: ``window``, ``warmup``, ``steady``, ``saturation``. What is computed of them: ``latency``,
``service`` with ``power``, ``classes``, ``sessions``, ``stages``; ``statistics`` has the means, quantiles and their
errors. Around it: ``model_error`` (how far from a real system), ``chance`` (that objectives hold there)
with ``headroom`` (how much slower they hold), ``elasticity``, ``reasons`` (why designs cannot run).
"""

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
