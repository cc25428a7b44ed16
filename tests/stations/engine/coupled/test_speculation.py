"""Drafts on replicas that run together, whose routers count the tokens that are accepted."""

from __future__ import annotations

import numpy as np
import pytest

from tests.stations.engine.any_order.build import Kind
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.coupled.build import random_cases, run_engine, run_reference

CASES = 150


@pytest.mark.parametrize("frontend", [False, True], ids=["routers", "frontend"])
def test_equal_to_the_reference(frontend):
    kind = Kind(windowed=True, speculating=True) if not frontend else Kind(speculating=True)
    cases = random_cases(kind, CASES, frontend)
    preemptions = 0
    for given, (served, replica) in zip(cases, run_engine(cases, kind), strict=True):
        expected = run_reference(given)
        assert replica.tolist() == [request.replica for request in expected.requests], given
        assert_same(given.one.case, served, expected)
        assert served.preemptions == expected.preemptions, given
        assert (served.decoded, served.decoded_tokens) == (expected.decoded, expected.decoded_tokens), given
        np.testing.assert_allclose(served.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=str(given))
        preemptions += expected.preemptions
    assert preemptions > 20
