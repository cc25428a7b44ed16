"""Means and quantiles over requests, and how far they would move with other random numbers.

Every function works on the last axis and over any leading axes, with one sort for all quantiles. NaN means
"this request has no such latency" (the tpot of a single token) and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Schmeiser (1982), "Batch size effects in the analysis of simulation output": beyond 10 to 30 batches nothing is won.
BATCHES = 20
MIN_BATCH = 5


@dataclass(frozen=True)
class Summary:
    """Statistics of one quantity: arrays (config,) for the mean and (config, quantile) for the quantiles.

    The ``parts`` are what the errors are the spread of: the same by seed, or with one seed what each batch of its
    requests makes of it, (config, part) and (config, part, quantile). Of paired runs they are paired too.
    """

    mean: np.ndarray
    mean_stderr: np.ndarray
    quantiles: np.ndarray
    quantiles_stderr: np.ndarray
    mean_parts: np.ndarray
    quantile_parts: np.ndarray


def mean(values: np.ndarray) -> np.ndarray:
    """Mean over the last axis without NaN; NaN where nothing is left."""
    total = values.sum(axis=-1)
    if values.shape[-1] and not np.isnan(total).any():  # nearly always, and four times as quick
        return total / values.shape[-1]
    valid = ~np.isnan(values)
    count = valid.sum(axis=-1)
    total = np.where(valid, values, 0.0).sum(axis=-1)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def quantiles(ordered: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Quantiles of values sorted along the last axis, NaN last: linear interpolation, as ``numpy.quantile``.

    ``levels`` is (quantile,) or (..., quantile); the result is (..., quantile), NaN where there is no value.
    """
    # A sort puts NaN last, so that the values are the first ``count``.
    count = ordered.shape[-1] - np.isnan(ordered).sum(axis=-1)
    position = np.maximum(count - 1, 0)[..., None] * levels
    low = np.floor(position).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(count - 1, 0)[..., None])
    at_low = np.take_along_axis(ordered, low, axis=-1)
    at_high = np.take_along_axis(ordered, high, axis=-1)
    return at_low + (at_high - at_low) * (position - low)


