"""The load of the slowest of the devices that hold whole experts, against draws of their popularity."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.cost.imbalance import busiest, slowest_share
from evaluator.cost.iteration import busiest_touched, experts_touched
from evaluator.cost.kernel import Placed


@pytest.mark.parametrize(
    ("experts", "parts", "skew"), [(256, 8, 0.5), (256, 32, 1.0), (128, 128, 0.3), (32, 4, 2.0), (16, 16, 0.05)]
)
def test_as_in_draws(experts, parts, skew):
    rng = np.random.default_rng(0)
    loads = rng.gamma(1 / skew, skew, (20000, parts, experts // parts)).sum(axis=2)
    drawn = (loads.max(axis=1) * parts / experts).mean()
    assert slowest_share(Placed(experts, parts, 0), skew) == pytest.approx(drawn, rel=0.01)


def balanced(popularity: np.ndarray, parts: int, redundant: int) -> float:
    """The balancer: each copy to the expert with the largest share, then the largest piece to the emptiest device."""
    copies = np.ones(len(popularity), dtype=int)
    for _ in range(redundant):
        copies[np.argmax(popularity / copies)] += 1
    pieces = np.sort(np.repeat(popularity / copies, copies))[::-1]
    held, loads = np.zeros(parts, dtype=int), np.zeros(parts)
    for piece in pieces:
        device = np.argmin(np.where(held < len(pieces) // parts, loads, np.inf))
        held[device] += 1
        loads[device] += piece
    return loads.max() * parts / popularity.sum()


@pytest.mark.parametrize(
    ("experts", "parts", "redundant", "skew"),
    [(256, 8, 32, 0.5), (256, 32, 32, 1.0), (128, 128, 128, 0.3), (32, 4, 4, 2.0), (64, 64, 64, 3.0)],
)
def test_redundant_experts_as_in_draws_that_are_balanced(experts, parts, redundant, skew):
    rng = np.random.default_rng(0)
    drawn = np.mean([balanced(rng.gamma(1 / skew, skew, experts), parts, redundant) for _ in range(40)])
    found = slowest_share(Placed(experts, parts, redundant), skew)
    assert found == pytest.approx(drawn, rel=0.06)
    assert 1.0 <= found < 0.9 * slowest_share(Placed(experts, parts, 0), skew)


def test_equally_popular_experts():
    assert slowest_share(Placed(64, 8, 0), 0.0) == slowest_share(Placed(64, 8, 8), 0.0) == 1.0
    assert slowest_share(Placed(64, 8, 0), 1e-9) == pytest.approx(1.0, abs=1e-4)
    assert slowest_share(Placed(64, 1, 0), 2.0) == pytest.approx(1.0, abs=2e-3)


def drawn_touched(experts: int, parts: int, chosen: int, skew: float, tokens: int) -> float:
    """The largest fraction of its experts that any device touches, mean over draws of popularity and choices."""
    rng, largest = np.random.default_rng(0), []
    for _ in range(300):
        popularity = rng.gamma(1 / skew, skew, experts)
        # The largest of Gumbel variables around the logarithms: choices without replacement, by popularity.
        scores = np.log(popularity + 1e-12) + rng.gumbel(size=(tokens, experts))
        touched = np.zeros(experts)
        touched[np.argpartition(-scores, chosen - 1, axis=1)[:, :chosen].ravel()] = 1.0
        largest.append(touched.reshape(parts, -1).mean(axis=1).max())
    return float(np.mean(largest))


@pytest.mark.parametrize(("experts", "parts", "chosen"), [(128, 8, 8), (16, 8, 1), (16, 4, 1), (256, 8, 8), (8, 2, 2)])
@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_the_busiest_device_touches_as_many_experts_as_in_draws(experts, parts, chosen, tokens):
    touched = experts_touched(np.log1p(-chosen / experts), float(tokens), 0.5)
    found = busiest_touched(touched, float(tokens), *busiest([Placed(experts, parts, 0)]))
    assert found == pytest.approx(drawn_touched(experts, parts, chosen, 0.5, tokens), rel=0.08)


def test_one_device_reads_what_the_batch_touches():
    touched = np.linspace(0.0, 1.0, 11)
    np.testing.assert_array_equal(busiest_touched(touched, 7.0, *busiest([None])), touched)
    assert busiest([Placed(64, 8, 0), None]) == busiest([Placed(64, 8, 0)])


def test_copies_of_experts_are_touched_as_experts_are():
    spread, least = busiest([Placed(64, 8, 0)])
    more, fewer = busiest([Placed(64, 8, 8)])
    assert (more, fewer) == (pytest.approx(spread * (8 / 9) ** 0.5), pytest.approx(least * 8 / 9))
