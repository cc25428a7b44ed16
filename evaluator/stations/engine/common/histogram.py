"""A histogram of inter-token gaps with bins of 1.6 % width or less, kept inside the engine's loop.

The bin of a gap is read off its float64 bits: the exponent and the first six bits of the mantissa, that is 64 bins of
equal width to each factor of two. Taken at the bin's middle a gap is wrong by less than 0.8 % (``RELATIVE_ERROR``);
gaps of one leap are entered at their mean, from which they differ by what the growth of the context over at most 128
tokens adds to an iteration.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
from jax import lax

from evaluator.stations.engine.common.arrays import Array, Bins, Float, Int
from evaluator.stations.engine.common.rings import read, write

RELATIVE_ERROR = 1 / 128
_BITS = 6
_LOWEST_EXPONENT = -17  # 7.6 us
_OCTAVES = 28  # up to 2,048 s
BINS = _OCTAVES << _BITS
_OFFSET = (1023 + _LOWEST_EXPONENT) << _BITS


def bin_of(gap_s: Array) -> Array:
    """Bin number (int32) of a gap in seconds; what lies outside falls into the first or last bin."""
    bits = lax.bitcast_convert_type(jnp.asarray(gap_s, jnp.float64), jnp.int64)
    return jnp.clip((bits >> (52 - _BITS)) - _OFFSET, 0, BINS - 1).astype(jnp.int32)


def enter(bins: Bins, gap_s: Float, count: Float, first: Int | int = 0) -> Bins:
    """The histogram that begins at bin ``first`` of several, with ``count`` more gaps of ``gap_s``."""
    place = first + bin_of(gap_s)
    return write(bins, place, read(bins, place) + count)


def enter_later_steps(bins: Bins, steps: Int, first_end_s: Float, end_s: Float, decodes: Float) -> Bins:
    """The histogram with the gaps of a leap's steps after the first, each of ``decodes`` sequences, at their mean."""
    more = jnp.maximum(steps - 1, 0).astype(jnp.float64)
    return enter(bins, (end_s - first_end_s) / jnp.maximum(more, 1.0), decodes * more)


@cache
def bin_middles() -> np.ndarray:
    """Middle of each bin in seconds, (bin,)."""
    number = np.arange(BINS + 1)
    mantissa = 1 + (number % (1 << _BITS)) / (1 << _BITS)
    edges = np.ldexp(mantissa, _LOWEST_EXPONENT + (number >> _BITS))
    return 0.5 * (edges[1:] + edges[:-1])


def weighted(bins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of a histogram (bin,) the middles of the bins that are not empty, in seconds, and how many gaps each has."""
    return weighted_runs(bins[None])[0]


def weighted_runs(bins: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """``weighted`` of the histogram of each run, (run, bin)."""
    filled = np.flatnonzero(bins)
    middles, counts = bin_middles()[filled % bins.shape[-1]], bins.reshape(-1)[filled]
    # One search for all runs of a chunk, where ``np.split`` would take each cut by itself.
    ends = np.searchsorted(filled, np.arange(len(bins) + 1) * bins.shape[-1]).tolist()
    return [(middles[start:end], counts[start:end]) for start, end in pairwise(ends)]
