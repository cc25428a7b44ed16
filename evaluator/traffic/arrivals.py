"""When requests are sent: arrival times of each process from random numbers that no rate changes."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from evaluator.scenario import Arrivals
from evaluator.scenario.arrivals import STEPS
from evaluator.scenario.trace import TIMES, read_trace

UNIT_GAP_PROCESSES = ("poisson", "gamma", "uniform")
"""The processes whose times at ``rate_rps`` are their times at rate 1 divided by it."""

_GAPS = 0  # the random stream of the gaps
_SHARED = 1 << 16  # numbers that are drawn for several rates at once and kept; beyond, each rate draws its own


def stream(seed: int, *number: int) -> np.random.Generator:
    """Generator ``number`` of a seed: the same on every machine, independent of the other numbers."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *number])))


def drawn_for(n: int) -> int:
    """How many numbers to draw where ``n`` are needed and the first of a longer draw are those of a shorter one.

    A power of two, so that rates of a sweep, whose sessions have more or fewer turns in all, share what is drawn.
    """
    return 1 << max(n - 1, 0).bit_length() if n <= _SHARED else n


def unit_gaps(arrivals: Arrivals, seed: int, n: int) -> NDArray[np.float64]:
    """Gaps before each request at one request per second, float64 (request,); the mean is 1.

    Only for ``UNIT_GAP_PROCESSES`` (else ValueError). The first requests of a longer draw are those of a shorter one.
    The first request comes after the first gap; evenly spaced ones start at 0.
    """
    if arrivals.process == "poisson":
        return stream(seed, _GAPS).standard_exponential(n)
    if arrivals.process == "gamma":
        assert arrivals.cv is not None
        variance = arrivals.cv**2  # of a gap with mean 1: shape 1 / cv^2, scale cv^2
        return stream(seed, _GAPS).standard_gamma(1.0 / variance, n) * variance
    if arrivals.process == "uniform":
        # The first is sent at 0, as load generators with a fixed rate do.
        gaps = np.ones(n)
        gaps[:1] = 0.0
        return gaps
    raise ValueError(f"{arrivals.process} arrivals do not scale with the rate; there are no unit gaps")


def arrival_times(arrivals: Arrivals, seed: int, n: int) -> NDArray[np.float64]:
    """``arrival_s`` of n requests, float64 (request,), never decreasing; zeros for all_at_once and closed_loop.

    The times of a trace are the file's, divided by ``scale``.
    """
    process = arrivals.process
    if process in UNIT_GAP_PROCESSES:
        assert arrivals.rate_rps is not None
        return _unit_times(process, arrivals.cv, seed, drawn_for(n))[:n] / arrivals.rate_rps
    if process == "normal":
        return _normal(arrivals, seed, n)
    if process == "burst":
        return _burst(arrivals, seed, n)
    if process == "varying":
        return _varying(arrivals, seed, n)
    if process == "trace":
        assert arrivals.file is not None
        times = read_trace(arrivals.file, TIMES).arrival_s
        assert times is not None
        return times[:n] / arrivals.scale
    # Closed loops and batches: all may be sent at once, and users send on when they have their answers.
    return np.zeros(n)


@lru_cache(maxsize=16)  # of as many numbers as there are requests
def _unit_times(process: str, cv: float | None, seed: int, n: int) -> NDArray[np.float64]:
    """Arrivals at one request per second: every rate of a search divides the same ones."""
    # Unit gaps first, then their sum: a rate divides both alike, so that the order of events is its own.
    times = np.cumsum(unit_gaps(Arrivals(process, cv=cv), seed, n))
    # The array is shared by all who ask for it.
    times.flags.writeable = False
    return times


def at_rate(arrivals: Arrivals, rate_rps: float, n: int) -> Arrivals:
    """The same process at another mean rate, from the same random numbers; a trace is sent faster or slower.

    A trace of n requests has the mean rate n / (time of its last one). Errors: ValueError without a rate to change.
    """
    if arrivals.rate_rps is not None:
        return replace(arrivals, rate_rps=rate_rps)
    if arrivals.process != "trace":
        raise ValueError(f"{arrivals.process} arrivals have no rate")
    # The seed makes no difference to the times of a file.
    last_s = arrival_times(replace(arrivals, scale=1.0), 0, n)[-1]
    if last_s == 0.0:
        raise ValueError("a trace whose requests all come at time 0 has no rate")
    return replace(arrivals, scale=float(rate_rps * last_s / n))


