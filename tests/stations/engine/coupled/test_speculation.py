"""Drafts on replicas that run together, whose routers count the tokens that are accepted."""

from __future__ import annotations

import numpy as np
import pytest

from tests.stations.engine.any_order.build import Kind
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.coupled.build import in_lockstep, random_cases, run_engine, run_reference

CASES = 150


KINDS = {
    "routers": (Kind(windowed=True, speculating=True), False),
    "frontend": (Kind(speculating=True), True),
    "lockstep": (Kind(experts=True, speculating=True), False),
}


@pytest.mark.parametrize("what", KINDS)
def test_equal_to_the_reference(what):
    kind, frontend = KINDS[what]
    cases = random_cases(kind, CASES, frontend)
    cases = list(map(in_lockstep, cases)) if what == "lockstep" else cases
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
