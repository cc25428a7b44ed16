"""Collectives against the formulas worked by hand."""

import pytest

from evaluator.cost import Parallel, fold, operators
from evaluator.cost.collectives import (
    collective_terms,
    direct_all_gather,
    direct_all_reduce,
    halving_all_reduce,
    level_sizes,
)
from evaluator.cost.kernel import Operator
from evaluator.cost.precision import Precision
from tests.cost.fixtures import H100, LLAMA_70B, PERFECT

REACH = (8, None)


def test_flat_algorithms():
    assert direct_all_reduce(8) == (2, 1.75)
    assert halving_all_reduce(8) == (6, 1.75)
    assert direct_all_gather(8) == (1, 0.875)
    for algorithm in (direct_all_reduce, halving_all_reduce, direct_all_gather):
        assert algorithm(1) == (0, 0)


@pytest.mark.parametrize(
    ("ranks", "reach", "expected"),
    [
        (range(4), (8, None), (4, 1)),
        (range(8), (8, None), (8, 1)),
        (range(16), (8, None), (8, 2)),
        (range(64), (8, 32, None), (8, 4, 2)),
        (range(16), (8,), (16,)),
    ],
)
def test_level_sizes(ranks, reach, expected):
    assert level_sizes(ranks, reach) == expected


def test_all_reduce_across_two_nodes():
    """Inside 7/8 twice; across, an eighth of the message at 2 x 1/2, in 2 steps."""
    terms = collective_terms("all_reduce", range(16), REACH)
    assert terms.steps == (2, 2)
    assert terms.share == (1.75, 1.0 / 8)


def test_all_gather_moves_what_is_missing():
    terms = collective_terms("all_gather", range(16), REACH)
    assert terms.share == (7 / 8, 1 / 16)
    assert sum(terms.share) == 15 / 16


def test_all_to_all_sends_every_peer_its_part():
    assert collective_terms("all_to_all", range(16), REACH).share == (7 / 16, 8 / 16)


@pytest.mark.parametrize(("first", "second", "level"), [(0, 4, 0), (4, 8, 1), (0, 8, 1), (8, 12, 0)])
def test_p2p_takes_the_nearest_link_that_joins_both(first, second, level):
    terms = collective_terms("p2p", range(first, second + 1, second - first), REACH)
    assert terms.steps[level] == terms.share[level] == 1
    assert sum(terms.steps) == 1


def test_all_reduce_time_by_hand():
    """1 MB per token over 8 devices: 2 us + 1.75 MB / 450 GB/s."""
    operator = Operator("x", "all_reduce", "linear_tokens", message_bytes=1e6, collective="all_reduce", ranks=range(8))
    parameters = fold((operator,), H100, PERFECT)
    assert parameters.iteration_s == pytest.approx(2e-6, rel=1e-12)
    assert parameters.token_s == pytest.approx(1.75e6 / 450e9, rel=1e-12)
    wide = fold((Operator(**(vars(operator) | {"ranks": range(16)})),), H100, PERFECT)
    assert wide.iteration_s == pytest.approx(2e-6 + 2 * 5e-6, rel=1e-12)
    assert wide.token_s == pytest.approx(1.75e6 / 450e9 + 0.125e6 / 50e9, rel=1e-12)


def test_pipeline_crosses_nodes_only_where_it_must():
    inside = fold(operators(LLAMA_70B, Precision(), Parallel(4, 2)), H100, PERFECT)
    across = fold(operators(LLAMA_70B, Precision(), Parallel(8, 2)), H100, PERFECT)
    none = fold(operators(LLAMA_70B, Precision(), Parallel(8, 1)), H100, PERFECT)
    # One hop of 5 us and the gathering of the slices, 1 us.
    assert across.iteration_s - none.iteration_s == pytest.approx(6e-6, rel=1e-9)
    four = fold(operators(LLAMA_70B, Precision(), Parallel(4, 1)), H100, PERFECT)
    assert inside.iteration_s - four.iteration_s == pytest.approx(2e-6, rel=1e-9)


def test_a_mesh_gives_a_group_its_own_wires_only():
    """Two of eight devices that are joined pairwise share one wire of seven; all eight use all of them."""
    switch, mesh = (collective_terms("all_reduce", range(2), (8, None), mesh) for mesh in ((), (True, False)))
    assert mesh.steps == switch.steps and mesh.share[0] == 7 * switch.share[0]
    whole = [collective_terms("all_reduce", range(8), (8, None), mesh) for mesh in ((), (True, False))]
    assert whole[0] == whole[1]
    assert collective_terms("all_gather", range(4), (8,), (True,)).share[0] == pytest.approx(0.75 * 7 / 3)
    assert collective_terms("p2p", range(0, 2), (8,), (True,)).share[0] == 7.0
    assert (
        collective_terms("all_reduce", range(16), (8, None), (True, False)).share
        == collective_terms("all_reduce", range(16), (8, None)).share
    )