def _normal(arrivals: Arrivals, seed: int, n: int) -> NDArray[np.float64]:
    """Normal gaps, negative ones put to 0 and all then scaled so that their mean is 1 / rate_rps again.

    E max(0, X) = m Phi(m/s) + s phi(m/s) for X normal with mean m and standard deviation s.
    """
    assert arrivals.rate_rps is not None and arrivals.std_s is not None
    mean, std = 1.0 / arrivals.rate_rps, arrivals.std_s
    gaps = np.maximum(0.0, mean + std * stream(seed, _GAPS).standard_normal(n))
    if std > 0:
        ratio = mean / std
        density = math.exp(-0.5 * ratio * ratio) / math.sqrt(2 * math.pi)
        gaps *= mean / (mean * 0.5 * math.erfc(-ratio / math.sqrt(2)) + std * density)
    return np.cumsum(gaps)


def _varying(arrivals: Arrivals, seed: int, n: int) -> NDArray[np.float64]:
    """A Poisson process whose rate follows a profile, from the same unit process as one of a constant rate.

    Time rescaling, as of a burst: between two corners a and b, at rates f and g, the expected number of arrivals t
    after a is f t + (g - f) t^2 / (2 (b - a)), whose inverse is the root below.
    """
    assert arrivals.rate_rps is not None and arrivals.profile is not None and arrivals.period_s is not None
    at_s, factors = (np.array(column) for column in zip(*arrivals.profile, strict=True))
    lengths = np.diff(np.append(at_s, arrivals.period_s))
    ends = factors if arrivals.between == STEPS else np.roll(factors, -1)  # the last goes back to the first
    areas = lengths * (factors + ends) / 2.0
    scale = arrivals.rate_rps * arrivals.period_s / areas.sum()
    begins, areas = factors * scale, areas * scale
    slopes = (ends - factors) * scale / lengths
    expected = np.cumsum(stream(seed, _GAPS).standard_exponential(n))
    cycles, left = np.divmod(expected, arrivals.rate_rps * arrivals.period_s)
    before = np.concatenate([[0.0], np.cumsum(areas)[:-1]])
    # "right", less one: the last corner up to which no more is expected; it skips corners behind which nothing comes.
    corner = np.searchsorted(before, left, side="right") - 1
    left, begin, slope = left - before[corner], begins[corner], slopes[corner]
    # In this form it holds without a slope, too, and loses no digits to the difference of like numbers. Rounding may
    # take the root of what is expected at a corner of rate 0 a hair below it.
    root = np.sqrt(np.maximum(begin * begin + 2.0 * slope * left, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        after_s = np.where(left > 0.0, 2.0 * left / (begin + root), 0.0)
    return cycles * arrivals.period_s + at_s[corner] + np.minimum(after_s, lengths[corner])


def _burst(arrivals: Arrivals, seed: int, n: int) -> NDArray[np.float64]:
    """A Poisson process whose rate is factor x rate_rps for on_s, what is left for off_s, and so on from time 0.

    Times of a unit Poisson process through the inverse of the expected number of arrivals (time rescaling).
    """
    assert arrivals.rate_rps is not None and arrivals.factor is not None
    assert arrivals.on_s is not None and arrivals.off_s is not None
    period = arrivals.on_s + arrivals.off_s
    expected = np.cumsum(stream(seed, _GAPS).standard_exponential(n))
    cycles, left = np.divmod(expected, arrivals.rate_rps * period)
    in_burst = min(arrivals.factor * arrivals.on_s / period, 1.0) * arrivals.rate_rps * period
    corners = [0.0, in_burst, arrivals.rate_rps * period]
    # Without arrivals between bursts the expected number is flat there, and has no inverse to interpolate.
    if in_burst == corners[2]:  # nothing is sent between bursts
        return cycles * period + left / (arrivals.factor * arrivals.rate_rps)
    return cycles * period + np.interp(left, corners, [0.0, arrivals.on_s, period])
