"""Costs of several forms in one place: what is told is what the one that counts tells."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.cost.dispatched import Dispatched
from evaluator.cost.iteration import BatchStatistics, alike_steps, decode_growth, iteration_time, share_touched
from evaluator.cost.lockstep import graph_tokens, rank_cost, time_alone
from evaluator.cost.one_of import OneOf
from evaluator.cost.quantities import batch_tokens, holds_everywhere
from tests.reference.build import random_cost
from tests.stations.engine.test_fitted_costs import random_polynomial

BATCHES = (
    BatchStatistics(12.0, 9000.0, 7000.0, *(0.0,) * 6),
    BatchStatistics(3.0, 500.0, 400.0, 900.0, 2.0, 400_000.0, 300_000.0, 1000.0, 900.0),
)


def forms() -> tuple:
    rng = np.random.default_rng(0)
    dense, experts = (random_cost(rng, experts=experts, windowed=True) for experts in (False, True))
    return dense, experts, Dispatched(dense, np.float64(0.01)), random_polynomial(rng)


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("batch", BATCHES)
def test_the_one_that_counts(which, batch):
    each = forms()
    cost, chosen = OneOf(each, np.int32(which)), each[which]
    assert iteration_time(cost, batch) == iteration_time(chosen, batch)
    assert decode_growth(cost, batch, 5.0) == decode_growth(chosen, batch, 5.0)
    assert alike_steps(cost, batch) == alike_steps(chosen, batch)
    tokens = batch_tokens(cost, batch)
    assert tokens == batch_tokens(chosen, batch)
    np.testing.assert_allclose(share_touched(cost, tokens), share_touched(chosen, tokens), rtol=1e-12)


@pytest.mark.parametrize("which", range(3))
def test_ranks_in_lockstep_beside_a_fit(which):
    """A fit to whole iterations has no time without experts; it is never asked, because such a pool has no ranks."""
    cost, chosen = (rank_cost(one) for one in (OneOf(forms(), np.int32(which)), forms()[which]))
    assert graph_tokens(cost) == graph_tokens(chosen)
    for batch in BATCHES:
        assert time_alone(cost, batch) == time_alone(chosen, batch)


def test_it_holds_everywhere_where_all_of_them_do():
    rooflines = OneOf(forms()[:2], np.int32(0))
    assert holds_everywhere(rooflines) and not holds_everywhere(OneOf(forms(), np.int32(0)))
