"""Hit rates of tiers that keep the contexts asked for last (LRU), by the approximation of Che.

Che, Tung, Wang, "Hierarchical Web caching systems" (2002); Fricker, Robert, Roberts, "A versatile and accurate
approximation for LRU cache performance" (2012): a context stays for a time T after its last request that is the same
for all, so that it is there with probability 1 - exp(-rate T), and T is such that as many contexts are there as fit.

A tier below another sees only what the one above did not hold. Every context that is fetched or computed is put into
all tiers above its source too, as write-through does. Of that filtered stream we take the rate, and its most important
dependence (Martina, Garetto, Leonardi, "A unified approach to the performance analysis of caching systems", 2014,
section V): a context that tier n misses now was not asked for in that group during T[n], so that tier n + 1 can have it
only of a request before that, or of another group of tier n that shares tier n + 1. In between, the filtered stream is
taken as Poisson. Measured against real LRU in ``tests/tiers/test_lru.py``.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from evaluator.tiers.popularity import Floats, Popularity, shares


class TierSize(NamedTuple):
    """Contexts that fit into one such tier together, and the replicas that share it."""

    contexts: float
    replicas: int


@lru_cache(maxsize=4096)
def hit_rates(popularity: Popularity, tiers: tuple[TierSize, ...], replicas: int) -> tuple[float, ...]:
    """Of the requests that come to each tier, the part that finds its context there, (tier,), long after the start.

    ``replicas`` in all, among which the requests are spread evenly. Tiers are asked in this order, and none is shared
    by fewer replicas than the one before.
    """
    share, count = shares(popularity.contexts, popularity.zipf)
    missed = np.ones_like(share)  # part of the requests for a context that no tier so far held
    rates: list[float] = []
    before, before_s = 0.0, 0.0  # of the tier above: the part of the requests for a context that come to it, and its T
    for tier in tiers:
        part = 1.0 if popularity.at_home else tier.replicas / replicas
        there = count * (tier.replicas / replicas) if popularity.at_home else count
        rate = share * missed
        stays_s = characteristic_time(rate * part, there, tier.contexts)
        if np.isinf(stays_s):
            held = np.ones_like(rate)
        else:
            asked_s = before * max(0.0, stays_s - before_s) + (part - before) * stays_s
            held = -np.expm1(-rate * asked_s)
        come = (count * rate).sum()
        rates.append(float((count * rate * held).sum() / come) if come > 0.0 else 0.0)
        missed, before, before_s = missed * (1.0 - held), part, stays_s
    return tuple(rates)


def characteristic_time(rate: Floats, count: Floats, fitting: float) -> float:
    """T for which sum of count (1 - exp(-rate T)) over the classes of contexts is ``fitting``; inf where all fit.

    Solved for log T: the sum grows with it from 0 to the number of all contexts.
    """
    asked = rate > 0.0
    if fitting >= count[asked].sum():
        return math.inf
    if fitting <= 0.0:
        return 0.0
    rate, count = rate[asked], count[asked]

    def surplus(log_s: float) -> float:
        return float(-(count * np.expm1(-rate * math.exp(log_s))).sum() - fitting)

    low = math.log(fitting / (rate * count).sum())  # 1 - exp(-x) <= x, so that T is at least this
    high = low + 1.0
    while surplus(high) < 0.0:
        high += 2.0 * (high - low)
    return math.exp(float(brentq(surplus, low - 1e-9, high, xtol=1e-12)))
