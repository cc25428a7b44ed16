"""The event loops copy no array of all requests, which would make a run's time grow by the square of its length."""

import jax
import jax.numpy as jnp
import pytest

from tests.benchmarks.loop_copies import CASES, copies_of_case
from tests.stations.engine.copies import copied_on_a_trip, loops_in_pieces
from tests.thorough import THOROUGH

CELLS = 1000


def _loops(body):
    """The text of an optimised program: a loop over lanes around a loop with this body."""

    def lane(start):
        return jax.lax.while_loop(lambda carry: carry[0] < 9, body, (0, start, 0.0))[2]

    return jax.jit(lambda starts: jax.lax.map(lane, starts)).lower(jnp.zeros((3, CELLS))).compile().as_text()


def test_a_read_behind_a_write_is_a_copy():
    def reads_the_old(carry):
        i, cells, total = carry
        written = cells.at[i].set(total)
        return i + 1, written, total + jnp.dot(cells, written)

    def reads_the_new(carry):
        i, cells, total = carry
        written = cells.at[i].set(total)
        return i + 1, written, total + written.sum()

    copies = copied_on_a_trip(_loops(reads_the_old), CELLS)
    assert copies and all(copy.startswith(f"f64[{CELLS}] in ") for copy in copies)
    assert not copied_on_a_trip(_loops(reads_the_old), CELLS + 1)
    assert not copied_on_a_trip(_loops(reads_the_new), CELLS)


def test_a_sort_leaves_a_loop_in_pieces():
    def sorts(carry):
        i, cells, total = carry
        return i + 1, jnp.sort(cells), total + cells[0]

    def takes_the_least(carry):
        i, cells, total = carry
        return i + 1, cells.at[cells.argmin()].set(jnp.inf), total + cells[0]

    assert loops_in_pieces(_loops(sorts))
    assert not loops_in_pieces(_loops(takes_the_least))


@pytest.mark.skipif(
    not THOROUGH, reason="programs of their own; joint/test_caches.py looks at one that is compiled anyway"
)
@pytest.mark.parametrize("label", CASES)
def test_event_loops_copy_no_array_of_all_requests(label):
    assert not copies_of_case(CASES[label])
