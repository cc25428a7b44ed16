"""Batches planned ahead, against the plain loop, on random replicas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.preemptive.build import Kind, random_cases, run_engine, run_reference
from tests.thorough import tried

CASES = tried(200, 0.3)
PLAIN = Kind(windowed=True, experts=True, asynchronous=True)
CACHED = replace(PLAIN, cached=True)
KINDS = {"windows and experts": PLAIN, "prefix cache": CACHED}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_equal_to_the_plain_loop(kind):
    cases = random_cases(kind, CASES)
    preemptions = 0
    for given, result in zip(cases, run_engine(cases, kind), strict=True):
        expected = run_reference(given)
        assert_same(given.case, result, expected)
        assert result.preemptions == expected.preemptions, given.case
        np.testing.assert_allclose(result.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=str(given.case))
        np.testing.assert_allclose(result.experts_touched, expected.experts_touched, rtol=TOLERANCE)
        if kind.cached:
            found = [request.hit_tokens for request in expected.requests]
            np.testing.assert_array_equal(result.hit_tokens, found, err_msg=str(given.case))
        preemptions += expected.preemptions
    assert preemptions > CASES // 3
