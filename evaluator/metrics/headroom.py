"""How much slower the service may be until an objective is missed.

With all times of service, and the times between arrivals, k times as long, a run is the same in another unit of time.
So a latency with a service that is k times as slow, at the rate r, is k L(k r), with L(r) the latency at r by the
service as it is: what a design does at higher rates tells what it would do if it were slower, queues and all. The
headroom of a design at r is the k at which k L(k r) is the bound. It is below 1 where the bound is missed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def headrooms(log_rate: np.ndarray, log_ratio: np.ndarray, saturated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ln headroom and growth of designs at each of their rates, (rate, ..., objective); NaN where no rate tells.

    ``log_rate`` (rate,) ascends; ``log_ratio`` (rate, ..., objective) is ln(latency / bound); a rate at which a design
    is ``saturated`` (rate, ...) misses every bound. Growth is d ln latency / d ln service where the bound is met just,
    at least 1. Between rates the logarithm of the latency is straight in that of the rate. Beyond the last one the
    growth there goes on, up to a rate that is saturated; a latency that is longer at a lower rate is so by chance, and
    counts as no longer.
    """
    # A latency of nothing is far below any bound.
    columns = np.maximum(log_ratio, -50.0).reshape(log_rate.size, -1)
    over = np.broadcast_to(saturated[..., None], log_ratio.shape).reshape(columns.shape)
    ends = _last_growth(log_rate, columns), _first_growth(log_rate, columns, over)
    log_headroom, growth = _solved(log_rate, columns, np.where(over, np.inf, columns), ends)
    return log_headroom.reshape(log_ratio.shape), growth.reshape(log_ratio.shape)


def _solved(
    log_rate: np.ndarray, log_ratio: np.ndarray, missed: np.ndarray, ends: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """``headrooms`` by the latencies that are held against the bound, ``missed`` (rate, objective): infinite where the
    design is saturated."""
    count, rows, objective = log_rate.size, np.arange(log_rate.size)[:, None], np.arange(log_ratio.shape[1])
    ranges, at_row = _Ranges(missed), log_rate[:, None]

    def excess(rate: np.ndarray) -> np.ndarray:
        """ln(k L(k r) / bound) of each row at the k that ``rate`` (row, objective) stands for; it ascends with that."""
        # Around each row the latency does not fall with the rate.
        return ranges.around(rows, rate) + (log_rate[rate] - at_row)

    met = _count_true(lambda rate: excess(rate) <= 0.0, count, log_ratio.shape)  # the lowest rates meet the bound
    lower, upper = np.maximum(met - 1, 0), np.minimum(met, count - 1)
    at_lower, at_upper = excess(lower), excess(upper)
    last, first = ends
    with np.errstate(divide="ignore", invalid="ignore"):
        between = (at_upper - at_lower) / (log_rate[upper] - log_rate[lower])
    inside = (met > 0) & (met < count) & np.isfinite(at_upper)
    growth = np.where(inside, between, np.where(met > 0, last[lower, objective], first[objective]))
    growth = np.maximum(growth, 1.0)
    log_headroom = log_rate[lower] - at_row - at_lower / growth
    # The queue grows for good at the next rate, wherever the line that goes on from below meets the bound.
    up_to_saturation = (met > 0) & (met < count) & ~inside
    most = log_rate[upper] - at_row
    log_headroom = np.where(up_to_saturation, np.minimum(log_headroom, most), log_headroom)
    known = np.isfinite(at_lower) & ~np.isnan(missed)
    return np.where(known, log_headroom, np.nan), np.where(known, growth, np.nan)


class _Ranges:
    """The greatest and the least of ``values`` (row, column) over ranges of rows.

    Of each power of two those of as many rows from each row on; two of them cover any range (a sparse table). So a
    thousand rates take a thousand times ten steps, where a table of all pairs of them took a million.
    """

    def __init__(self, values: np.ndarray) -> None:
        rows, columns = values.shape
        tables = [np.stack([values, values])]
        while (width := 1 << (len(tables) - 1)) < rows:
            table = tables[-1].copy()  # what would go beyond the end is never asked for
            # Rates whose latency is not known are left out (``fmax``).
            np.fmax(table[0, :-width], table[0, width:], out=table[0, :-width])
            np.fmin(table[1, :-width], table[1, width:], out=table[1, :-width])
            tables.append(table)
        self._flat, self._of_power, self._columns = np.concatenate(tables, axis=None), 2 * values.size, columns
        self._least, self._power = values.size, np.frexp(np.arange(rows) + 1)[1] - 1

    def around(self, row: np.ndarray, to: np.ndarray) -> np.ndarray:
        """From ``row`` up to the row ``to`` the greatest, down to it the least, (row, column)."""
        upwards, span = to >= row, np.abs(to - row)
        power = self._power[span]
        start = power * self._of_power + np.where(upwards, 0, self._least) + np.minimum(row, to) * self._columns
        start += np.arange(self._columns)
        one, other = self._flat[start], self._flat[start + (span + 1 - (1 << power)) * self._columns]
        return np.where(upwards, np.fmax(one, other), np.fmin(one, other))


def _count_true(holds: Callable[[np.ndarray], np.ndarray], count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Of how many numbers below ``count`` something holds, which holds up to some number: by halves, (shape)."""
    found = np.zeros(shape, dtype=np.int64)
    for bit in reversed(range(count.bit_length())):
        more = found + (1 << bit)
        found = np.where((more <= count) & holds(np.minimum(more, count) - 1), more, found)
    return found


def _last_growth(log_rate: np.ndarray, log_ratio: np.ndarray) -> np.ndarray:
    """Growth at each rate by the one below it, (rate, objective): 1 / L falls linearly in r towards saturation, as the
    wait of M/G/1 does (Pollaczek-Khinchine)."""
    with np.errstate(invalid="ignore", over="ignore"):
        slope = np.expm1(np.diff(log_ratio, axis=0)) / -np.expm1(-np.diff(log_rate))[:, None]
    return 1.0 + np.vstack([np.zeros((1, log_ratio.shape[1])), np.where(np.isfinite(slope), slope, 0.0)])


def _first_growth(log_rate: np.ndarray, log_ratio: np.ndarray, saturated: np.ndarray) -> np.ndarray:
    """Growth at the lowest rate, (objective,)."""
    if log_rate.size < 2:
        return np.ones(log_ratio.shape[1])
    with np.errstate(invalid="ignore"):
        slope = (log_ratio[1] - log_ratio[0]) / (log_rate[1] - log_rate[0])
    return 1.0 + np.where(np.isfinite(slope) & ~saturated[:2].any(axis=0), slope, 0.0)
