"""Preemption by swapping to host memory, against the plain loop, on random replicas."""

from __future__ import annotations

import pytest

from tests.stations.engine.preemptive.build import Kind, assert_equal_to_the_plain_loop, random_cases, run_engine
from tests.thorough import THOROUGH, tried

CASES = tried(200, 0.3)
KINDS = {"all policies, windows, experts": Kind(windowed=True, experts=True, peaks=True, swapping=True)}
if THOROUGH:
    KINDS["KV by blocks"] = Kind(swapping=True, blocks=True)
    KINDS["two pipeline ranks"] = Kind(windowed=True, pipeline_ranks=2, swapping=True)


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_equal_to_the_plain_loop(kind):
    cases = random_cases(kind, CASES)
    preemptions = swapping = 0
    for given, result in zip(cases, run_engine(cases, kind), strict=True):
        expected = assert_equal_to_the_plain_loop(given, result, kind)
        preemptions += expected.preemptions
        swapping += expected.preemptions > 0 and given.case.limits.preemption == "swap"
    assert preemptions > CASES // 3 and swapping > CASES // 16
