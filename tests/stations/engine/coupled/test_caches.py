"""Prefix caches of replicas that run together, and the router that knows them, against the reference."""

from __future__ import annotations

from collections import Counter

import numpy as np

from evaluator.routing import PrefixAware, name_of
from tests.stations.engine.any_order.build import Kind
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.coupled.build import random_cases, run_engine, run_reference

CACHED = Kind(cached=True)
CASES = 80


def test_equal_to_the_reference():
    cases = random_cases(CACHED, CASES)
    assert Counter(name_of(given.router) for given in cases if given.replicas > 1)[PrefixAware().router] > 20
    preemptions = hits = 0
    for given, (served, replica) in zip(cases, run_engine(cases, CACHED), strict=True):
        expected = run_reference(given)
        assert replica.tolist() == [request.replica for request in expected.requests], given
        assert_same(given.one.case, served, expected)
        found = [request.hit_tokens for request in expected.requests]
        np.testing.assert_array_equal(served.hit_tokens, found, err_msg=str(given))
        assert served.preemptions == expected.preemptions, given
        np.testing.assert_allclose(served.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=str(given))
        preemptions, hits = preemptions + expected.preemptions, hits + sum(hit > 0 for hit in found)
    assert preemptions > 20 and hits > 200
