"""Means and quantiles over requests, and how far they would move with other random numbers.

Every function works on the last axis and over any leading axes, with one sort for all quantiles. NaN means
"this request has no such latency" (the tpot of a single token) and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.metrics.use import WeightedGaps, side_by_side

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


def quantiles(ordered: np.ndarray, levels: np.ndarray, count: np.ndarray | None = None) -> np.ndarray:
    """Quantiles of values sorted along the last axis, NaN last: linear interpolation, as ``numpy.quantile``.

    ``levels`` is (quantile,) or (..., quantile); the result is (..., quantile), NaN where there is no value. ``count``:
    what ``values_before_nan`` says, where it is known.
    """
    last = np.maximum((values_before_nan(ordered) if count is None else count) - 1, 0)[..., None]
    position = last * levels
    low = np.floor(position).astype(np.int64)
    # Positions in the rows one behind the other: a fifth of the time of ``take_along_axis`` for each of both.
    rows = np.arange(last.size).reshape(last.shape) * ordered.shape[-1]
    flat = ordered.reshape(-1)
    at_low, at_high = flat[rows + low], flat[rows + np.minimum(low + 1, last)]
    return at_low + (at_high - at_low) * (position - low)


def values_before_nan(ordered: np.ndarray) -> np.ndarray:
    """How many values each row has, int64, of rows sorted along the last axis: a sort puts NaN last."""
    if not np.isnan(ordered[..., -1]).any():
        return np.full(ordered.shape[:-1], ordered.shape[-1])
    return ordered.shape[-1] - np.isnan(ordered).sum(axis=-1)


def over_seeds(values: np.ndarray) -> np.ndarray:
    """Mean over the axis ``seed`` of (config, seed, ...) without NaN."""
    if values.shape[1] == 1:  # of most sweeps, in a tenth of the time
        return values[:, 0].astype(float)
    return mean(np.moveaxis(values, 1, -1))


def seed_stderr(values: np.ndarray) -> np.ndarray:
    """Standard error of ``over_seeds``: standard deviation over the seeds / sqrt(seeds); NaN below two seeds.

    Batches stand in for the seeds where there is one.
    """
    if values.shape[1] == 1:
        return np.full((len(values), *values.shape[2:]), np.nan)
    return _stderr(np.moveaxis(values, 1, -1))


def _stderr(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean over the last axis without NaN."""
    centred = values - mean(values)[..., None]
    squares = centred * centred
    square, count = squares.sum(axis=-1), np.full(squares.shape[:-1], squares.shape[-1])
    if np.isnan(square).any():
        square, count = np.nansum(squares, axis=-1), (~np.isnan(values)).sum(axis=-1)
    # n - 1 for the variance, n for the error of the mean of n seeds.
    variance = np.divide(square, (count - 1) * count, out=np.full(square.shape, np.nan), where=count > 1)
    return np.sqrt(variance)


def batch_means(values: np.ndarray) -> np.ndarray:
    """Means of successive batches of requests in order of arrival, (config, request) -> (config, batch).

    20 batches, fewer where one would have fewer than 5 requests; the remainder of the division is cut at the front.
    Their ``seed_stderr`` is that of the mean and sees the correlation of neighbours: NaN below two batches, too small
    where the queue's memory is longer than a batch (beyond about 95 % load with 1,000 requests).
    """
    return mean(_in_batches(values))


