"""The transient at the start of a run: how many of its requests a statistic must leave out."""

from __future__ import annotations

import numpy as np

BATCH = 5
MACRO_BATCHES = 10
SIGNIFICANT = 3.0
"""Standard errors between what is cut and what is kept."""


def transient(values: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Requests to leave out at the front, and whether the values have settled by then, both (config, seed).

    ``values`` are (config, seed, request) in order of arrival; at least ``start`` requests are left out.

    MSER-5 (White, "An effective truncation heuristic for bias reduction in simulation output", 1997): the cut that
    makes the standard error of the mean of what is left the smallest, over means of 5 requests, within the first half
    of what follows ``start``. On values that only fluctuate this cuts at random; so a cut counts only where the mean
    before it differs from the mean behind it by more than 3 standard errors (of 10 batch means), else it is ``start``.
    Values whose best cut is the last that is allowed have not settled.
    """
    rest = values[..., start:]
    count = rest.shape[-1] // BATCH
    shape = values.shape[:-1]
    if count < 2 * MACRO_BATCHES:
        return np.full(shape, start), np.ones(shape, dtype=bool)
    means = rest[..., : count * BATCH].reshape(*shape, count, BATCH).mean(axis=-1)
    # Sums over all that is behind a cut, for every cut at once: cumulative from the end.
    left = np.arange(count, 0, -1)
    behind = np.cumsum(means[..., ::-1], axis=-1)[..., ::-1] / left
    squares = np.cumsum((means * means)[..., ::-1], axis=-1)[..., ::-1] / left
    # The variance over the number of batches left, the square of the standard error, which has the same minimum.
    error = np.maximum(squares - behind * behind, 0.0) / left
    # Within the first half: behind it too few batches are left to judge by.
    cut = np.argmin(error[..., : count // 2 + 1], axis=-1)
    counts = _differs(means, cut)
    return np.where(counts, start + BATCH * cut, start), ~(counts & (cut == count // 2))


def _differs(means: np.ndarray, cut: np.ndarray) -> np.ndarray:
    """Whether the means (..., batch) before the cut differ from those behind it, whose errors are correlated."""
    count = means.shape[-1]
    size = count // (2 * MACRO_BATCHES)
    tail = means[..., count - MACRO_BATCHES * size :].reshape(*means.shape[:-1], MACRO_BATCHES, size).mean(axis=-1)
    spread = tail.std(axis=-1, ddof=1)  # of a macro batch; the last half of the batches has ten
    before = np.arange(count) < cut[..., None]
    # maximum: a cut of 0 has no mean before it, and counts as no difference below.
    head = np.where(before, means, 0.0).sum(axis=-1) / np.maximum(cut, 1)
    rest = np.where(before, 0.0, means).sum(axis=-1) / (count - cut)
    error = spread * np.sqrt(size / np.maximum(cut, 1) + size / (count - cut))
    return (cut > 0) & (np.abs(head - rest) > SIGNIFICANT * error)
