"""What decode iterations with drafts give, many at once, against one after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaluator.speculation import keys, tokens_given
from evaluator.stations.engine.common.rings import tagged_add_each, tagged_count
from evaluator.stations.engine.common.speculation import AT_ONCE, Speculation, over_gains

CHANCES = (0.8, 0.5, 0.3)
REQUESTS = 5


@pytest.mark.parametrize("left", [0, 1, 7, 300])
@pytest.mark.parametrize(("first", "lead"), [(0, 0), (3, AT_ONCE - 1)])
def test_iterations_give_what_they_give_one_after_the_other(left, first, lead):
    drawn_from = keys(1, np.arange(REQUESTS))
    speculation = Speculation(jnp.array([*CHANCES, 0.0]), jnp.float64(3), jnp.append(drawn_from, np.uint32(0)))

    def enter(gains, given):  # by iteration, of which none may come twice
        places = jnp.where(gains.tokens() > 0, gains.ahead, 2 * 300)
        return given.at[places].add(gains.tokens(), mode="drop")

    start = jnp.zeros(2 * 300, jnp.int32)
    for i in range(REQUESTS):
        run = jax.jit(lambda i: over_gains(speculation, i, jnp.int32(first), jnp.int32(left), enter, start, lead))
        iterations, given = run(jnp.int32(i))
        each = tokens_given(CHANCES, drawn_from[i], first + left + 1)[first:]
        before = np.cumsum(each) - each
        expected = np.minimum(each, left - before)[before < left]
        assert int(iterations) == len(expected)
        np.testing.assert_array_equal(np.asarray(given)[: len(expected)], expected)
        assert int(given.sum()) == left


def test_steps_without_tokens_leave_the_counts_of_others():
    later = jnp.full(4, (70 << 32) | 5, jnp.int64)  # of step 70, which has the cell of step 6, too
    counts = tagged_add_each(later, jnp.int32(1), jnp.int32(5), jnp.array([2, 0, 1], jnp.int64))
    assert [float(tagged_count(counts, cell, jnp.int32(step))) for cell, step in ((1, 5), (2, 6), (2, 70), (3, 7))] == [
        2.0, 0.0, 5.0, 1.0
    ]  # fmt: skip