def weighted_quantiles(values: np.ndarray, weights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """``numpy.quantile(numpy.repeat(values, weights), levels)`` without repeating; weights are whole and >= 0."""
    order = np.argsort(values)
    ordered, rank = values[order], np.cumsum(weights[order])
    if rank.size == 0 or rank[-1] == 0:
        return np.full(levels.shape, np.nan)
    position = (rank[-1] - 1) * levels
    # Ranks are cumulative weights: value v stands at the places rank[v - 1] to rank[v] - 1.
    low = np.floor(position)
    at_low = ordered[np.searchsorted(rank, low, side="right")]
    at_high = ordered[np.searchsorted(rank, np.minimum(low + 1, rank[-1] - 1), side="right")]
    return at_low + (at_high - at_low) * (position - low)


def over_seeds(values: np.ndarray) -> np.ndarray:
    """Mean over the axis ``seed`` of (config, seed, ...) without NaN."""
    return mean(np.moveaxis(values, 1, -1))


def seed_stderr(values: np.ndarray) -> np.ndarray:
    """Standard error of ``over_seeds``: standard deviation over the seeds / sqrt(seeds); NaN below two seeds.

    Batches stand in for the seeds where there is one.
    """
    values = np.moveaxis(values, 1, -1)
    count = (~np.isnan(values)).sum(axis=-1)
    centred = values - mean(values)[..., None]
    square = np.nansum(centred * centred, axis=-1)
    # n - 1 for the variance, n for the error of the mean of n seeds.
    variance = np.divide(square, (count - 1) * count, out=np.full(square.shape, np.nan), where=count > 1)
    return np.sqrt(variance)


def batch_means(values: np.ndarray) -> np.ndarray:
    """Means of successive batches of requests in order of arrival, (config, request) -> (config, batch).

    20 batches, fewer where one would have fewer than 5 requests; the remainder of the division is cut at the front.
    Their ``seed_stderr`` is that of the mean and sees the correlation of neighbours: NaN below two batches, too small
    where the queue's memory is longer than a batch (beyond about 95 % load with 1,000 requests).
    """
    size = max(values.shape[-1] // BATCHES, MIN_BATCH)
    batches = values.shape[-1] // size
    in_batches = values[..., values.shape[-1] - batches * size :]
    return mean(in_batches.reshape(*values.shape[:-1], batches, size))


def mean_by_parts(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of (config, seed, request) over the seeds, (config,), and the means of its parts by which its error is
    known, (config, part): the seeds, or of one seed its batches."""
    means = mean(values)
    return over_seeds(means), means if means.shape[1] > 1 else batch_means(values[:, 0])


def quantile_stderr(values: np.ndarray, ordered: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard error of the quantiles of one run (config, request), by order statistics: (config, quantile).

    Woodruff (1952): the error of the fraction of requests below the quantile, here from batch means and never less
    than that of independent requests, is carried through the empirical distribution function to the quantile.
    NaN below two batches, and where the fraction's error reaches beyond the data: nothing is known of the tail there.
    With it the quantile as each batch has it, (config, batch, quantile): its fraction carried through that function.
    """
    tails = quantiles(ordered, levels)
    count = np.maximum(ordered.shape[-1] - np.isnan(ordered).sum(axis=-1), 1)[..., None]
    fraction_error = np.sqrt(levels * (1.0 - levels) / count)
    missing = np.isnan(values) if np.isnan(ordered[..., -1]).any() else None
    fractions = []
    for column in range(levels.size):
        below = np.asarray(values <= tails[..., column, None], dtype=np.float64)
        below = below if missing is None else np.where(missing, np.nan, below)
        fractions.append(batch_means(below))
        fraction_error[..., column] = np.maximum(fraction_error[..., column], seed_stderr(fractions[-1]))  # NaN stays
    low, high = levels - fraction_error, levels + fraction_error
    inside = (low > 0.0) & (high < 1.0)
    # 0.5 stands in for levels beyond the data, whose result is NaN below.
    spread = quantiles(ordered, np.where(inside, high, 0.5)) - quantiles(ordered, np.where(inside, low, 0.5))
    error = np.where(inside, spread / 2.0, np.nan)
    per_fraction = np.divide(error, fraction_error, out=np.full(error.shape, np.nan), where=fraction_error > 0)
    return error, tails[:, None] + (levels - np.stack(fractions, axis=-1)) * per_fraction[:, None]


def summary(values: np.ndarray, levels: np.ndarray) -> Summary:
    """Mean and quantiles of (config, seed, request) per seed, then their mean over the seeds, with standard errors.

    With two seeds or more the errors come from the spread over the seeds, with one from within the run.
    """
    ordered = np.sort(values, axis=-1)
    means, tails = mean(values), quantiles(ordered, levels)
    if values.shape[1] > 1:
        return _summary(means, tails)
    parts = batch_means(values[:, 0])
    tail_error, tail_parts = quantile_stderr(values[:, 0], ordered[:, 0], levels)
    return Summary(means[:, 0], seed_stderr(parts), tails[:, 0], tail_error, parts, tail_parts)


def _summary(means: np.ndarray, tails: np.ndarray) -> Summary:
    """The summary of means and quantiles by seed, (config, seed) and (config, seed, quantile)."""
    return Summary(over_seeds(means), seed_stderr(means), over_seeds(tails), seed_stderr(tails), means, tails)


def summary_of_gaps(gaps: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]], levels: np.ndarray) -> Summary:
    """``summary`` of weighted gaps, [config][seed] of (gap_s, weight): pooled over tokens within each seed.

    Gaps carry no order, so that one seed alone has no standard error (NaN).
    """
    # Where no design of a chunk can run there are no gaps to count the seeds of: one NaN stands for all of them.
    shape = (len(gaps), len(gaps[0]) if gaps else 1)
    means, tails = np.full(shape, np.nan), np.full((*shape, levels.size), np.nan)
    # A seed is pooled first, so that every seed counts alike, however many tokens it has.
    for config, seeds in enumerate(gaps):
        for seed, (gap, weight) in enumerate(seeds):
            total = weight.sum()
            if total > 0:
                means[config, seed] = (gap * weight).sum() / total
                tails[config, seed] = weighted_quantiles(gap, weight, levels)
    return _summary(means, tails)
