"""The chance that objectives hold in a real system, given the model's expected error and chance of the run together.

A stated error is the half-width of the band that holds 68 % of measured values. What is measured is taken to be the
prediction times a lognormal factor whose logarithm has the upper edge of that band, ln(1 + error), as its standard
deviation: a factor because errors are relative and times positive, and its upper edge because that is the side on which
a bound is missed. Of the means in the table of errors (``calibration/errors/serving.csv``, each over the band of its
case and load) 90 % lie within 1.645 and 94 % within two bands, where a normal logarithm has 90 and 95 %; p99 has longer
tails, 82 to 87 % and 89 to 90 %.

How much slower the service may be until an objective is missed is its headroom (``metrics.headroom``). The chance that
it holds is the one that the service is no slower than that.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

OF_AN_OBJECTIVE = (
    "objective_mean_error", "objective_model_error", "objective_ratio", "objective_ratio_stderr", "objective_growth",
)  # fmt: skip
"""The variables that ``spread`` takes, in its order."""


def spread(
    mean_error: np.ndarray,
    model_error: np.ndarray,
    ratio: np.ndarray,
    ratio_stderr: np.ndarray,
    growth: np.ndarray,
) -> np.ndarray:
    """Standard deviation of the logarithm of how much slower a real service is than the predicted one.

    The error of the mean latency, ``mean_error``, is that of the service. What the bounded statistic errs by beyond it
    (``model_error``: stalls lengthen a p99) and the standard error of the run, ``ratio_stderr`` of ``ratio``, are of
    the latency itself: a service that is 1 % slower makes the latency ``growth`` % longer, by which they are divided.
    All are independent, so that the squares add up. A standard error that is not known (gaps of one seed, tails of
    short runs) counts as none.
    """
    of_service, of_statistic = np.log1p(mean_error), np.log1p(model_error)
    with np.errstate(divide="ignore", invalid="ignore"):
        of_run = np.nan_to_num(ratio_stderr / ratio, nan=0.0, posinf=0.0)
    beyond = np.maximum(of_statistic**2 - of_service**2, 0.0)
    return np.sqrt(of_service**2 + (beyond + of_run**2) / growth**2)


def objective_chance(headroom: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """The chance that the service is slower by no more than the headroom; NaN where either is not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        chance = normal_cdf(np.log(headroom) / deviation)
    # A latency that no request has, or of nothing, is within any bound, whatever the errors.
    return np.where(np.isposinf(headroom), 1.0, chance)


def joint_chance(chances: np.ndarray, bounded: np.ndarray) -> np.ndarray:
    """The chance that all objectives of a design hold, (config,), from that of each and which it has, (config,
    objective).

    The least of them: objectives of one design are predicted by one model of it, and are taken to err together
    (perfectly correlated; were they independent it would be their product, which is less). NaN where a design has no
    objective, or where the chance of one is not known.
    """
    least = np.where(bounded, chances, 1.0).min(axis=1, initial=1.0)
    return np.where(bounded.any(axis=1), least, np.nan)


def is_sure(chances: np.ndarray, confidence: np.ndarray) -> np.ndarray:
    """Whether each objective holds with the chance asked for; true where none is asked (NaN), false where the chance is
    not known."""
    return np.isnan(confidence) | (chances >= confidence)


_erfc = np.frompyfunc(math.erfc, 1, 1)


def normal_cdf(z: np.ndarray) -> np.ndarray:
    """The distribution function of the standard normal distribution; NaN stays NaN."""
    # Not scipy's: loading it takes longer than a million calls of these.
    return 0.5 * np.asarray(_erfc(-np.asarray(z) / math.sqrt(2.0)), dtype=np.float64)


def normal_quantile(levels: np.ndarray) -> np.ndarray:
    """The inverse of ``normal_cdf``; NaN stays NaN."""
    inverse = NormalDist().inv_cdf
    quantiles = [inverse(level) if level == level else np.nan for level in levels.ravel().tolist()]
    return np.array(quantiles, dtype=np.float64).reshape(levels.shape)
