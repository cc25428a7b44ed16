"""How much slower the service may be until an objective is missed.

With all times of service, and the times between arrivals, k times as long, a run is the same in another unit of time.
So a latency with a service that is k times as slow, at the rate r, is k L(k r), with L(r) the latency at r by the
service as it is: what a design does at higher rates tells what it would do if it were slower, queues and all. The
headroom of a design at r is the k at which k L(k r) is the bound. It is below 1 where the bound is missed.
"""

from __future__ import annotations

import numpy as np

MOST_CELLS = 2_000_000
"""Of the arrays (row, rate, objective) that are made at a time."""


def headrooms(log_rate: np.ndarray, log_ratio: np.ndarray, saturated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ln headroom and growth of one design at each of its rates, (rate, objective); NaN where no rate tells.

    ``log_rate`` (rate,) ascends; ``log_ratio`` (rate, objective) is ln(latency / bound); a rate at which the design is
    ``saturated`` (rate,) misses every bound. Growth is d ln latency / d ln service where the bound is met just, at
    least 1. Between rates the logarithm of the latency is straight in that of the rate. Beyond the last one the growth
    there goes on, up to a rate that is saturated; a latency that is longer at a lower rate is so by chance, and counts
    as no longer.
    """
    # A latency of nothing is far below any bound.
    log_ratio = np.maximum(log_ratio, -50.0)
    ends = _last_growth(log_rate, log_ratio), _first_growth(log_rate, log_ratio, saturated)
    step = max(1, MOST_CELLS // max(log_ratio.size, 1))
    blocks = [
        _solved(log_rate, log_ratio, saturated, np.arange(start, min(start + step, log_rate.size)), ends)
        for start in range(0, log_rate.size, step)
    ]
    log_headroom, growth = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return log_headroom, growth


def _solved(
    log_rate: np.ndarray,
    log_ratio: np.ndarray,
    saturated: np.ndarray,
    rows: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """``headrooms`` of some rows."""
    rates, count = np.arange(log_rate.size), log_rate.size
    missed = np.where(saturated[:, None], np.inf, log_ratio)
    at_or_above = (rates >= rows[:, None])[..., None]
    # Around each row the latency does not fall with the rate: (row, rate, objective).
    above = np.maximum.accumulate(np.where(at_or_above, missed, -np.inf), axis=1)
    at_or_below = (rates <= rows[:, None])[..., None]
    below = np.minimum.accumulate(np.where(at_or_below, missed, np.inf)[:, ::-1], axis=1)[:, ::-1]
    # ln(k L(k r) / bound) at the k that each rate stands for, which ascends along the rates.
    excess = np.where(at_or_above, above, below) + (log_rate - log_rate[rows, None])[..., None]
    met = np.count_nonzero(excess <= 0.0, axis=1)  # how many rates, the lowest ones, meet the bound
    lower, upper = np.maximum(met - 1, 0), np.minimum(met, count - 1)
    at_lower, at_upper = (np.take_along_axis(excess, place[:, None], axis=1)[:, 0] for place in (lower, upper))
    objective = np.arange(log_ratio.shape[1])
    last, first = ends
    with np.errstate(divide="ignore", invalid="ignore"):
        between = (at_upper - at_lower) / (log_rate[upper] - log_rate[lower])
    inside = (met > 0) & (met < count) & np.isfinite(at_upper)
    growth = np.where(inside, between, np.where(met > 0, last[lower, objective], first[objective]))
    growth = np.maximum(growth, 1.0)
    log_headroom = log_rate[lower] - log_rate[rows, None] - at_lower / growth
    # The queue grows for good at the next rate, wherever the line that goes on from below meets the bound.
    up_to_saturation = (met > 0) & (met < count) & ~inside
    most = log_rate[upper] - log_rate[rows, None]
    log_headroom = np.where(up_to_saturation, np.minimum(log_headroom, most), log_headroom)
    known = np.isfinite(at_lower)
    return np.where(known, log_headroom, np.nan), np.where(known, growth, np.nan)


def _last_growth(log_rate: np.ndarray, log_ratio: np.ndarray) -> np.ndarray:
    """Growth at each rate by the one below it, (rate, objective): 1 / L falls linearly in r towards saturation, as the
    wait of M/G/1 does (Pollaczek-Khinchine)."""
    with np.errstate(invalid="ignore", over="ignore"):
        slope = np.expm1(np.diff(log_ratio, axis=0)) / -np.expm1(-np.diff(log_rate))[:, None]
    return 1.0 + np.vstack([np.zeros((1, log_ratio.shape[1])), np.where(np.isfinite(slope), slope, 0.0)])


def _first_growth(log_rate: np.ndarray, log_ratio: np.ndarray, saturated: np.ndarray) -> np.ndarray:
    """Growth at the lowest rate, (objective,)."""
    if log_rate.size < 2 or saturated[:2].any():
        return np.ones(log_ratio.shape[1])
    slope = (log_ratio[1] - log_ratio[0]) / (log_rate[1] - log_rate[0])
    return 1.0 + np.where(np.isfinite(slope), slope, 0.0)