def _in_batches(values: np.ndarray) -> np.ndarray:
    """Values (..., request) by batches, (..., batch, request)."""
    size = max(values.shape[-1] // BATCHES, MIN_BATCH)
    batches = values.shape[-1] // size
    some = values[..., values.shape[-1] - batches * size :]
    return some.reshape(*values.shape[:-1], batches, size)


def mean_by_parts(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of (config, seed, request) over the seeds, (config,), and the means of its parts by which its error is
    known, (config, part): the seeds, or of one seed its batches."""
    means = mean(values)
    return over_seeds(means), means if means.shape[1] > 1 else batch_means(values[:, 0])


def quantile_stderr(
    values: np.ndarray, ordered: np.ndarray, levels: np.ndarray, tails: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Standard error of the quantiles ``tails`` of one run (config, request), by order statistics: (config, quantile).

    Woodruff (1952): the error of the fraction of requests below the quantile, here from batch means and never less
    than that of independent requests, is carried through the empirical distribution function to the quantile.
    NaN below two batches, and where the fraction's error reaches beyond the data: nothing is known of the tail there.
    With it the quantile as each batch has it, (config, batch, quantile): its fraction carried through that function.
    """
    count = values_before_nan(ordered)
    fractions = _fractions_below(values, tails, bool((count < values.shape[-1]).any()))
    independent = np.sqrt(levels * (1.0 - levels) / np.maximum(count, 1)[..., None])
    fraction_error = np.maximum(independent, _stderr(fractions))  # NaN stays
    low, high = levels - fraction_error, levels + fraction_error
    inside = (low > 0.0) & (high < 1.0)
    # 0.5 stands in for levels beyond the data, whose result is NaN below.
    ends = quantiles(ordered, np.where(np.tile(inside, 2), np.concatenate([low, high], axis=-1), 0.5), count)
    spread = ends[..., levels.size :] - ends[..., : levels.size]
    error = np.where(inside, spread / 2.0, np.nan)
    per_fraction = np.divide(error, fraction_error, out=np.full(error.shape, np.nan), where=fraction_error > 0)
    return error, tails[:, None] + (levels - np.moveaxis(fractions, -1, 1)) * per_fraction[:, None]


def _fractions_below(values: np.ndarray, tails: np.ndarray, some_missing: bool) -> np.ndarray:
    """Of each batch of (config, request) the fraction that is at most each of ``tails`` (config, quantile), NaN left
    out: (config, quantile, batch)."""
    below = _in_batches(values[:, None] <= tails[..., None])
    size = below.shape[-1]
    if not some_missing:
        return _true(below) / size
    present = _true(_in_batches(~np.isnan(values)))[:, None]
    return np.divide(_true(below), present, out=np.full(below.shape[:-1], np.nan), where=present > 0)


def _true(flags: np.ndarray) -> np.ndarray:
    """How many flags are true along the last axis."""
    # A sum of bytes is four times as quick as ``count_nonzero``, and wraps at 256.
    return np.einsum("...r->...", flags.view(np.uint8)) if flags.shape[-1] < 256 else np.count_nonzero(flags, axis=-1)


def summary(values: np.ndarray, levels: np.ndarray) -> Summary:
    """Mean and quantiles of (config, seed, request) per seed, then their mean over the seeds, with standard errors.

    With two seeds or more the errors come from the spread over the seeds, with one from within the run.
    """
    ordered = np.sort(values, axis=-1)
    means, tails = mean(values), quantiles(ordered, levels)
    if values.shape[1] > 1:
        return _summary(means, tails)
    parts = batch_means(values[:, 0])
    tail_error, tail_parts = quantile_stderr(values[:, 0], ordered[:, 0], levels, tails[:, 0])
    return Summary(means[:, 0], seed_stderr(parts), tails[:, 0], tail_error, parts, tail_parts)


def _summary(means: np.ndarray, tails: np.ndarray) -> Summary:
    """The summary of means and quantiles by seed, (config, seed) and (config, seed, quantile)."""
    return Summary(over_seeds(means), seed_stderr(means), over_seeds(tails), seed_stderr(tails), means, tails)


def summary_of_gaps(gaps: Sequence[Sequence[WeightedGaps]], levels: np.ndarray) -> Summary:
    """``summary`` of weighted gaps, [config][seed] of (gap_s, weight): pooled over tokens within each seed.

    Gaps carry no order, so that one seed alone has no standard error (NaN).
    """
    # Where no design of a chunk can run there are no gaps to count the seeds of: one NaN stands for all of them.
    shape = (len(gaps), len(gaps[0]) if gaps else 1)
    # A seed is pooled first, so that every seed counts alike, however many tokens it has.
    runs = [run for seeds in gaps for run in seeds]
    means = np.array([_mean_gap(*run) for run in runs], dtype=np.float64).reshape(shape)
    return _summary(means, weighted_quantiles(runs, levels).reshape(*shape, levels.size))


def _mean_gap(gap_s: np.ndarray, weights: np.ndarray) -> float:
    total = weights.sum()
    return (gap_s * weights).sum() / total if total > 0 else np.nan


def weighted_quantiles(runs: Sequence[WeightedGaps], levels: np.ndarray) -> np.ndarray:
    """``numpy.quantile(numpy.repeat(values, weights), levels)`` of the values and weights of each run, (run, quantile),
    without repeating; weights are whole and >= 0."""
    values, weights = side_by_side(runs)
    if not len(values):
        return np.full((len(runs), levels.size), np.nan)
    ends = np.cumsum([len(of_run) for of_run, _ in runs])
    starts = ends - [len(of_run) for of_run, _ in runs]
    run = np.repeat(np.arange(len(runs)), ends - starts)
    # Histograms are in order already.
    if not ((values[1:] >= values[:-1]) | (run[1:] != run[:-1])).all():
        # Run by run: a third of the time of one sort by run and value.
        order = np.concatenate([start + values[start:end].argsort() for start, end in zip(starts, ends, strict=True)])
        values, weights = values[order], weights[order]
    # Ranks are cumulative weights over all runs, exact as these are whole: value v stands at the places rank[v - 1] to
    # rank[v] - 1, and those of a run begin with ``first``.
    rank = np.cumsum(weights)
    first, last = (np.concatenate([[0.0], rank])[at, None] for at in (starts, ends))
    position = np.maximum(last - first - 1, 0.0) * levels
    low = np.floor(position)
    places = np.stack([first + low, first + np.minimum(low + 1, np.maximum(last - first - 1, 0.0))])
    at_low, at_high = values[np.minimum(np.searchsorted(rank, places, side="right"), len(values) - 1)]
    return np.where(last > first, at_low + (at_high - at_low) * (position - low), np.nan)
