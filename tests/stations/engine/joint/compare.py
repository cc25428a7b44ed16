"""Pools on both engines, which must agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evaluator.reference import PoolOutcome
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.joint.build import Case, run_engine, run_reference
from tests.stations.engine.preemptive.build import Kind

MOST_TIES = 2


def assert_equal(cases: Sequence[Case], kind: Kind) -> list[PoolOutcome]:
    """The engine's results are the reference's, which are returned.

    Of a few cases nobody can say which of two requests a router sees first (``_ties_but_for_rounding``): left out.
    """
    outcomes = []
    for given, served in zip(cases, run_engine(cases, kind), strict=True):
        expected = run_reference(given)
        if _ties_but_for_rounding(expected):
            continue
        outcomes.append(expected)
        assert served.replica.tolist() == [request.replica for request in expected.requests], given
        assert_same(given.one.case, served, expected)
        assert served.totals.preemptions == expected.preemptions, given
        np.testing.assert_allclose(served.totals.kv_unit_s, expected.kv_unit_s, rtol=TOLERANCE, err_msg=str(given))
        np.testing.assert_allclose(served.totals.experts_touched, expected.experts_touched, rtol=TOLERANCE)
        if kind.speculating:
            assert (served.totals.decoded, served.totals.decoded_tokens) == (
                expected.decoded,
                expected.decoded_tokens,
            ), given
        if kind.cached:
            found = [request.hit_tokens for request in expected.requests]
            np.testing.assert_array_equal(served.hit_tokens, found, err_msg=str(given))
    assert len(outcomes) >= len(cases) - MOST_TIES
    return outcomes


def preemptions(outcomes: Sequence[PoolOutcome]) -> int:
    """How many there were in all."""
    return sum(outcome.preemptions for outcome in outcomes)


def _ties_but_for_rounding(outcome: PoolOutcome) -> bool:
    """Whether two requests are sent at times that differ by rounding alone: which of them a router sees first is then
    nobody's to say (two replicas that computed the same batches in another order end at the same time)."""
    gaps = np.diff(sorted(request.arrival_s for request in outcome.requests))
    return bool(((gaps > 0) & (gaps < 1e-14)).any())
