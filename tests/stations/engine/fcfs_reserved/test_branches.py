"""Requests on several branches: the engine, which leaps, against the plain loop over single iterations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.reference import PoolOutcome
from evaluator.stations.engine import LaneResult
from tests.stations.engine.compare import TOLERANCE, assert_all_close, assert_same
from tests.stations.engine.fcfs_reserved.build import (
    Case,
    branched,
    build,
    constant_cost,
    random_branched,
    run_engine,
    run_reference,
)
from tests.thorough import THOROUGH, tried

CASES = tried(60, 0.5)  # of each structure
STRUCTURES = {"both": (True, True)}
if THOROUGH:  # a program of its own, whose parts the one of both has
    STRUCTURES["plain"] = (False, False)


@pytest.fixture(scope="module", params=STRUCTURES)
def pairs(request: pytest.FixtureRequest) -> list[tuple[Case, LaneResult, PoolOutcome]]:
    cases = [random_branched(seed, *STRUCTURES[request.param]) for seed in range(CASES)]
    return list(zip(cases, run_engine(cases), map(run_reference, cases), strict=True))


def test_every_time_and_total_equals_the_plain_loop(pairs):
    for case, result, expected in pairs:
        assert_same(case, result, expected)
        np.testing.assert_allclose(result.totals.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=repr(case))


def test_the_random_cases_cover_what_they_should(pairs):
    cases = [case for case, _, _ in pairs]
    assert {case.policy for case in cases} == {"static", "continuous", "chunked", "mixed"}
    assert any(case.resident for case in cases) and any(case.users is not None for case in cases)
    widths = [(case.branch_tokens > 0).sum(axis=1) for case in cases]
    assert any((width == 4).all() for width in widths) and any(len(set(width)) == 4 for width in widths)
    assert any(result.totals.kv_units_max > 0.8 * case.limits.kv_units for case, result, _ in pairs)


def test_lanes_in_step_give_the_same_numbers():
    """The program of accelerators, where all lanes advance together."""
    cases = [random_branched(seed, True, True) for seed in range(8)]
    for one, other in zip(run_engine(cases), run_engine(cases, vectorise=True), strict=True):
        assert_all_close(one, other)


def test_one_branch_is_no_branch():
    """A single branch is a request as others are, and as long as its prompt is no whole block, so is its KV."""
    for seed in range(4):
        alone = random_branched(seed, True, True, most=1)
        # With empty cells in front, as requests have in a program for more branches.
        cells = {name: np.pad(getattr(alone, name), ((0, 0), (3, 0))) for name in ("branch_tokens", "branch_units")}
        whole, plain = replace(alone, **cells), replace(alone, branch_tokens=None, branch_units=None)
        (one,), (other,) = run_engine([whole]), run_engine([plain])
        assert_all_close(one, other)


def test_branches_by_hand():
    """Iterations of a second; a prompt of four with branches of 1, 2 and 4 tokens, beside which another gets a seat."""
    case = build(constant_cost(iteration_s=1.0), "chunked", [0, 0.5, 0.5], [4, 4, 4], [4, 3, 1], max_num_seqs=3)
    case = branched(case, np.array([[1, 2, 4], [0, 1, 3], [0, 0, 1]]))
    (result,) = run_engine([case])
    # The first leaves a seat with its prompt, another a second later: then there are two for the second request.
    assert result.scheduled_s.tolist() == [0, 2, 3]
    assert result.first_token_s.tolist() == [1, 3, 4]
    assert result.last_token_s.tolist() == [4, 5, 4]
    assert result.itl_histogram.sum() == (1 + 3) + 2
