"""A histogram of inter-token gaps with bins of 3.1 % width or less, kept inside the engine's loop.

The bin of a gap is read off its float64 bits: the exponent and the first five bits of the mantissa, that is 32 bins
of equal width to each factor of two. A quantile taken from it is wrong by less than one bin (``RELATIVE_WIDTH``);
gaps of one leap are entered at their mean, from which they differ by less than the context's growth in 128 tokens.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from evaluator.cost.iteration import Array

RELATIVE_WIDTH = 1 / 32
_BITS = 5
_LOWEST_EXPONENT = -17  # 7.6 us
_OCTAVES = 28  # up to 2,048 s
BINS = _OCTAVES << _BITS
_OFFSET = (1023 + _LOWEST_EXPONENT) << _BITS


def bin_of(gap_s: Array) -> Array:
    """Bin number (int32) of a gap in seconds; what lies outside falls into the first or last bin."""
    bits = lax.bitcast_convert_type(jnp.asarray(gap_s, jnp.float64), jnp.int64)
    return jnp.clip((bits >> (52 - _BITS)) - _OFFSET, 0, BINS - 1).astype(jnp.int32)


def bin_edges() -> np.ndarray:
    """Edges of the bins in seconds, (bin + 1,)."""
    number = np.arange(BINS + 1)
    mantissa = 1 + (number % (1 << _BITS)) / (1 << _BITS)
    return np.ldexp(mantissa, _LOWEST_EXPONENT + (number >> _BITS))


def quantiles(histogram: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Quantiles of (..., bin) histograms, (..., probability), linear inside a bin; NaN where a histogram is empty."""
    counts = np.asarray(histogram, float)
    below = np.concatenate([np.zeros((*counts.shape[:-1], 1)), np.cumsum(counts, axis=-1)], axis=-1)
    edges = bin_edges()
    flat = below.reshape(-1, below.shape[-1])
    rows = [np.interp(np.asarray(probabilities) * row[-1], row, edges) if row[-1] else np.nan for row in flat]
    out = np.array([np.broadcast_to(row, np.shape(probabilities)) for row in rows])
    return out.reshape(*counts.shape[:-1], *np.shape(probabilities))
