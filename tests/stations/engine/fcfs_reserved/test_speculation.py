"""Drafts in the engine, which walks through a request's iterations when it joins, against the plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.reference import PoolOutcome
from evaluator.stations.engine import LaneResult
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.fcfs_reserved.build import POLICIES, Case, random_speculating, run_engine, run_reference
from tests.thorough import THOROUGH, tried

CASES = tried(120, 0.75)
STRUCTURES = {"both": (True, True)}
if THOROUGH:  # a program of its own, whose parts the one of both has
    STRUCTURES["plain"] = (False, False)


@pytest.fixture(scope="module", params=STRUCTURES)
def pairs(request: pytest.FixtureRequest) -> list[tuple[Case, LaneResult, PoolOutcome]]:
    """Random cases of one structure with what the engine and the plain loop make of them."""
    cases = [random_speculating(seed, *STRUCTURES[request.param]) for seed in range(CASES)]
    return list(zip(cases, run_engine(cases), map(run_reference, cases), strict=True))


def test_every_time_and_total_equals_the_plain_loop(pairs):
    for case, result, expected in pairs:
        assert_same(case, result, expected)


def test_tokens_and_iterations_of_decodes_equal_those_of_the_plain_loop(pairs):
    for case, result, expected in pairs:
        assert result.totals.decoded == expected.decoded, case
        assert result.totals.decoded_tokens == expected.decoded_tokens, case
        np.testing.assert_allclose(result.totals.experts_touched, expected.experts_touched, rtol=TOLERANCE)


def test_the_random_cases_cover_what_they_should(pairs):
    cases = [case for case, _, _ in pairs]
    for policy in POLICIES:
        for resident in (False, True):
            assert any((case.policy, case.resident) == (policy, resident) for case in cases), (policy, resident)
    assert {len(case.chances) for case in cases} == {1, 2, 3, 4}
    assert any(case.users is not None for case in cases)
    assert sum(case.limits.kv_units < 2 * case.kv_units.max() for case in cases) >= 5
    assert any(expected.decoded_tokens > 3 * expected.decoded > 0 for _, _, expected in pairs)
    assert any(expected.decoded_tokens == expected.decoded > 0 for _, _, expected in pairs)
