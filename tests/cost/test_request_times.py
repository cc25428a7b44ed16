"""Requests at the cost of iterations, and times read from a table."""

import numpy as np
import pytest

from evaluator.cost.batch import decode_batch, prefill_batch
from evaluator.cost.iteration import iteration_time
from evaluator.cost.request_times import IterationTimes, PromptBatch, tabulate
from tests.reference.build import random_cost

COST = random_cost(np.random.default_rng(1), experts=True, windowed=False)
TIMES = IterationTimes(COST)


def test_a_batch_of_prompts_is_one_iteration():
    batch = PromptBatch(3.0, 3 * 500.0, 500.0, 3 * 0.5 * 500.0 * 501.0)
    assert TIMES.prompts_s(batch) == pytest.approx(iteration_time(COST, prefill_batch(3.0, 500.0, None)), rel=1e-14)


@pytest.mark.parametrize("output", [1.0, 2.0, 40.0])
def test_a_decode_is_the_sum_of_its_iterations(output):
    steps = np.arange(1.0, output)
    expected = iteration_time(COST, decode_batch(np.full_like(steps, 5.0), 300.0 + steps, None)).sum()
    assert TIMES.decodes_s(5.0, 300.0, output) == pytest.approx(expected, rel=1e-12)


def test_a_table_holds_what_was_tabulated():
    table = tabulate(TIMES, 300.0, 40.0, 6)
    for size in range(1, 7):
        batch = PromptBatch(float(size), size * 300.0, 300.0, size * 0.5 * 300.0 * 301.0)
        assert table.prompts_s(batch) == pytest.approx(TIMES.prompts_s(batch), rel=1e-14)
        assert table.decodes_s(float(size), 300.0, 40.0) == pytest.approx(TIMES.decodes_s(size, 300.0, 40.0), rel=1e-14)
    np.testing.assert_array_equal(table.decodes_s(np.array([2.0, 5.0]), 300.0, 40.0), table.decodes[[1, 4]])
