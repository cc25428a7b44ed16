"""The load of the slowest of the devices that hold whole experts, against draws of their popularity."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.cost.imbalance import slowest_share
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
