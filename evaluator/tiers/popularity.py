"""How often the contexts of a workload are asked for: all alike, or by Zipf's law."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from evaluator.keys import count, flag, key, number

_EXACT = 4096  # ranks that stand by themselves
_WIDTH = 1.01  # of a bin of further ranks: the last one is at most so many times the first

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Popularity:
    """Requests ask for one of ``contexts``, independently of one another: rank k in proportion to k^-``zipf``.

    Contexts of users are private: ``zipf`` 0 where users are alike. ``at_home``: the requests of a context all go to
    one replica, as a router that keeps sessions together sends them; else to any of them.
    """

    contexts: int = key(count(), says="How many different ones are asked for: users, documents.")
    zipf: float = key(number(least=0), 0.0, "The k-th of them in proportion to k^-zipf; 0: all alike.")
    at_home: bool = key(
        flag, False, "true: the requests of a context always come to the same tiers. false: to those of any replica."
    )


@lru_cache(maxsize=256)
def shares(contexts: int, zipf: float) -> tuple[Floats, Floats]:
    """(part of the requests that ask for one such context, how many such contexts there are), both (class,).

    The products sum to 1. Ranks beyond the first 4,096 are put together in bins of 1 %, within which the popularity is
    the mean of the bin: by the midpoint rule, whose error is below 1e-6 of it.
    """
    edges = np.arange(1.0, min(contexts, _EXACT) + 1) - 0.5
    if contexts > _EXACT:
        bins = int(np.ceil(np.log(contexts / _EXACT) / np.log(_WIDTH)))
        further = np.unique(np.rint(np.geomspace(_EXACT + 1, contexts + 1, bins + 1))) - 0.5
        edges = np.concatenate([edges, further])
    else:
        edges = np.append(edges, contexts + 0.5)
    counts = np.diff(edges)
    binned = counts > 1.0
    weights = (edges[:-1] + 0.5) ** -zipf
    weights[binned] = _integral(edges[:-1][binned], edges[1:][binned], zipf) / counts[binned]
    weights /= (weights * counts).sum()
    # The cache hands out the same arrays to all who ask.
    for array in (weights, counts):
        array.flags.writeable = False
    return weights, counts


def _integral(low: Floats, high: Floats, zipf: float) -> Floats:
    """Of x^-zipf from ``low`` to ``high``; relative to its size where zipf is close to 1."""
    power = 1.0 - zipf
    ratio = np.log(high / low)
    growth = ratio if power == 0.0 else np.expm1(power * ratio) / power
    return low**power * growth
