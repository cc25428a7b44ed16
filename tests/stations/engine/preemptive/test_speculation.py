"""Drafts where KV is taken on demand, in pipelines and with queues in any order, against the plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.preemptive.build import POLICIES, Kind, random_cases, run_engine, run_reference
from tests.thorough import tried

CASES = tried(100)
KINDS = {
    "windows and experts": Kind(windowed=True, experts=True, speculating=True),
    "two pipeline ranks": Kind(pipeline_ranks=2, speculating=True),
    "prefix cache": Kind(windowed=True, experts=True, cached=True, speculating=True),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_equal_to_the_plain_loop(kind):
    cases = random_cases(kind, CASES)
    preemptions = 0
    for given, result in zip(cases, run_engine(cases, kind), strict=True):
        expected = run_reference(given)
        assert_same(given.case, result, expected)
        assert result.preemptions == expected.preemptions, given.case
        assert (result.decoded, result.decoded_tokens) == (expected.decoded, expected.decoded_tokens), given.case
        np.testing.assert_allclose(result.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=str(given.case))
        np.testing.assert_allclose(result.experts_touched, expected.experts_touched, rtol=TOLERANCE)
        if kind.cached:
            found = [request.hit_tokens for request in expected.requests]
            np.testing.assert_array_equal(result.hit_tokens, found, err_msg=str(given.case))
        preemptions += expected.preemptions
    assert preemptions > CASES // 5
    assert {given.case.policy for given in cases} == set(POLICIES)
