"""Drafts on replicas that run together, whose routers count the tokens that are accepted; some are in lockstep."""

from __future__ import annotations

from tests.stations.engine.joint.build import mostly_in_lockstep, random_cases
from tests.stations.engine.joint.compare import assert_equal, preemptions
from tests.stations.engine.preemptive.build import Kind
from tests.thorough import tried

SPECULATING = Kind(windowed=True, experts=True, speculating=True)
CASES = tried(240, 0.2)


def test_equal_to_the_reference():
    cases = mostly_in_lockstep(random_cases(SPECULATING, CASES, frontend=True))
    assert {(given.ranks > 1, any(given.frontend)) for given in cases} == {(a, b) for a in (0, 1) for b in (0, 1)}
    assert preemptions(assert_equal(cases, SPECULATING)) > CASES // 8
