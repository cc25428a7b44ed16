"""Arrays of a record as columns of one array for each dtype: what is read is what was written, and nothing else is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from evaluator.device import configure
from evaluator.stations.engine.common.arrays import Array
from evaluator.stations.engine.common.columns import Columns
from evaluator.stations.engine.common.rings import read, read_each, write


class Table(Columns):
    """Two columns of one dtype, one of another, and one that may be absent."""

    number: Array
    place: Array
    time_s: Array
    absent: Array


def table() -> Table:
    configure()
    numbers = jnp.arange(4, dtype=jnp.int32)
    return Table(number=numbers, place=10 + numbers, time_s=0.5 * numbers, absent=None)


def columns_of(of: Table) -> list[list[float]]:
    return [np.asarray(column[:]).tolist() for column in (of.number, of.place, of.time_s)]


def test_columns_share_an_array_for_each_dtype():
    given = table()
    assert [leaf.shape for leaf in jax.tree.leaves(given)] == [(4,), (8,)]  # float64, int32
    assert given.absent is None and given.place.shape == (4,) and given.time_s.dtype == np.float64
    assert columns_of(given) == [[0, 1, 2, 3], [10, 11, 12, 13], [0.0, 0.5, 1.0, 1.5]]


def test_several_columns_are_written_at_once_and_the_others_stay():
    given = table()
    number = write(write(given.number, 0, 7), 3, 8)  # the later of two writes counts
    after = given._replace(number=write(number, 0, 9), time_s=write(given.time_s, 1, 2))
    after = after._replace(place=write(after.place, 2, read(after.number, 3)), absent=None)
    assert columns_of(after) == [[9, 1, 2, 8], [10, 11, 8, 13], [0.0, 2.0, 1.0, 1.5]]
    assert columns_of(given)[0] == [0, 1, 2, 3]


def test_a_loop_carries_the_record_or_one_of_its_columns():
    def double(i: Array, of: Table) -> Table:
        number, place = read_each(i, of.number, of.place)
        return of._replace(number=write(of.number, i, 2 * number), place=write(of.place, i, place + number))

    def negate(i: Array, column: Array) -> Array:
        return write(column, i, -read(column, i))

    @jax.jit
    def run(given: Table) -> Table:
        given = lax.fori_loop(0, 4, double, given)
        return given._replace(number=lax.fori_loop(0, 2, negate, given.number))

    assert columns_of(run(table())) == [[0, -2, 4, 6], [10, 12, 14, 16], [0.0, 0.5, 1.0, 1.5]]


def test_what_would_be_lost_or_is_not_written_yet_is_refused():
    given = table()
    with pytest.raises(AssertionError, match="read before its record has taken"):
        read(write(given.number, 0, 1), 0)
    after = given._replace(number=write(given.number, 0, 1))
    with pytest.raises(AssertionError, match="its record has no longer"):
        after._replace(place=write(given.place, 0, 1))  # of a record without the first write
    with pytest.raises(AssertionError, match="absent"):
        given._replace(absent=given.number)
