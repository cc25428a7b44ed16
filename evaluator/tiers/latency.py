"""The time to get a context from tiers that are asked one after the other, for NumPy and for JAX.

After MIST, section IV-A3 (HERMES, equation 1): a recursion over tiers by their hit rates. Their formula charges the
lookup of a tier only to the contexts that it holds; here a miss pays for the lookup that found nothing as well, so that

    E[n] = hit[n] (lookup[n] + bytes / bandwidth[n]) + (1 - hit[n]) (lookup[n] + E[n + 1])

and E behind the last tier is what a miss takes: computing the context again, or a fetch from afar.
"""

from __future__ import annotations

from evaluator.cost.arrays import Batched, array_namespace


def fetch_s(size: Batched, lookup_s: Batched, bandwidth: Batched) -> Batched:
    """Seconds until a context of ``size`` bytes (...,) is there, by the tier that holds it: (..., tier).

    ``lookup_s`` and ``bandwidth`` (tier,) are those of the tiers in the order in which they are asked.
    """
    xp = array_namespace(size, lookup_s, bandwidth)
    # The lookups of all tiers down to the one that holds it are paid, its transfer once.
    return xp.cumsum(lookup_s, axis=-1) + xp.asarray(size)[..., None] / bandwidth


def held_shares(hit: Batched) -> Batched:
    """The part of the contexts that each tier holds, and the part that none does: (..., tier + 1), which sum to 1.

    ``hit`` (..., tier) is, of the contexts that a tier is asked for, the part that it holds.
    """
    xp = array_namespace(hit, hit)
    hit = xp.asarray(hit)
    ones = xp.ones_like(hit[..., :1])
    # Whoever all tiers before do not hold is asked of the next: a product of misses.
    reached = xp.concatenate([ones, xp.cumprod(1.0 - hit, axis=-1)], axis=-1)
    return reached * xp.concatenate([hit, ones], axis=-1)


def expected_s(size: Batched, hit: Batched, lookup_s: Batched, bandwidth: Batched, miss_s: Batched = 0.0) -> Batched:
    """Expected seconds to have a context of ``size`` bytes (...,), without waiting for other transfers.

    ``hit``, ``lookup_s`` and ``bandwidth`` have the tier as their last axis; ``miss_s`` (...,) is what a context takes
    that no tier holds, after all lookups. The source is in the module's docstring.
    """
    xp = array_namespace(size, lookup_s, bandwidth)
    hit, lookup_s, bandwidth = xp.asarray(hit), xp.asarray(lookup_s), xp.asarray(bandwidth)
    expected = xp.asarray(miss_s)
    # From behind, because a miss of a tier costs what the next one is expected to take.
    for tier in reversed(range(lookup_s.shape[-1])):
        hit_here = hit[..., tier]
        expected = lookup_s[..., tier] + hit_here * (size / bandwidth[..., tier]) + (1.0 - hit_here) * expected
    return expected
