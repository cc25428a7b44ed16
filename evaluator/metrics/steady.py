"""Whether a run was long enough: whether its requests in the system came to a level, or still grew when it ended."""

from __future__ import annotations

import numpy as np

from evaluator.metrics.statistics import batch_means

PASSAGES = 5.0
"""A window must be as long as so many mean passages of a request: a batch needs some two of them to fill."""
FILLED = 3.0
"""After as many a batch is full, and what still grows then grows without bound."""
OVERLOAD = 0.3
"""Seconds that a passage becomes longer by in a second of arrivals: a station offered 1.3 times what it can serve. A
batch that only fills slows down by less in the second half of a window."""
BY_CHANCE = 2.0
"""Standard deviations of the queue of a station at load 1, which a stable one stays below."""
KEPT_UP = 0.9
"""The part of the asked rate that clients who wait for answers must reach: a design that is slow holds them up."""
SIGNIFICANT = 3.0
"""Standard errors of a trend."""
MATTERS = 0.01
"""Part of the mean that a trend comes to over the window; equal values drift with the rounding of clocks."""
MIN_BATCHES = 10


def growth(arrival_s: np.ndarray, left_s: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
    """By how many requests the backlog grew over the second half of the window, and how much chance explains.

    Both (config, seed), of (config, seed, request) times in order of arrival. ``start`` is the first measured request.
    The backlog at either end is the mean of what two requests find there. At load 1 the backlog of a station is a
    reflected random walk, whose standard deviation after n arrivals is sqrt(n (ca^2 + cs^2)) (Kingman's heavy traffic),
    ca and cs being the coefficients of variation of gaps and services; twice that is taken, with cs = 1 and ca at
    least 1.
    """
    later = arrival_s.shape[-1] - 1
    middle = (start + later) // 2
    near = max((later - middle) // 10, 1)
    ordinals = (middle, middle + near, max(later - near, 0), later)
    backlog = [_found_by(ordinal, arrival_s, left_s) for ordinal in ordinals]
    grown = (backlog[2] + backlog[3] - backlog[0] - backlog[1]) / 2.0
    gaps = np.diff(arrival_s[..., start:], axis=-1)
    if not gaps.shape[-1]:
        return grown, np.full(grown.shape, np.inf)
    average = gaps.mean(axis=-1)
    varies = np.divide(gaps.var(axis=-1), average**2, out=np.ones(grown.shape), where=average > 0)
    return grown, BY_CHANCE * np.sqrt((1.0 + np.maximum(varies, 1.0)) * max(later - middle, 1))


def _found_by(ordinal: int, arrival_s: np.ndarray, left_s: np.ndarray) -> np.ndarray:
    """Requests in the system when number ``ordinal`` arrives, itself among them; those behind it leave later."""
    # Half of a window of one request has no second one to ask.
    ordinal = min(ordinal, arrival_s.shape[-1] - 1)
    return ordinal + 1 - np.count_nonzero(left_s[..., : ordinal + 1] <= arrival_s[..., ordinal, None], axis=-1)


def drifts(values: np.ndarray) -> np.ndarray:
    """Whether values (config, seed, request) in order of arrival have a trend, (config, seed).

    The slope of the means of 20 batches over their number, against 3 of its standard errors by the residuals.
    Neighbours that are alike, as under high load, make it speak up sooner: such a run is short against its own
    fluctuations.
    """
    means = batch_means(values)
    count = means.shape[-1]
    if count < MIN_BATCHES:
        return np.zeros(means.shape[:-1], dtype=bool)
    # Batch numbers around 0, so that slope and mean are found independently of one another.
    number = np.arange(count) - (count - 1) / 2.0
    square = (number * number).sum()
    slope = (means * number).sum(axis=-1) / square
    residual = means - means.mean(axis=-1, keepdims=True) - slope[..., None] * number
    error = np.sqrt((residual * residual).sum(axis=-1) / ((count - 2) * square))
    matters = np.abs(slope) * (count - 1) > MATTERS * np.abs(means.mean(axis=-1))
    return matters & (np.abs(slope) > SIGNIFICANT * error)


def passages(arrival_s: np.ndarray, passage_s: np.ndarray, start: int) -> np.ndarray:
    """Length of the window, from its first arrival to the last, in mean passages of its requests, (config, seed)."""
    span = arrival_s[..., -1] - arrival_s[..., start]
    mean = passage_s[..., start:].mean(axis=-1)
    return np.divide(span, mean, out=np.full(span.shape, np.inf), where=mean > 0)
