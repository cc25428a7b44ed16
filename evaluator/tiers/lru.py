"""Hit rates of tiers that keep the contexts asked for last (LRU), by the approximation of Che.

Che, Tung, Wang, "Hierarchical Web caching systems" (2002); Fricker, Robert, Roberts, "A versatile and accurate
approximation for LRU cache performance" (2012): a context stays for a time T after its last request that is the same
for all, so that it is there with probability 1 - exp(-rate T), and T is such that as many contexts are there as fit.

A tier below another sees only what the one above did not hold. A context that a tier misses is put into it, as every
tier keeps a copy of what passes it. So the requests for a context that a tier lets through are no Poisson stream: the
next one comes T at the earliest. We take the gaps between them as T plus an exponential time such that their rate is
right, and the streams of several tiers that share the next one as independent. (That a miss was not asked for during T
is from Martina, Garetto, Leonardi, "A unified approach to the performance analysis of caching systems", 2014, section
V.) ``tests/tiers/test_lru.py`` measures the error against real LRU: below 0.5 points for one tier.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from evaluator.tiers.popularity import Floats, Popularity, shares


class TierSize(NamedTuple):
    """Contexts that fit into one such tier together, and the replicas that share it."""

    contexts: float
    replicas: int


class Stream(NamedTuple):
    """Requests for each class of contexts, (class,), that come to a tier from one of those above it: their rate, and a
    pause after each of them.

    The gaps are the pause and an exponential time.
    """

    rate: Floats
    pause_s: float

    @property
    def fades(self) -> Floats:
        """Rate of the exponential part."""
        # Requests that come as often as the pause allows have no exponential part; a tiny one keeps its rate finite.
        return 1.0 / np.maximum(1.0 / self.rate - self.pause_s, 1e-9 / self.rate)

    def again(self, within_s: float) -> Floats:
        """Probability that the gap between two requests is at most so long."""
        return -np.expm1(-self.fades * max(0.0, within_s - self.pause_s))

    def lately(self, within_s: float) -> Floats:
        """Probability that the last request was at most so long ago, seen at any time: the age of a renewal process."""
        tail = self.again(within_s) / self.fades
        # The age of a renewal process: certain to be within the pause, then as the exponential tail has it.
        return np.minimum(self.rate * (min(within_s, self.pause_s) + tail), 1.0)


@lru_cache(maxsize=4096)
def hit_rates(popularity: Popularity, tiers: tuple[TierSize, ...], replicas: int) -> tuple[float, ...]:
    """Of the requests that come to each tier, the part that finds its context there, (tier,), long after the start.

    ``replicas`` in all, among which the requests are spread evenly. Tiers are asked in this order, and none is shared
    by fewer replicas than the one before. Time is such that the whole pool gets one request per second.
    """
    share, count = shares(popularity.contexts, popularity.zipf)
    passing = share.copy()  # rate at which requests for a context come to all tiers of a kind together
    rates: list[float] = []
    # What each tier above lets through is a stream of its own: a tier has as many as tiers above share it.
    pause_s, replicas_above = 0.0, tiers[0].replicas if tiers else 1
    for tier in tiers:
        counts, streams, of_stream = count, tier.replicas / replicas_above, replicas_above / replicas
        if popularity.at_home:
            # A context that comes to one replica only is in one stream, and competes with its like: such a tier sees
            # that part of the contexts, each at its full rate.
            counts, streams, of_stream = count * (tier.replicas / replicas), 1.0, 1.0
        # Rates of contexts that every tier above holds fall to 0, and gaps are their reciprocals.
        stream = Stream(np.maximum(passing, 1e-300) * of_stream, pause_s)
        stays_s = characteristic_time(stream, streams, counts, tier.contexts)
        # Where all contexts fit none ever leaves, and the formula would multiply 0 by infinity.
        held = np.ones_like(passing) if math.isinf(stays_s) else _held(stream, streams, stays_s)
        come = (count * passing).sum()
        rates.append(float((count * passing * held).sum() / come) if come > 0.0 else 0.0)
        # What this tier misses goes on, at the earliest T after the request for the same context before.
        passing, pause_s, replicas_above = passing * (1.0 - held), stays_s, tier.replicas
    return tuple(rates)


def _held(stream: Stream, streams: float, stays_s: float) -> Floats:
    """Probability that a request finds its context: one came in its own stream, or any other, less than T before."""
    return 1.0 - (1.0 - stream.again(stays_s)) * (1.0 - stream.lately(stays_s)) ** (streams - 1.0)


def characteristic_time(stream: Stream, streams: float, count: Floats, fitting: float) -> float:
    """T for which so many contexts as fit were asked for less than T ago, in any of the ``streams``; inf where all fit.

    Solved for log T, with which the number grows from 0 to all contexts.
    """
    if fitting >= count.sum():
        return math.inf
    if fitting <= 0.0:
        return 0.0
    from scipy.optimize import brentq  # here, as most runs have no tiers and scipy takes half a second to load

    def surplus(log_s: float) -> float:
        lately = 1.0 - (1.0 - stream.lately(math.exp(log_s))) ** streams
        return float((count * lately).sum() - fitting)

    low = math.log(fitting / (stream.rate * streams * count).sum())  # not more contexts than requests in that time
    # The other end is looked for in growing strides: with a steep law of Zipf it may lie at many thousand times the
    # time.
    high = low + 1.0
    while surplus(high) < 0.0:
        high += 2.0 * (high - low)
    return math.exp(float(brentq(surplus, low - 1e-9, high, xtol=1e-12)))
