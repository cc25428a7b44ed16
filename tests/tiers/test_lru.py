"""Hit rates from capacity and popularity, against caches that really keep the contexts asked for last."""

import numpy as np
import pytest

from evaluator.tiers import Popularity, TierSize, hit_rates
from evaluator.tiers.popularity import shares
from tests.tiers.lru import Lru, find_contexts

CONTEXTS, REQUESTS, WARM = 10_000, 160_000, 60_000
POINTS = 0.02


def real_rates(popularity, tiers, replicas):
    """The part that finds its context: of the requests that come to each tier, and of all requests."""
    rng = np.random.default_rng(1)
    weights = np.arange(1.0, popularity.contexts + 1) ** -popularity.zipf
    context = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(REQUESTS))
    home = rng.permutation(popularity.contexts) % replicas
    replica = home[context] if popularity.at_home else rng.integers(0, replicas, REQUESTS)
    sizes = [(int(tier.contexts), tier.replicas) for tier in tiers]
    at = np.array(find_contexts(zip(context.tolist(), replica.tolist(), strict=True), sizes, replicas))[WARM:]
    there = np.array([(at == tier).sum() for tier in range(len(tiers))])
    come = np.array([(at >= tier).sum() for tier in range(len(tiers))])
    return there / np.maximum(come, 1), there / len(at)


def all_found(rates):
    """Of all requests the part that each tier serves, from the rates of those that come to it."""
    rates = np.asarray(rates)
    return rates * np.cumprod(np.append(1.0, 1.0 - rates[:-1]))


def test_lru_by_hand():
    cache = Lru(2)
    assert [cache.ask(context) for context in (1, 2, 1, 3, 1, 2)] == [False, False, True, False, True, False]
    assert not any(Lru(0).ask(1) for _ in range(3))


def test_a_miss_fills_all_tiers_that_were_asked():
    requests = [(1, 0), (2, 0), (1, 0), (1, 1), (1, 1)]
    assert find_contexts(requests, [(1, 1), (2, 2)], 2) == [2, 2, 1, 1, 0]


@pytest.mark.parametrize("zipf", [0.6, 0.9, 1.2])
@pytest.mark.parametrize("fitting", [100, 1000, 5000])
class TestAgainstRealLru:
    def test_one_tier(self, zipf, fitting):
        popularity, tiers = Popularity(CONTEXTS, zipf), (TierSize(fitting, 1),)
        assert hit_rates(popularity, tiers, 1) == pytest.approx(real_rates(popularity, tiers, 1)[0], abs=POINTS)

    def test_private_tiers_above_shared_ones(self, zipf, fitting):
        """The filtered stream: of those that come to a tier, not only of all requests."""
        popularity = Popularity(CONTEXTS, zipf)
        tiers = (TierSize(fitting // 8, 1), TierSize(fitting // 2, 4), TierSize(fitting, 8))
        assert hit_rates(popularity, tiers, 8) == pytest.approx(real_rates(popularity, tiers, 8)[0], abs=POINTS)

    @pytest.mark.parametrize(("larger", "points"), [(1.6, POINTS), (1.0, 0.025)])
    def test_contexts_at_home(self, zipf, fitting, larger, points):
        """Tiers of contexts that always come to one replica, and one below them all; of all requests.

        Where that keeps just as much as the upper ones together, it finds only what these lost by chance: the
        approximation is at its worst.
        """
        popularity = Popularity(CONTEXTS, zipf, at_home=True)
        tiers = (TierSize(fitting // 8, 1), TierSize(larger * fitting, 8))
        rates, (_, real_found) = hit_rates(popularity, tiers, 8), real_rates(popularity, tiers, 8)
        assert all_found(rates) == pytest.approx(real_found, abs=points)


def test_private_contexts_of_users_who_are_alike():
    """LRU keeps any of them: the hit rate is the part that fits; all of them, and nothing is missed."""
    for fitting, wanted in ((250, 0.25), (999, 0.999), (1000, 1.0), (5000, 1.0), (0, 0.0)):
        (rate,) = hit_rates(Popularity(1000), (TierSize(fitting, 1),), 1)
        assert rate == pytest.approx(wanted, abs=1e-3)


def test_sharing_is_worth_its_copies():
    """Eight private tiers keep eight copies of a context that any replica may be asked for; a shared one keeps one."""
    private, shared = ((TierSize(100, 1),), (TierSize(800, 8),))
    spread, home = Popularity(1000), Popularity(1000, at_home=True)
    assert hit_rates(spread, private, 8)[0] == pytest.approx(0.1, abs=1e-9)
    assert hit_rates(spread, shared, 8)[0] == hit_rates(home, private, 8)[0] == pytest.approx(0.8, abs=1e-9)


def test_a_tier_that_nobody_asks_finds_nothing():
    assert hit_rates(Popularity(10), (TierSize(10, 1), TierSize(10, 1)), 1) == (1.0, 0.0)


@pytest.mark.parametrize("zipf", [0.0, 0.7, 1.0, 1.3])
def test_classes_of_contexts_stand_for_all(zipf):
    contexts = 200_000
    weights = np.arange(1.0, contexts + 1) ** -zipf
    share, count = shares(contexts, zipf)
    assert count.sum() == contexts and (share * count).sum() == pytest.approx(1.0, rel=1e-12)
    assert share[:100] == pytest.approx(weights[:100] / weights.sum(), rel=1e-8)
    assert len(share) < 6000
