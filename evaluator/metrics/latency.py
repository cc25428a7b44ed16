"""The latencies of the glossary, one number per request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evaluator.metrics.outcomes import Bounds, Outcomes

# Names as objectives write them -> names of the variables; ``itl`` is pooled over tokens and has no value per request.
VARIABLE = {"queue_wait": "queue_wait_s", "ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s", "itl": "itl_s"}


def latencies(outcomes: Outcomes) -> dict[str, np.ndarray]:
    """queue_wait_s, ttft_s, tpot_s and e2e_s, float64 (config, seed, request), warm-up included.

    Waiting counts: every latency but tpot starts at the arrival. tpot is
    (last token - first token) / (output_tokens - 1), NaN for a single-token output; of several branches it is that of
    the one that ends last, with its own tokens.
    """
    later = np.asarray(outcomes.tokens.longest, dtype=np.float64) - 1.0
    later, times = np.where(later > 0, later, np.nan), outcomes.times
    by_name = {
        "queue_wait_s": times.scheduled_s - times.arrival_s,
        "ttft_s": times.first_token_s - times.arrival_s,
        "tpot_s": (times.last_token_s - times.first_token_s) / later,
        "e2e_s": times.last_token_s - times.arrival_s,
    }
    if times.unanswered is None:
        return by_name
    # Who was sent away has no latency, rather than the shortest of all; nor has who was lost on the way.
    return {name: np.where(times.unanswered, np.nan, values) for name, values in by_name.items()}


def statistic_of(
    values: Mapping[str, np.ndarray], bound: Bounds, levels: np.ndarray, class_names: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """What a bound is held against and its standard error, (config,), of variables by name as ``summarise`` gives them.

    ``levels`` (quantile,) are those of the variables, with that of the bound among them; ``class_names`` those along
    the variables by class.
    """
    name = f"class_{VARIABLE[bound.metric]}" if bound.request_class else VARIABLE[bound.metric]
    ending = "_mean" if bound.quantile is None else ""
    value, error = values[f"{name}{ending}"], values[f"{name}{ending}_stderr"]
    if bound.request_class:
        row = class_names.index(bound.request_class)
        value, error = value[:, row], error[:, row]
    if bound.quantile is None:
        return value, error
    column = place_of(bound.quantile, levels)
    return value[:, column], error[:, column]


def place_of(quantile: float, levels: np.ndarray) -> int:
    """Where a quantile stands among ``levels`` (quantile,)."""
    # Levels of objectives are in the table, so that the nearest is the one, whatever 0.999 is in binary.
    return int(np.argmin(np.abs(levels - quantile)))


def within_objectives(
    values: Mapping[str, np.ndarray],
    objectives: tuple[Bounds, ...],
    members: Mapping[str, np.ndarray] | None = None,
    refused: np.ndarray | None = None,
) -> np.ndarray | None:
    """1.0 where a request is within all its bounds, else 0.0, (config, seed, request); NaN without an objective.

    Of the shape of the values, ``members``: which requests are of a class, whose bounds are for them alone;
    ``refused``: who was sent away and is within no bound.

    A bound on a mean or a percentile is what each request is held against. A request without the latency (tpot of a
    single token) is within its bound. ``itl`` belongs to tokens, not to a request, and is not asked here.
    None where no objective of any configuration is one of a request.
    """
    bounds = [bound for bound in objectives if VARIABLE[bound.metric] in values]
    if not bounds:
        return None
    shape = next(iter(values.values())).shape
    inside, bounded = np.ones(shape, dtype=bool), np.zeros((shape[0], 1, 1), dtype=bool)
    for bound in bounds:
        present = ~np.isnan(bound.bound_s)
        limit, held = np.where(present, bound.bound_s, np.inf)[:, None, None], present[:, None, None]
        # Not "<=": a NaN, the TPOT of a single token for instance, misses no bound.
        misses = values[VARIABLE[bound.metric]] > limit
        if bound.request_class:
            of_class = (members or {})[bound.request_class]
            misses, held = misses & of_class, held & of_class
        inside &= ~misses
        bounded = bounded | held
    if refused is not None:
        inside &= ~refused
    return np.where(bounded, inside, np.nan)
