"""Requests over the replicas of several pools: their shares, their models and groups, and the same turn by turn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.reference import Request
from evaluator.reference.routing import PhaseRouter
from evaluator.routing import stream
from evaluator.routing.phases import Asking, PhaseReplicas, assign_in_phase, drawn_by, turns

WEIGHTS = st.lists(st.sampled_from([0.25, 0.5, 1.0, 1 / 3, 3.0, 50.0]), min_size=1, max_size=9).map(tuple)


def test_equal_weights_take_turns():
    assert turns((2.0, 2.0, 2.0), 7).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_by_hand():
    """Turns are due at 1/4, 3/4, 5/4, ... of the first and at 1/2, 3/2, ... of the second."""
    assert turns((2.0, 1.0), 6).tolist() == [0, 1, 0, 0, 1, 0]


@given(WEIGHTS, st.integers(0, 300))
def test_turns_come_by_weight_as_evenly_as_they_can(weights, count):
    found = turns(weights, count)
    assert len(found) == count
    share = np.array(weights) / sum(weights)
    for so_far in range(0, count + 1, 7):
        counts = np.bincount(found[:so_far], minlength=len(weights))
        assert (abs(counts - so_far * share) <= 1 + len(weights) * share / 2 + 1e-9).all()


def test_draws_come_by_weight():
    weights = (1.0, 3.0, 0.5)
    drawn = stream(0).random(100_000)
    counts = np.bincount(drawn_by(weights, drawn), minlength=3) / len(drawn)
    assert counts == pytest.approx(np.array(weights) / sum(weights), abs=0.005)


def random_side(rng: np.random.Generator) -> PhaseReplicas:
    """Replicas of two models in two groups, each kind of them at least once."""
    kinds = [(model, group) for model in (0, 1) for group in (0, 1)] + rng.integers(0, 2, (5, 2)).tolist()
    model, group = zip(*kinds, strict=True)
    return PhaseReplicas((0,) * len(kinds), model, group, tuple(rng.choice([1.0, 0.5, 4.0], len(kinds)).tolist()))


@pytest.mark.parametrize("router", ["round_robin", "random", "session"])
@pytest.mark.parametrize("grouped", [True, False])
def test_one_after_the_other_or_all_at_once(router, grouped):
    rng = np.random.default_rng(0)
    phase, count = random_side(rng), 400
    model, group, order = rng.integers(0, 2, count), rng.integers(0, 2, count), rng.permutation(count)
    asking = Asking(order, model[order], group[order] if grouped else None, order // 3)
    found = assign_in_phase(phase, router, stream(3, 1), asking)
    assert (np.array(phase.model)[found] == model[order]).all()
    assert not grouped or (phase.groups[found] == group[order]).all()
    in_turn = PhaseRouter(phase, router, list(range(len(phase))), model.tolist(), stream(3, 1))
    asked = [Request(int(index), 0.0, 1, 1, 1, 1, session=int(index) // 3) for index in order]
    one_by_one = [in_turn(request, 0.0, int(group[request.index]) if grouped else None) for request in asked]
    assert one_by_one == found.tolist()


def test_random_choices_do_not_depend_on_who_comes_first():
    phase = random_side(np.random.default_rng(1))
    ids = np.arange(50)
    model = ids % 2
    forwards, backwards = (
        assign_in_phase(phase, "random", stream(0), Asking(order, model[order], None)) for order in (ids, ids[::-1])
    )
    np.testing.assert_array_equal(forwards, backwards[::-1])
