"""Numbers of a lane as cells of a few arrays: what is read is what was packed."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from evaluator.stations.engine.common.packed import MOST_CELLS, pack
from evaluator.stations.engine.common.rings import in_ring


class Inner(NamedTuple):
    rows: jax.Array
    on: jax.Array


class Outer(NamedTuple):
    costs: tuple[Inner, ...]
    inner: Inner
    number: jax.Array
    long: jax.Array
    absent: Inner | None = None


LANES = 3


def record(lane: int) -> Outer:
    def inner(first: float, cells: int) -> Inner:
        return Inner(first + lane + np.arange(cells, dtype=float), np.array(lane % 2 == 0))

    long = lane + np.arange(MOST_CELLS + 1, dtype=float)
    return Outer((inner(1.0, 2), inner(5.0, 0)), inner(9.0, 1), np.array(lane, np.int32), long)


def test_fields_are_what_was_packed():
    packed = pack(jax.tree.map(lambda *lanes: np.stack(lanes), *map(record, range(LANES))))

    def whole(lane):
        return Outer(
            tuple(lane.costs), lane.costs[0]._replace(rows=lane.inner.rows, on=lane.inner.on), lane.number, lane.long
        )

    assert packed.absent is None and len(packed.costs) == 2
    # An array for each dtype, and the long one by itself.
    assert len(jax.tree.leaves(packed)) == 4
    for each in (lambda do: lax.map(do, packed), lambda do: jax.vmap(do)(packed)):
        found = each(whole)
        for lane in range(LANES):
            expected, here = jax.tree.leaves(record(lane)), [leaf[lane] for leaf in jax.tree.leaves(found)]
            assert [(one.dtype, one.shape) for one in here] == [(one.dtype, one.shape) for one in expected]
            for one, other in zip(here, expected, strict=True):
                np.testing.assert_array_equal(one, other)


def test_of_several_pools_one_has_its_row():
    pools = jax.tree.map(lambda *rows: np.stack(rows)[None], *map(record, range(LANES)))
    packed = pack(pools._replace(number=np.array([7], np.int32)), pools=True)
    lane = jax.tree.map(lambda values: values[0], packed)
    for pool in range(LANES):
        here = lane.row(jnp.int32(pool)).replaced(inner=jnp.float64(0.5))
        np.testing.assert_array_equal(here.costs[0].rows, record(pool).costs[0].rows)
        np.testing.assert_array_equal(here.long, record(pool).long)
        assert (int(here.number), float(here.inner)) == (7, 0.5)  # the same for all, and another value of one field
    np.testing.assert_array_equal(lane.inner.rows, [[9.0], [10.0], [11.0]])


def test_a_field_that_is_not_there_is_told():
    packed = pack(Inner(np.zeros((LANES, 1)), np.zeros(LANES, bool)))
    with pytest.raises(AttributeError, match="other"):
        packed.other  # noqa: B018


def test_the_length_of_a_ring_is_a_power_of_two():
    assert [int(in_ring(jnp.int32(step), 8)) for step in (-1, 7, 8, 21)] == [7, 7, 0, 5]
    with pytest.raises(AssertionError, match="6"):
        in_ring(jnp.int32(1), 6)
