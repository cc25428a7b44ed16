"""The cost of a batch on plain floats, and its statistics."""

import numpy as np

from evaluator.cost.iteration import BatchStatistics, iteration_time
from evaluator.reference.pipeline import plain
from tests.reference.build import random_cost


def test_plain_floats_cost_the_same_as_arrays():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        cost = random_cost(rng, experts=seed % 2 == 0, windowed=seed % 3 == 0)
        batch = BatchStatistics(*rng.integers(0, 5000, 9).astype(float).tolist())
        time = iteration_time(plain(cost), batch)
        assert type(time) is float
        np.testing.assert_allclose(time, iteration_time(cost, batch), rtol=1e-14)
